"""What an ELF file says of itself to the loader, read from a mapped file without copying it.

    Outline    ELF header, section headers   machine, type, where its bytes are
               PT_DYNAMIC                    SONAME, NEEDED, RPATH, RUNPATH: offsets into the string table
               PT_NOTE                       build-id, GNU properties (x86 ISA needed, x86 ISA used)
    Loading    DT_VERNEED                    the versions of symbols it takes: Elf64_Verneed for each library, and
                                             Elf64_Vernaux for each of its versions
               DT_VERDEF                     those it gives: Elf64_Verdef for each version, and Elf64_Verdaux for each
                                             of its names; the base one is the SONAME at link time
               DT_SYMTAB                     PyInit_demo: it is the Python module demo
               PROGBITS without code         "libcuda.so.1": what it may open with dlopen
                                             "/proc/self/maps", and dladdr in DT_SYMTAB: it may ask where it is
               DT_FILTER, DT_AUDIT ...       what the loader opens along with it
    Facts      PT_GNU_STACK, PT_LOAD, PT_TLS the stack it wants, pages that it loads with, thread-local variables
               DT_SYMTAB, DT_VERSYM          the symbols it takes, with versions, and those that it gives

The tables are found as the loader finds them, also without section headers, in files of 32 and 64 bits and of either
byte order; a table that cannot be read is a `BinaryError`.
https://gabi.xinuos.com/elf/08-dynamic.html and the psABI supplement, https://gitlab.com/x86-psABIs/x86-64-ABI
https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/symversion.html
https://docs.python.org/3/c-api/extension-modules.html
"""

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from msgspec import Struct

from vbuild.binary.outline import MODULE, BinaryFacts, BinaryLoading, BinaryOutline, Import, LoadedName
from vbuild.elf.image import DynamicRow, ElfImage, Section, StringTable
from vbuild.elf.records import (
    ADDRESS_TAGS,
    DF_STATIC_TLS,
    DF_TEXTREL,
    HIDDEN,
    MAGIC,
    PATH_TAGS,
    STB_LOCAL,
    STB_WEAK,
    STRING_TAGS,
    STV_MASK,
    VER_FLG_BASE,
    VERSION_NUMBER,
    DynamicEntry,
    DynamicTag,
    SectionType,
    SegmentFlag,
    SegmentType,
    SymbolEntry,
    VersionDefinition,
    VersionName,
    VersionNeed,
    VersionNeedEntry,
    record_size,
    tuples,
)
from vbuild.errors import BinaryError
from vbuild.files.reading import open_file
from vbuild.files.records import Buffer, Packed
from vbuild.hardware.cpu import X86_64_LEVELS

R = TypeVar("R", bound=Packed)

# .gnu.version numbers versions with 15 bits
_MOST_VERSIONS = 0x8000
_VERSION_TAGS = ((DynamicTag.VERNEED, DynamicTag.VERNEEDNUM), (DynamicTag.VERDEF, DynamicTag.VERDEFNUM))
_NUMBERED = "which .gnu.version cannot number"
_MOST_TEXT = 1 << 24  # bytes of all strings of one kind: rows may share a string of a megabyte
_PIECE = 4096
# e_machine as platform tags spell it, or else as the specification does
_MACHINES = {
    3: "i686",
    22: "s390x",
    40: "armv7l",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
    258: "loongarch64",
    190: "EM_CUDA",
    224: "EM_AMDGPU",
}
_PPC64 = 21
# machines whose stack glibc makes executable for a file that does not say which it wants
_EXECUTABLE_BY_DEFAULT = frozenset({"x86_64", "i686"})
_TYPES = {0: "ET_NONE", 1: "ET_REL", 2: "ET_EXEC", 3: "ET_DYN"}
_NT_GNU_BUILD_ID, _NT_GNU_PROPERTY_TYPE_0 = 3, 5
_ISA_NEEDED, _ISA_USED = 0xC0008002, 0xC0010002
# GPU code of hundreds of MB, and unwind tables
_WITHOUT_TEXT = frozenset({".nv_fatbin", "__nv_relfatbin", ".hip_fatbin", ".eh_frame", ".eh_frame_hdr", ".interp"})
_SUFFIX = re.compile(rb"\.so")
# without lib in front a name is all of a string, or the last part of a path
_LIBRARY = re.compile(rb"(?<![\w.+-])lib[\w.+-]*?\.so(?:\.\w+)*(?![\w+-])|(?<![^\0/])\w[\w.+-]*?\.so(?:\.\w+)*(?=\0)")
_LONGEST = 255  # bytes, NAME_MAX
# by these a library finds out where it is, its own path in the process among others
_PLACE_FUNCTIONS = re.compile(rb"(?:dladdr1?|dlinfo|dl_iterate_phdr|_dl_find_object)\0")
_PLACE_FILES = re.compile(rb"/proc/self/(?:maps|smaps|numa_maps|map_files)\b")
# what it is a filter for, and what is to audit it: names with colons between them, which glibc looks for as for NEEDED
_OPENED_ALONG = frozenset({DynamicTag.FILTER, DynamicTag.AUXILIARY, DynamicTag.AUDIT, DynamicTag.DEPAUDIT})


