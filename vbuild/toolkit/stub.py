"""Libraries to link with where a driver is missing: they have the names of the real one and nothing behind them.

    include/cuda.h -> lib/stubs/libcuda.so        SONAME libcuda.so.1, which comes with the driver
    include/nvml.h -> lib/stubs/libnvidia-ml.so   SONAME libnvidia-ml.so.1

NVIDIA's installers have such stubs and its wheels do not. A linker looks at the tables of dynamic symbols and the
dynamic section; no segment is there to be loaded, so that nobody runs with a stub by mistake.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from vbuild.binary.elfrecords import (
    CLASS_64,
    LITTLE_ENDIAN,
    MAGIC,
    DynamicEntry,
    DynamicTag,
    FileHeader,
    FileType,
    Machine,
    SectionFlag,
    SectionHeader,
    SectionType,
)

_MACHINES = {"x86_64": Machine.X86_64, "aarch64": Machine.AARCH64}
_STUBS = (
    ("cuda.h", "libcuda.so", re.compile(r"\bcu[A-Z]\w*", re.ASCII)),
    ("nvml.h", "libnvidia-ml.so", re.compile(r"\bnvml[A-Z]\w*", re.ASCII)),
)
# the names that programs with a default stream for each thread use
_PER_THREAD = re.compile(r"__CUDA_API_(PT[DS][SZ])\((\w+)\)", re.ASCII)

# Elf64_Sym: st_name, st_info, st_other, st_shndx, st_value, st_size
_SYMBOL = Struct("<IBBHQQ")
_GLOBAL_FUNCTION = 0x12
_SONAME = 14
_TEXT = 4


@dataclass(frozen=True, slots=True)
class _Section:
    """A section of the stub, and what of its header is not the same for all."""

    name: str
    kind: SectionType
    data: bytes
    link: int = 0
    info: int = 0
    entry: int = 0
    flags: SectionFlag = SectionFlag.ALLOC


def add_stubs(root: Path, machine: str) -> None:
    """Put into the toolkit in *root* the stubs that its headers are there for."""
    for header, library, pattern in _STUBS:
        path = root / "include" / header
        stub = root / "lib" / "stubs" / library
        if machine in _MACHINES and path.is_file() and not stub.exists():
            text = path.read_text(encoding="utf-8", errors="replace")
            stub.parent.mkdir(exist_ok=True)
            stub.write_bytes(stub_of(f"{library}.1", _functions(text, pattern), machine=_MACHINES[machine]))


def stub_of(soname: str, names: Iterable[str], *, machine: Machine) -> bytes:
    """A shared library for linkers, in which *names* are functions."""
    unique = sorted(set(names))
    strings, places = _strings([soname, *unique])
    symbols = [bytes(_SYMBOL.size)]
    symbols += [_SYMBOL.pack(places[name], _GLOBAL_FUNCTION, 0, _TEXT, 0, 0) for name in unique]
    dynamic = DynamicEntry(_SONAME, places[soname]).pack() + DynamicEntry(DynamicTag.NULL, 0).pack()
    return _file(
        (
            _Section(".dynsym", SectionType.DYNSYM, b"".join(symbols), link=2, info=1, entry=_SYMBOL.size),
            _Section(".dynstr", SectionType.STRTAB, strings),
            _Section(".dynamic", SectionType.DYNAMIC, dynamic, link=2, entry=DynamicEntry.layout.size),
            _Section(".text", SectionType.PROGBITS, bytes(64), flags=SectionFlag.ALLOC | SectionFlag.EXECINSTR),
        ),
        machine,
    )


def _functions(text: str, pattern: re.Pattern[str]) -> set[str]:
    """The functions that a header names, types that look like them included: a name too many does no harm."""
    names = set(pattern.findall(text))
    return names | {f"{name}_{kind.lower()}" for kind, name in _PER_THREAD.findall(text) if name in names}


def _file(sections: tuple[_Section, ...], machine: Machine) -> bytes:
    names, places = _strings([section.name for section in sections] + [".shstrtab"])
    whole = bytearray(FileHeader.layout.size)
    headers = [bytes(SectionHeader.layout.size)]
    for section in (*sections, _Section(".shstrtab", SectionType.STRTAB, names, flags=SectionFlag(0))):
        whole += bytes(-len(whole) % 8)
        headers.append(
            SectionHeader(
                sh_name=places[section.name],
                sh_type=section.kind,
                sh_flags=section.flags,
                sh_addr=len(whole) if section.flags else 0,
                sh_offset=len(whole),
                sh_size=len(section.data),
                sh_link=section.link,
                sh_info=section.info,
                sh_addralign=8,
                sh_entsize=section.entry,
            ).pack()
        )
        whole += section.data
    whole += bytes(-len(whole) % 8)
    header = FileHeader(
        e_ident=MAGIC + bytes((CLASS_64, LITTLE_ENDIAN, 1)) + bytes(9),
        e_type=FileType.DYN,
        e_machine=machine,
        e_version=1,
        e_entry=0,
        e_phoff=0,
        e_shoff=len(whole),
        e_flags=0,
        e_ehsize=FileHeader.layout.size,
        e_phentsize=0,
        e_phnum=0,
        e_shentsize=SectionHeader.layout.size,
        e_shnum=len(headers),
        e_shstrndx=len(headers) - 1,
    ).pack()
    whole[: len(header)] = header
    return bytes(whole) + b"".join(headers)


def _strings(texts: Iterable[str]) -> tuple[bytes, dict[str, int]]:
    """A string table of *texts*, and where each is in it."""
    data, places = bytearray(1), {}
    for text in texts:
        places[text] = len(data)
        data += text.encode() + b"\0"
    return bytes(data), places
