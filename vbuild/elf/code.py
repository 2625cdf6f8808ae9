"""What an ELF file holds: its code, its functions and objects, and what it takes from other libraries.

    SHF_EXECINSTR sections           code; without section headers the executable PT_LOAD segments
    .symtab, .dynsym, .eh_frame_hdr  functions: the first two name them, the third knows them in stripped files too
    .gnu.version, DT_VERNEED         the versions of the symbols it takes from other libraries
    .rela.dyn, .relr.dyn             pointers to functions and objects in data

https://gabi.xinuos.com/ and the psABI supplement, https://gitlab.com/x86-psABIs/x86-64-ABI
"""

import re
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Self

from msgspec import Struct

from vbuild.binary.code import CodeSection, Symbol
from vbuild.elf.dynamic import Dynamic
from vbuild.elf.iced import Decoder, is_installed
from vbuild.elf.image import ElfImage
from vbuild.elf.read import Outline, outline_facts
from vbuild.elf.records import (
    LITTLE_64,
    VERSION_NUMBER,
    DynamicTag,
    ElfMachine,
    Relocation,
    SectionFlag,
    SectionType,
    SegmentFlag,
    SegmentType,
)
from vbuild.elf.symbols import SymbolTables, section_data, symbols_of
from vbuild.errors import BinaryError
from vbuild.files.records import Buffer

# by machine: a symbol's address and the addend; the file's base and the addend; what the resolver at these returns
_ABSOLUTE: dict[int, int] = {ElfMachine.X86_64: 1, ElfMachine.AARCH64: 257}
_RELATIVE: dict[int, int] = {ElfMachine.X86_64: 8, ElfMachine.AARCH64: 1027}
_RESOLVED: dict[int, int] = {ElfMachine.X86_64: 37, ElfMachine.AARCH64: 1032}

_CALLED = (DynamicTag.INIT, DynamicTag.FINI)
# call and jmp, or a jump on a condition, with the distance of what they lead to
_BRANCH, _DISTANCE = re.compile(rb"(?:[\xe8\xe9]|\x0f[\x80-\x8f])(?=....)", re.DOTALL), struct.Struct("<i")
_STARTS = frozenset({".init_array", ".fini_array", ".preinit_array"})
_CONSTANTS = (".rodata", ".data", ".lrodata", ".ldata")
_MOST_CONSTANTS, _LONGEST = 1 << 25, 15


class Import(Struct, frozen=True):
    """A symbol taken from another library, with the version and the library if the file says them.

    A weak one may be missing.
    """

    name: str
    version: str | None = None
    library: str | None = None
    is_weak: bool = False


