"""What an ELF file says of itself to the loader, read from a mapped file without copying it.

    Outline    ELF header, section headers   machine, type, where its bytes are
               PT_DYNAMIC                    SONAME, NEEDED, RPATH, RUNPATH
               PT_NOTE                       build-id, GNU properties (x86 ISA needed, x86 ISA used)
    Loading    DT_VERNEED, DT_STRTAB         the versions of symbols it takes from other libraries
               DT_VERDEF                     the versions it gives; the base one is the SONAME at link time
               DT_SYMTAB                     PyInit_demo: it is the Python module demo
               PROGBITS without code         "libcuda.so.1": what it may open with dlopen
                                             "/proc/self/maps", and dladdr in DT_SYMTAB: it may ask where it is
               DT_FILTER, DT_AUDIT ...       what the loader opens along with it

Files of 32 and 64 bits and of either byte order are read; a file whose tables cannot be read is a `BinaryError`.
https://gabi.xinuos.com/ and the psABI supplement, https://gitlab.com/x86-psABIs/x86-64-ABI
https://docs.python.org/3/c-api/extension-modules.html
"""

import re
import struct
from collections.abc import Iterator
from typing import Any, Self

from vbuild.binary.outline import MODULE, BinaryLoading, BinaryOutline, LoadedName
from vbuild.elf.dynamic import Dynamic, version_definitions
from vbuild.elf.image import ElfImage
from vbuild.elf.layout import Section
from vbuild.elf.records import (
    ADDRESS_TAGS,
    STB_LOCAL,
    VER_FLG_BASE,
    DynamicTag,
    SectionFlag,
    SectionType,
    SegmentType,
    SymbolEntry,
)
from vbuild.errors import BinaryError
from vbuild.files.records import Buffer
from vbuild.hardware.cpu import X86_64_LEVELS

# e_machine as platform tags spell it; as the specification spells it if no tag has it
_MACHINES = {
    3: "i686",
    22: "s390x",
    40: "armv7l",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
    258: "loongarch64",
    0: "EM_NONE",
    2: "EM_SPARC",
    4: "EM_68K",
    8: "EM_MIPS",
    15: "EM_PARISC",
    18: "EM_SPARC32PLUS",
    20: "EM_PPC",
    23: "EM_SPU",
    42: "EM_SH",
    43: "EM_SPARCV9",
    45: "EM_ARC",
    50: "EM_IA_64",
    83: "EM_AVR",
    92: "EM_OPENRISC",
    93: "EM_ARC_COMPACT",
    94: "EM_XTENSA",
    105: "EM_MSP430",
    113: "EM_ALTERA_NIOS2",
    164: "EM_QDSP6",
    189: "EM_MICROBLAZE",
    190: "EM_CUDA",
    195: "EM_ARC_COMPACT2",
    220: "EM_Z80",
    224: "EM_AMDGPU",
    247: "EM_BPF",
    252: "EM_CSKY",
    0x9026: "EM_ALPHA",
}
_PPC64 = 21
_TYPES = {0: "ET_NONE", 1: "ET_REL", 2: "ET_EXEC", 3: "ET_DYN", 4: "ET_CORE", 0xFF00: "ET_LOPROC", 0xFFFF: "ET_HIPROC"}
_NT_GNU_BUILD_ID, _NT_GNU_PROPERTY_TYPE_0 = 3, 5
_ISA_NEEDED, _ISA_USED = 0xC0008002, 0xC0010002

# NVIDIA's and AMD's GPU code has hundreds of MB, and unwind tables have no text
_WITHOUT_TEXT = frozenset({".nv_fatbin", "__nv_relfatbin", ".hip_fatbin", ".eh_frame", ".eh_frame_hdr", ".interp"})
_SUFFIX = re.compile(rb"\.so")
# what begins otherwise is a library's name only if it is all of a string, or the last part of a path
_LIBRARY = re.compile(rb"(?<![\w.+-])lib[\w.+-]*?\.so(?:\.\w+)*(?![\w+-])|(?<![^\0/])\w[\w.+-]*?\.so(?:\.\w+)*(?=\0)")
_LONGEST = 255  # bytes, NAME_MAX
# by these a library finds out where it is, its own path in the process among others
_PLACE_FUNCTIONS = re.compile(rb"(?:dladdr1?|dlinfo|dl_iterate_phdr|_dl_find_object)\0")
_PLACES = re.compile(rb"/proc/self/(?:maps|smaps|numa_maps|map_files)\b")
# what it is a filter for, and what is to audit it: names with colons between them, which glibc looks for as for NEEDED
_OPENED_ALONG = frozenset({DynamicTag.FILTER, DynamicTag.AUXILIARY, DynamicTag.AUDIT, DynamicTag.DEPAUDIT})


