"""ELF libraries, read, disassembled, cut and relinked; what a cut or patchelf made is held against `tests.fuzz.loaded`.

Seeds are what nvcc made (`tests/samples`), a module that pip brings, and the smallest libraries that gcc links.
"""

import itertools
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from markupsafe import _speedups

from tests.factories.elf import linked, patchelfed, rpath, shared_object
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.fuzz.containers import ORDERS, SAMPLES, SHARE, bundles
from tests.fuzz.elf_fields import elf_changed
from tests.fuzz.gpu_entries import FATBIN
from tests.fuzz.loaded import Loaded, Unreadable
from tests.fuzz.loaded_laws import check_cut, check_relinked
from tests.fuzz.target import Target, folder
from vbuild.elf.code import Elf
from vbuild.elf.image import ElfImage
from vbuild.elf.interface import Interface
from vbuild.elf.read import Loading, Outline
from vbuild.elf.records import DynamicTag, SegmentType
from vbuild.elf.surgery.relink import Relink, relinked
from vbuild.errors import VbuildError
from vbuild.files.edited import EditedFile
from vbuild.gpu_code.fatbin import FatbinFlag, FatbinKind
from vbuild.hardware.cpu import Cpu
from vbuild.slimming.library import GpuLibrary
from vbuild.verification.levels import Claim, Levels

_RELINK = Relink(
    (("libdemo.so.1", "libother-1234.so.1"),), ("libmore.so.2",), ("$ORIGIN/../demo.libs",), soname="libx.so"
)
_CLAIM = Claim(Cpu.parse("x86-64"), is_explicit=True)
_WORDS = (
    b"\x7fELF\x02\x01\x01",
    b".dynamic\0",
    b".dynstr\0",
    b".gnu.hash\0",
    b".nv_fatbin\0",
    b"$ORIGIN",
    *(number.to_bytes(8, "little") for number in (1, 4, 5, 6, 7, 14, 15, 29, 1 << 32, (1 << 63) - 1, (1 << 64) - 1)),
)
_READING = ("vbuild.elf", "vbuild.binary")
_CUTTING = ("vbuild.elf.surgery", "vbuild.elf.image", "vbuild.binary", "vbuild.slimming")


def _read_elf(data: bytes) -> None:
    """*data* by all readers; what the loader would read of it they read alike."""
    found = {}
    for kind in (Outline, Elf, Loading, Interface, ElfImage):
        with suppress(VbuildError):
            found[kind] = kind.parse(data)
    outline = found.get(Outline)
    with suppress(Unreadable, struct.error):
        library = Loaded(data)
        places = (library.first(DynamicTag.STRTAB) or 0, library.first(DynamicTag.STRSZ) or 0)
        # a PT_DYNAMIC beside the PT_LOADs is in memory by chance alone, as a page is mapped as a whole
        is_filled = any(
            load.address <= each.address < load.address + load.filled
            for each in library.segments
            if each.kind == SegmentType.DYNAMIC
            for load in library.loads
        )
        is_sound = is_filled and places[0] and library.is_from_file(*places)
        if isinstance(outline, Outline) and outline.type == "ET_DYN" and is_sound:
            assert outline.needed == tuple(map(_text, library.needed)), "other libraries in NEEDED"
            assert outline.soname == next(map(_text, library.soname), None), "another SONAME"


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


def _disassemble(data: bytes) -> None:
    """*data* as a library of a wheel whose code `vbuild verify` holds against the level it claims."""
    levels = Levels({"demo/_C.so": Elf.parse(data)}, _CLAIM)
    for library, findings in levels.verdicts():
        assert library.data(), "a library of which nothing is told"
        assert all(str(finding) for finding in findings), "a finding without a word"
    tuple(levels.wheel_findings())


def _slim(data: bytes) -> None:
    library = GpuLibrary.of("demo/_C.so", memoryview(data))
    for cuts in ORDERS:
        with suppress(VbuildError):
            file, outcome = library.slimmed(SHARE, cuts)
            assert file.size == outcome.after, "the outcome tells another size than the file has"
            outcome.data()
            if not file.is_unchanged:
                _judge(data, bytes(file), partial(check_cut, verbatim=not cuts.zstd))


def _relink(data: bytes) -> None:
    with folder() as room, relinked(EditedFile.whole(data), _RELINK, folder=room) as after:
        if bytes(after) != data:
            _judge(data, bytes(after), partial(check_relinked, order=_RELINK))


