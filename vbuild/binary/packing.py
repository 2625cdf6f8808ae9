"""Where the pieces of a section go when some of them become shorter, without a look at any pointer.

They go down in their order, and never past what stays:

before  | A          | B     |.| stays | C             | D      |
after   | a | b |            | | stays | c  | d |                |
                ^ free                          ^ free
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from vbuild.errors import BinaryError

_PAGE = 4096


class Chunk(Struct, frozen=True):
    """A stretch of addresses that will need *size* bytes; one that *stays* keeps its first address."""

    span: range
    size: int
    stays: bool = False


class Packing(Struct, frozen=True):
    """The new first address of each piece, and the addresses that nothing needs any more, both ascending."""

    starts: tuple[int, ...]
    free: tuple[range, ...]


def up(number: int, unit: int) -> int:
    """The first multiple of *unit* from *number* on."""
    return -(-number // unit) * unit


def packed(section: range, pieces: Sequence[Chunk], *, alignment: int, is_padding: Callable[[range], bool]) -> Packing:
    """Room for *pieces*, given in ascending order, in *section*; every start keeps the alignment that all had before.

    What no piece claims stays where it is, unless it is shorter than the alignment and *is_padding* says that it is
    there for nothing else. `BinaryError` if pieces overlap or grow.
    """
    unit = _alignment(pieces, alignment)
    cursor = before = section.start
    starts, free = [], []
    for piece in pieces:
        _check(piece, section, before)
        gap = range(before, piece.span.start)
        if gap and not (len(gap) < unit and is_padding(gap)):
            free.append(range(cursor, gap.start))
            cursor = gap.stop
        start = piece.span.start if piece.stays else up(cursor, unit)
        free.append(range(cursor, start))
        starts.append(start)
        cursor, before = start + piece.size, piece.span.stop
    rest = range(before, section.stop)
    if rest and not (len(rest) < unit and is_padding(rest)):
        free.append(range(cursor, rest.start))
    else:
        free.append(range(cursor, section.stop))
    return Packing(tuple(starts), tuple(each for each in free if each))


def spread(section: range, pieces: Sequence[Chunk], *, alignment: int, is_padding: Callable[[range], bool]) -> Packing:
    """Room for *pieces* as `packed` has it, where they may move past what stays: the smallest gaps are filled first.

    That leaves few large gaps for few program headers. `BinaryError` if one of them fits nowhere.
    """
    unit = _alignment(pieces, alignment)
    before = start = section.start
    gaps: list[range] = []
    for piece in pieces:
        _check(piece, section, before)
        unclaimed = range(before, piece.span.start)
        if unclaimed and not (len(unclaimed) < unit and is_padding(unclaimed)):
            gaps.append(range(start, unclaimed.start))
            start = unclaimed.stop
        if piece.stays:
            gaps.append(range(start, piece.span.start))
            start = piece.span.start + piece.size
        before = piece.span.stop
    rest = range(before, section.stop)
    is_free = not rest or (len(rest) < unit and is_padding(rest))
    gaps.append(range(start, section.stop if is_free else rest.start))
    gaps = sorted(filter(None, gaps), key=len)
    starts = {number: piece.span.start for number, piece in enumerate(pieces) if piece.stays}
    free: list[range] = []
    moving = sorted(
        (number for number in range(len(pieces)) if number not in starts), key=lambda each: -pieces[each].size
    )
    for number in moving:
        size = pieces[number].size
        for place, gap in enumerate(gaps):
            first = up(gap.start, unit)
            if first + size <= gap.stop:
                starts[number] = first
                free.append(range(gap.start, first))
                gaps[place] = range(first + size, gap.stop)
                break
        else:
            raise BinaryError(f"{size:#x} bytes fit into no gap between what stays")
    kept = sorted((gap for gap in (*free, *gaps) if gap), key=lambda gap: gap.start)
    return Packing(tuple(starts[number] for number in range(len(pieces))), tuple(kept))


def _alignment(pieces: Sequence[Chunk], alignment: int) -> int:
    """The largest power of two that all starts are multiples of, as far as a linker may have wanted it."""
    bits = max(alignment, _PAGE)
    for piece in pieces:
        bits |= piece.span.start
    return bits & -bits


def _check(piece: Chunk, section: range, before: int) -> None:
    start, stop = piece.span.start, piece.span.stop
    if not before <= start < stop <= section.stop:
        raise BinaryError(
            f"replaced {start:#x} to {stop:#x}: expected addresses from {before:#x} on, up to {section.stop:#x}"
        )
    if piece.size > len(piece.span):
        raise BinaryError(f"{piece.size:#x} bytes for the {len(piece.span):#x} at address {start:#x}: it may not grow")
