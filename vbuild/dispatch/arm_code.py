"""Files with aarch64 code as parts of a program: instructions, branches, and addresses that two instructions make.

    adrp x0, page        an address is a page of 4 KB, ...
    add  x0, x0, #12     ... and the rest in the instruction that uses it: an add, a load or a store

The instruction that uses a page is looked for behind the one that makes it, while the register keeps the page. Blocks
need not stand in the order in which they run: behind a branch, a register that was overwritten may still have the page
on another path. There an instruction counts only if it points at the start of a function or at a pointer.
"""

import re
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import takewhile
from struct import Struct
from typing import NamedTuple

from vbuild.binary.code import CodeSection
from vbuild.dispatch import arm
from vbuild.dispatch.facts import features
from vbuild.dispatch.module import ENDS, Module, Piece, Reference, Shape
from vbuild.elf.iced import FlowControl

_WORD, _PAGE = 4, 12
_LINK = 30
# two addresses in one number
_HIGH, _LOW = 40, (1 << 40) - 1
_NOP = 0xD503201F
_NUMBER = Struct("<I").unpack_from
# registers in which a call may hand over something
_ARGUMENTS = 9
# bytes that one instruction stores, at most
_WIDEST = 64
_LEAVES = frozenset({FlowControl.CALL, FlowControl.INDIRECT_CALL, FlowControl.RETURN})
# words behind one that makes a page, in which its use is looked for: while the register keeps it, and after that
_LIVE, _STALE = 512, 128
_ADRP = re.compile(b"[\x90\xb0\xd0\xf0]")
_BRANCHES = re.compile(b"[\x14-\x17\x94-\x97\x34-\x37\xb4-\xb7\x54]")
# the last bytes of words that are not instructions
_SUSPECT = re.compile(b"[" + b"".join(re.escape(bytes([top])) for top in arm.suspects()) + b"]")
_AGAIN = re.compile(b"[\x91\xf9]")
_BRANCHING = 2


