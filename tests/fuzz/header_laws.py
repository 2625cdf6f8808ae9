"""What the headers of a library that was cut must still say, and its symbols for debuggers.

Headers that said something else before than the loader does are not looked at: damaged files have such.
"""

import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import starmap

from tests.fuzz.loaded import Loaded, Section, Segment, readable

_NULL, _SYMTAB, _NOBITS = 0, 2, 8
_LOADED, _CODE = 2, 4
_PHDR = 6
# HASH, STRTAB, SYMTAB, RELA, JMPREL, RELR, GNU_HASH, VERSYM, VERDEF, VERNEED
_LEADING = frozenset({4, 5, 6, 7, 23, 36, 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE})
# DYNAMIC, INTERP, TLS, GNU_EH_FRAME, GNU_STACK, GNU_RELRO: what is not loaded by itself, and no note
_TOLD = frozenset({2, 3, 7, 0x6474E550, 0x6474E551, 0x6474E552})


def check_headers(before: Loaded, after: Loaded, led: Mapping[int, tuple[range, range]]) -> None:
    """Sections are where they say, segments what they were; symbols of GPU code follow it from where it is *led*.

    That is the place which GPU code had, and the one it has, by the start of the first.
    """
    assert len(after.sections) >= len(before.sections), "sections are gone"
    pairs = list(zip(before.sections, after.sections, strict=False))
    _check_sections(before, after, pairs)
    moved = {old.address: new.address for old, new in pairs if old.flags & _LOADED and old.size}
    rows = (readable(partial(getattr, each, "dynamic")) or () for each in (before, after))
    for (_, value), (tag, now) in zip(*rows, strict=False):
        if tag in _LEADING and moved.get(value, value) != value:
            assert now == moved[value], f"tag {tag:#x} leads to {now:#x}, expected {moved[value]:#x}"
    was, told = (sorted((each.kind, each.flags, *each[3:6]) for each in _told(library)) for library in (before, after))
    assert told == was, "another segment"
    if all(starmap(_is_mapped, ((before, each) for each in _told(before)))):
        assert all(starmap(_is_mapped, ((after, each) for each in _told(after)))), "a segment is not where it says"
    if _are_apart(_in_file(before)):
        assert _are_apart(_in_file(after)), "sections lie over each other"
    if _are_apart(_in_memory(before)):
        assert _are_apart(_in_memory(after)), "PT_LOADs lie over each other"
    if _tells_its_headers(before):
        assert _tells_its_headers(after), "PT_PHDR says another place"
    for old, new in pairs:
        if old.kind == new.kind == _SYMTAB and not old.flags & _LOADED:
            places = {start: (range(start, start), range(end, end)) for start, end in moved.items()}
            _check_symtab(before, after, (old, new), {**places, **led})


def _check_sections(before: Loaded, after: Loaded, pairs: Sequence[tuple[Section, Section]]) -> None:
    for old, new in pairs:
        if _NULL in {old.kind, new.kind}:
            assert old.kind == _NULL or not old.flags & _LOADED, f"section {old.name!r} is gone"
            continue
        assert (new.name, new.kind, new.flags) == (old.name, old.kind, old.flags), f"section {old.name!r} is another"
        if old.link < len(before.sections) and before.sections[old.link].kind:
            assert new.link == old.link, f"section {new.name!r} belongs to another"
            assert after.sections[new.link].kind, f"section {new.name!r} belongs to one that is gone"
        if _is_in_place(before, old):
            assert _is_in_place(after, new), f"section {new.name!r} is not where it says"
            is_run = old.flags & _CODE and _is_executable(before, old.address)
            assert not is_run or _is_executable(after, new.address), f"section {new.name!r} cannot be run"


def _is_in_place(library: Loaded, section: Section) -> bool:
    is_filled = section.flags & _LOADED and section.kind != _NOBITS and section.size
    return bool(is_filled) and library.addresses(section.offset, section.size).start == section.address


def _is_executable(library: Loaded, address: int) -> bool:
    return any(load.flags & 1 and load.address <= address < load.address + load.size for load in library.loads)


def _told(library: Loaded) -> Iterator[Segment]:
    return (each for each in library.segments if each.kind in _TOLD)


def _is_mapped(library: Loaded, segment: Segment) -> bool:
    return not segment.filled or library.addresses(segment.offset, segment.filled).start == segment.address


def _tells_its_headers(library: Loaded) -> bool:
    places = library.addresses(library.phoff, 56 * library.phnum)
    told = [each for each in library.segments if each.kind == _PHDR]
    return all((each.offset, each.address, each.filled) == (library.phoff, places.start, len(places)) for each in told)


def _in_file(library: Loaded) -> Iterator[range]:
    filled = (each for each in library.sections if each.kind not in {_NULL, _NOBITS} and each.size)
    return (range(each.offset, each.offset + each.size) for each in filled)


def _in_memory(library: Loaded) -> Iterator[range]:
    return (range(load.address, load.address + load.size) for load in library.loads)


def _are_apart(spans: Iterable[range]) -> bool:
    """Whether no two of *spans* have anything in common."""
    found = sorted(spans, key=lambda span: (span.start, span.stop))
    return all(one.stop <= other.start for one, other in itertools.pairwise(found))


def _check_symtab(
    before: Loaded, after: Loaded, tables: tuple[Section, Section], led: Mapping[int, tuple[range, range]]
) -> None:
    """Each row is what it was, of no section where its own is gone, or has the value and size of where it is *led*."""
    old, new = tables
    assert new.size == old.size, "another number of symbols"
    gone = {
        number
        for number, (one, other) in enumerate(zip(before.sections, after.sections, strict=False))
        if one.kind and not other.kind
    }
    for row in range(0, old.size // 24 * 24, 24):
        was, now = (each.data[at + row : at + row + 24] for each, at in ((before, old.offset), (after, new.offset)))
        (number, value, size), (number_now, *now_at) = struct.unpack("<6xHQQ", was), struct.unpack("<6xHQQ", now)
        if number in gone:
            assert number_now not in gone, f"the symbol of {value:#x} is of a section that is gone"
            continue
        assert now[:8] == was[:8], "another symbol"
        place, there = led.get(value, (range(value, value), range(value, value)))
        assert now_at[0] == there.start, f"a symbol of {value:#x} leads elsewhere"
        length = len(there) if place and size == len(place) else size
        assert now_at[1] == length or (value in led and not place), f"the symbol of {value:#x} has another size"
