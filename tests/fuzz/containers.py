"""GPU code by itself: fatbins, bundles, and files of either, of a cubin, of PTX, of a code object.

Seeds are what nvcc made (`tests/samples`), and bundles as clang's; what comes out is held against `gpu_entries`.
"""

import itertools
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import zstandard

from tests.factories.bundles import bundle, compressed
from tests.factories.fatbins import cubin, entry, fatbin
from tests.fuzz.gpu_entries import BUNDLE, CCOB, FATBIN, Entry, check_aligned, check_kept, entries_of, halves, is_needed
from tests.fuzz.target import Target
from vbuild.binary.edits import Strip
from vbuild.elf.image import ElfImage
from vbuild.errors import VbuildError
from vbuild.files.edited import EditedFile
from vbuild.gpu_code.bundle import BUNDLES, BundleMethod
from vbuild.gpu_code.fatbin import FATBINS, FatbinFlag, FatbinKind, decompressed, recompressed
from vbuild.gpu_code.model import ContainerForm, verbatim
from vbuild.hardware.gpu import GpuList
from vbuild.slimming.device_files import examine_file
from vbuild.slimming.library import LibraryPlan
from vbuild.slimming.request import Cuts, Share

SAMPLES = Path(__file__).parents[1] / "samples" / "fatbins"
SHARE = Share(GpuList.asked("90,gfx90a:xnack+"))
ORDERS = (
    Cuts(strip=Strip.UNNEEDED),
    Cuts(strip=Strip.DEBUG),
    Cuts(zstd=True, unsupported=True, force=True),
)
_FLAGS = (0, FatbinFlag.LZ4, FatbinFlag.ZSTD)
_FILES = (
    "demo/k.cubin",
    "demo/k.ptx",
    "demo/k_gfx90a.co",
    "demo/k.cubin.zst",
    "demo/k.ptx.zst",
    "demo/k.fatbin",
    "demo/k.hsaco.zst",
)
# of gfx90a, with xnack in any mode
_CODE_OBJECT = b"\x7fELF\x02\x01\x01\x40\x03".ljust(18, b"\0") + struct.pack("<H28xI12x", 224, 0x53F)
_ROOMS = ("vbuild.gpu_code", "vbuild.slimming", "vbuild.files")


def _read_device(form: ContainerForm, data: bytes) -> None:
    """*data* as a container: another reader finds as many entries, and half of them in what is written of half."""
    view = memoryview(data)
    span = form.extent(view, range(len(data)))
    reading = form.read(view, span)
    whole = data[span.start : span.stop]
    for each in reading.entries:
        with suppress(VbuildError):
            plain = decompressed(view, each)
            with suppress(VbuildError):
                part = recompressed(view, each)
                if form is FATBINS and not isinstance(part, range):
                    old, new = Entry("2-90", whole[each.span.start - span.start :]), Entry("2-90", part)
                    assert new.code == plain, "another code after it was compressed"
                    assert new.told == old.told, "another header after it was compressed"
                    assert not len(part) % 8, "an entry that the next one cannot follow"
    if reading.why_pinned is None:
        with suppress(VbuildError):
            # to list entries the beginning of a compressed bundle is enough, to write some of them all of it is read
            parts = (reading.packing or form.packing)(reading.entries[::2], verbatim)
            entries = entries_of(whole)
            assert len(entries) == len(reading.entries), "another number of entries"
            after = bytes(EditedFile.of(view, parts))
            assert entries_of(after) == halves(entries), "another entry in what was written"
            if after.startswith(BUNDLE):
                check_aligned(after)


def _read_fatbin(data: bytes) -> None:
    _read_device(FATBINS, data)


def _read_bundle(data: bytes) -> None:
    _read_device(BUNDLES, data)


def _device_file(data: bytes) -> None:
    """All but the first byte of *data* as a file of GPU code alone; the first says how it is called."""
    name, data = _FILES[data[0] % len(_FILES)] if data else _FILES[0], data[1:]
    for cuts in ORDERS:
        with suppress(VbuildError):
            bytes(_examined(name, data, cuts).files[0])
    plan = _examined(name, data, Cuts())
    (cut,) = plan.cuts
    if plan.gone:
        assert not cut.why_whole, "a file goes that nobody can read"
        assert not any(map(is_needed, entries_of(data))), "a file goes that a GPU could run"
    elif data.startswith((FATBIN, BUNDLE, CCOB)):
        after = data if plan.files[0].is_unchanged else bytes(plan.files[0])
        assert not cut.why_whole or after == data, "what cannot be read is another file now"
        if after != data:
            check_kept(entries_of(data), entries_of(after))
    else:
        assert plan.files[0].is_unchanged, "a file is another one now"


def _examined(name: str, data: bytes, cuts: Cuts) -> LibraryPlan:
    return examine_file(name, memoryview(data), (SHARE,), cuts)


def fatbins() -> Iterator[bytes]:
    """Those of the samples, and one with an entry of each kind and compression."""
    for sample in sorted(SAMPLES.glob("*.so")):
        image = ElfImage.parse(sample.read_bytes())
        for section in image.sections:
            if section.name in FATBINS.sections and section.span:
                yield bytes(image.view(section.span))
    yield fatbin(*(entry(kind, 80, flags=flags) for kind in (FatbinKind.CUBIN, FatbinKind.PTX) for flags in _FLAGS))


def bundles() -> Iterator[bytes]:
    """One plain bundle, and it compressed in every way."""
    targets = ("gfx90a:xnack+", "gfx942", "gfx11-generic")
    codes = {f"hipv4-amdgcn-amd-amdhsa--{target}": cubin(90) for target in targets}
    plain = bundle({"host-x86_64-unknown-linux--": b"", **codes})
    yield plain
    yield from (compressed(plain, version=version) for version in (1, 2, 3))
    yield compressed(plain, method=BundleMethod.ZLIB)


def _bundles() -> Iterator[bytes]:
    """Those, and one with two entries of one id."""
    yield from bundles()
    ids = [f"hipv4-amdgcn-amd-amdhsa--gfx{number}" for number in (942, 908)]
    plain = bundle({"host-x86_64-unknown-linux--": b"", ids[0]: cubin(90), ids[1]: cubin(90) * 2})
    yield compressed(plain.replace(ids[1].encode(), ids[0].encode()))


def _device_files() -> Iterator[bytes]:
    code_object, ptx = _CODE_OBJECT, b".version 8.0\n.target sm_90a\n.address_size 64\n"
    for name, data in (
        *((0, cubin(arch)) for arch in (80, 90, 100)),
        (1, ptx),
        *((2, each) for each in (code_object, *bundles())),
        (3, zstandard.compress(cubin(90))),
        (4, zstandard.compress(ptx)),
        *((5, each) for each in itertools.islice(fatbins(), 4)),
        (5, fatbin(entry(arch=80), entry(FatbinKind.PTX, 80), entry(arch=90))),
        (6, zstandard.compress(next(iter(bundles())))),
    ):
        yield bytes([name]) + data


TARGETS = (
    Target("fatbin", _read_fatbin, fatbins, (FATBIN, b"\x28\xb5\x2f\xfd", b"\x02\0\x01\x01"), rooms=_ROOMS),
    Target("bundle", _read_bundle, _bundles, (BUNDLE, CCOB, b"hipv4-", b"host-"), rooms=_ROOMS),
    Target("device-file", _device_file, _device_files, (FATBIN, BUNDLE, CCOB, b"-gfx90a", b"sm_90"), rooms=_ROOMS),
)