class RequiredVersions(Struct, frozen=True):
    """The versions taken from one library: hash, flags, index and name of each."""

    library: str
    versions: tuple[tuple[int, int, int, str], ...]


class Dynamic(Struct, frozen=True, eq=False):
    """The dynamic table of *image*: rows up to DT_NULL, file offsets of the table and of its strings."""

    image: ElfImage
    rows: tuple[DynamicRow, ...]
    span: range
    strings: range

    @classmethod
    def of(cls, image: ElfImage) -> Self:
        """To be changed: `BinaryError` if there is none, or none with strings."""
        count = sum(segment.p_type == SegmentType.DYNAMIC for segment in image.segments)
        if count != 1:
            raise BinaryError(f"{count} PT_DYNAMIC, expected one: statically linked, it loads no library")
        table = cls.read(image)
        length, start = table.value(DynamicTag.STRSZ) or 0, table.offset(DynamicTag.STRTAB)
        if start is None or start + length > image.size:
            raise BinaryError(f"string table at {table.value(DynamicTag.STRTAB) or 0:#x}, which is not in the file")
        for tag, count_tag in _VERSION_TAGS:
            address, count = table.value(tag), table.value(count_tag) or 0
            if address is not None and table.offset(tag) is None:
                raise BinaryError(f"version table at {address:#x}, which is not in the file")
            if count > _MOST_VERSIONS:
                raise BinaryError(f"{count} records of versions, expected {_MOST_VERSIONS} at most")
        return table

    @classmethod
    def read(cls, image: ElfImage) -> Self:
        """Empty if there is none, and without strings if the file has none."""
        size = record_size(DynamicEntry, image.encoding)
        segment = next((segment for segment in image.segments if segment.p_type == SegmentType.DYNAMIC), None)
        start, length = (segment.p_offset, segment.p_filesz) if segment else (0, 0)
        table = cls(image, image.dynamic_rows(), range(start, start + length // size * size), range(0))
        begin = min(table.offset(DynamicTag.STRTAB) or 0, image.size)
        end = min(begin + (table.value(DynamicTag.STRSZ) or 0), image.size)
        return cls(image, table.rows, table.span, range(begin, end))

    def raw(self, offset: int) -> bytes:
        at = self.strings.start + offset
        while at < self.strings.stop:
            piece = bytes(self.image.data[at : min(at + _PIECE, self.strings.stop)])
            if (end := piece.find(b"\0")) >= 0:
                return bytes(self.image.data[self.strings.start + offset : at + end])
            at += len(piece)
        raise BinaryError(f"string at {offset:#x} has no end in {len(self.strings):#x} bytes")

    def text(self, offset: int) -> str:
        return self.raw(offset).decode("utf-8", "surrogateescape")

    def texts(self, *tags: int, errors: str = "surrogateescape") -> tuple[str, ...]:
        return self.decoded((row.value for row in self.rows if row.tag in tags), errors)

    def decoded(self, offsets: Iterable[int], errors: str) -> tuple[str, ...]:
        """The strings at *offsets*; `BinaryError` if they are far longer than any real ones."""
        texts: list[str] = []
        left = _MOST_TEXT
        for offset in offsets:
            texts.append(self.raw(offset).decode("utf-8", errors))
            if (left := left - len(texts[-1])) < 0:
                raise BinaryError(f"names of libraries and versions of more than {_MOST_TEXT:#x} characters")
        return tuple(texts)

    def value(self, tag: int) -> int | None:
        """Of several rows the loader takes the last."""
        return next((row.value for row in reversed(self.rows) if row.tag == tag), None)

    def offset(self, tag: int) -> int | None:
        address = self.value(tag)
        return None if address is None else self.image.offset(address)

    @property
    def paths(self) -> tuple[DynamicRow, ...]:
        return tuple(row for row in self.rows if row.tag in PATH_TAGS)

    def required(self, errors: str = "surrogateescape") -> tuple[RequiredVersions, ...]:
        required = []
        for need, entries in version_needs(self.image, self.offset(DynamicTag.VERNEED)):
            library, *names = self.decoded((need.vn_file, *(entry.vna_name for entry in entries)), errors)
            pairs = zip(entries, names, strict=True)
            versions = ((entry.vna_hash, entry.vna_flags, entry.vna_other, name) for entry, name in pairs)
            required.append(RequiredVersions(library, tuple(versions)))
        return tuple(required)

    def names(self) -> Iterator[int]:
        """The string offsets of the names that the loader reads before it looks for symbols."""
        yield from (row.value for row in self.rows if row.tag in STRING_TAGS)
        for need, entries in version_needs(self.image, self.offset(DynamicTag.VERNEED)):
            yield need.vn_file
            yield from (entry.vna_name for entry in entries)
        for _, names in version_definitions(self.image, self.offset(DynamicTag.VERDEF)):
            yield from names


def version_needs(image: ElfImage, start: int | None) -> Iterator[tuple[VersionNeed, tuple[VersionNeedEntry, ...]]]:
    """The version requirements in the table at *start*, each with its versions.

    `BinaryError` if they run past the end of the file, or are too many to be numbered.
    """
    left = _MOST_VERSIONS
    for at, need in _linked(image, start, VersionNeed):
        if (left := left - need.vn_cnt) < 0:
            raise BinaryError(f"more than {_MOST_VERSIONS} symbol versions, {_NUMBERED}")
        entries = _linked(image, at + need.vn_aux, VersionNeedEntry, most=need.vn_cnt)
        yield need, tuple(row for _, row in entries)


def version_definitions(image: ElfImage, start: int | None) -> Iterator[tuple[VersionDefinition, tuple[int, ...]]]:
    """The version definitions in the table at *start*, each with the offsets of its names, own first."""
    left = _MOST_VERSIONS
    for at, definition in _linked(image, start, VersionDefinition):
        if (left := left - definition.vd_cnt) < 0:
            raise BinaryError(f"more than {_MOST_VERSIONS} symbol versions, {_NUMBERED}")
        names = _linked(image, at + definition.vd_aux, VersionName, most=definition.vd_cnt)
        yield definition, tuple(name.vda_name for _, name in names)


def _linked(image: ElfImage, at: int | None, record: type[R], *, most: int | None = None) -> Iterator[tuple[int, R]]:
    """The records from offset *at* on; the last field of each is the distance to the next."""
    size = record_size(record, image.encoding)
    for _ in range(_MOST_VERSIONS + 1 if most is None else most):
        if at is None:
            return
        if at + size > image.size:
            raise BinaryError(f"symbol version record at {at:#x} runs past the end, {image.size:#x}")
        fields = next(tuples(record, image.data[at : at + size], image.encoding))
        yield at, record(*fields)
        at = at + fields[-1] if fields[-1] else None
    if most is None:
        raise BinaryError(f"more than {_MOST_VERSIONS} symbol version records, {_NUMBERED}")


class Outline(BinaryOutline, frozen=True, kw_only=True):
    sections: tuple[Section, ...]

    @classmethod
    def parse(cls, data: Buffer) -> Self:
        """The ELF file *data*; `BinaryError` if it is none or its headers are damaged."""
        with memoryview(data) as view:
            image = ElfImage.read(view)
            return cls(**outline_facts(image, Dynamic.read(image)))


class Loading(BinaryLoading, frozen=True, kw_only=True):
    """*needs_mentioned* are NEEDED names that its data has as well, perhaps to open the library once more."""

    outline: Outline
    needs_mentioned: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, data: Buffer) -> Self:
        """The ELF file *data*; `BinaryError` if it is none or is damaged."""
        with memoryview(data) as view:
            image = ElfImage.read(view)
            dynamic = Dynamic.read(image)
            outline = Outline(**outline_facts(image, dynamic))
            required = dynamic.required("backslashreplace")
            definitions = [pair for pair in version_definitions(image, dynamic.offset(DynamicTag.VERDEF)) if pair[1]]
            version_names = list(
                zip(
                    (bool(definition.vd_flags & VER_FLG_BASE) for definition, _ in definitions),
                    dynamic.decoded((names[0] for _, names in definitions), "backslashreplace"),
                    strict=True,
                )
            )
            # libc.so.6 can be run, but is a library by SONAME
            has_interpreter = any(segment.p_type == SegmentType.INTERP for segment in image.segments)
            along = (path for value in _texts(dynamic, *_OPENED_ALONG) for path in value.split(":"))
            mentioned, place_files = _in_constants(dynamic)
            opened = {*mentioned, *(path.rpartition("/")[2] for path in along)} - {""}
            modules, place_functions = _modules_and_place_functions(dynamic)
            return cls(
                outline=outline,
                taken=tuple(LoadedName(need.library, tuple(name for *_, name in need.versions)) for need in required),
                given=tuple(name for is_base, name in version_names if not is_base),
                base=next((name for is_base, name in version_names if is_base), None),
                modules=modules,
                is_program=outline.type == "ET_EXEC" or (has_interpreter and not outline.soname),
                mentioned=frozenset(opened) - {*outline.needed, outline.soname},
                own_place=(*place_functions, *place_files),
                needs_mentioned=frozenset(opened & {*outline.needed}),
            )


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    with open_file(path) as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise BinaryError(f"{path.name}: not an ELF file")
        with mmap(file.fileno(), 0, access=ACCESS_READ) as whole, memoryview(whole) as view:
            yield view


def outline_facts(image: ElfImage, dynamic: Dynamic) -> dict[str, Any]:
    bits, order = image.encoding
    properties, build_id = _properties(image)
    ppc64 = "ppc64le" if order == "<" else "ppc64"
    machine = ppc64 if image.machine == _PPC64 else _MACHINES.get(image.machine, str(image.machine))
    flags = dynamic.value(DynamicTag.FLAGS) or 0
    stacks = [segment.p_flags for segment in image.segments if segment.p_type == SegmentType.GNU_STACK]
    tls = sum(segment.p_memsz for segment in image.segments if segment.p_type == SegmentType.TLS)
    return {
        "machine": machine,
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
        # glibc's own default, stackinfo.h
        "wants_executable_stack": bool(stacks[-1] & SegmentFlag.X) if stacks else machine in _EXECUTABLE_BY_DEFAULT,
        # dl-load.c refuses a segment whose alignment is no multiple of a page
        "page_size": min((load.p_align & -load.p_align for load in image.loads if load.p_align), default=None),
        "has_text_relocations": bool(flags & DF_TEXTREL) or dynamic.value(DynamicTag.TEXTREL) is not None,
        "static_tls": tls if flags & DF_STATIC_TLS else 0,
        "sections": image.sections,
    }


def read_facts(data: Buffer) -> tuple[BinaryFacts, ...]:
    """The ELF file *data*; `BinaryError` if it is none or is damaged."""
    with memoryview(data) as view:
        image = ElfImage.read(view)
        dynamic = Dynamic.read(image)
        outline = Outline(**outline_facts(image, dynamic))
        names = StringTable(bytes(image.view(dynamic.strings)))
        undefined, exported = [], set()
        for number, (name, info, other, section, *_) in enumerate(_dynamic_symbols(dynamic)):
            if name and not section:
                undefined.append((number, names.at(name), info >> 4 == STB_WEAK))
            elif name and info >> 4 != STB_LOCAL and other & STV_MASK not in HIDDEN:
                exported.add(names.at(name))
        has_interpreter = any(segment.p_type == SegmentType.INTERP for segment in image.segments)
        modules = (MODULE.fullmatch(name.encode() + b"\0") for name in exported)
        return (
            BinaryFacts(
                outline,
                imports_of(dynamic, undefined),
                tuple(sorted(match[1].decode() for match in modules if match)),
                outline.type == "ET_EXEC" or (has_interpreter and not outline.soname),
                frozenset(exported),
            ),
        )


def imports_of(dynamic: Dynamic, undefined: Sequence[tuple[int, str, bool]]) -> tuple[Import, ...]:
    """The *undefined* symbols, each with its number and whether it is weak, with their versions."""
    versions = {
        number & VERSION_NUMBER: (need.library, name)
        for need in (dynamic.required("backslashreplace") if undefined else ())
        for _, _, number, name in need.versions
    }
    start = dynamic.offset(DynamicTag.VERSYM) if undefined else None
    order: Literal["little", "big"] = "little" if dynamic.image.encoding.order == "<" else "big"
    indices = b"" if start is None else bytes(dynamic.image.data[start : start + 2 * (undefined[-1][0] + 1)])
    imports = []
    for number, name, is_weak in undefined:
        index = int.from_bytes(indices[2 * number : 2 * number + 2], order) & VERSION_NUMBER
        library, version = versions.get(index, (None, None))
        imports.append(Import(name, version, library, is_weak))
    return tuple(imports)


def _texts(dynamic: Dynamic, *tags: DynamicTag) -> tuple[str, ...]:
    return dynamic.texts(*tags, errors="backslashreplace")


def _paths(dynamic: Dynamic, tag: DynamicTag) -> tuple[str, ...]:
    return tuple(path for value in _texts(dynamic, tag) for path in value.split(":") if path)


def _levels(bits: int) -> tuple[str, ...]:
    """By bits of an x86 ISA property, lowest first (psABI, program property)."""
    return tuple(level for bit, level in enumerate(X86_64_LEVELS) if bits >> bit & 1)


def _properties(image: ElfImage) -> tuple[dict[int, int], str | None]:
    """The GNU properties that are 32-bit numbers, by type, and the build-id."""
    properties: dict[int, int] = {}
    build_id = None
    bits, order = image.encoding
    head, number = struct.Struct(order + "II"), struct.Struct(order + "I")
    for kind, text in _gnu_notes(image):
        if kind == _NT_GNU_BUILD_ID:
            build_id = text.hex()
        at = 0
        while kind == _NT_GNU_PROPERTY_TYPE_0 and at + head.size <= len(text):
            name, size = head.unpack_from(text, at)
            at += head.size
            if size == number.size and at + size <= len(text):
                properties[name] = number.unpack_from(text, at)[0]
            at += _aligned(size, bits // 8)
    return properties, build_id


def _gnu_notes(image: ElfImage) -> Iterator[tuple[int, bytes]]:
    """Types and descriptions: name size, description size and type, then both, aligned to 4."""
    head = struct.Struct(image.encoding.order + "III")
    # the loader reads segments; object files have sections only
    segments = [segment.span for segment in image.segments if segment.p_type == SegmentType.NOTE]
    sections = [section.span for section in image.sections if section.header.sh_type == SectionType.NOTE]
    for span in segments or sections:
        at, end = span.start, min(span.stop, image.size)
        while at + head.size <= end:
            name_size, size, kind = head.unpack_from(image.data, at)
            text = at + head.size + _aligned(name_size, 4)
            if text + size > end:
                break  # tools that move notes may leave the old segment: loaders read on without it
            if bytes(image.data[at + head.size : at + head.size + min(name_size, 4)]) == b"GNU\0":
                yield kind, bytes(image.data[text : text + size])
            at = text + _aligned(size, 4)


def _aligned(number: int, unit: int) -> int:
    return number + -number % unit


def _modules_and_place_functions(dynamic: Dynamic) -> tuple[tuple[str, ...], list[str]]:
    with dynamic.image.view(dynamic.strings) as names:
        inits = {match.start(): match[1].decode() for match in MODULE.finditer(names)}
        askers = {match.start(): match[0][:-1].decode() for match in _PLACE_FUNCTIONS.finditer(names)}
    modules, place_functions = [], set()
    for name, info, _, section, _, _ in _dynamic_symbols(dynamic) if inits or askers else ():
        if name in inits and section and info >> 4 != STB_LOCAL:
            modules.append(inits.pop(name))
        if name in askers and not section:
            place_functions.add(askers[name])
    return tuple(modules), sorted(place_functions)


def _dynamic_symbols(dynamic: Dynamic) -> Iterator[tuple[int, ...]]:
    """The rows of the table; without section headers, up to the next table."""
    image = dynamic.image
    if (start := dynamic.offset(DynamicTag.SYMTAB)) is None:
        return iter(())
    sizes = (section.size for section in image.sections if section.header.sh_type == SectionType.DYNSYM)
    if (size := next(sizes, None)) is None:
        begin = dynamic.value(DynamicTag.SYMTAB) or 0
        behind = [row.value for row in dynamic.rows if row.tag in ADDRESS_TAGS and row.value > begin]
        size = min(behind, default=begin + image.size) - begin
    return tuples(SymbolEntry, image.view(range(start, start + size)), image.encoding)


def _in_constants(dynamic: Dynamic) -> tuple[set[str], list[str]]:
    names: set[str] = set()
    place_files: dict[str, None] = {}
    for span in _constants(dynamic):
        with dynamic.image.view(span) as text:
            for suffix in [match.start() for match in _SUFFIX.finditer(text)]:
                first = max(suffix - _LONGEST, 0)
                around = bytes(text[first : suffix + _LONGEST])
                for match in _LIBRARY.finditer(around):
                    if match.start() < suffix - first < match.end():
                        names.add(match[0].decode())
            place_files |= {match[0].decode(): None for match in _PLACE_FILES.finditer(text)}
    return names, sorted(place_files)


def _constants(dynamic: Dynamic) -> Iterator[range]:
    image, strings = dynamic.image, dynamic.strings
    for section in image.sections:
        if section.is_data and section.name not in _WITHOUT_TEXT:
            yield section.span
    if not image.sections:
        for load in image.loads:
            start, stop = load.span.start, load.span.stop
            yield range(start, min(max(strings.start, start), stop))
            yield range(min(max(strings.stop, start), stop), stop)