def _judge(before: bytes, after: bytes, check: Callable[[Loaded, Loaded], None]) -> None:
    """Have *check* compare both; a library that no loader takes, it did not take before."""
    try:
        loaded = Loaded(before)
    except Unreadable:
        return
    check(loaded, Loaded(after))


def _device_libraries() -> Iterator[bytes]:
    for sample in sorted(SAMPLES.glob("*.so")):
        yield sample.read_bytes()
    codes = [fatbin(*(entry(arch=arch, code=cubin(arch, size)) for arch in (80, 90))) for size in (2000, 5000, 9000)]
    packed = fatbin(
        entry(FatbinKind.TILE_IR, 90),
        *(entry(FatbinKind.PTX, 90, flags=flag) for flag in (0, FatbinFlag.LZ4)),
        entry(arch=80),
    )
    yield device_library(*codes, packed)
    yield device_library(*codes, flags=("-Wl,-z,pack-relative-relocs", "-Wl,-z,noseparate-code"))
    yield from _roomy(codes)
    yield device_library(*bundles(), section=".hip_fatbin", wrapper=(".hipFatBinSegment", 0x48495046, 1), align=4096)


def _roomy(codes: Sequence[bytes]) -> Iterator[bytes]:
    """Libraries that each have room for program headers somewhere else."""
    exported = "".join(f"\n.globl f{number}\n.type f{number}, @function\nf{number}: ret" for number in range(200))
    yield device_library(*codes, more=f".text{exported}")
    yield device_library(*codes, more=".text\nf: ret", flags=("-Wl,-z,separate-code", "-Wl,--build-id=none"))
    yield patchelfed(device_library(*codes))
    # a program keeps PT_PHDR, and tells the place of one row more
    yield patchelfed(device_library(*codes, flags=("-pie", "-Wl,-dynamic-linker,/lib64/ld-linux-x86-64.so.2")))
    sizes = "".join(f"\n.size c{number}, {len(code)}" for number, code in enumerate(codes))
    debugged = f'{sizes}\n.section .debug_info,"",@progbits\n.fill 9000,1,7'
    yield device_library(*codes, flags=("-Wl,--emit-relocs",), more=debugged)
    yield device_library(*codes, rights="aw", more=".bss\n.zero 50000")
    if shutil.which("ld.lld"):
        yield device_library(*codes, flags=("-fuse-ld=lld",))


def _host_libraries() -> Iterator[bytes]:
    other = linked("int other(void) { return 1; }", "-Wl,-soname,libdemo.so.1", script="V1 { other; };")
    yield linked(
        "int other(void); int mine(void) { return other(); }",
        *rpath("/opt/build/lib"),
        "-Wl,-soname,libwas.so",
        "-Wl,-z,max-page-size=0x200000",
        script="W1 { mine; };",
        libraries=(("libdemo.so.1", other),),
    )
    yield shared_object("int sum(int *a) { return a[0]; } int (*table[2])(int *) = {sum, sum};", "-g", "-Wl,-z,norelro")


def _dispatching() -> Iterator[bytes]:
    """Libraries that ask the CPU themselves: what libgcc has for that takes a hundred times as long to follow."""
    cpuid = '__asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d))'
    asks = f"static int asks(void) {{ int a = 7, b, c = 0, d; {cpuid}; return b >> 5 & 1; }}"
    wide = '__attribute__((target("avx2"))) {} {}(int *a) {{ for (int i = 0; i < 64; i++) a[i] *= 3; }}'
    both = (wide.format("static __attribute__((noinline)) void", "inner"), wide.format("void", "sum_avx2"))
    source = f"{asks} {' '.join(both)} void any(int *a) {{ if (asks()) sum_avx2(a); else inner(a); }}"
    yield shared_object(source, "-O2", "-nostdlib")
    yield shared_object(source, "-s", "-nostdlib", "-Wl,-z,x86-64-v3")


def _libraries() -> Iterator[bytes]:
    yield from _host_libraries()
    yield Path(_speedups.__file__).read_bytes()
    yield from itertools.islice(_device_libraries(), 2)


TARGETS = (
    Target("elf", _read_elf, _libraries, _WORDS, elf_changed, _READING),
    Target(
        "code",
        _disassemble,
        _dispatching,
        (*_WORDS, b"\x62\xf1\x7c\x48", b"\xc5\xfd\x6f", b"\x0f\xa2", b"\xe8", b"\xc3"),
        rooms=("vbuild.elf",),
    ),
    Target("slim", _slim, _device_libraries, (*_WORDS, FATBIN), elf_changed, (*_CUTTING, "vbuild.gpu_code")),
    Target("relink", _relink, _host_libraries, _WORDS, elf_changed, (*_READING,)),
)
