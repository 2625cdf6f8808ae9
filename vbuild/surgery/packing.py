"""Where the pieces of a section go when some of them become shorter: down, in their order, and never past what stays.

before  | A          | B     |.| stays | C             | D      |
after   | a | b |            | | stays | c  | d |                |
                ^ free                          ^ free
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vbuild.errors import SurgeryError

_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of addresses that will need *size* bytes; one that *stays* keeps its first address."""

    span: range
    size: int
    stays: bool = False


@dataclass(frozen=True, slots=True)
class Packing:
    """The new first address of each piece, and the addresses that nothing needs any more, both ascending."""

    starts: tuple[int, ...]
    free: tuple[range, ...]


def up(number: int, unit: int) -> int:
    """The first multiple of *unit* from *number* on."""
    return -(-number // unit) * unit


def packed(section: range, pieces: Sequence[Piece], *, alignment: int, is_padding: Callable[[range], bool]) -> Packing:
    """Room for *pieces*, given in ascending order, in *section*; every start keeps the alignment that all had before.

    What no piece claims stays where it is, unless it is shorter than the alignment and *is_padding* says that it is
    there for nothing else. `SurgeryError` where pieces overlap or grow.
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


def _alignment(pieces: Sequence[Piece], alignment: int) -> int:
    """The largest power of two that all starts are multiples of, as far as a linker may have wanted it."""
    bits = max(alignment, _PAGE)
    for piece in pieces:
        bits |= piece.span.start
    return bits & -bits


def _check(piece: Piece, section: range, before: int) -> None:
    start, stop = piece.span.start, piece.span.stop
    if not before <= start < stop <= section.stop:
        raise SurgeryError(
            f"replaced {start:#x} to {stop:#x}: expected addresses from {before:#x} on, up to {section.stop:#x}"
        )
    if piece.size > len(piece.span):
        raise SurgeryError(f"{piece.size:#x} bytes for the {len(piece.span):#x} at address {start:#x}: it may not grow")
