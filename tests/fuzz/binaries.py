"""Compiled files: GPU code by itself, and libraries read, cut and relinked.

Seeds are what nvcc made (`tests/samples`), a module that pip brings, and the smallest libraries that gcc links.
"""

import itertools
import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pefile
import zstandard
from markupsafe import _speedups

from tests.factories.bundles import bundle, compressed
from tests.factories.elf import linked, rpath, shared_object
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.macho_files import ARM64, X86_64, fat, macho
from tests.factories.pe_files import pe_file
from tests.factories.windows import MINGW, device_dll, signed
from tests.fuzz.target import Target, folder
from vbuild.binary.edits import Strip
from vbuild.elf.code import Elf
from vbuild.elf.image import ElfImage
from vbuild.elf.interface import Interface
from vbuild.elf.read import Loading, Outline
from vbuild.elf.surgery.relink import Relink, relinked
from vbuild.errors import VbuildError
from vbuild.files.edited import EditedFile
from vbuild.gpu_code.bundle import BUNDLES, COMPRESSED_MAGIC, BundleMethod
from vbuild.gpu_code.bundle import MAGIC as BUNDLE_MAGIC
from vbuild.gpu_code.fatbin import FATBINS, MAGIC_BYTES, FatbinFlag, FatbinKind, decompressed, recompressed
from vbuild.gpu_code.model import ContainerForm, verbatim
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.gpu import GpuList
from vbuild.macho import read as macho_reader
from vbuild.macho.code import read_codes
from vbuild.pe import read as pe
from vbuild.pe.code import read_code
from vbuild.slimming.library import GpuLibrary, LibraryPlan
from vbuild.slimming.plan import examined
from vbuild.slimming.request import Cuts, Empty, Share
from vbuild.verification.levels import Claim, Levels

SAMPLES = Path(__file__).parents[1] / "samples" / "fatbins"
_FLAGS = (0, FatbinFlag.LZ4, FatbinFlag.ZSTD)
_SHARE = GpuList.asked("90,gfx90a:xnack+")
_ORDERS = (Cuts(strip=Strip.UNNEEDED), Cuts(zstd=True, empty=Empty.NOTHING, unsupported=True, force=True))
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
_RELINK = Relink(
    (("libdemo.so.1", "libother-1234.so.1"),), ("libmore.so.2",), ("$ORIGIN/../demo.libs",), soname="libx.so"
)
_CLAIM = Claim(Cpu.parse("x86-64"), is_explicit=True)
_ELF_WORDS = (
    b"\x7fELF\x02\x01\x01",
    b".dynamic\0",
    b".dynstr\0",
    b".gnu.hash\0",
    b".nv_fatbin\0",
    b"$ORIGIN",
    *(number.to_bytes(8, "little") for number in (1, 4, 5, 6, 7, 14, 15, 29, 1 << 32, (1 << 63) - 1, (1 << 64) - 1)),
)


def _read_device(form: ContainerForm, data: bytes) -> None:
    view = memoryview(data)
    span = form.extent(view, range(len(data)))
    reading = form.read(view, span)
    for each in reading.entries:
        with suppress(VbuildError):
            decompressed(view, each)
        with suppress(VbuildError):
            recompressed(view, each)
    with suppress(VbuildError):
        (reading.packing or form.packing)(reading.entries[::2], verbatim)


def _read_fatbin(data: bytes) -> None:
    _read_device(FATBINS, data)


def _read_bundle(data: bytes) -> None:
    _read_device(BUNDLES, data)


def _read_elf(data: bytes) -> None:
    for kind in (Outline, Elf, Loading, Interface, ElfImage):
        with suppress(VbuildError):
            kind.parse(data)


def _read_pe(data: bytes) -> None:
    pe.read_loading(data)
    with suppress(VbuildError):
        read_code(data)


def _read_macho(data: bytes) -> None:
    macho_reader.read_loading(data)
    with suppress(VbuildError):
        read_codes(data)


def _disassemble(data: bytes) -> None:
    """*data* as a library of a wheel whose code `vbuild verify` holds against the level it claims."""
    levels = Levels({"demo/_C.so": Elf.parse(data)}, _CLAIM)
    for library, findings in levels.verdicts():
        assert library.data(), "a library of which nothing is told"
        assert all(str(finding) for finding in findings), "a finding without a word"
    tuple(levels.wheel_findings())