class Outline(BinaryOutline, frozen=True, kw_only=True):
    """An ELF file without its contents: who it is, what it wants from the loader, and where its bytes are."""

    sections: tuple[Section, ...]

    @classmethod
    def parse(cls, data: Buffer) -> Self:
        """The ELF file *data*; `BinaryError` if it is none or its headers are damaged."""
        with memoryview(data) as view:
            image = ElfImage.read(view)
            return cls(**outline_facts(image, Dynamic.read(image)))


class Loading(BinaryLoading, frozen=True, kw_only=True):
    """An ELF file as the loader sees it."""

    outline: Outline

    @classmethod
    def parse(cls, data: Buffer) -> Self:
        """The ELF file *data*; `BinaryError` if it is none or is damaged."""
        with memoryview(data) as view:
            image = ElfImage.read(view)
            dynamic = Dynamic.read(image)
            outline = Outline(**outline_facts(image, dynamic))
            required = dynamic.required("backslashreplace")
            given = tuple(_given(dynamic))
            # libc.so.6 and libcap.so.2 have an interpreter as well: they can be run, but they are libraries by SONAME
            has_interpreter = any(segment.p_type == SegmentType.INTERP for segment in image.segments)
            along = (path for value in _texts(dynamic, *_OPENED_ALONG) for path in value.split(":"))
            mentioned, place_files = _in_constants(dynamic)
            opened = {*mentioned, *(path.rpartition("/")[2] for path in along)} - {""}
            return cls(
                outline=outline,
                taken=tuple(LoadedName(each.library, tuple(name for *_, name in each.versions)) for each in required),
                given=tuple(name for name, is_base in given if not is_base),
                base=next((name for name, is_base in given if is_base), None),
                modules=tuple(_modules(dynamic)),
                is_program=outline.type == "ET_EXEC" or (has_interpreter and not outline.soname),
                mentioned=frozenset(opened) - {*outline.needed, outline.soname},
                own_place=(*_place_functions(dynamic), *place_files),
            )


def outline_facts(image: ElfImage, dynamic: Dynamic) -> dict[str, Any]:
    """The fields of the `Outline` of *image*, by name."""
    bits, order = image.encoding
    properties, build_id = _properties(image)
    ppc64 = "ppc64le" if order == "<" else "ppc64"
    return {
        "machine": ppc64 if image.machine == _PPC64 else _MACHINES.get(image.machine, str(image.machine)),
        "bits": bits,
        "byte_order": "little" if order == "<" else "big",
        "type": _TYPES.get(image.header.e_type, f"{image.header.e_type:#x}"),
        "soname": next(iter(_texts(dynamic, DynamicTag.SONAME)), None),
        "needed": _texts(dynamic, DynamicTag.NEEDED),
        "rpath": _paths(dynamic, DynamicTag.RPATH),
        "runpath": _paths(dynamic, DynamicTag.RUNPATH),
        "isa_needed": _levels(properties.get(_ISA_NEEDED, 0)),
        "isa_used": _levels(properties.get(_ISA_USED, 0)),
        "build_id": build_id,
        "sections": image.sections,
    }


def _texts(dynamic: Dynamic, *tags: DynamicTag) -> tuple[str, ...]:
    return dynamic.decoded((row.value for row in dynamic.rows if row.tag in tags), "backslashreplace")


def _paths(dynamic: Dynamic, tag: DynamicTag) -> tuple[str, ...]:
    return tuple(path for value in _texts(dynamic, tag) for path in value.split(":") if path)


def _levels(bits: int) -> tuple[str, ...]:
    """The levels that the *bits* of an x86 ISA property stand for, lowest first (psABI, program property)."""
    return tuple(level for bit, level in enumerate(X86_64_LEVELS) if bits >> bit & 1)


