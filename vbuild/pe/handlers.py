"""The functions of a PE file that handle errors, which nothing leads to but tables: they run when theirs throws.

    __C_specific_handler    ranges of code, each with a filter and where to go on
    __CxxFrameHandler3      FuncInfo: what unwinds a state, and what catches in a block
    __CxxFrameHandler4      the same in numbers of seven bits and more

https://learn.microsoft.com/cpp/build/exception-handling-x64 ; LLVM, WinEHPrepare and Win64EH.h
"""

import struct
from collections.abc import Callable, Iterator

from vbuild.errors import BinaryError
from vbuild.pe.loaded import HALF, LONGEST, LoadedPe

_MOST_STATES = 1 << 14
# the bits of FuncInfo4's first byte
_HAS_FLAGS, _HAS_UNWINDS, _HAS_TRIES, _RESERVED = 4, 8, 16, 128
# FuncInfo's first number without flags, in its three versions; and of the rows behind it
_FUNCTION_INFO, _MASK = range(0x19930520, 0x19930523), 0x1FFFFFFF
_SCOPE, _UNWIND, _TRY, _CATCH = (struct.Struct(f"<{count}I") for count in (4, 2, 5, 5))


def handlers(
    loaded: LoadedPe, told: dict[int, tuple[int, int]], starts: frozenset[int]
) -> tuple[dict[int, tuple[int, ...]], bool]:
    """The functions that run when the one at an address throws; and whether all such tables were understood."""
    found: dict[int, tuple[int, ...]] = {}
    is_known = True
    for function, (data, handler) in told.items():
        called = _handlers_at(loaded, data)
        is_known &= called is not None
        # what the file brings itself to handle errors may be one of its own
        own = {loaded.base + handler} & starts
        if more := (own | {loaded.base + one for one in called or ()}) - {function}:
            found[function] = tuple(sorted(more))
    return found, is_known


def _handlers_at(loaded: LoadedPe, data: int) -> list[int] | None:
    """The RVAs that the table of a handler at *data* leads to; None if it is of no kind that is known."""
    try:
        (first,) = loaded.row(HALF, data)
        if loaded.bytes_at(first, 4) and (loaded.row(HALF, first)[0] & _MASK) in _FUNCTION_INFO:
            return list(_old_info(loaded, first))
        scopes = _scopes(loaded, first, data + 4)
        if scopes is not None:
            return scopes
        if not loaded.is_data(first):
            # where the check of the stack has its number, or places in the function itself
            return []
        found = list(_Packed(loaded.bytes_at, first).handlers())
    except (BinaryError, IndexError):
        return None
    return found if all(loaded.is_code(loaded.base + one) for one in found) else None


def _old_info(loaded: LoadedPe, at: int) -> Iterator[int]:
    """What FuncInfo at the RVA *at*, of __CxxFrameHandler3, leads to."""
    _, states, unwinds, tries, blocks = loaded.row(_TRY, at)
    if max(states, tries) > _MOST_STATES:
        raise BinaryError(f"{max(states, tries)} states of a function")
    for _, action in loaded.rows(_UNWIND, unwinds, states) if states else ():
        if action:
            yield action
    for *_, count, rows in loaded.rows(_TRY, blocks, tries) if tries else ():
        if count > _MOST_STATES:
            raise BinaryError(f"{count} handlers of a block")
        for row in loaded.rows(_CATCH, rows, count) if count else ():
            yield row[3]


def _scopes(loaded: LoadedPe, count: int, at: int) -> list[int] | None:
    """What the table of __C_specific_handler at the RVA *at* leads to; None if it is none."""
    if not 0 < count <= _MOST_STATES:
        return None
    try:
        rows = list(loaded.rows(_SCOPE, at, count))
    except BinaryError:
        return None
    if not all(
        begin < end and loaded.is_code(loaded.base + begin) and (not target or loaded.is_code(loaded.base + target))
        for begin, end, _, target in rows
    ):
        return None
    # 1 stands for a filter that takes every exception
    return [one for _, _, handler, target in rows for one in (handler, target) if one > 1]


class _Packed:
    """FuncInfo4, of __CxxFrameHandler4, from an RVA on: numbers of seven bits and more, and RVAs."""

    def __init__(self, read: Callable[[int, int], bytes], at: int) -> None:
        self._read, self._at = read, at
        self._data, self._next = read(at, LONGEST), 0

    def _byte(self) -> int:
        self._next += 1
        return self._data[self._next - 1]

    def _address(self) -> int:
        self._next += HALF.size
        if self._next > len(self._data):
            raise BinaryError(f"table of handlers at RVA {self._at:#x} is too long")
        return int(HALF.unpack_from(self._data, self._next - HALF.size)[0])

    def _number(self) -> int:
        first = self._byte()
        # as many ones at the end as bytes follow, up to three
        more = next((count for count in range(HALF.size) if not first >> count & 1), None)
        if more is None:
            return self._address()
        found = first
        for count in range(more):
            found |= self._byte() << 8 * (count + 1)
        return found >> (more + 1)

    def handlers(self) -> Iterator[int]:
        """The RVAs of the functions that run; `BinaryError` or `IndexError` if it is no such table."""
        head = self._byte()
        if head & _RESERVED or not head & (_HAS_UNWINDS | _HAS_TRIES):
            raise BinaryError(f"table of handlers at RVA {self._at:#x} begins with {head:#x}")
        if head & _HAS_FLAGS:
            self._number()
        unwinds = self._address() if head & _HAS_UNWINDS else 0
        tries = self._address() if head & _HAS_TRIES else 0
        if unwinds:
            yield from _Packed(self._read, unwinds).unwinds()
        if tries:
            yield from _Packed(self._read, tries).tries()

    def unwinds(self) -> Iterator[int]:
        for _ in range(self._checked(self._number())):
            kind = self._number() & 3
            if kind:
                yield self._address()
            if kind in {1, 2}:
                self._number()

    def tries(self) -> Iterator[int]:
        for _ in range(self._checked(self._number())):
            for _ in range(3):
                self._number()
            yield from _Packed(self._read, self._address()).catches()

    def catches(self) -> Iterator[int]:
        for _ in range(self._checked(self._number())):
            head = self._byte()
            if head & 1:
                self._number()
            if head & 2:
                self._address()
            if head & 4:
                self._number()
            yield self._address()
            for _ in range(head >> 4 & 3):
                if head & 8:
                    self._address()
                else:
                    self._number()

    def _checked(self, count: int) -> int:
        if count > _MOST_STATES:
            raise BinaryError(f"{count} rows in a table of handlers")
        return count