def _slim(data: bytes) -> None:
    library = GpuLibrary.of("demo/_C.so", memoryview(data))
    for cuts in _ORDERS:
        with suppress(VbuildError):
            rope, outcome = library.slimmed(Share(_SHARE), cuts)
            assert rope.size == outcome.after, "the outcome tells another size than the file has"
            outcome.data()


def _slim_pe(data: bytes) -> None:
    """*data* as a DLL that is slimmed: what comes out is the same, or another reader finds it sound and as large."""
    library = GpuLibrary.of("demo/a.dll", memoryview(data))
    for cuts in (
        Cuts(),
        Cuts(zstd=True, empty=Empty.NOTHING, unsupported=True, drop_signature=True, strip=Strip.DEBUG),
    ):
        with suppress(VbuildError):
            file, outcome = library.slimmed(Share(_SHARE), cuts)
            assert file.size == outcome.after, "the outcome tells another size than the file has"
            if not file.is_unchanged:
                _check_windows_laws(data, bytes(file))


def _check_windows_laws(data: bytes, slim: bytes) -> None:
    """Sections are where they were in memory, with the bytes that they had but for GPU code, and lie in the file."""
    before, after = (pefile.PE(data=each, fast_load=True) for each in (data, slim))
    assert after.OPTIONAL_HEADER.SizeOfImage == before.OPTIONAL_HEADER.SizeOfImage, "another size in memory"
    assert len(slim) <= len(data), "a larger file"
    assert len(after.sections) == len(before.sections), "another number of sections"
    end, unit = 0, after.OPTIONAL_HEADER.FileAlignment
    for one, other in zip(before.sections, after.sections, strict=True):
        assert (one.VirtualAddress, one.Misc_VirtualSize) == (other.VirtualAddress, other.Misc_VirtualSize)
        if other.SizeOfRawData:
            assert other.PointerToRawData >= end, "sections overlap"
            assert not (other.PointerToRawData | other.SizeOfRawData) % unit, "a section is not aligned"
            end = other.PointerToRawData + other.SizeOfRawData
        if not one.Name.startswith((b".nv_fatb", b".nvFatBi", b"__nv_rel", b".hip", b"/")):
            was, now = (
                each.__data__[part.PointerToRawData :][: part.SizeOfRawData]
                for each, part in ((before, one), (after, other))
            )
            if not any(
                table.VirtualAddress for table in before.OPTIONAL_HEADER.DATA_DIRECTORY[6:7]
            ):  # its rows have places in the file
                assert was == now, "other bytes in a section without GPU code"
    assert end <= len(slim), "a section past the end"


def _device_file(data: bytes) -> None:
    """All but the first byte of *data* as a file of GPU code alone; the first says how it is called."""
    name, data = _FILES[data[0] % len(_FILES)] if data else _FILES[0], data[1:]
    for cuts in _ORDERS:
        with suppress(VbuildError):
            bytes(_examined(name, data, cuts).files[0])
    plan = _examined(name, data, Cuts())
    (cut,) = plan.cuts
    if plan.gone:
        assert not cut.why_whole, "a file goes that nobody can read"
        assert not any(_is_needed(*entry) for entry in _entries(data)), "a file goes that a GPU could run"
    elif data.startswith((MAGIC_BYTES, BUNDLE_MAGIC, COMPRESSED_MAGIC)):
        after = data if plan.files[0].is_unchanged else bytes(plan.files[0])
        assert not cut.why_whole or after == data, "what cannot be read is another file now"
        if after != data:
            left = iter(_entries(data))
            assert all(entry in left for entry in _entries(after)), "an entry is another one now, or its order is"
            was, now = ([entry for entry in _entries(each) if _is_needed(*entry)] for each in (data, after))
            assert was == now, "an entry went that a GPU could run"
    else:
        assert plan.files[0].is_unchanged, "a file is another one now"


def _examined(name: str, data: bytes, cuts: Cuts) -> LibraryPlan:
    return examined(name, memoryview(data), (Share(_SHARE),), cuts)