def words_of(data: bytes) -> "array[int]":
    words = array("I", data[: len(data) // _WORD * _WORD])
    if sys.byteorder == "big":
        words.byteswap()
    return words


def signed(number: int, bits: int) -> int:
    sign = 1 << (bits - 1)
    return ((number & ((sign << 1) - 1)) ^ sign) - sign


def page_of(word: int, address: int) -> int:
    """What ``adr`` and ``adrp`` make at *address*."""
    offset = signed(word >> 3 & 0x1FFFFC | word >> 29 & 3, 21)
    return (address >> _PAGE << _PAGE) + (offset << _PAGE) if word >> 31 else address + offset


def distance(word: int) -> int:
    """How far the branch *word* leads, in bytes."""
    top = word >> 24
    if top & 0x7C == 0x14:
        return _WORD * signed(word, 26)
    return _WORD * (signed(word >> 5, 14) if top & 0x7E == 0x36 else signed(word >> 5, 19))


def flow_of(word: int, address: int) -> tuple[int, int]:
    """The flow of control of *word*, and where it branches to, or 0."""
    top = word >> 24
    if top & 0x7C == 0x14:
        return (FlowControl.CALL if top & 0x80 else FlowControl.UNCONDITIONAL_BRANCH), address + distance(word)
    if top == 0x54 or top & 0x7C == 0x34:
        return FlowControl.CONDITIONAL_BRANCH, address + distance(word)
    if top & 0xFE == 0xD6:
        kind = word >> 21 & 7
        if kind == 0:
            return FlowControl.INDIRECT_BRANCH, 0
        return (FlowControl.INDIRECT_CALL if kind == 1 else FlowControl.RETURN), 0
    # brk, hlt; udf
    if word & 0xFFE0001F in {0xD4200000, 0xD4400000} or not word >> 16:
        return FlowControl.EXCEPTION, 0
    return FlowControl.NEXT, 0


def writes(word: int, register: int) -> bool:
    """Whether *word* certainly writes to the general *register*."""
    kind = word >> 25 & 0xF
    if word & 0x1F == register:
        if kind in {8, 9}:
            return True
        if kind in {5, 13}:
            return word & 0x1FE00000 != 0x1A400000
        if word & 0x3B000000 in {0x39000000, 0x38000000}:
            return not word & 1 << 26 and word >> 22 & 3 != 0
        if word & 0x3B000000 == 0x18000000:
            return not word & 1 << 26
    if word & 0x3E400000 == 0x28400000:
        return register in {word & 0x1F, word >> 10 & 0x1F}
    is_call = word >> 26 == 0x25 or word & 0xFFFFFC1F == 0xD63F0000
    return is_call and (register <= 18 or register == _LINK)


def offset_in(word: int) -> int | None:
    """How far from the register that *word* uses as an address it points; None if it does not use one so."""
    if word & 0xFFC00000 == 0x91000000:
        return word >> 10 & 0xFFF
    if word & 0x3B000000 == 0x39000000:
        scale = word >> 30 | (word >> 21 & 4 if word & 1 << 26 else 0)
        return (word >> 10 & 0xFFF) << scale
    if word & 0x3B000000 == 0x29000000:
        scale = 2 + (word >> 30 if word & 1 << 26 else word >> 31)
        return signed(word >> 15, 7) << scale
    if word & 0x3F000000 == 0x08000000 or word & 0x3B200C00 == 0x38200000:
        return 0
    if word & 0x3B200C00 == 0x38000000:
        return signed(word >> 12, 9)
    return None


def is_load(word: int) -> bool:
    """Whether *word*, which uses a register as an address, only reads there."""
    if word & 0x3B000000 == 0x39000000 or word & 0x3B200C00 == 0x38000000:
        return bool(word & 1 << 22) if word & 1 << 26 else bool(word >> 22 & 3)
    return word & 0x3B000000 in {0x29000000, 0x08000000} and bool(word & 1 << 22)


def is_instruction(word: int) -> bool:
    """Whether *word* is an instruction; udf with any number but zero marks what a compiler knows is never reached."""
    return arm.INVALID not in arm.needed_by(word) or (word != 0 and not word >> 16)


@lru_cache(maxsize=1 << 16)
def read_by(word: int) -> frozenset[int]:
    """The general registers that *word* may read, 31 for no register or the stack pointer."""
    kind = word >> 25 & 0xF
    first, second, third, last = (word >> at & 0x1F for at in (5, 16, 10, 0))
    registers = {first, second, third, last}
    if kind in {8, 9}:
        how, step = word >> 29 & 3, word >> 23 & 7
        changes = {last} if (step == 5 and how == 3) or (step == 6 and how == 1) else set()
        registers = changes | ({first} if step not in {0, 1, 5} else set()) | ({second} if step == 7 else set())
    elif kind in {5, 13}:
        registers = {first, second} | ({third} if word >> 24 & 0x1F == 0x1B else set())
    elif kind in {10, 11}:
        # cbz, cbnz, tbz, tbnz; msr
        registers = {last} if word & 0x7C000000 == 0x34000000 or word & 0xFFF00000 == 0xD5100000 else set()
        registers = {first} if word & 0xFE000000 == 0xD6000000 else registers
        registers = set(range(9)) if word >> 24 == 0xD4 else registers
    elif kind & 5 == 4:
        registers = _read_by_access(word)
    elif kind & 7 == 7:
        is_moved = word & 0x5F20FC00 == 0x1E200000 or word & 0x5F200000 == 0x1E000000
        registers = {first} if is_moved or word & 0xBFE0FC00 in {0x0E000C00, 0x0E001C00} else set()
    return frozenset(registers)


def _read_by_access(word: int) -> set[int]:
    first, second, third, last = (word >> at & 0x1F for at in (5, 16, 10, 0))
    if word & 0x3B000000 == 0x18000000:
        return set()
    is_vector = bool(word & 1 << 26)
    if word & 0x3A000000 == 0x28000000:
        return {first} | (set() if is_vector or word & 1 << 22 else {last, third})
    if word & 0x3B000000 == 0x39000000 or word & 0x3B200000 == 0x38000000:
        return {first} | (set() if is_vector or word >> 22 & 3 else {last})
    if word & 0x3F400000 == 0x08400000:
        return {first}
    if word & 0x3B200C00 == 0x38200800:
        return {first, second} | (set() if word & 1 << 26 or word >> 22 & 3 else {last})
    return {first, second, third, last}


def without_addresses(data: bytes) -> bytes:
    """The words of *data* without the bits that may encode an address."""
    return b"".join((word & ~_address_bits(word)).to_bytes(_WORD, "little") for word in words_of(data))


def _address_bits(word: int) -> int:
    if word >> 26 & 0x1F == 5:
        return 0x03FFFFFF
    if word & 0x1F000000 == 0x10000000:
        return 0x60FFFFE0
    if word >> 24 in {0x54, 0x34, 0x35, 0xB4, 0xB5} or word & 0x3B000000 == 0x18000000:
        return 0x00FFFFE0
    if word & 0x7E000000 == 0x36000000:
        return 0x0007FFE0
    return 0x003FFC00 if is_add(word) or word & 0x3B000000 == 0x39000000 else 0


def is_add(word: int) -> bool:
    return word & 0xFFC00000 == 0x91000000


class ArmInstruction(NamedTuple):
    """One instruction; *near_branch_target* and *ip_rel_memory_address* are 0 if it has none."""

    ip: int
    code: int
    flow_control: int = FlowControl.NEXT
    near_branch_target: int = 0
    ip_rel_memory_address: int = 0

    @property
    def next_ip(self) -> int:
        return self.ip + _WORD

    @property
    def is_ip_rel_memory_operand(self) -> bool:
        return self.ip_rel_memory_address != 0


def decoded(word: int, address: int, points_at: int = 0) -> ArmInstruction:
    flow, target = flow_of(word, address)
    return ArmInstruction(address, word, flow, target, points_at)


class ArmModule(Module):
    def decoded(self, address: int, data: bytes) -> Iterator[ArmInstruction]:  # type: ignore[override]
        points = self._points(address, address + len(data))
        for index, word in enumerate(words_of(data)):
            ip = address + _WORD * index
            yield decoded(word, ip, points.get(ip, 0))

    def instruction(self, address: int) -> ArmInstruction | None:  # type: ignore[override]
        ip = address - self.base
        word = self.word(ip)
        return decoded(word, ip) if word is not None and is_instruction(word) else None

    def word(self, address: int) -> int | None:
        for start, last, data in self._words:
            if start <= address <= last:
                return int(_NUMBER(data, address - start)[0])
        return None

    @cached_property
    def _words(self) -> list[tuple[int, int, bytes]]:
        """Where the first and last word of each section stand; most of the code comes first."""
        return sorted(
            ((code.address, code.end - _WORD, code.data) for code in self.elf.code),
            key=lambda section: section[0] - section[1],
        )

    @staticmethod
    def _is_valid(instruction: ArmInstruction) -> bool:
        return is_instruction(instruction.code)

    def is_padding(self, instruction: ArmInstruction) -> bool:  # type: ignore[override]
        return instruction.code in {_NOP, 0}

    def is_comparing(self, _: ArmInstruction) -> bool:  # type: ignore[override]
        return False

    def needs(self, instruction: ArmInstruction) -> int:  # type: ignore[override]
        return features(arm.needed_by(instruction.code))

    def instructions(self, piece: Piece) -> Iterator[ArmInstruction]:  # type: ignore[override]
        """The instructions of *piece* up to the first word that is none."""
        data = self.bytes_at(piece.address - self.base, piece.end - piece.address)
        return takewhile(self._is_valid, self.decoded(piece.address - self.base, data))

    def is_entered(self, _: Piece) -> bool:
        return False

    def is_unknown(self, _: Piece) -> bool:
        """Whether a piece needs words that are not instructions to be one: not looked for."""
        return False

    def needing(self, piece: Piece) -> Iterator[ArmInstruction]:  # type: ignore[override]
        start = piece.address - self.base
        code = CodeSection("", start, self.bytes_at(start, piece.end - piece.address))
        return takewhile(self._is_valid, (decoded(word, ip) for ip, word in arm.telling_words(code)))

    def needed_in(self, piece: Piece) -> int:
        return features(arm.needed_in(self.bytes_at(piece.address - self.base, piece.end - piece.address)))

    def text(self, instruction: ArmInstruction) -> str:  # type: ignore[override]
        return arm.text_of(instruction.code)

    @cached_property
    def _jumps(self) -> list[tuple[int, int]]:
        jumps = []
        for code in self._stubs:
            slot = 0
            points = self._points(code.address, code.end)
            for index, word in enumerate(words_of(code.data)):
                address = code.address + _WORD * index
                if word & 0xFFC0001E == 0xF9400010:  # to x17, or to x16 on macOS
                    slot = points.get(address, 0)
                elif word & 0xFEFFFC00 == 0xD61F0000 and slot:
                    jumps.append((address, slot))
                    slot = 0
        return jumps

    def is_taken(self, site: int) -> bool:
        """Whether the instruction at *site* only makes an address."""
        word = self.word(site) or 0
        return is_add(word) or word & 0x9F000000 == 0x10000000

    def sites_and_targets(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        low = bisect_left(self.references, start << _HIGH)
        for number in self.references[low : bisect_left(self.references, stop << _HIGH, low)]:
            yield number & _LOW, number >> _HIGH

    def may_write(self, site: int, target: int, table: range, results: int, *, is_pointer: bool = False) -> bool:
        """Whether code at *site*, which refers to *target*, or to a pointer to it, may write to *table*.

        Its callers get so many *results*, in registers.
        """
        word = self.word(site) or 0
        if is_pointer or self.is_taken(site):
            # a store may begin in front of what it writes to
            offsets = range(table.start - target - _WIDEST, table.stop - target)
            return not self.spares(site + _WORD, word & 0x1F, offsets, results)
        return target in table and not is_load(word)

    def spares(self, start: int, register: int, offsets: range, results: int) -> bool:
        """Whether the code from *start* writes nothing at *offsets* from the address in *register*, nor hands it on."""
        waiting, seen = [start], set[int]()
        while waiting:
            address = waiting.pop()
            if address in seen:
                continue
            seen.add(address)
            word = self.word(address) or 0
            flow, target = flow_of(word, address)
            offset = offset_in(word) if word >> 5 & 0x1F == register else None
            if offset is not None and not is_add(word):
                is_stored = register in {word & 0x1F, word >> 10 & 0x1F}
                is_followed = is_load(word) or (offset not in offsets and not is_stored)
            else:
                is_followed = register not in read_by(word) and flow != FlowControl.INDIRECT_BRANCH
            is_handed_over = register < (results if flow == FlowControl.RETURN else _ARGUMENTS)
            if not is_followed or len(seen) > _STALE or (flow in _LEAVES and is_handed_over):
                return False
            if flow == FlowControl.CONDITIONAL_BRANCH:
                waiting += [address + _WORD, target]
            elif flow == FlowControl.UNCONDITIONAL_BRANCH:
                waiting.append(target)
            elif flow not in {FlowControl.RETURN, FlowControl.EXCEPTION} and not writes(word, register):
                waiting.append(address + _WORD)
        return True

    @cached_property
    def references(self) -> list[int]:
        references = [(pointing & _LOW) << _HIGH | pointing >> _HIGH for pointing in self._pointing[0]]
        for code in self.elf.code:
            references += self._branches(code)
        references.sort()
        return references

    def _branches(self, code: CodeSection) -> Iterator[int]:
        """Branches that seem to leave their function, as in `references`."""
        starts = [symbol.address for symbol in self.elf.functions]
        words = words_of(code.data)
        index, low, high = 0, -1, -1
        for match in _BRANCHES.finditer(code.data[3 : _WORD * len(words) : _WORD]):
            word_index = match.start()
            address, word = code.address + _WORD * word_index, words[word_index]
            if address >= high and starts:
                index = bisect_right(starts, address, index)
                low = starts[index - 1] if index else -1
                high = starts[index] if index < len(starts) else sys.maxsize
            target = address + distance(word)
            if target > 0 and not low < target < high:
                yield target << _HIGH | address

    def _shape(self, piece: Piece) -> Shape:
        start, end, base = piece.address - self.base, piece.end - self.base, self.base
        data = self.bytes_at(start, end - start)
        words = words_of(data)
        tops = data[3 : _WORD * len(words) : _WORD]
        # words that are not instructions have few first bytes
        ends = (match.start() for match in _SUSPECT.finditer(tops))
        stop = next((at for at in ends if not is_instruction(words[at])), len(words))
        shape = []
        for match in _BRANCHES.finditer(tops, 0, stop):
            flow, target = flow_of(words[match.start()], start + _WORD * match.start())
            if target and not start <= target < end:
                shape.append(Reference(base + target, flow, is_branch=True, is_comparing=False))
        shape += (
            Reference(base + target, FlowControl.NEXT, is_branch=False, is_comparing=False)
            for target in self._points(start, start + _WORD * stop).values()
            if target and not start <= target < end
        )
        last = next((at for at in range(stop - 1, -1, -1) if words[at] not in {_NOP, 0}), None)
        falls_through = last is not None and flow_of(words[last], 0)[0] not in ENDS
        return Shape(tuple(shape), falls_through, is_whole=stop == len(words))

    @cached_property
    def _called(self) -> set[int]:
        called = set()
        for code in self.elf.code:
            words = words_of(code.data)
            for match in re.finditer(b"[\x94-\x97]", code.data[3 : _WORD * len(words) : _WORD]):
                address = code.address + _WORD * match.start()
                called.add(address + _WORD * signed(words[match.start()], 26))
        return called | self._pointing[1]

    @cached_property
    def _known(self) -> frozenset[int]:
        """What an instruction far from the one that makes the page may point at."""
        starts = {symbol.address for symbol in self.elf.functions}
        return frozenset(starts | set(self._object_starts) | self.pointers.keys() | self.imports.keys())

    @cached_property
    def _pointing(self) -> tuple[list[int], set[int]]:
        """What points somewhere in all code, and where, in one number each, in order; and what it makes addresses of.

        No tuples: a large library has millions.
        """
        pointing, targets = list[int](), set[int]()
        for code in self.elf.code:
            for site, target, is_address in self._pointing_in(code):
                if target >= 0:
                    pointing.append(site << _HIGH | target)
                    if is_address:
                        targets.add(target)
        # what one site may point at stays in order: the nearest page is the last
        pointing.sort(key=lambda point: point >> _HIGH)
        return pointing, targets

    def _points(self, start: int, stop: int) -> dict[int, int]:
        points, _ = self._pointing
        low = bisect_left(points, start << _HIGH)
        return {point >> _HIGH: point & _LOW for point in points[low : bisect_left(points, stop << _HIGH, low)]}

    def _pointing_in(self, code: CodeSection) -> Iterator[tuple[int, int, bool]]:
        """Each instruction in *code* that points somewhere, the target, and whether it makes an address of it."""
        words = words_of(code.data)
        tops = code.data[3 : _WORD * len(words) : _WORD]
        starts = [*(symbol.address for symbol in self.elf.functions), sys.maxsize]
        following = 0
        for match in _ADRP.finditer(tops):
            index = match.start()
            address = code.address + _WORD * index
            if starts[following] <= address:
                following = bisect_right(starts, address, following)
            # another function starts there
            end = min(len(words), index + _LIVE, (starts[following] - code.address + _WORD - 1) // _WORD)
            register = words[index] & 0x1F
            if index + 1 < end and words[index + 1] & 0xFFC003FF == 0xF9400000 | register << 5 | register:
                # most often the page is gone with its first use
                yield address + _WORD, page_of(words[index], address) + (words[index + 1] >> 7 & 0x7FF8), False
                continue
            yield from self._uses_of_page(words, tops, range(index, end), code.address)
        for match in re.finditer(b"[\x10\x30\x50\x70]", tops):
            address = code.address + _WORD * match.start()
            yield address, page_of(words[match.start()], address), True
        for match in re.finditer(b"[\x18\x58\x98\x1c\x5c\x9c]", tops):
            address = code.address + _WORD * match.start()
            yield address, address + _WORD * signed(words[match.start()] >> 5, 19), False

    def _uses_of_page(  # noqa: C901, PLR0912  # one for each way in which a register gets an address
        self, words: "array[int]", tops: bytes, indexes: range, base: int
    ) -> Iterator[tuple[int, int, bool]]:
        index = indexes.start
        # what registers have; and had, where a branch may lead from there to here
        live = {words[index] & 0x1F: page_of(words[index], base + _WORD * index)}
        stale: dict[int, int] = {}
        is_behind_branch, last = False, 0
        number = index
        while (number := number + 1) < indexes.stop:
            if not live:
                # nothing but these brings a register back
                again = _AGAIN.search(tops, number, min(indexes.stop, last + 2))
                if not again:
                    return
                number = again.start()
            if not (kind := _KINDS[tops[number]]):
                continue
            word = words[number]
            source, result = word >> 5 & 0x1F, -1
            if (source in live or source in stale) and (offset := offset_in(word)) is not None:
                target = live.get(source, stale.get(source, 0)) + offset
                is_made = is_add(word)
                if source in live or (target in self._known and (is_made or word & 0xFFC00000 == 0xF9400000)):
                    yield base + _WORD * number, target, is_made
                    result = target if is_made else -1
            elif word >> 16 & 0x1F in live or source in live:
                if word & 0xFFE0FFE0 == 0xAA0003E0 and word >> 16 & 0x1F in live:
                    result = live[word >> 16 & 0x1F]
                elif word & 0xFF000000 == 0x8B000000:
                    # an index into what is there
                    result = live.get(source, live.get(word >> 16 & 0x1F, 0))
            if kind == _BRANCHING or word & 0x1F in live or word >> 10 & 0x1F in live:
                for register in [register for register in live if writes(word, register)]:
                    value = live.pop(register)
                    if is_behind_branch:
                        stale[register], last = value, number + _STALE
            if result >= 0:
                live[word & 0x1F] = result
            elif not live and not stale:
                return
            is_behind_branch |= kind == _BRANCHING


def _kind(top: int) -> int:
    """What words with the last byte *top* may do: branch; or use an address or write to a general register; or 0."""
    if top & 0x7C in {0x14, 0x34} or top & 0xFE in {0x54, 0xD6}:
        return _BRANCHING
    # most that compute with vectors do none of these
    return int(top & 0x0E != 0x0E and top & 0x1E != 4)


_KINDS = bytes(map(_kind, range(256)))
