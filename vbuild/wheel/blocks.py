"""Where the blocks of a deflate stream begin, and pieces of the stream that go into another one as they are.

    raw -> traced: inflated and, at every MiB, a few bytes at a time until a step yields nothing: it read a header
        -> Blocks, of all these stalls
    Blocks, two stalls -> the bits of the blocks between them, or None

No bit is shifted: empty blocks in front of a piece fill up the byte that it begins in, so that stored blocks in it stay
where their lengths begin at a byte. A piece is inflated behind what it may refer to before it is given away: where a
block does not begin where it seems to, the piece is None.
https://www.rfc-editor.org/rfc/rfc1951 (section 3.2)
"""

import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from io import BytesIO
from itertools import takewhile
from mmap import mmap

from isal import isal_zlib
from msgspec import Struct

from vbuild.errors import WheelError
from vbuild.wheel.joining import WINDOW, begins, proved, synced

_GRID = 1 << 20
_CHUNK = 1 << 20
# bytes of the stream that are inflated at a time, and where the end of a block is looked for
_SLICE, _STEP = 1 << 16, 32
# libdeflate's are of 300,000 bytes at most, those of others shorter
_LONGEST_BLOCK = 305_000
# the code that ends the block before is up to two bytes long and yields nothing; the inflater reads some bytes ahead
_BEFORE, _AFTER = _STEP + 2, 3
_LONGEST_HEADER = 512
# what of a block has to come out as it did
_SAMPLE = 64
# the first three bits of a block that is not the last one and has codes of its own
_DYNAMIC = 0b100
# the code of code lengths: 3 bits for each length, of 7 bits at most, whose codes together fill the room for codes
_MOST_CODES, _LENGTHS, _FULL_CODE = 29, 17, 1 << 7
# blocks of nothing, their bits and how many: with fixed codes; with codes of its own, for 0, 1 and the end
_FIXED, _FIXED_BITS = 0b010, 10
_OWN, _OWN_BITS = 0x6AD3FFCA0400000000101C104, 99


class Stall(Struct, frozen=True):
    """A step that yielded nothing: it began at byte *packed* of the stream, when *plain* bytes had come out."""

    packed: int
    plain: int


def traced(raw: Iterator[bytes], stalls: list[Stall]) -> Iterator[bytes]:
    """What the deflate stream in *raw* inflates to, a chunk at a time; *stalls* get one for about every MiB.

    `WheelError` unless it ends with *raw*.
    """
    inflater = isal_zlib.decompressobj(-zlib.MAX_WBITS)
    packed, plain, wanted = 0, 0, _GRID
    try:
        for rest in _slices(raw):
            read = 0
            if plain >= wanted:
                # some hundred steps: no line of Python runs in any of them
                steps = map(inflater.decompress, iter(partial(BytesIO(rest).read, _STEP), b""))
                pieces = list(takewhile(bool, steps))
                read, found = len(pieces) * _STEP, sum(map(len, pieces))
                plain += found
                yield b"".join(pieces)
                if read < len(rest):
                    if not inflater.eof:
                        stalls.append(Stall(packed + read, plain))
                    read += _STEP
                # what did not become shorter is stored, and stored blocks do not stall
                if read < len(rest) or found <= len(rest) or plain >= wanted + _LONGEST_BLOCK:
                    wanted = plain - plain % _GRID + _GRID
            packed += len(rest)
            rest = rest[read:]  # noqa: PLW2901 - what is left of it
            while rest and not inflater.eof:
                chunk = inflater.decompress(rest, _CHUNK)
                rest = inflater.unconsumed_tail  # noqa: PLW2901
                plain += len(chunk)
                yield chunk
            if rest or inflater.unused_data:
                raise WheelError("damaged: bytes after the end of its deflate stream")
        yield inflater.flush()
    except isal_zlib.error as error:  # type: ignore[misc] # its stub says that this class is an exception
        raise WheelError("damaged: its deflate stream is broken") from error
    if not inflater.eof:
        raise WheelError("damaged: its deflate stream is cut short")


def _slices(raw: Iterator[bytes]) -> Iterator[bytes]:
    """The bytes of *raw*, cut at the same places on all machines: how far a codec reads on must not matter."""
    for piece in raw:
        for start in range(0, len(piece), _SLICE):
            yield piece[start : start + _SLICE]


class Blocks:
    """The deflate stream of a member, of which *read* gives bytes by place and number, and blocks of it."""

    def __init__(self, stalls: list[Stall], read: Callable[[int, int], bytes]) -> None:
        self.stalls = tuple(stalls)
        # by the name of a codec: whether pieces of this stream are as small as what it makes
        self.worth: dict[str, bool] = {}
        self._read = read
        self._begins: dict[int, int | None] = {}

    def copied(self, first: int, last: int, plain: memoryview) -> bytes | None:
        """The bits between the stalls of these numbers as a stream that ends at a byte and that another may follow.

        It has to stand behind a window of *plain*, which is all that the member holds. None if it cannot be read, or is
        not shown to inflate to what it should.
        """
        with suppress(OSError, ValueError, WheelError):  # the archive may be closed, or a volume gone
            begin, end = self._begin(first, plain), self._begin(last, plain)
            if begin is None or end is None:
                return None
            phase, free = begin % 8, -end % 8
            data = bytearray(self._read(begin // 8, -(-end // 8) - begin // 8))
            lead, bits = filler(phase)
            data[0] = data[0] >> phase << phase | lead >> (bits - phase)
            data[-1] &= 0xFF >> free
            whole = (lead & (1 << bits - phase) - 1).to_bytes((bits - phase) // 8, "little")
            stream = synced(whole + data, free)
            start, stop = self.stalls[first].plain, self.stalls[last].plain
            return stream if proved(stream, plain[start:stop], behind=plain[max(start - WINDOW, 0) : start]) else None
        return None

    def _begin(self, number: int, plain: memoryview) -> int | None:
        """The bit of the stream at which the block begins whose header made the inflater stall."""
        if number not in self._begins:
            stall = self.stalls[number]
            first = max(stall.packed - _BEFORE, 0)
            near = int.from_bytes(self._read(first, _BEFORE + _AFTER + _LONGEST_HEADER), "little")
            window = plain[max(stall.plain - WINDOW, 0) : stall.plain]
            sample = bytes(plain[stall.plain : stall.plain + _SAMPLE])
            places = range(8 * (stall.packed + _AFTER - first))
            found = (place for place in places if _is_header(near >> place) and begins(near >> place, window, sample))
            begin = next(found, None)
            self._begins[number] = None if begin is None else 8 * first + begin
        return self._begins[number]


class InflatedFile(mmap):
    """What a member of an archive holds, and the blocks of the stream that it came from, if they are known."""

    blocks: Blocks | None = None


def filler(phase: int) -> tuple[int, int]:
    """Blocks of nothing, the bits and how many, that leave *phase* bits of their last byte."""
    blocks, bits = (_OWN, _OWN_BITS) if phase % 2 else (0, 0)
    while bits % 8 != phase:
        blocks |= _FIXED << bits
        bits += _FIXED_BITS
    return blocks, bits


def _is_header(block: int) -> bool:
    """Whether the bits of *block* may be a header with codes of its own: cheaper than to inflate it."""
    if block & 7 != _DYNAMIC or block >> 3 & 31 > _MOST_CODES or block >> 8 & 31 > _MOST_CODES:
        return False
    lengths = block >> _LENGTHS
    room = 0
    for number in range((block >> 13 & 15) + 4):
        if length := lengths >> 3 * number & 7:
            room += _FULL_CODE >> length
    return room == _FULL_CODE
