"""What words of aarch64 code do: where they branch to, which addresses they make, which registers they use."""

import sys
from array import array
from functools import lru_cache

from vbuild.dispatch import arm
from vbuild.elf.iced import FlowControl

_WORD, _PAGE = 4, 12
_LINK = 30


def words_of(data: bytes) -> "array[int]":
    found = array("I", data[: len(data) // _WORD * _WORD])
    if sys.byteorder == "big":
        found.byteswap()
    return found


def signed(number: int, bits: int) -> int:
    """The low *bits* of *number* with their sign."""
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
    """Whether *word*, which uses a register as an address, reads there and does no more."""
    if word & 0x3B000000 == 0x39000000 or word & 0x3B200C00 == 0x38000000:
        return bool(word & 1 << 22) if word & 1 << 26 else bool(word >> 22 & 3)
    return word & 0x3B000000 in {0x29000000, 0x08000000} and bool(word & 1 << 22)


def is_instruction(word: int) -> bool:
    """Whether *word* is an instruction; udf with any number but zero marks what a compiler knows is never reached."""
    return arm.INVALID not in arm.needed_by(word) or (word != 0 and not word >> 16)


@lru_cache(maxsize=1 << 16)
def read_by(word: int) -> frozenset[int]:
    """The general registers that *word* may read, 31 for none of them or the stack pointer."""
    kind = word >> 25 & 0xF
    first, second, third, last = (word >> at & 0x1F for at in (5, 16, 10, 0))
    found = {first, second, third, last}
    if kind in {8, 9}:
        how, step = word >> 29 & 3, word >> 23 & 7
        changes = {last} if (step == 5 and how == 3) or (step == 6 and how == 1) else set()
        found = changes | ({first} if step not in {0, 1, 5} else set()) | ({second} if step == 7 else set())
    elif kind in {5, 13}:
        found = {first, second} | ({third} if word >> 24 & 0x1F == 0x1B else set())
    elif kind in {10, 11}:
        found = {last} if _is_test(word) or word & 0xFFF00000 == 0xD5100000 else set()
        found = {first} if word & 0xFE000000 == 0xD6000000 else found
        found = set(range(9)) if word >> 24 == 0xD4 else found
    elif kind & 5 == 4:
        found = _read_by_access(word)
    elif kind & 7 == 7:
        is_moved = word & 0x5F20FC00 == 0x1E200000 or word & 0x5F200000 == 0x1E000000
        found = {first} if is_moved or word & 0xBFE0FC00 in {0x0E000C00, 0x0E001C00} else set()
    return frozenset(found)


def _read_by_access(word: int) -> set[int]:
    """The general registers that a load or store reads."""
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
    """The words of the code *data* without what in them leads to another address, or may be a part of one."""
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


def _is_test(word: int) -> bool:
    return word & 0x7C000000 == 0x34000000
