"""Pieces of a deflate stream that go into another one as they are, from the start of one block to that of another.

No bit is shifted: empty blocks in front of a piece fill up the byte that it begins in, so that stored blocks in it stay
where their lengths begin at a byte. A piece is inflated behind what it may refer to before it is given away: where a
block does not begin where it seems to, the piece is None.
https://www.rfc-editor.org/rfc/rfc1951 (section 3.2)
"""

from collections.abc import Callable
from contextlib import suppress
from mmap import mmap

from vbuild.errors import WheelError
from vbuild.files.edited import EditedFile, Part
from vbuild.wheel.inflating import STEP, Stall
from vbuild.wheel.joining import WINDOW, begins, proved, synced

# the code that ends the block before is up to two bytes long and yields nothing; the inflater reads some bytes ahead
_BEFORE, _AFTER = STEP + 2, 3
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
# bytes that are compared at a time
_COMPARED = 1 << 16


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
            if begin is None or end is None or begin >= end:
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


def as_edit(after: memoryview, before: EditedFile) -> EditedFile:
    """*after*, which was made of *before*, as ranges of the same source: what has its bytes at the same place.

    The whole of *after* if no blocks of the source are known, or little is the same: new bytes are held in memory.
    """
    source, same = before.source, 0
    parts: list[Part] = []
    if isinstance(source.obj, InflatedFile) and source.obj.blocks:
        place = 0
        for part in before.parts:
            for start in range(0, len(part), _COMPARED):
                piece = part[start : start + _COMPARED]
                new = after[place : place + len(piece)]
                # of two views each byte would be compared by itself
                if isinstance(piece, range) and bytearray(new) == source[piece.start : piece.stop]:
                    parts.append(piece)
                    same += len(piece)
                else:
                    parts.append(bytes(new))
                place += len(piece)
        parts.append(bytes(after[place:]))
    return EditedFile.of(source, parts) if same > len(after) // 2 else EditedFile.whole(after)


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
