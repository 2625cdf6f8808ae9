"""What the loader, and whoever moves a library, has to know of an ELF file; read from a mapped file without copying it.

    DT_VERNEED, DT_STRTAB     the versions of symbols it takes from other libraries     Taken
    DT_VERDEF                 the versions it gives; the base one is the SONAME at link time
    DT_SYMTAB                 PyInit_demo: it is the Python module demo
    PROGBITS that is no code  "libcuda.so.1": what it may open with dlopen
    DT_FILTER, DT_AUDIT ...   what the loader opens along with it

The tables are found as the loader finds them, through PT_DYNAMIC, so files without section headers have them, too.
https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/symversion.html
https://docs.python.org/3/c-api/extension-modules.html
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any, Self

from vbuild.elf.outline import ElfHeaders, Outline, damage_refused
from vbuild.errors import BinaryError
from vbuild.files.records import Buffer

_VERNEED, _VERNAUX = "HHIII", "IHHII"
_VERDEF, _VERDAUX = "HHHHIII", "II"
_VER_FLG_BASE = 1
# .gnu.version numbers versions with 15 bits: whatever says it has more is damaged, and may take hours to read
_MOST_VERSIONS = 0x8000

_SYMBOL_32, _SYMBOL_64 = "IIIBBH", "IBBHQQ"
_STB_LOCAL = 0
# PyInitU_ where a name has letters that are not ASCII (PEP 489), PyModExport_ from Python 3.15 on (PEP 793)
_MODULE = re.compile(rb"Py(?:Init|ModExport)U?_(\w+)\0")

_SHF_ALLOC, _SHF_EXECINSTR = 2, 4
# NVIDIA's and AMD's GPU code has hundreds of MB, and unwind tables have no text
_WITHOUT_TEXT = frozenset({".nv_fatbin", "__nv_relfatbin", ".hip_fatbin", ".eh_frame", ".eh_frame_hdr", ".interp"})
_SUFFIX = re.compile(rb"\.so")
# what begins otherwise is a library's name where it is all of a string, or the last part of a path
_LIBRARY = re.compile(rb"(?<![\w.+-])lib[\w.+-]*?\.so(?:\.\w+)*(?![\w+-])|(?<![^\0/])\w[\w.+-]*?\.so(?:\.\w+)*(?=\0)")
_LONGEST = 255  # bytes, NAME_MAX
# each a name, or several with colons between them; glibc looks for them as it does for what is NEEDED
_OPENED_ALONG = ("DT_FILTER", "DT_AUXILIARY", "DT_AUDIT", "DT_DEPAUDIT")


@dataclass(frozen=True, slots=True)
class LoadedName:
    """The symbol versions that a file takes from one library, as ``.gnu.version_r`` lists them."""

    library: str
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loading:
    """An ELF file as the loader sees it; *modules* without ``PyInit_``, *mentioned* without what it NEEDs and itself.

    *base* is the SONAME that the linker wrote into the version definitions: it stays when a tool changes the SONAME.
    """

    outline: Outline
    taken: tuple[LoadedName, ...]
    given: tuple[str, ...]
    base: str | None
    modules: tuple[str, ...]
    is_program: bool
    mentioned: frozenset[str]

    @classmethod
    def parse(cls, data: Buffer) -> Self:
        """The ELF file *data*; `BinaryError` where it is none or is damaged."""
        with damage_refused(), memoryview(data) as view:
            file = _File(view)
            outline = Outline(**file.facts())
            given = tuple(file.given())
            return cls(
                outline=outline,
                taken=tuple(file.taken()),
                given=tuple(name for name, is_base in given if not is_base),
                base=next((name for name, is_base in given if is_base), None),
                modules=tuple(file.modules()),
                is_program=outline.type == "ET_EXEC" or (file.has_interpreter and not outline.soname),
                mentioned=frozenset({*file.mentioned(), *file.opened_along()}) - {*outline.needed, outline.soname},
            )


class _File(ElfHeaders):
    """The tables behind PT_DYNAMIC, beside pyelftools' reading of the headers."""

    def __init__(self, data: memoryview) -> None:
        super().__init__(data)
        self._data = data
        self._order = "<" if self.elf.little_endian else ">"
        self._dynamic_segment: Any = next((found for found in self.segments if found["p_type"] == "PT_DYNAMIC"), None)
        tags = self._dynamic_segment.iter_tags() if self._dynamic_segment else ()
        self._rows: tuple[tuple[Any, int], ...] = tuple((tag.entry.d_tag, tag.entry.d_val) for tag in tags)
        self._tags: dict[Any, int] = dict(self._rows)
        start = self._place("DT_STRTAB") or 0
        self._names = range(start, min(start + self._tags.get("DT_STRSZ", 0), self.size))

    @property
    def has_interpreter(self) -> bool:
        # libc.so.6 and libcap.so.2 have one as well: they can be run, but their SONAME says what they are for
        return any(segment["p_type"] == "PT_INTERP" for segment in self.segments)

    def taken(self) -> Iterator[LoadedName]:
        left = _MOST_VERSIONS
        for place, (_, count, file, start, _) in self._chain(self._place("DT_VERNEED"), _VERNEED):
            names = [self._name(row[3]) for _, row in self._chain(place + start, _VERNAUX, most=count)]
            yield LoadedName(self._name(file), tuple(names))
            if (left := left - len(names)) < 0:
                raise BinaryError(f"more than {_MOST_VERSIONS} symbol versions, which .gnu.version cannot number")

    def given(self) -> Iterator[tuple[str, bool]]:
        """The version definitions: the name, and whether it is the file's own, the base."""
        for place, (_, flags, _, _, _, start, _) in self._chain(self._place("DT_VERDEF"), _VERDEF):
            for _, (name, _) in self._chain(place + start, _VERDAUX, most=1):
                yield self._name(name), bool(flags & _VER_FLG_BASE)

    def _chain(
        self, place: int | None, fields: str, *, most: int | None = None
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The records from *place* on, and where they are: each ends with the way to the next one, the last with 0."""
        layout = Struct(self._order + fields)
        for _ in range(_MOST_VERSIONS if most is None else most):
            if place is None:
                return
            if place + layout.size > self.size:
                raise BinaryError(f"symbol version record at {place:#x} runs past the end, {self.size:#x}")
            row = layout.unpack_from(self._data, place)
            yield place, row
            place = place + row[-1] if row[-1] else None
        if most is None:
            raise BinaryError(f"more than {_MOST_VERSIONS} symbol version records, which .gnu.version cannot number")

    def modules(self) -> Iterator[str]:
        """The Python modules that it is: what it exports to be imported by."""
        with self._data[self._names.start : self._names.stop] as names:
            wanted = {match.start(): match[1].decode() for match in _MODULE.finditer(names)}
        if not wanted:
            return
        for offset, section, binding in self._symbols():
            if section and binding != _STB_LOCAL and offset in wanted:
                yield wanted.pop(offset)

    def _symbols(self) -> Iterator[tuple[int, int, int]]:
        """Of every row in the table of dynamic symbols: where its name is, its section (0 for none), its binding."""
        is_wide = self.elf.elfclass == 64  # noqa: PLR2004 - bits
        layout = Struct(self._order + (_SYMBOL_64 if is_wide else _SYMBOL_32))
        if (start := self._place("DT_SYMTAB")) is None:
            return
        size = next((section["sh_size"] for section in self.sections if section["sh_type"] == "SHT_DYNSYM"), None)
        if size is None:
            size = self._dynamic_segment.num_symbols() * layout.size
        with self._data[start : start + size] as table, table[: len(table) - len(table) % layout.size] as rows:
            for row in layout.iter_unpack(rows):
                info, section = (row[1], row[3]) if is_wide else (row[3], row[5])
                yield row[0], section, info >> 4

    def opened_along(self) -> Iterator[str]:
        """The file names of the libraries that it is a filter for, and of those that are to audit it."""
        for tag, value in self._rows:
            if tag in _OPENED_ALONG:
                yield from (name for path in self._name(value).split(":") if (name := path.rpartition("/")[2]))

    def mentioned(self) -> Iterator[str]:
        for span in self._texts():
            with self._data[span.start : span.stop] as text:
                for found in [match.start() for match in _SUFFIX.finditer(text)]:
                    first = max(found - _LONGEST, 0)
                    around = bytes(text[first : found + _LONGEST])
                    for match in _LIBRARY.finditer(around):
                        if match.start() < found - first < match.end():
                            yield match[0].decode()

    def _texts(self) -> Iterator[range]:
        """Where constants of the program may be: its data; without section headers all that is mapped but dynstr."""
        for section in self.sections:
            flags = section["sh_flags"] & (_SHF_ALLOC | _SHF_EXECINSTR)
            if section["sh_type"] == "SHT_PROGBITS" and flags == _SHF_ALLOC and section.name not in _WITHOUT_TEXT:
                yield range(section["sh_offset"], section["sh_offset"] + section["sh_size"])
        if not self.sections:
            for segment in self.segments:
                if segment["p_type"] == "PT_LOAD":
                    start, stop = segment["p_offset"], segment["p_offset"] + segment["p_filesz"]
                    yield range(start, min(max(self._names.start, start), stop))
                    yield range(min(max(self._names.stop, start), stop), stop)

    def _place(self, tag: str) -> int | None:
        """Where the table of *tag* is in the file; None where there is none."""
        return next(self.elf.address_offsets(self._tags[tag]), None) if tag in self._tags else None

    def _name(self, offset: int) -> str:
        start = self._names.start + offset
        piece = bytes(self._data[start : min(start + 4 * _LONGEST, self._names.stop)])
        if (end := piece.find(b"\0")) < 0:
            raise BinaryError(f"name at {start:#x} runs past its table, which ends at {self._names.stop:#x}")
        return piece[:end].decode("utf-8", "backslashreplace")
