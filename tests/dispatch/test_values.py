"""What operations make of values that show features: never more than the numbers do, and of few numbers all they do."""

from collections.abc import Callable, Mapping
from functools import reduce
from itertools import product
from operator import and_, or_, xor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vbuild.dispatch import values
from vbuild.dispatch.facts import ANY, EVERY, FEATURES
from vbuild.dispatch.values import MASK_64, Choice, Value, Word

NUMBERS, BITS = range(16), 4
facts = st.integers(0, 15)
choices = st.dictionaries(st.sampled_from(NUMBERS), facts, min_size=1, max_size=6).map(values.choice)
# four bits of which each may be impossible when set or when clear, and sixty that are clear
words = st.lists(st.tuples(facts, facts) | st.sampled_from([(EVERY, 0), (0, EVERY)]), min_size=BITS, max_size=BITS).map(
    lambda bits: values.as_word([*bits, *[(EVERY, 0)] * (64 - BITS)])
)
BITWISE = {"and": and_, "or": or_, "xor": xor}


def cases(value: Value) -> Mapping[int, int]:
    """The numbers below 16 that *value* can be, with the features that each shows."""
    shown = {number: values.shown_equal(value, number) for number in NUMBERS}
    return {number: facts & FEATURES for number, facts in shown.items() if facts != EVERY}


def pairs(one: Value, other: Value, operation: Callable[[int, int], int]) -> dict[int, int]:
    """What *operation* gives for any two numbers, with what is shown by all pairs that give it."""
    found: dict[int, int] = {}
    for (a, shown), (b, others) in product(cases(one).items(), cases(other).items()):
        found[operation(a, b)] = found.get(operation(a, b), EVERY) & (shown | others)
    return found


@given(choices, choices, st.sampled_from(sorted(BITWISE)))
def test_bitwise_operations_of_few_numbers_are_exact(one: Value, other: Value, kind: str) -> None:
    result, exact = cases(values.bitwise(one, other, kind)), pairs(one, other, BITWISE[kind])
    # a number that is sure says nothing more
    assert result == (exact if len(exact) > 1 else dict.fromkeys(exact, 0))


@given(words, words, st.sampled_from(sorted(BITWISE)))
def test_bitwise_operations_of_words_show_no_more_than_their_numbers(one: Value, other: Value, kind: str) -> None:
    result = cases(values.bitwise(one, other, kind))
    for number, shown in pairs(one, other, BITWISE[kind]).items():
        assert result[number] & ~shown == 0


@given(choices, choices)
def test_sums_and_differences_are_exact(one: Value, other: Value) -> None:
    for is_difference, operation in ((False, int.__add__), (True, int.__sub__)):
        total = values.total(one, other, is_difference=is_difference)
        expected = {number & MASK_64: shown for number, shown in pairs(one, other, operation).items()}
        assert {number: facts & FEATURES for number, facts in (values.cases_of(total) or {}).items()} == expected


@given(choices, facts, choices, facts)
def test_where_two_paths_meet_a_number_shows_what_it_does_on_both(
    one: Value, here: int, other: Value, there: int
) -> None:
    # what is known on both paths is known without the value
    joined = values.join(one, here, other, there)
    first, second = cases(one), cases(other)
    if one == other:
        assert joined == one
        return
    assert cases(joined) == {
        number: (first[number] | here & ~there if number in first else FEATURES | EVERY)
        & (second[number] | there & ~here if number in second else FEATURES | EVERY)
        for number in first.keys() | second.keys()
    }


@given(words, facts, words, facts)
def test_where_two_words_meet_no_number_shows_more_than_on_either_path(
    one: Value, here: int, other: Value, there: int
) -> None:
    joined = cases(values.join(one, here, other, there))
    for value, known in ((one, here), (other, there)):
        for number, shown in cases(value).items():
            assert joined[number] & ~(shown | known) == 0


@given(choices | words)
def test_comparisons_show_what_all_numbers_show_that_pass(value: Value) -> None:
    numbers = cases(value)

    def common(passes: Callable[[int], bool]) -> int:
        return reduce(and_, (shown for number, shown in numbers.items() if passes(number)), EVERY)

    assert values.shown_nonzero(value) & ~common(bool) == 0
    for number in NUMBERS:
        for shown, passes in (
            (values.shown_different(value, number), lambda one, of=number: one != of),
            (values.shown_above(value, number), lambda one, of=number: one > of),
            (values.shown_up_to(value, number), lambda one, of=number: one <= of),
        ):
            assert shown & FEATURES & ~common(passes) == 0
            assert isinstance(value, Word) or shown == common(passes)


@given(choices | words, st.integers(0, 3))
def test_shifts_move_what_each_bit_shows(value: Value, count: int) -> None:
    up = values.shifted(value, count, "shl", 8)
    assert cases(values.shifted(up, count, "shr", 8)) == cases(value)
    down = cases(values.shifted(value, count, "shr", 8))
    for number, shown in cases(value).items():
        assert down[number >> count] & ~shown == 0


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@given(value=choices | words)
def test_short_numbers_are_themselves_in_any_register(value: Value, size: int) -> None:
    assert cases(values.truncated(value, size)) == cases(values.extended(value, size, 8)) == cases(value)


@given(choices)
def test_a_negative_number_stays_one_in_a_longer_register(value: Value) -> None:
    negative = values.total(0, value, is_difference=True)
    longer = values.extended(values.truncated(negative, 1), 1, 8)
    assert values.cases_of(longer) == values.cases_of(negative)


@given(choices, st.sampled_from(NUMBERS))
def test_a_number_that_it_is_not_is_left_out(value: Value, number: int) -> None:
    left = {case: shown for case, shown in cases(value).items() if case != number}
    # of one number alone there is nothing to say
    if isinstance(value, Choice) and left:
        assert cases(values.without(value, number)) == (left if len(left) > 1 else dict.fromkeys(left, 0))


def test_what_is_not_followed_tells_only_that_something_was_asked() -> None:
    asked = values.choice({0: 0, 1: 3})
    assert values.tells(values.lossy(asked)) & ANY == 0
    assert values.tells(values.lossy(asked))
    assert values.lossy(1, None) is None
    assert values.add(values.STACK, 8) == values.STACK + 8
    assert values.add(values.STACK, values.STACK) is None
    assert values.subtract(values.STACK + 8, values.STACK) == 8
    assert values.add(values.STACK, 1 << 40) is None