class Elf(Outline, frozen=True):
    """An ELF file: who it is, what it wants from the loader, and the code in it.

    Symbols, imports and pointers are read of 64-bit little-endian libraries and programs only, the pointers of x86-64
    and aarch64 only. *pointers* are the places in data that the loader fills with an address of this file, and that
    address, *resolvers* the functions that it calls to fill some; *import_places* those that it fills with the address
    of an import. *writable* are the addresses of data that code can change, *relro* those that only the loader changes.
    *constants* are the bytes of small enough sections of data. *exported* are the names under which other files can use
    its functions and data. What is *called* are the functions that DT_INIT and DT_FINI name.
    """

    code: tuple[CodeSection, ...]
    functions: tuple[Symbol, ...]
    objects: tuple[Symbol, ...]
    imports: tuple[Import, ...]
    pointers: tuple[tuple[int, int], ...]
    import_places: tuple[tuple[int, str], ...]
    resolvers: frozenset[int]
    writable: tuple[range, ...]
    relro: tuple[range, ...]
    constants: tuple[CodeSection, ...]
    entry: int
    called: tuple[int, ...]
    exported: frozenset[str]

    @classmethod
    def parse(cls, data: Buffer) -> Self:
        """The ELF file *data*; `BinaryError` if it is none or is damaged."""
        with memoryview(data) as view:
            image = ElfImage.read(view)
            dynamic = Dynamic.read(image)
            facts = outline_facts(image, dynamic)
            code = _code(image)
            symbols = symbols_of(image, code)
            code = tuple(
                sorted((*code, *_code_in_data(image, code, symbols.functions)), key=lambda piece: piece.address)
            )
            pointers, import_places, resolvers = _pointers(image, symbols)
            return cls(
                **facts,
                code=code,
                functions=symbols.functions,
                objects=symbols.objects,
                imports=_imports(dynamic, symbols),
                pointers=pointers,
                import_places=import_places,
                resolvers=resolvers,
                writable=tuple(load.addresses for load in image.loads if load.p_flags & SegmentFlag.W),
                relro=tuple(part.addresses for part in image.segments if part.p_type == SegmentType.GNU_RELRO),
                constants=_constants(image),
                entry=image.header.e_entry,
                called=tuple(place for tag in _CALLED if (place := dynamic.value(tag))),
                exported=symbols.exported,
            )

    @property
    def code_size(self) -> int:
        """Bytes of code."""
        return sum(len(code.data) for code in self.code)

    @property
    def areas(self) -> tuple[range, ...]:
        """The addresses of its sections."""
        return tuple(section.addresses for section in self.sections)

    @property
    def stubs(self) -> tuple[CodeSection, ...]:
        """The code that does nothing but jump to what the loader fills in."""
        return tuple(code for code in self.code if code.name.startswith(".plt"))

    @property
    def slots(self) -> tuple[range, ...]:
        """The addresses that the loader fills for code alone."""
        return tuple(section.addresses for section in self.sections if section.name == ".got")

    @property
    def starts(self) -> tuple[range, ...]:
        """The addresses of tables of functions that the loader calls when it loads or unloads the file."""
        return tuple(section.addresses for section in self.sections if section.name in _STARTS)

    @property
    def has_handlers(self) -> bool:
        """Whether functions go on in code that handles errors when what they call throws one."""
        return any(section.name.startswith(".gcc_except_table") for section in self.sections)

    @property
    def is_fixed(self) -> bool:
        """Whether a number in its code may be an address: it is a program that is loaded where it says."""
        return self.type == "ET_EXEC"

    @property
    def handlers(self) -> Mapping[int, tuple[int, ...]]:
        """The functions that the system calls when those at an address throw; here they are part of these."""
        return {}

    @property
    def has_strange_handlers(self) -> bool:
        """Whether some of these may not be known."""
        return False

    @property
    def dispatchers(self) -> frozenset[int]:
        """The places through which code calls what RAX points at."""
        return frozenset()

    @property
    def image_base(self) -> int:
        """The address from which code counts tables: none, it makes their own."""
        return 0

    @property
    def given(self) -> frozenset[str]:
        """The features above the baseline that Linux asks for: none."""
        return frozenset()

    @property
    def system(self) -> str:
        """What its calls keep to."""
        return "linux"


def _code(image: ElfImage) -> tuple[CodeSection, ...]:
    if image.sections:
        found = [
            CodeSection(section.name, section.header.sh_addr, _slice(image, section.span))
            for section in image.sections
            if section.header.sh_flags & SectionFlag.EXECINSTR
        ]
    else:
        found = [
            CodeSection(f"segment {index}", segment.p_vaddr, _slice(image, segment.span))
            for index, segment in enumerate(image.segments)
            if segment.p_type == SegmentType.LOAD and segment.p_flags & SegmentFlag.X
        ]
    return tuple(sorted((code for code in found if code.data), key=lambda code: code.address))


