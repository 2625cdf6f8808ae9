"""Disks that are full or broken, and files that may not be read: one line that says why, and nothing half-made.

A few calls of the C library by default; every call of each command with ``-m slow``. The seed is printed with what
fails.
"""

import os
import random
from collections.abc import Callable, Iterator

import pytest

from tests.factories.disturbed import Undisturbed
from tests.factories.faults import Call, Fault, Kind
from tests.factories.subjects import SUBJECTS
from tests.factories.tools import needs

FAULTS = 12
EVERY = int(os.environ.get("FAULT_STEP", "1"))
SEED = int(os.environ.get("FAULT_SEED", "8"))

pytestmark = [pytest.mark.skipif(os.uname().machine != "x86_64", reason="its wheels are for x86-64"), needs("gcc")]
each = pytest.mark.parametrize("undisturbed", SUBJECTS, ids=str, indirect=True)
named = {subject.name: subject for subject in SUBJECTS}


def faults(chosen: list[Call], rng: random.Random) -> Iterator[Fault]:
    """A fault at each of the *chosen* calls, of a kind that a system may answer it with."""
    for call in chosen:
        kind = rng.choice([kind for kind in Kind if kind.fits(call)])
        yield Fault(call.number, kind, stays=kind is Kind.ENOSPC and rng.random() < 1 / 2)


def spread(calls: tuple[Call, ...], most: int, rng: random.Random) -> list[Call]:
    """Not more than *most* of *calls*: one of each name, and others."""
    names = {call.name: call for call in rng.sample(calls, len(calls))}
    others = [call for call in calls if call not in names.values()]
    return [*names.values(), *rng.sample(others, max(0, min(len(others), most - len(names))))][:most]


def disturb(undisturbed: Undisturbed, chosen: list[Call], rng: random.Random, *, again: int) -> None:
    """Let each of the *chosen* calls fail, one a run; every *again*th is followed by a rerun."""
    hits = 0
    for number, fault in enumerate(faults(chosen, rng)):
        print(f"{undisturbed.subject}: {fault}; FAULT_SEED={SEED}")
        with undisturbed.faulted(fault) as disturbed:
            hits += bool(disturbed.hit)
            disturbed.check()
            if number % again == again - 1:
                disturbed.check_again()
    # threads may ask for a little more or less than in the undisturbed run
    assert hits >= 0.9 * len(chosen)


@each
def test_a_call_that_fails_is_told_in_one_line(undisturbed: Undisturbed) -> None:
    rng, most = random.Random(f"{SEED} {undisturbed.subject}"), FAULTS // undisturbed.subject.takes
    disturb(undisturbed, spread(undisturbed.calls, most, rng), rng, again=most)


@pytest.mark.slow
@each
def test_any_call_that_fails_is_told_in_one_line(undisturbed: Undisturbed) -> None:
    disturb(undisturbed, list(undisturbed.calls[::EVERY]), random.Random(f"{SEED} {undisturbed.subject}"), again=4)


# calls that once ended in a traceback, or left something behind; the status, and what is said of them
FOUND: dict[str, tuple[str, Callable[[Call], bool], Kind, int, str]] = {
    "a full disk where pieces are remembered": (
        "slim",
        lambda call: call.name == "write" and "/#" in call.path,
        Kind.ENOSPC,
        1,
        ": No space left on device",
    ),
    "an unfinished index that cannot be removed": (
        "index",
        lambda call: call.name == "unlink" and call.path.endswith(".part"),
        Kind.EIO,
        0,
        "",
    ),
    "a stage that gets no lock": (
        "publish",
        lambda call: call.path.endswith("/alive.new"),
        Kind.EIO,
        1,
        "out: cannot be written to: Input/output error",
    ),
    "a broken disk under a layout": (
        "publish",
        lambda call: call.name == "mkdir" and call.path.endswith("/hwcaps"),
        Kind.EIO,
        1,
        "/hwcaps: cannot be read or written: Input/output error",
    ),
    "a source that cannot be read": (
        "matrix",
        lambda call: call.name == "open" and call.path.endswith("in/project/demo.c"),
        Kind.EIO,
        1,
        "/in/project/demo.c: Input/output error",
    ),
    "a launcher that cannot be written": (
        "matrix",
        lambda call: call.name == "write" and "/launchers/" in call.path,
        Kind.EIO,
        1,
        "out: cannot be read or written: Input/output error",
    ),
}


@pytest.mark.parametrize(
    ("undisturbed", "concerns", "kind", "status", "said"),
    [(named[name], *rest) for name, *rest in FOUND.values()],
    ids=FOUND,
    indirect=["undisturbed"],
)
def test_what_once_ended_in_a_traceback_is_told(
    undisturbed: Undisturbed, concerns: Callable[[Call], bool], kind: Kind, status: int, said: str
) -> None:
    number = next(call.number for call in undisturbed.calls if concerns(call))
    with undisturbed.faulted(Fault(number, kind, stays=kind is Kind.ENOSPC)) as disturbed:
        disturbed.check()
        assert any(concerns(call) for call in disturbed.hit)
        assert disturbed.ended.status == status
        assert disturbed.ended.err.rstrip().endswith(said)
        assert disturbed.place.left() == [] or kind is Kind.EIO
