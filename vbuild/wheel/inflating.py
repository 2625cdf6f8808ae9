"""Inflate deflate streams a chunk at a time: beside other threads, or with a look at where blocks begin.

    raw -> unlocked_stream -> what it inflates to, while other threads run Python
    raw -> inflated_stream -> the same; and, at every MiB, a few bytes at a time until a step yields nothing: a Stall

isal gives Python's lock away where it reads gzip files (RFC 1952), and only there.
https://www.rfc-editor.org/rfc/rfc1951
"""

import gzip
import io
import math
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, takewhile

from isal import isal_zlib
from isal.igzip import IGzipFile
from msgspec import Struct

from vbuild.errors import WheelError
from vbuild.files.records import Buffer

STEP = 32  # bytes of the stream that are inflated at a time where the end of a block is looked for

_GRID = 1 << 20
# bytes that come out at a time: larger chunks would be taken from the system, and given back, each time
_CHUNK = 1 << 18
# bytes of the stream that are inflated at a time elsewhere
_SLICE = 1 << 16
# libdeflate's are of 300,000 bytes at most, those of others shorter
_LONGEST_BLOCK = 305_000
# deflated, no flags, no time, an unknown system
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_GZIP_END = struct.Struct("<II")
_FULL32 = 0xFFFFFFFF


class Stall(Struct, frozen=True):
    """A step that yielded nothing: it began at byte *packed* of the stream, when *plain* bytes had come out."""

    packed: int
    plain: int


def inflated_stream(raw: Iterator[bytes], stalls: list[Stall] | None = None) -> Iterator[bytes]:
    """What the deflate stream in *raw* inflates to, a chunk at a time; *stalls*, if given, get one for about every MiB.

    `WheelError` unless it ends with *raw*.
    """
    inflater = isal_zlib.decompressobj(-zlib.MAX_WBITS)
    packed = plain = 0
    wanted: float = math.inf if stalls is None else _GRID
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
                    wanted = plain - plain % _GRID + _GRID
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
    except isal_zlib.error as error:  # type: ignore[misc] # its stub says that this class is an exception
        raise WheelError("damaged: its deflate stream is broken") from error
    if not inflater.eof:
        raise WheelError("damaged: its deflate stream is cut short")


def _slices(raw: Iterator[bytes]) -> Iterator[Buffer]:
    """The bytes of *raw*, cut at the same places on all machines: how far a codec reads on must not matter."""
    for piece in raw:
        view = memoryview(piece)
        for start in range(0, len(view), _SLICE):
            yield view[start : start + _SLICE]


def unlocked_stream(raw: Callable[[], Iterator[bytes]], *, size: int, crc: int) -> Iterator[bytes]:
    """What the deflate stream in *raw* inflates to, a chunk at a time: *size* bytes with this CRC-32 if it is sound.

    `WheelError` unless it ends with *raw*.
    """
    done = 0
    # two zeros could follow the stream: they would be taken for the padding that gzip files may have
    if crc or size & _FULL32:
        try:
            # gzip's own type, which its class extends, has a stub
            opened: Callable[..., gzip.GzipFile] = IGzipFile
            with opened(fileobj=_Gzip(raw(), _GZIP_END.pack(crc, size & _FULL32)), mode="rb") as file:
                while chunk := file.read(_CHUNK):
                    done += len(chunk)
                    yield chunk
        except (OSError, EOFError, isal_zlib.error):  # type: ignore[misc] # as above
            pass  # what is wrong is told below
        else:
            return
    for chunk in inflated_stream(raw()):
        yield chunk[max(done, 0) :]
        done -= len(chunk)


class _Gzip(io.RawIOBase):
    """The deflate stream in *raw* as the gzip file that ends with *end*."""

    def __init__(self, raw: Iterator[bytes], end: bytes) -> None:
        self._pieces = chain((_GZIP_HEADER,), raw, (end,))
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:  # type: ignore[override] # no other buffers come here
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        count = min(len(buffer), len(self._rest))
        memoryview(buffer)[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
