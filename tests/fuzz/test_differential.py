"""The differential run: what installers make of mutants that vbuild opens, and that a seed gives the same ones."""

import random
from itertools import islice
from pathlib import Path

import pytest

from tests.factories.installer_outcomes import Outcome
from tests.fuzz import differential


@pytest.mark.nightly
def test_a_few_mutants_are_told_of_where_installers_differ(tmp_path: Path) -> None:
    done = differential.main(["--wheels", "120", "--seed", "2", "--findings", str(tmp_path)])
    assert (done, [*tmp_path.iterdir()]) == (0, [])


def test_a_seed_gives_the_same_wheels_again() -> None:
    one, other = ([*islice(differential.mutated(random.Random(7)), 30)] for _ in range(2))
    assert one == other
    assert len({*one}) > len(one) // 2


@pytest.mark.parametrize(
    ("outcomes", "why"),
    [
        ({"uv": Outcome(None, {"a": "1"}), "pip": Outcome(None, {"a": "1"})}, ""),
        ({"uv": Outcome("no", {}), "pip": Outcome(None, {"a": "1"})}, "uv refuses it: …no"),
        ({"uv": Outcome(None, {"a": "2"}), "pip": Outcome(None, {"a": "1"})}, "uv and pip install different files"),
        (dict.fromkeys(("uv", "pip"), Outcome(None, {"outside: b": "1"})), "installed outside: b"),
    ],
)
def test_a_doubt_is_a_refusal_another_file_or_one_outside(outcomes: dict[str, Outcome], why: str) -> None:
    assert differential.doubt(outcomes) == why
