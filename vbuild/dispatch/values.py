"""What a register or a place in memory can hold, as far as it tells something about the processor.

    None      nothing is known
    int       this number; an address has the number of its file, or `STACK`, in the bits above 64
    Choice    one of these numbers, and for each the features that the processor has if it is this one
    Word      for each bit the features that the processor has if the bit is set, and if it is clear

Facts about a processor never change, so they are the same wherever a value is used. A bit that cannot be set has
`EVERY` feature if it is set: what is impossible implies everything.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import and_, or_
from weakref import WeakValueDictionary

from vbuild.dispatch.facts import ASKED, EVERY

_MOST_CASES = 64
# of a table of functions
_MOST_ADDRESSES = 256
_MOST_PAIRS = 4096
# bytes from an address, beyond which nothing of its file or object is
_FURTHEST = 1 << 36
_FULL = 8
_SHORT = 4
MASK_64 = (1 << 64) - 1
# where the stack pointer is when a function starts; its number is that of no file
STACK = (1 << 90) + (1 << 62)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Choice:
    """One of several numbers, with the features that each shows; equal ones are the same object."""

    cases: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, cases: tuple[tuple[int, int], ...]) -> "Choice":
        if (existing := _CHOICES.get(cases)) is None:
            existing = _CHOICES[cases] = cls(cases)
        return existing


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Word:
    """64 bits: the features that each shows if it is set, and if it is clear; equal ones are the same object."""

    bits: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, bits: tuple[tuple[int, int], ...]) -> "Word":
        if (existing := _WORDS.get(bits)) is None:
            existing = _WORDS[bits] = cls(bits)
        return existing


_CHOICES: WeakValueDictionary[tuple[tuple[int, int], ...], Choice] = WeakValueDictionary()


_WORDS: WeakValueDictionary[tuple[tuple[int, int], ...], Word] = WeakValueDictionary()
# the same few values meet again and again
_cached = lru_cache(maxsize=1 << 16)


Value = None | int | Choice | Word


_UNKNOWN_BIT, _ZERO_BIT, _ONE_BIT = (0, 0), (EVERY, 0), (0, EVERY)


def tag(number: int) -> int:
    """The file, one more than its number, that *number* is an address in, or 0 if it is not an address."""
    return number >> 64


def is_stack(number: int) -> bool:
    return number >> 64 == STACK >> 64


def choice(cases: dict[int, int]) -> Value:
    """A value with *cases*; a `Word` for too many, or for none of which anything is known."""
    if len(cases) == 1:
        return next(iter(cases))
    if len(cases) > _MOST_CASES and (len(cases) > _MOST_ADDRESSES or not all(map(tag, cases))):
        return as_word(bits_of(Choice.of(tuple(cases.items()))))
    return Choice.of(tuple(sorted(cases.items())))


def without(value: Value, number: int) -> Value:
    """*value* where it is known not to be *number*."""
    if not isinstance(value, Choice):
        return value
    rest = {case: facts for case, facts in value.cases if case != number}
    return choice(rest) if rest else value


def word(facts: dict[int, int], size: int = 4) -> Word:
    """A word of *size* bytes whose bits show the features in *facts* if they are set."""
    return Word.of(tuple((facts.get(bit, 0), 0) if bit < 8 * size else _ZERO_BIT for bit in range(64)))


def flags(features: int) -> Word:
    """An unknown number whose set bits all show *features*."""
    return Word.of(((features, 0),) * 64)


@_cached
def cases_of(value: Value) -> Mapping[int, int] | None:
    """The numbers that *value* can be, with the features each shows; None for too many."""
    if isinstance(value, int):
        return {value: 0}
    if isinstance(value, Choice):
        return dict(value.cases)
    if isinstance(value, Word):
        free = [bit for bit, facts in enumerate(value.bits) if facts[0] != EVERY and facts[1] != EVERY]
        if len(free) <= _SHORT:
            numbers = {
                sum(1 << bit for bit, facts in enumerate(value.bits) if facts[1] == EVERY and facts[0] != EVERY): 0
            }
            for bit in free:
                set_, clear = value.bits[bit]
                numbers = {
                    number | (1 << bit if is_set else 0): facts | (set_ if is_set else clear)
                    for number, facts in numbers.items()
                    for is_set in (False, True)
                }
            return numbers
    return None


@_cached
def bits_of(value: Value) -> tuple[tuple[int, int], ...]:
    """The bits of *value*, which must not be an address."""
    if isinstance(value, Word):
        return value.bits
    if isinstance(value, int):
        return tuple(_ONE_BIT if value >> bit & 1 else _ZERO_BIT for bit in range(64)) if not tag(value) else _UNKNOWN
    if isinstance(value, Choice):
        if any(tag(number) for number, _ in value.cases):
            return flags(reduce(and_, (facts for number, facts in value.cases if number), EVERY)).bits
        return tuple(
            (
                reduce(and_, (facts for number, facts in value.cases if number >> bit & 1), EVERY),
                reduce(and_, (facts for number, facts in value.cases if not number >> bit & 1), EVERY),
            )
            for bit in range(64)
        )
    return _UNKNOWN


_UNKNOWN = (_UNKNOWN_BIT,) * 64


def as_word(bits: Iterable[tuple[int, int]]) -> Value:
    pairs = tuple(bits)
    if pairs == _UNKNOWN:
        return None
    if all(EVERY in facts for facts in pairs):
        return sum(1 << bit for bit, facts in enumerate(pairs) if facts[1] == EVERY)
    return Word.of(pairs)


@_cached
def tells(value: Value) -> int:
    """All features that *value* can show in some case, those that only the impossible shows left out."""
    if isinstance(value, Choice):
        return reduce(or_, (facts for _, facts in value.cases if facts != EVERY), 0)
    if isinstance(value, Word):
        return reduce(or_, (facts for pair in value.bits if EVERY not in pair for facts in pair), 0)
    return 0


@_cached
def with_facts(value: Value, facts: int) -> Value:
    cases = cases_of(value)
    if not facts or cases is None or any(map(tag, cases)):
        return value
    return Choice.of(tuple(sorted((number, shown | facts) for number, shown in cases.items())))


def lossy(*values: Value) -> Value:
    """What an operation that is not followed makes of *values*: an answer not understood, if they tell anything."""
    return flags(ASKED) if any(map(tells, values)) else None


@_cached
def join(left: Value, left_facts: int, right: Value, right_facts: int) -> Value:
    """The value where two paths meet: *left* where the processor has *left_facts*, *right* where it has the others."""
    # what is known on both paths is known without this value
    if left == right:
        return left
    left_facts, right_facts = left_facts & ~right_facts, right_facts & ~left_facts
    first, second = cases_of(left), cases_of(right)
    if first is None or second is None:
        return _join_words(left, left_facts, right, right_facts)
    cases = {number: facts | left_facts for number, facts in first.items()}
    for number, facts in second.items():
        cases[number] = cases.get(number, EVERY) & (facts | right_facts)
    return choice(cases)


def _join_words(left: Value, left_facts: int, right: Value, right_facts: int) -> Value:
    if (left is None and not left_facts) or (right is None and not right_facts):
        return None
    pairs = zip(bits_of(left), bits_of(right), strict=True)
    return as_word(
        ((a | left_facts) & (c | right_facts), (b | left_facts) & (d | right_facts)) for (a, b), (c, d) in pairs
    )


@_cached
def truncated(value: Value, size: int) -> Value:
    """The low *size* bytes of *value*, the rest zero."""
    if size == _FULL:
        return value
    mask = (1 << 8 * size) - 1
    if isinstance(value, int):
        return value & mask if not tag(value) else None
    if isinstance(value, Choice):
        return combined(lambda a, b: a & b, value, mask)
    bits = bits_of(value)
    return Word.of((*bits[: 8 * size], *((_ZERO_BIT,) * (64 - 8 * size))))


@_cached
def extended(value: Value, size: int, new: int) -> Value:
    """The low *size* bytes of *value* with their sign, in *new* bytes."""
    sign = 1 << (8 * size - 1)
    if (cases := cases_of(truncated(value, size))) is not None:
        limit = (1 << 8 * new) - 1
        return choice({((number ^ sign) - sign) & limit: facts for number, facts in cases.items()})
    bits = bits_of(truncated(value, size))
    return Word.of((*bits[: 8 * size], *((bits[8 * size - 1],) * (8 * (new - size))), *((_ZERO_BIT,) * (64 - 8 * new))))


def combined(operation: Callable[[int, int], int | None], left: Value, right: Value) -> Value:
    """What *operation* makes of each pair of numbers that *left* and *right* can be; `lossy` for too many."""
    first, second = cases_of(left), cases_of(right)
    if first is None or second is None or len(first) * len(second) > _MOST_PAIRS:
        return lossy(left, right)
    combined: dict[int, int] = {}
    for a, a_facts in first.items():
        for b, b_facts in second.items():
            result = operation(a, b)
            if result is None:
                return lossy(left, right)
            combined[result] = combined.get(result, EVERY) & (a_facts | b_facts)
    return choice(combined)


def add(a: int, b: int) -> int | None:
    """The sum of two numbers, at most one of which is an address; None for what is far from anything there."""
    if tag(a) and tag(b):
        return None
    if tag(a) or tag(b):
        address, number = (a, b) if tag(a) else (b, a)
        number -= number >> 63 << 64
        return address + number if abs(number) < _FURTHEST else None
    return (a + b) & MASK_64


def subtract(a: int, b: int) -> int | None:
    if tag(b):
        return (a - b) & MASK_64 if tag(a) == tag(b) else None
    return add(a, -b & MASK_64)


@_cached
def bitwise(left: Value, right: Value, kind: str) -> Value:
    """``and``, ``or`` or ``xor`` of two values."""
    if isinstance(left, int) and isinstance(right, int):
        if tag(left) or tag(right):
            # an aligned stack pointer
            return (
                left & (right - (1 << 64)) if kind == "and" and tag(left) and right >> 63 and not tag(right) else None
            )
        return {"and": left & right, "or": left | right, "xor": left ^ right}[kind]
    if kind == "and" and isinstance(left, Choice) and isinstance(right, int) and right >> 63 and not tag(right):
        # aligned addresses
        return combined(lambda a, b: a & (b - (1 << 64)) if tag(a) else a & b, left, right)
    if isinstance(left, Choice | int) and isinstance(right, Choice | int):
        numbers = [number for value in (left, right) for number in (cases_of(value) or {})]
        if not any(map(tag, numbers)):
            operations = {"and": and_, "or": or_, "xor": int.__xor__}
            return combined(operations[kind], left, right)
    rule = {"and": _and, "or": _or, "xor": _xor}[kind]
    return as_word(map(rule, bits_of(left), bits_of(right)))


def _and(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0] | b[0], a[1] & b[1]


def _or(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0] & b[0], a[1] | b[1]


def _xor(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return (a[0] | b[1]) & (a[1] | b[0]), (a[0] | b[0]) & (a[1] | b[1])


@_cached
def shifted(value: Value, count: Value, kind: str, size: int) -> Value:  # noqa: C901, PLR0911  # each kind of shift
    """*value* of *size* bytes after ``shl``, ``shr``, ``sar``, ``rol`` or ``ror`` by *count*."""
    if not isinstance(count, int) or tag(count):
        if kind == "shl" and cases_of(value) is not None and cases_of(count) is not None:
            return truncated(combined(lambda a, b: (a << (b & 63)) & MASK_64, value, count), size)
        return lossy(value, count)
    width = 8 * size
    count %= 64 if size == _FULL else 32
    if not count:
        return value
    if count >= width:
        return 0 if kind in {"shl", "shr"} else lossy(value)
    if isinstance(value, int | Choice):
        limit = (1 << width) - 1
        if kind == "shl":
            return combined(lambda a, b: None if tag(a) else (a << b) & limit, value, count)
        if kind == "shr":
            return combined(lambda a, b: None if tag(a) else (a & limit) >> b, value, count)
        if kind == "sar":
            return shifted(extended(value, size, 8), count, "shr", 8) if size < _FULL else lossy(value)
    bits = bits_of(value)[:width]
    high = (_ZERO_BIT,) * (64 - width)
    zeros = (_ZERO_BIT,) * count
    if kind == "shl":
        return as_word((*zeros, *bits[: width - count], *high))
    if kind == "shr":
        return as_word((*bits[count:], *zeros, *high))
    if kind == "sar":
        return as_word((*bits[count:], *((bits[-1],) * count), *high))
    turn = count if kind == "ror" else width - count
    return as_word((*bits[turn:], *bits[:turn], *high))


@_cached
def total(left: Value, right: Value, *, is_difference: bool = False) -> Value:
    result = combined(subtract if is_difference else add, left, right)
    if is_difference or not (isinstance(left, Word) or isinstance(right, Word)):
        return result
    first, second = bits_of(left), bits_of(right)
    # no bit that both can have: the sum is the union
    if all(a[0] == EVERY or b[0] == EVERY for a, b in zip(first, second, strict=True)):
        return bitwise(left, right, "or")
    return result


def shown(value: Value, test: Callable[[int], bool]) -> int | None:
    """The features shown if the number passes *test*, or None if the numbers cannot be listed."""
    if (cases := cases_of(value)) is None:
        return None
    return reduce(and_, (facts for number, facts in cases.items() if test(number)), EVERY)


def shown_nonzero(value: Value) -> int:
    if (features := shown(value, bool)) is not None:
        return features
    return reduce(and_, (set_ for set_, _ in bits_of(value)), EVERY)


def shown_equal(value: Value, number: int) -> int:
    if (features := shown(value, lambda case: case == number)) is not None:
        return features
    if tag(number):
        return 0
    return reduce(or_, (facts[0] if number >> bit & 1 else facts[1] for bit, facts in enumerate(bits_of(value))), 0)


def shown_different(value: Value, number: int) -> int:
    if (features := shown(value, lambda case: case != number)) is not None:
        return features
    if tag(number):
        return 0
    return reduce(
        and_, (facts[1] if number >> bit & 1 else facts[0] for bit, facts in enumerate(bits_of(value))), EVERY
    )


def shown_above(value: Value, number: int) -> int:
    """The comparison is unsigned."""
    if (features := shown(value, lambda case: case > number)) is not None:
        return features
    # then one of the bits from the highest of number + 1 up is set
    lowest = (number + 1).bit_length() - 1
    return reduce(and_, (set_ for set_, _ in bits_of(value)[lowest:]), EVERY)


def shown_up_to(value: Value, number: int) -> int:
    """The comparison is unsigned."""
    if (features := shown(value, lambda case: case <= number)) is not None:
        return features
    return reduce(or_, (clear for _, clear in bits_of(value)[number.bit_length() :]), 0)
