"""What holds for every fat library and every list of GPUs, and for every damage done to a library.

Libraries are linked by gcc or lld, and judged by `tests.factories.loaded_pointers`, which shares no code with vbuild.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.loaded_pointers import LoadedPointers, load
from vbuild.binary.edits import Strip
from vbuild.elf.image import ElfImage
from vbuild.errors import BinaryError, RepackageError
from vbuild.gpu_code import fatbin as fatbins
from vbuild.gpu_code.fatbin import FatbinFlag, FatbinKind, decompressed
from vbuild.gpu_code.model import GpuEntry
from vbuild.gpu_code.survey import device_code
from vbuild.hardware.architectures import Arch
from vbuild.hardware.gpu import GpuList, GpuRequest, Ptx, Service, service
from vbuild.inspection.gpu_code import GpuCode, devices
from vbuild.slimming.library import GpuLibrary
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import LibraryCut

ARCHS = (52, 75, 80, 86, 87, 90, 100, 103, 120)
SAMPLES = sorted((Path(__file__).parents[1] / "samples" / "fatbins").glob("*.so"))
LINKED = [
    (),
    ("-Wl,-z,pack-relative-relocs",),
    ("-Wl,-z,noseparate-code",),
    ("-s",),
    *([("-fuse-ld=lld",)] if shutil.which("ld.lld") else []),
]


class Fat:
    """A library, in a few words and in bytes, with the architectures that its code is for."""

    def __init__(self, what: str, data: bytes, archs: tuple[int, ...] = ()) -> None:
        self.what, self.data, self.archs = what, data, archs

    def __repr__(self) -> str:
        return f"<{self.what}>"


def code(size: int) -> bytes:
    """Bytes that compress, but not to nothing."""
    return b"".join(number.to_bytes(2, "little") for number in range(size // 2))


entries = st.builds(
    lambda kind, arch, size, flags: entry(
        kind, arch, code=cubin(arch)[:64] + code(size) if kind == FatbinKind.CUBIN else code(size), flags=flags
    ),
    st.sampled_from(
        [
            FatbinKind.CUBIN,
            FatbinKind.CUBIN,
            FatbinKind.CUBIN,
            FatbinKind.PTX,
            FatbinKind.LTO_IR,
            FatbinKind.MERCURY,
            0x200,
        ]
    ),
    st.sampled_from(ARCHS),
    st.sampled_from([8, 200, 3000, 9000]),
    st.sampled_from(
        [
            0,
            0,
            FatbinFlag.LZ4,
            FatbinFlag.ZSTD,
            FatbinFlag.ARCH_SPECIFIC,
            FatbinFlag.ARCH_FAMILY | FatbinFlag.LZ4,
            FatbinFlag.SECOND_CHOICE,
        ]
    ),
)
BYTE = ".byte "
RELATED = """.section __nv_relfatbin,"a"
.balign 8
related: {}
.section .nvFatBinSegment
.long 0x466243B1, 2
.quad related, 0
"""


@st.composite
def fat(draw: st.DrawFn) -> Fat:
    """A library with some fatbins, most of them with a wrapper, as one of the linkers lays it out."""
    inside = draw(st.lists(st.lists(entries, max_size=5), min_size=1, max_size=4))
    wrapped = [number for number in range(len(inside)) if draw(st.integers(0, 7))]
    more = ".text\n.globl here\n.type here, @function\nhere: ret\n"
    if draw(st.booleans()):
        inside.append(draw(st.lists(entries, max_size=3)))
        more += RELATED.format(BYTE + ",".join(map(str, fatbin(*inside[-1]))))
    flags = draw(st.sampled_from(LINKED))
    align = draw(st.sampled_from([8, 256]))
    main = [fatbin(*found) for found in (inside[:-1] if "related" in more else inside)]
    data = device_library(*main, wrapped=wrapped, align=align, more=more, flags=flags)
    archs = {one.arch.number for found in inside for one in read(found) if isinstance(one.arch, Arch)}
    what = [
        " ".join(f"{one.kind} {one.arch} {one.flags:#x} {len(one.span)}" for one in read(found)) for found in inside
    ]
    return Fat(f"{what}, wrapped {wrapped}, align {align}, {flags}", data, tuple(sorted(archs)))


def read(packed: Sequence[bytes]) -> tuple[GpuEntry, ...]:
    """The entries that *packed* are, as if in a fatbin of their own."""
    whole = fatbin(*packed)
    return fatbins.read(memoryview(whole), range(len(whole))).entries


gpus = st.lists(
    st.builds(GpuRequest, st.sampled_from(ARCHS).map(Arch), st.booleans(), st.just(value=True)),
    min_size=1,
    max_size=3,
    unique_by=str,
).map(lambda requests: GpuList(tuple(sorted(requests))))
cuts = st.builds(
    Cuts,
    ptx=st.sampled_from(Ptx),
    strip=st.sampled_from(Strip),
    force=st.booleans(),
)


def slimmed(data: bytes, share: Share, how: Cuts) -> tuple[bytes, LibraryCut]:
    rope, account = GpuLibrary.of("demo/_C.so", memoryview(data)).slimmed(share, how)
    assert (len(data), rope.size) == (account.before, account.after)
    return bytes(rope), account


def is_rest(kept: Sequence[bytes], whole: Sequence[bytes]) -> bool:
    """Whether *kept* is *whole* without some of it, in the same order."""
    rest = iter(whole)
    return all(one in rest for one in kept)


def served(packed: Sequence[bytes], device: Arch) -> Service:
    return service([one.offer for one in read(packed)], device)


@given(fat(), gpus, cuts)
def test_what_is_left_is_the_same_library_and_serves_each_gpu_as_before(fat: Fat, wanted: GpuList, how: Cuts) -> None:
    how = replace(how, unsupported=True)
    after, account = slimmed(fat.data, Share(wanted), how)
    was, now = LoadedPointers.of(fat.data), LoadedPointers.of(after)
    now.check_holds(was)
    for before, kept in zip(was.containers(), now.containers(), strict=True):
        assert before is not None
        assert kept is not None
        assert is_rest(kept, before)
        for device in wanted.devices:
            had = served(before, device)
            assert served(kept, device) == had or (how.ptx is Ptx.NONE and had is Service.JIT)
    # a table that was moved by force has room in its old place the next time
    if not how.force:
        assert slimmed(after, Share(wanted), how)[0] == after
    assert len(after) <= len(fat.data)
    assert account.kept + account.dropped == sum(
        len(container.entries) for container in device_code(ElfImage.parse(fat.data)).containers
    )


@settings(max_examples=30)
@given(fat())
def test_keeping_everything_changes_nothing(fat: Fat) -> None:
    everything = GpuList(tuple(GpuRequest(Arch(number), ptx=True) for number in fat.archs))
    for share in (Share(), Share(everything)) if fat.archs else (Share(),):
        after, account = slimmed(fat.data, share, Cuts(unsupported=True))
        assert after == fat.data
        assert account.dropped == 0


@pytest.mark.nightly
@settings(max_examples=30)
@given(fat())
def test_the_members_of_a_family_together_are_the_whole(fat: Fat) -> None:
    assume(fat.archs)
    whole = LoadedPointers.of(fat.data).containers()
    together: list[set[bytes]] = [set() for _ in whole]
    for number in fat.archs:
        after, _ = slimmed(fat.data, Share(GpuList((GpuRequest(Arch(number), ptx=True),))), Cuts(unsupported=True))
        for found, kept in zip(together, LoadedPointers.of(after).containers(), strict=True):
            found |= set(kept or ())
    assert together == [set(container or ()) for container in whole]


@pytest.mark.nightly
@settings(max_examples=30)
@given(fat(), gpus)
def test_code_that_is_compressed_again_is_the_same_code(fat: Fat, wanted: GpuList) -> None:
    plain, _ = slimmed(fat.data, Share(wanted), Cuts(unsupported=True))
    smaller, account = slimmed(fat.data, Share(wanted), Cuts(unsupported=True, zstd=True))
    assume(account.why_whole is None)
    now = LoadedPointers.of(smaller)
    now.check_holds(LoadedPointers.of(fat.data))
    for one, other in zip(LoadedPointers.of(plain).containers(), now.containers(), strict=True):
        assert inflated(other or ()) == inflated(one or ()) or len(plain) == len(fat.data)


def inflated(packed: Sequence[bytes]) -> list[tuple[str, str, bytes]]:
    whole = fatbin(*packed)
    return [(one.kind, str(one.arch), decompressed(whole, one).rstrip(b"\0")) for one in read(packed)]


@settings(max_examples=8)
@given(fat(), gpus, cuts)
def test_it_loads(fat: Fat, wanted: GpuList, how: Cuts) -> None:
    after, _ = slimmed(fat.data, Share(wanted), replace(how, unsupported=True))
    load(fat.data, after)


def larger() -> bytes:
    parts = [fatbin(*(entry(arch=arch, code=cubin(arch, 9000)) for arch in archs)) for archs in ((80, 90), (75, 90))]
    return device_library(*parts)


WHOLE = {
    **{path.name: path.read_bytes() for path in SAMPLES},
    "larger": larger(),
    "larger, packed": device_library(
        fatbin(entry(arch=80, code=cubin(80, 9000)), entry(arch=90)), flags=["-Wl,-z,pack-relative-relocs"]
    ),
}
if shutil.which("ld.lld"):
    WHOLE["larger, by lld"] = device_library(
        fatbin(entry(arch=80, code=cubin(80, 9000)), entry(arch=90)), flags=["-fuse-ld=lld"]
    )
NUMBERS = (b"\0", b"\1", b"\4", b"\x08", b"\x40", b"\x80", b"\xff", b"\xff" * 4, b"\xff" * 7 + b"\x7f", bytes(8))


def headers(data: bytes) -> list[range]:
    """The file offsets of everything in *data* that says where something is."""
    image = ElfImage.parse(data)
    header = image.header
    tables = [
        range(64),
        range(header.e_phoff, header.e_phoff + 56 * header.e_phnum),
        range(header.e_shoff, header.e_shoff + 64 * header.e_shnum),
    ]
    sections = [range(one.span.start, min(one.span.stop, one.span.start + 500)) for one in image.sections if one.span]
    found = device_code(image).containers
    heads = [range(one.span.start, one.span.start + 64) for container in found for one in container.entries]
    return [*tables, *sections, *heads, *(range(one.span.start, one.span.start + 16) for one in found)]


HEADERS = {name: headers(data) for name, data in WHOLE.items()}


@st.composite
def damaged(draw: st.DrawFn) -> Fat:
    """A library with some of its numbers changed, or with its end cut off."""
    name = draw(st.sampled_from(sorted(WHOLE)))
    data = bytearray(WHOLE[name])
    done = []
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.sampled_from(draw(st.sampled_from(HEADERS[name]))))
        at -= at % draw(st.sampled_from([1, 4, 8]))
        new = draw(st.sampled_from(NUMBERS) | st.binary(min_size=1, max_size=4))
        data[at : at + len(new)] = new
        done.append(f"{new.hex()} at {at:#x}")
    if draw(st.integers(0, 5)) == 0:
        del data[draw(st.integers(4, len(data))) :]
    return Fat(f"{name}: {', '.join(done)}, {len(data):#x} bytes", bytes(data))


@settings(max_examples=100, deadline=5000)
@given(damaged(), gpus, cuts)
def test_a_damaged_library_is_left_as_it_was_or_cut_as_a_sound_one(fat: Fat, wanted: GpuList, how: Cuts) -> None:
    data = fat.data
    try:
        after, account = slimmed(data, Share(wanted), how)
    except RepackageError:
        return
    account.data()
    if after == data:
        return
    GpuLibrary.of("demo/_C.so", memoryview(after))
    try:
        # the judge is made for sound files, and has no say about one it cannot read
        was = LoadedPointers.of(data)
        was.check_holds(was)
    except Exception:  # noqa: BLE001 - pyelftools meets damage with errors of many kinds
        return
    now = LoadedPointers.of(after)
    now.check_holds(was)
    for before, kept in zip(was.containers(), now.containers(), strict=True):
        if before is None:
            assert kept is None
        else:
            assert is_rest(kept or (), before)


@settings(max_examples=100, deadline=5000)
@given(damaged())
def test_a_damaged_library_can_be_inspected_or_says_why_not(fat: Fat) -> None:
    try:
        found = GpuCode.of(device_code(ElfImage.parse(fat.data)))
    except BinaryError:
        return
    for device in devices([found]):
        found.outlook(device).data()
    assert found.size <= len(fat.data)