def _code_in_data(image: ElfImage, code: Sequence[CodeSection], functions: Sequence[Symbol]) -> Iterator[CodeSection]:
    """What code branches into that stands among data of an executable segment, from the first such place on.

    Linkers that know one segment for all that is not written put constants there, too.
    """
    executable = [load.addresses for load in image.loads if load.p_flags & SegmentFlag.X]
    sections = [
        one for one in image.sections if one.is_data and any(one.addresses.start in load for load in executable)
    ]
    if not (sections and is_installed and image.machine == ElfMachine.X86_64):
        return
    low, high = min(one.addresses.start for one in sections), max(one.addresses.stop for one in sections)
    # where such a branch seems to be, by the start of the function: bytes of another instruction may look like one
    seeming: dict[int, set[int]] = {}
    targets: set[int] = set()
    for piece in code:
        for match in _BRANCH.finditer(piece.data):
            site, end = piece.address + match.start(), piece.address + match.end() + _DISTANCE.size
            if low <= end + _DISTANCE.unpack_from(piece.data, match.end())[0] < high:
                index = bisect_right(functions, site, key=attrgetter("address")) - 1
                start = max(functions[index].address if index >= 0 else 0, piece.address)
                seeming.setdefault(start, set()).add(site)
        for start, sites in seeming.items():
            data = piece.data[start - piece.address : max(sites) - piece.address + _LONGEST]
            targets.update(one.near_branch_target for one in Decoder(64, data, ip=start) if one.ip in sites)
        seeming.clear()
    for section in sections:
        if within := [target for target in targets if target in section.addresses]:
            offset = min(within) - section.addresses.start
            yield CodeSection(section.name, min(within), _slice(image, section.span)[offset:])


def _constants(image: ElfImage) -> tuple[CodeSection, ...]:
    """The bytes of the sections in which code keeps its constants and tables."""
    if image.encoding != LITTLE_64 or image.machine not in _RELATIVE:
        return ()
    found = [
        CodeSection(section.name, section.header.sh_addr, _slice(image, section.span))
        for section in image.sections
        if section.is_loaded and section.name.startswith(_CONSTANTS) and section.size <= _MOST_CONSTANTS
    ]
    return tuple(sorted((piece for piece in found if piece.data), key=lambda piece: piece.address))


def _slice(image: ElfImage, span: range) -> bytes:
    if span and span.stop > image.size:
        size = span.stop - span.start
        raise BinaryError(f"code at {span.start:#x}, {size:#x} bytes long, runs past the end, {image.size:#x}")
    return bytes(image.view(span))


def _imports(dynamic: Dynamic, symbols: SymbolTables) -> tuple[Import, ...]:
    if not symbols.undefined:
        return ()
    versions = {
        number & VERSION_NUMBER: (each.library, name)
        for each in dynamic.required("backslashreplace")
        for _, _, number, name in each.versions
    }
    indices: bytes = b""
    for section in dynamic.image.sections:
        if section.header.sh_type == SectionType.GNU_VERSYM:
            indices = section_data(dynamic.image, section)
    found = []
    for number, name, is_weak in symbols.undefined:
        index = int.from_bytes(indices[2 * number : 2 * number + 2], "little") & VERSION_NUMBER
        library, version = versions.get(index, (None, None))
        found.append(Import(name, version, library, is_weak))
    return tuple(found)


def _pointers(
    image: ElfImage, symbols: SymbolTables
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, str], ...], frozenset[int]]:
    """The places in data that the loader fills: with an address of this file, and of an import; and the resolvers."""
    found: list[tuple[int, int]] = []
    imported: list[tuple[int, str]] = []
    resolvers = {symbol.address for symbol in symbols.functions if symbol.is_resolver}
    if image.encoding != LITTLE_64 or image.machine not in _RELATIVE:
        return (), (), frozenset()
    absolute, resolved = _ABSOLUTE[image.machine], _RESOLVED[image.machine]
    based = {_RELATIVE[image.machine], resolved}
    addresses, names = dict(symbols.defined), {number: name for number, name, _ in symbols.undefined}
    for section in image.sections:
        if section.header.sh_type == SectionType.RELA and section.is_loaded:
            for place, info, addend in Relocation.tuples(image.view(section.span), image.encoding):
                kind, number = info & 0xFFFFFFFF, info >> 32
                if kind in based:
                    found.append((place, addend))
                    if kind == resolved:
                        resolvers.add(addend)
                elif number in addresses:
                    found.append((place, addresses[number] + (addend if kind == absolute else 0)))
                elif number in names:
                    imported.append((place, names[number]))
        elif section.header.sh_type == SectionType.RELR:
            places = image.relr_places(section.span)
            found += ((place, target) for place in places if (target := image.word(place)))
    return tuple(found), tuple(imported), frozenset(resolvers)