def _properties(image: ElfImage) -> tuple[dict[int, int], str | None]:
    """The GNU properties that are 32-bit numbers, by type, and the build-id in hexadecimal digits."""
    properties: dict[int, int] = {}
    build_id = None
    bits, order = image.encoding
    head, number = struct.Struct(order + "II"), struct.Struct(order + "I")
    for kind, text in _gnu_notes(image):
        if kind == _NT_GNU_BUILD_ID:
            build_id = text.hex()
        place = 0
        while kind == _NT_GNU_PROPERTY_TYPE_0 and place + head.size <= len(text):
            name, size = head.unpack_from(text, place)
            place += head.size
            if size == number.size and place + size <= len(text):
                properties[name] = number.unpack_from(text, place)[0]
            place += _aligned(size, bits // 8)
    return properties, build_id


def _gnu_notes(image: ElfImage) -> Iterator[tuple[int, bytes]]:
    """The types and descriptions of the notes of GNU: name size, description size and type, then both, aligned to 4."""
    head = struct.Struct(image.encoding.order + "III")
    # the loader reads segments; object files have sections only
    segments = [segment.span for segment in image.segments if segment.p_type == SegmentType.NOTE]
    sections = [section.span for section in image.sections if section.header.sh_type == SectionType.NOTE]
    for span in segments or sections:
        place, end = span.start, min(span.stop, image.size)
        while place + head.size <= end:
            name_size, size, kind = head.unpack_from(image.data, place)
            text = place + head.size + _aligned(name_size, 4)
            if text + size > end:
                raise BinaryError(f"note at {place:#x} runs past its segment, {end:#x}")
            if bytes(image.data[place + head.size : place + head.size + min(name_size, 4)]) == b"GNU\0":
                yield kind, bytes(image.data[text : text + size])
            place = text + _aligned(size, 4)


def _aligned(number: int, unit: int) -> int:
    return number + -number % unit


def _given(dynamic: Dynamic) -> Iterator[tuple[str, bool]]:
    """The version definitions: the name, and whether it is the file's own, the base."""
    found = version_definitions(dynamic.image, dynamic.offset(DynamicTag.VERDEF))
    pairs = [(names[0], bool(definition.vd_flags & VER_FLG_BASE)) for definition, names in found if names]
    texts = dynamic.decoded((offset for offset, _ in pairs), "backslashreplace")
    return zip(texts, (is_base for _, is_base in pairs), strict=True)


def _modules(dynamic: Dynamic) -> Iterator[str]:
    """The Python modules that it is: what it exports to be imported by."""
    with dynamic.image.view(dynamic.strings) as names:
        wanted = {match.start(): match[1].decode() for match in MODULE.finditer(names)}
    if not wanted:
        return
    for offset, info, _, section, *_ in _dynamic_symbols(dynamic):
        if section and info >> 4 != STB_LOCAL and offset in wanted:
            yield wanted.pop(offset)


def _place_functions(dynamic: Dynamic) -> list[str]:
    """The functions among those it takes from others that say which file an address is in."""
    with dynamic.image.view(dynamic.strings) as names:
        wanted = {match.start(): match[0][:-1].decode() for match in _PLACE_FUNCTIONS.finditer(names)}
    if not wanted:
        return []
    return sorted(
        {wanted[name] for name, _, _, section, *_ in _dynamic_symbols(dynamic) if not section and name in wanted}
    )


def _dynamic_symbols(dynamic: Dynamic) -> Iterator[tuple[int, ...]]:
    """The rows of the table of dynamic symbols; without section headers, of all up to the next table."""
    image, encoding = dynamic.image, dynamic.image.encoding
    if (start := dynamic.offset(DynamicTag.SYMTAB)) is None:
        return iter(())
    size = next((each.size for each in image.sections if each.header.sh_type == SectionType.DYNSYM), None)
    if size is None:
        begin = dynamic.value(DynamicTag.SYMTAB) or 0
        behind = [row.value for row in dynamic.rows if row.tag in ADDRESS_TAGS and row.value > begin]
        size = min(behind, default=begin + image.size) - begin
    return SymbolEntry.tuples(image.view(range(start, start + size)), encoding)


def _in_constants(dynamic: Dynamic) -> tuple[set[str], list[str]]:
    """The file names of libraries in its constants, and the files in them that say where libraries are."""
    names: set[str] = set()
    places: dict[str, None] = {}
    for span in _constants(dynamic):
        with dynamic.image.view(span) as text:
            for found in [match.start() for match in _SUFFIX.finditer(text)]:
                first = max(found - _LONGEST, 0)
                around = bytes(text[first : found + _LONGEST])
                for match in _LIBRARY.finditer(around):
                    if match.start() < found - first < match.end():
                        names.add(match[0].decode())
            places |= {match[0].decode(): None for match in _PLACES.finditer(text)}
    return names, sorted(places)


def _constants(dynamic: Dynamic) -> Iterator[range]:
    """Where constants of the program may be: its data; without section headers all that is mapped but dynstr."""
    image = dynamic.image
    for section in image.sections:
        flags = section.header.sh_flags & (SectionFlag.ALLOC | SectionFlag.EXECINSTR)
        is_data = section.header.sh_type == SectionType.PROGBITS and flags == SectionFlag.ALLOC
        if is_data and section.name not in _WITHOUT_TEXT:
            yield section.span
    if not image.sections:
        names = dynamic.strings
        for start, stop in ((load.p_offset, load.p_offset + load.p_filesz) for load in image.loads):
            yield range(start, min(max(names.start, start), stop))
            yield range(min(max(names.stop, start), stop), stop)
