"""Whether an official library and a bundled one are the same but for what repair tools change.

.dynstr              begins with the official names; a path among them may have been written over
.dynamic             the same entries, but for RPATH, names and addresses of what was moved
.gnu.version_r       the same but for hashes in the names of libraries
.dynsym, .symtab     the same, but for the numbers of sections, which patchelf mixes up and no loader reads
.shstrtab            what the names of sections come to
every other section  the same name, type, flags, size and bytes; what is mapped and was not moved, the same address
segments             map all of them, for the loader knows no sections; PT_DYNAMIC is .dynamic, and leads to the others
"""

from collections import Counter
from dataclasses import dataclass

from vbuild.binary.elfrecords import LEADS, DynamicTag, SectionType, SegmentType
from vbuild.binary.image import Image, Layout, Section, Sliceable
from vbuild.linkage.names import hashed
from vbuild.provenance.dynamics import NAMED, PATHS, Entry, Names, entries_in, entries_of, named_again
from vbuild.provenance.homes import TOUCHED, paired, unnumbered

# what patchelf may have moved leads elsewhere; relocations it leaves where they are
_MOVED_TO: dict[int, str] = {
    tag: name for tag, name in LEADS.items() if tag not in {DynamicTag.RELA, DynamicTag.JMPREL}
}
_MOVED = frozenset({DynamicTag.STRSZ, DynamicTag.NULL, *_MOVED_TO})


def difference(official: Sliceable, bundled: memoryview, *, below: int | None = None) -> str | None:
    """What tells *bundled* from *official*, in words; None where it is the same library.

    With *below* only sections that begin in front of that offset of the official file are compared. `BinaryError`
    where one of them is no 64-bit little-endian ELF file, or damaged.
    """
    here, there = Layout.parse(official), Image.parse(bundled)
    if _kind(here) != _kind(there):
        return "its ELF header says otherwise"
    if Counter(section.name for section in here.sections) != Counter(section.name for section in there.sections):
        return "it has other sections"
    copies = paired(here.sections, there.sections)
    pair = _Pair(official, here, there)
    for section in here.sections:
        copy = copies[section.index]
        is_wanted = below is None or section.span.start < below
        if is_wanted and not (_is_alike(section, copy) and pair.is_same(section, copy)):
            return f"its section {section.name} is another"
    astray = _astray(there)
    return f"its segments lead past its section {astray}" if astray else None


@dataclass(frozen=True, slots=True)
class _Pair:
    """The bytes of the official file, its headers, and the bundled file."""

    data: Sliceable
    official: Layout
    bundled: Image

    @property
    def names(self) -> Names:
        here, there = self.official.section(".dynstr"), self.bundled.section(".dynstr")
        return Names(bytes(self._view(here.span)) if here else b"", bytes(self._copied(there)) if there else b"")

    def is_same(self, section: Section, copy: Section) -> bool:
        """Whether the official *section* became *copy*."""
        here, there = self._view(section.span), self._copied(copy)
        match section.header.sh_type:
            case SectionType.DYNAMIC:
                names = self.names
                return _said(here, Names(names.official, names.official)) == _said(there, names)
            case SectionType.STRTAB if section.name == ".dynstr":
                return _begins(self.names)
            case SectionType.GNU_VERNEED:
                return named_again(bytes(there), self.names) == here
            case SectionType.SYMTAB | SectionType.DYNSYM:
                return unnumbered(bytes(there)) == unnumbered(bytes(here))
        # names of sections are compared as such
        return section.index == self.official.header.e_shstrndx or here == there

    def _view(self, span: range) -> memoryview:
        return self.data[span.start : span.stop]

    def _copied(self, copy: Section) -> memoryview:
        return self.bundled.view(copy.span)


def _kind(file: Layout) -> tuple[int, int, int, int]:
    return file.machine, file.header.e_type, file.header.e_flags, file.header.e_entry


def _astray(bundled: Image) -> str | None:
    """The section of *bundled* that the loader does not find where the section headers say; None where it finds all."""
    for section in bundled.sections:
        has_bytes = section.is_loaded and section.header.sh_type != SectionType.NOBITS and section.header.sh_size > 0
        if has_bytes and bundled.offset(section.header.sh_addr) != section.header.sh_offset:
            return section.name
    dynamic = bundled.section(".dynamic")
    spans = [one.span.start for one in bundled.segments if one.p_type == SegmentType.DYNAMIC]
    if dynamic and spans != [dynamic.span.start]:
        return dynamic.name
    for tag, value in entries_of(bundled):
        target = bundled.section(_MOVED_TO[tag]) if tag in _MOVED_TO else None
        if target and target.header.sh_addr != value:
            return target.name
    return None


def _is_alike(section: Section, copy: Section) -> bool:
    """Whether the headers say the same, where they may not differ."""
    one, other = section.header, copy.header
    is_free = one.sh_type in TOUCHED or one.sh_type == SectionType.DYNAMIC
    same_size = one.sh_size == other.sh_size or section.name in {".dynstr", ".dynamic"}
    same_place = one.sh_addr == other.sh_addr or is_free
    return (one.sh_type, one.sh_flags) == (other.sh_type, other.sh_flags) and same_size and same_place


def _said(dynamic: memoryview, names: Names) -> tuple[Counter[Entry], list[str]]:
    """The entries of *dynamic* that may not differ, and the libraries needed without hashes in their names."""
    entries = entries_in(dynamic)
    kept = Counter((tag, value) for tag, value in entries if tag not in {*NAMED, *PATHS, *_MOVED})
    return kept, [_stem(names.text(value)) for tag, value in entries if tag == NAMED[0]]


def _stem(name: str) -> str:
    """*name* without its hash, and without the version, which repair tools take from the file's name."""
    found = hashed(name)
    return (found.name if found else name).partition(".so")[0]


def _begins(names: Names) -> bool:
    """Whether the bundled names begin with the official ones, but for paths among those."""
    place = 0
    for start in sorted(names.paths()):
        if names.official[place:start] != names.bundled[place:start]:
            return False
        place = names.official.find(b"\0", start)
    return names.official[place:] == names.bundled[place : len(names.official)]
