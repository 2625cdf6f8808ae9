"""vbuild that is killed or interrupted at any moment: no half of a file under a final name, and the next run is whole.

A few moments by default; a hundred for each command with ``-m slow``, and each moment between two calls of the C
library that FAULT_STEP says. The seed is printed with what fails.
"""

import os
import random
import signal

import pytest

from tests.factories.disturbed_runs import UndisturbedRun, spread
from tests.factories.faults import Fault, Kind
from tests.factories.tools import needs
from tests.factories.writing_commands import WRITING_COMMANDS

KILLS = 6
MANY = int(os.environ.get("KILLS", "100"))
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
EVERY = int(os.environ.get("FAULT_STEP", "1"))
SEED = int(os.environ.get("KILL_SEED", "8"))

pytestmark = [
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="its wheels are for x86-64"),
    needs("gcc"),
    pytest.mark.nightly,
]
each = pytest.mark.parametrize("undisturbed", WRITING_COMMANDS, ids=str, indirect=True)


def disturb(undisturbed: UndisturbedRun, *, kills: int, again: int) -> None:
    """Send *kills* signals, one a run, spread over the time of a run; every *again*th is followed by a rerun."""
    rng = random.Random(f"{SEED} {undisturbed.command}")
    statuses = set()
    for number in range(kills):
        # one moment in each of as many parts of the time, the signals in turn
        after = undisturbed.seconds * (number + rng.random()) / kills
        sent = SIGNALS[number % len(SIGNALS)]
        print(f"{undisturbed.command}: {sent.name} after {after:.3f} s; KILL_SEED={SEED}")
        with undisturbed.killed(sent, after) as disturbed:
            statuses.add(disturbed.ended.status)
            disturbed.check()
            if number % again == again - 1:
                disturbed.check_again()
    assert statuses - {0}, "no run was disturbed"


@pytest.mark.sampled(1)
@each
def test_a_run_that_is_ended_leaves_no_half_of_a_file(undisturbed: UndisturbedRun) -> None:
    kills = KILLS // undisturbed.command.takes
    disturb(undisturbed, kills=kills, again=kills)


@pytest.mark.slow
@each
def test_a_run_that_is_ended_at_any_of_many_moments_leaves_no_half_of_a_file(undisturbed: UndisturbedRun) -> None:
    disturb(undisturbed, kills=MANY, again=1)


# an interrupt stays, like Ctrl-C that is held down: nothing may disturb the cleaning that the first one began
ending = pytest.mark.parametrize("kind", [Kind.SIGKILL, Kind.SIGINT])


@ending
@each
def test_a_run_that_is_ended_between_two_calls_leaves_no_half_of_a_file(
    kind: Kind, undisturbed: UndisturbedRun
) -> None:
    print(f"KILL_SEED={SEED}")
    most = KILLS // undisturbed.command.takes
    chosen = spread(undisturbed.calls, most, random.Random(f"{SEED} {kind} {undisturbed.command}"))
    undisturbed.check_all([Fault(call.number, kind, stays=kind is Kind.SIGINT) for call in chosen], again=most)


@pytest.mark.slow
@ending
@each
def test_a_run_that_is_ended_between_any_two_calls_leaves_no_half_of_a_file(
    kind: Kind, undisturbed: UndisturbedRun
) -> None:
    undisturbed.check_all(
        [Fault(call.number, kind, stays=kind is Kind.SIGINT) for call in undisturbed.calls[::EVERY]], again=4
    )
