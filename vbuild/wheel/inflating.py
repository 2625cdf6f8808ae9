"""Inflate deflate streams a chunk at a time, with a look at where blocks begin.

    raw -> what it inflates to; and, at every MiB, a few bytes at a time until a step yields nothing: a Stall

isal also reads gzip files, into the caller's memory. Reading members as such files was tried: `inspect` of two large
libraries took as long, and more memory. And isal takes codes that leave room for others, which zlib and so pip refuse:
zlib takes about a second a GB longer, and inflates what is small, and all that `verify` and `check` vouch for.
https://www.rfc-editor.org/rfc/rfc1951
"""

import io
import math
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import takewhile

from isal import isal_zlib
from msgspec import Struct

from vbuild.errors import WheelError
from vbuild.files.records import Buffer

STEP = 32  # bytes of the stream that are inflated at a time where the end of a block is looked for

# blocks are looked for about once in so many bytes that come out
_GRID = 1 << 20
# and less often in the largest libraries, of so many bytes: in them the search took more than copying saved
_MANY, _WIDE_GRID = 1 << 28, 1 << 22
# bytes that come out at a time: larger chunks would be taken from the system, and given back, each time
_CHUNK = 1 << 18
# bytes of the stream that are inflated at a time elsewhere
_SLICE = 1 << 16
# libdeflate's are of 300,000 bytes at most, those of others shorter
_LONGEST_BLOCK = 305_000


class Stall(Struct, frozen=True):
    """A step that yielded nothing: it began at byte *packed* of the stream, when *plain* bytes had come out."""

    packed: int
    plain: int


def grid_for(size: int) -> int:
    """The bytes from one place to the next at which blocks are looked for, in a member of *size* bytes."""
    return _GRID if size < _MANY else _WIDE_GRID


def inflated_stream(
    raw: Iterator[bytes], stalls: list[Stall] | None = None, *, grid: int = _GRID, is_strict: bool = False
) -> Iterator[bytes]:
    """What the deflate stream in *raw* inflates to, a chunk at a time; `WheelError` unless it ends with *raw*.

    *stalls*, if given, get one for about each *grid*; where none is found, the next is looked for a MiB later. What
    *is_strict* is inflated by zlib.
    """
    inflater = (zlib if is_strict else isal_zlib).decompressobj(-zlib.MAX_WBITS)
    packed = plain = 0
    wanted: float = math.inf if stalls is None else grid
    try:
        for piece in _slices(raw):
            rest, read = piece, 0
            if stalls is not None and plain >= wanted:
                # some hundred steps: no line of Python runs in any of them
                steps = map(inflater.decompress, iter(partial(io.BytesIO(rest).read, STEP), b""))
                pieces = list(takewhile(bool, steps))
                read, found = len(pieces) * STEP, sum(map(len, pieces))
                plain += found
                yield b"".join(pieces)
                if read < len(rest):
                    if not inflater.eof:
                        stalls.append(Stall(packed + read, plain))
                    read += STEP
                # what did not become shorter is stored, and stored blocks do not stall
                if read < len(rest) or found <= len(rest) or plain >= wanted + _LONGEST_BLOCK:
                    step = grid if read < len(rest) else min(grid, _GRID)
                    wanted = plain - plain % step + step
            packed += len(piece)
            rest = rest[read:]
            while rest and not inflater.eof:
                chunk = inflater.decompress(rest, _CHUNK)
                rest = inflater.unconsumed_tail
                plain += len(chunk)
                yield chunk
            if rest or inflater.unused_data:
                raise WheelError("damaged: bytes after the end of its deflate stream")
        yield inflater.flush()
    except (zlib.error, isal_zlib.error) as error:  # type: ignore[misc] # its stub says that this class is one
        raise WheelError("damaged: its deflate stream is broken") from error
    if not inflater.eof:
        raise WheelError("damaged: its deflate stream is cut short")


def _slices(raw: Iterator[bytes]) -> Iterator[Buffer]:
    """The bytes of *raw*, cut at the same places on all machines: how far a codec reads on must not matter."""
    for piece in raw:
        view = memoryview(piece)
        for start in range(0, len(view), _SLICE):
            yield view[start : start + _SLICE]