def _entries(data: bytes) -> list[tuple[str, bytes]]:
    """What each entry of the file *data* is for, and its bytes, by a reader of its own."""
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    if data.startswith(MAGIC_BYTES):
        header, size = struct.unpack_from("<6xHQ", data)
        found, place = [], header
        while place < header + size:
            kind, length, payload, number = struct.unpack_from("<H2xIQ12xI", data, place)
            found.append((f"{kind}-{number}", data[place : place + length + payload]))
            place += length + payload
        return found
    if data.startswith(COMPRESSED_MAGIC):
        version, method = struct.unpack_from("<HH", data, 4)
        payload = data[{1: 20, 2: 24, 3: 32}[version] :]
        codec = zstandard.ZstdDecompressor().decompressobj() if method else zlib.decompressobj()
        data = codec.decompress(payload)
    if data.startswith(BUNDLE_MAGIC):
        found, place = [], 32
        for _ in range(int.from_bytes(data[24:32], "little")):
            start, size, length = struct.unpack_from("<QQQ", data, place)
            place += 24 + length
            found.append((data[place - length : place].decode(), data[start : start + size] if size else b""))
        return found
    (machine,) = struct.unpack_from("<18xH", data)
    if machine in {190, 224} and data.startswith(b"\x7fELF"):
        (flags,) = struct.unpack_from("<48xI", data)
        if machine == 224:
            # bits 8 and 9 are 2 if xnack has to be off
            return [(f"-gfx{flags & 0xFF:x}{'' if flags >> 8 & 3 != 2 else '-off'}", data)]
        return [(f"2-{flags & 0xFF if data[7] == 0x33 else flags >> 8 & 0xFF}", data)]
    return [("1-90", data)] if re.search(rb"\.target\s+sm_90", data[: 1 << 14]) else []


def _is_needed(target: str, code: bytes) -> bool:
    """Whether one of the GPUs of `_SHARE` has to have *code* for *target*."""
    processor, *modes = target.rpartition("-")[2].split(":")
    is_amd = target.startswith(("hip-", "hipv4-")) and target.count("-") >= 5 and processor == "gfx90a"
    return bool(code) and (target in {"2-90", "-gfx3f"} or (is_amd and {*modes} <= {"xnack+", "sramecc+", "sramecc-"}))


def _relink(data: bytes) -> None:
    with folder() as room, relinked(EditedFile.whole(data), _RELINK, folder=room) as after:
        assert len(after)


def _fatbins() -> Iterator[bytes]:
    for sample in sorted(SAMPLES.glob("*.so")):
        image = ElfImage.parse(sample.read_bytes())
        for section in image.sections:
            if section.name in FATBINS.sections and section.span:
                yield bytes(image.view(section.span))
    yield fatbin(*(entry(kind, 80, flags=flags) for kind in (FatbinKind.CUBIN, FatbinKind.PTX) for flags in _FLAGS))


def _bundles() -> Iterator[bytes]:
    targets = ("gfx90a:xnack+", "gfx942", "gfx11-generic")
    codes = {f"hipv4-amdgcn-amd-amdhsa--{target}": cubin(90) for target in targets}
    plain = bundle({"host-x86_64-unknown-linux--": b"", **codes})
    yield plain
    yield from (compressed(plain, version=version) for version in (1, 2, 3))
    yield compressed(plain, method=BundleMethod.ZLIB)


def _device_files() -> Iterator[bytes]:
    code_object, ptx = _CODE_OBJECT, b".version 8.0\n.target sm_90a\n.address_size 64\n"
    for name, data in (
        *((0, cubin(arch)) for arch in (80, 90, 100)),
        (1, ptx),
        *((2, each) for each in (code_object, *_bundles())),
        (3, zstandard.compress(cubin(90))),
        (4, zstandard.compress(ptx)),
        *((5, each) for each in itertools.islice(_fatbins(), 4)),
        (5, fatbin(entry(arch=80), entry(FatbinKind.PTX, 80), entry(arch=90))),
        (6, zstandard.compress(next(iter(_bundles())))),
    ):
        yield bytes([name]) + data


def _device_libraries() -> Iterator[bytes]:
    for sample in sorted(SAMPLES.glob("*.so")):
        yield sample.read_bytes()
    yield device_library(*_bundles(), section=".hip_fatbin", wrapper=(".hipFatBinSegment", 0x48495046, 1), align=4096)


