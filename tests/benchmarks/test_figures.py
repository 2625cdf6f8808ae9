"""What samples of processes come to: figures whose processes print numbers, so that no test depends on the clock."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.__main__ import comparing, taken
from tests.benchmarks.comparing import with_peer
from tests.benchmarks.figure import (
    Comparison,
    Figure,
    Installed,
    Measure,
    Peer,
    Result,
    Sample,
    Setting,
)
from tests.benchmarks.inputs import Inputs
from tests.benchmarks.measuring import command, printed, timed

HERE = Installed(Path(sys.executable))
OURS, THEIRS = (Installed(Path(name, "python")) for name in ("ours", "theirs"))


def printing(*numbers: float) -> Measure:
    """The next of *numbers* with every sample, by a process that prints it, and the last again and again."""
    left = list(numbers)
    return printed(
        lambda _: [sys.executable, "-c", "import sys; print(sys.argv[1])", str(left.pop(0) if left[1:] else left[0])]
    )


def figure(measure: Measure, peer: Measure | None = None, **more: Any) -> Figure:
    """A figure of what *measure* gives, and *peer*."""
    made = Figure(name="demo", what="a number", measure=measure, peer=Peer("another", peer) if peer else None)
    return replace(made, **more)


def result(one: Figure) -> Result:
    with Inputs.of([one], cache=None) as inputs:
        return with_peer(one, inputs, HERE)


def test_what_counts_is_the_median_of_the_pairs() -> None:
    # the first sample of each side does not count
    found = result(figure(printing(99, 1, 2, 9), printing(99, 2, 2, 3), pairs=3))
    assert found == Result(2, 2, 1, 0.5, 3, found.memory)


@pytest.mark.nightly
def test_a_start_does_not_count_in_the_ratio_and_a_difference_may() -> None:
    assert result(figure(printing(5), printing(2), start=1)).compared == 2
    assert result(figure(printing(5), printing(2), comparison=Comparison.DIFFERENCE)).compared == 3


@pytest.mark.parametrize(
    ("bounds", "keeps"),
    [
        ({}, True),
        ({"reach": 0.5}, True),
        ({"reach": 0.49}, False),
        ({"limit": 2.0}, True),
        ({"limit": 1.9}, False),
        ({"limit": 2.0, "more_is_better": True}, True),
        ({"limit": 2.1, "more_is_better": True}, False),
        ({"memory": 100.0}, True),
        ({"memory": 99.0}, False),
    ],
)
def test_every_bound_counts(bounds: dict[str, Any], keeps: object) -> None:
    found = Result(2, 4, 0.5, 0.5, 0.5, 100)
    assert found.keeps(replace(figure(printing(1)), **bounds)) is keeps


def test_the_memory_of_a_process_is_its_own() -> None:
    small, large = (f"data = bytearray({size})" for size in (1, 300_000_000))
    found = [result(figure(timed(command(sys.executable, "-c", code)), pairs=1)).memory for code in (small, large)]
    assert found[0] < 50
    assert 300 < found[1] < 350


@pytest.mark.parametrize(
    ("numbers", "more_is_better", "status"),
    [
        ((1, 1), False, 0),
        ((1.16, 1), False, 1),
        ((1, 1.16), False, 0),
        ((1, 1.16), True, 1),
    ],
)
def test_what_is_slower_than_the_release_is_named(
    numbers: Sequence[float], more_is_better: object, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = map(printing, numbers)

    def measure(setting: Setting) -> Sample:
        return ours(setting) if setting.vbuild is OURS else theirs(setting)

    one = figure(measure, more_is_better=more_is_better, pairs=2)
    assert taken([one], comparing(OURS, THEIRS), cache=None) == status
    assert ("SLOWER" in capsys.readouterr().out) is bool(status)
