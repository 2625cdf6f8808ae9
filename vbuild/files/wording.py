"""Sizes, counts and long lines as people read them."""

import re
from collections.abc import Iterator, Sequence

WIDTH = 80

_SMALLEST_SHARE = 0.5
_THOUSAND, _MILLION, _BILLION = 1e3, 1e6, 1e9
# a line may end after blanks and, in lists, after a comma
_PIECE = re.compile(r"\S+?(?:\s+|,(?=\S)|$)")


def sized(size: float) -> str:
    """As 539.1 MB; 1 kB is 1000 bytes."""
    if size >= 10 * _BILLION:
        return f"{size / _BILLION:.1f} GB"
    if size >= 100 * _THOUSAND:
        return f"{size / _MILLION:.1f} MB"
    return f"{size / _THOUSAND:.1f} kB" if size >= _THOUSAND else f"{size:.0f} B"


def mb(size: int) -> str:
    return f"{size / _MILLION:.1f}"


def percent(part: float, whole: float) -> str:
    """A small share is <1 %, not 0 %."""
    share = 100 * part / whole if whole else 0.0
    return "<1 %" if 0 < share < _SMALLEST_SHARE else f"{share:.0f} %"


def counted(number: int, noun: str) -> str:
    many = f"{noun.removesuffix('y')}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else many}"


def shortened(path: str, width: int) -> str:
    """*path* in *width* columns, cut in its middle: the name stays whole if it fits, then its folder."""
    if len(path) <= width:
        return path
    # the end says more: the name, its version, and the folder of a CPU level
    folder, _, name = path.rpartition("/")
    end = len(name) + 1 + len(folder.rpartition("/")[2])
    head = max(0, min((width - 1) // 3, width - 1 - end)) if len(name) < width else (width - 1) // 3
    return f"{path[:head]}…{path[head + 1 - width :]}"


def wrapped(text: str, *, indent: int = 2) -> Iterator[str]:
    """*text* in lines of 80 columns, indented after the first; words stay whole."""
    begin = " " * (len(text) - len(text.lstrip()))
    line = begin
    for piece in _PIECE.findall(text):
        if line.strip() and len(line) + len(piece.rstrip()) > WIDTH:
            yield line.rstrip()
            line = " " * indent
        line += piece
    yield line.rstrip()


def shown(names: Sequence[object], most: int = 3) -> str:
    """``a, b, c and 4 more``"""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more