def _host_libraries() -> Iterator[bytes]:
    other = linked("int other(void) { return 1; }", "-Wl,-soname,libdemo.so.1", script="V1 { other; };")
    yield linked(
        "int other(void); int mine(void) { return other(); }",
        *rpath("/opt/build/lib"),
        script="W1 { mine; };",
        libraries=(("libdemo.so.1", other),),
    )
    yield shared_object("int sum(int *a) { return a[0]; } int (*table[2])(int *) = {sum, sum};", "-g", "-Wl,-z,norelro")


def _windows_libraries() -> Iterator[bytes]:
    yield pe_file(needed=["KERNEL32.dll", "a.dll"], delayed=["b.dll"], exports=["PyInit_demo"], text=b"helper.dll\0")
    yield pe_file(machine=0x14C, needed=["a.dll"], flags=0x22, sections=[(b"UPX0", 512)])


def _device_dlls() -> Iterator[bytes]:
    """DLLs with fatbins and bundles, if mingw is there to link them."""
    yield pe_file(sections=[(b".nv_fatb", 512), (b".nvFatBi", 512)])
    if shutil.which(MINGW):
        code = fatbin(*(entry(arch=arch, code=cubin(arch, 2000)) for arch in (80, 90)))
        yield device_dll(code, code, gap=40)
        yield signed(device_dll(code, code))
        yield device_dll(code, wrapped=[0, 0], flags=["-g"], more=".data\n.quad c0 + 24\n")


def _mac_libraries() -> Iterator[bytes]:
    thin = macho(needed=["@rpath/libx.dylib"], rpaths=["@loader_path"], exports=["PyInit_demo"], local=["inner"])
    yield thin
    yield fat((X86_64, macho(cpu=X86_64, name="libx.dylib", signature=64)), (ARM64, thin))


def _dispatching() -> Iterator[bytes]:
    asks = 'int asks(void) { return __builtin_cpu_supports("avx2"); }'
    wide = '__attribute__((target("avx2"))) {} {}(int *a) {{ for (int i = 0; i < 64; i++) a[i] *= 3; }}'
    both = (wide.format("static __attribute__((noinline)) void", "inner"), wide.format("void", "sum_avx2"))
    source = f"{asks} {' '.join(both)} void any(int *a) {{ if (asks()) sum_avx2(a); else inner(a); }}"
    yield shared_object(source, "-O2")
    yield shared_object(source, "-s", "-Wl,-z,x86-64-v3")


def _libraries() -> Iterator[bytes]:
    yield from _host_libraries()
    yield Path(_speedups.__file__).read_bytes()
    yield from itertools.islice(_device_libraries(), 2)


TARGETS = (
    Target("fatbin", _read_fatbin, _fatbins, (MAGIC_BYTES, b"\x28\xb5\x2f\xfd", b"\x02\0\x01\x01")),
    Target("bundle", _read_bundle, _bundles, (b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB", b"hipv4-", b"host-")),
    Target("elf", _read_elf, _libraries, _ELF_WORDS),
    Target("pe", _read_pe, _windows_libraries, (b"PE\0\0", b".rdata\0\0", b"/4\0", b".dll\0", b"RSDS")),
    Target("macho", _read_macho, _mac_libraries, (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"_PyInit_", b"@rpath/")),
    Target(
        "code",
        _disassemble,
        _dispatching,
        (*_ELF_WORDS, b"\x62\xf1\x7c\x48", b"\xc5\xfd\x6f", b"\x0f\xa2", b"\xe8", b"\xc3"),
    ),
    Target("slim-pe", _slim_pe, _device_dlls, (b"PE\0\0", MAGIC_BYTES, b".nv_fatb", b".nvFatBi", b".reloc\0\0")),
    Target("slim", _slim, _device_libraries, (*_ELF_WORDS, MAGIC_BYTES)),
    Target(
        "device-file", _device_file, _device_files, (MAGIC_BYTES, BUNDLE_MAGIC, COMPRESSED_MAGIC, b"-gfx90a", b"sm_90")
    ),
    Target("relink", _relink, _host_libraries, _ELF_WORDS),
)
