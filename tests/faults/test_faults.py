"""Disks that are full or broken, files nobody may read, folders that go: one line says why, and nothing is half-made.

A few calls of the C library; ``python -m tests.faults`` lets each of all calls fail once. The seed is printed with what
fails.
"""

import os
import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.factories.disturbed_runs import UndisturbedRun, spread
from tests.factories.faults import Call, Fault, Kind
from tests.factories.tools import needs
from tests.factories.writing_commands import WRITING_COMMANDS

FAULTS = 12
TRIES = 5
LATE = 400  # calls; when the wheels are read, and each variants.json is written
SEED = int(os.environ.get("FAULT_SEED", "8"))

pytestmark = [
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="its wheels are for x86-64"),
    needs("gcc"),
    pytest.mark.nightly,
]
# of an image, as of an environment, what cannot be read stays as it is, and is named
each = pytest.mark.parametrize(
    "undisturbed", [command for command in WRITING_COMMANDS if not command.seal], ids=str, indirect=True
)
named = {command.name: command for command in WRITING_COMMANDS}


def faults(chosen: list[Call], rng: random.Random) -> Iterator[Fault]:
    """A fault at each of the *chosen* calls, of a kind that a system may answer it with."""
    for call in chosen:
        kind = rng.choice([kind for kind in Kind if kind.fits(call) and not kind.is_signal])
        yield Fault(call.number, kind, stays=kind is Kind.ENOSPC and rng.random() < 1 / 2)


@pytest.mark.sampled(1)
@each
def test_a_call_that_fails_is_told_in_one_line(undisturbed: UndisturbedRun) -> None:
    print(f"FAULT_SEED={SEED}")
    rng, most = random.Random(f"{SEED} {undisturbed.command}"), FAULTS // undisturbed.command.takes
    failing = [call for call in undisturbed.calls if Kind.EIO.fits(call)]
    undisturbed.check_all(list(faults(spread(failing, most, rng), rng)), again=most)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind.is_removal])
@each
def test_a_folder_that_is_removed_meanwhile_is_told_in_one_line(kind: Kind, undisturbed: UndisturbedRun) -> None:
    print(f"FAULT_SEED={SEED}")
    rng, most = random.Random(f"{SEED} {kind} {undisturbed.command}"), FAULTS // 6 // undisturbed.command.takes
    undisturbed.check_all([Fault(call.number, kind) for call in rng.sample(undisturbed.calls, most)], again=most)


# calls that once ended in a traceback, or left something behind; the status, and what is said of them
FOUND: dict[str, tuple[str, Callable[[Call], bool], Kind, int, str]] = {
    "a full disk where pieces are remembered": (
        "slim",
        lambda call: call.name == "write" and "/#" in call.path,
        Kind.ENOSPC,
        1,
        ": No space left on device",
    ),
    "a full disk under a thin wheel": (
        "split",
        lambda call: call.name == "write" and "/out/.vbuild-" in call.path and call.path.endswith(".whl"),
        Kind.ENOSPC,
        1,
        "_x86_64.whl: demo/_c.so: cannot be written: No space left on device",
    ),
    "a folder of wheels that nobody may look into": (
        "slim",
        lambda call: call.name == "opendir" and call.path.endswith("/in"),
        Kind.EACCES,
        1,
        "vbuild: in: cannot be read: Permission denied",
    ),
    "a folder to be indexed that nobody may look into": (
        "index",
        lambda call: call.name == "opendir" and call.path.endswith("/out/dist"),
        Kind.EACCES,
        1,
        "vbuild: out/dist: cannot be read: Permission denied",
    ),
    "sdists of an index that nobody may look for": (
        "index",
        lambda call: call.name == "opendir" and call.path.endswith("/out/dist") and call.number > LATE,
        Kind.EACCES,
        1,
        "vbuild: out/dist: cannot be read: Permission denied",
    ),
    "an unfinished index that cannot be removed": (
        "index",
        lambda call: call.name.startswith("unlink") and call.path.endswith("/alive"),
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
    "a compiler wrapper that cannot be written": (
        "matrix",
        lambda call: call.name == "write" and "/launchers/" in call.path,
        Kind.EIO,
        1,
        "out: cannot be read or written: Input/output error",
    ),
    "an output that is removed during a build": (
        "matrix",
        lambda call: call.name == "write" and "/launchers/" in call.path,
        Kind.OUT_GONE,
        1,
        "/out: is gone; expected inputs, output and caches to stay until the command ends: run it again",
    ),
    "an output that is removed when it is complete": (
        "stamp",
        lambda call: call.name == "open" and call.path.endswith("/out"),
        Kind.OUT_GONE,
        1,
        "vbuild: out: is gone; expected inputs, output and caches to stay until the command ends: run it again",
    ),
}


@pytest.mark.parametrize(
    ("undisturbed", "concerns", "kind", "status", "said"),
    [(named[name], *rest) for name, *rest in FOUND.values()],
    ids=FOUND,
    indirect=["undisturbed"],
)
def test_what_once_ended_in_a_traceback_is_told(
    undisturbed: UndisturbedRun, concerns: Callable[[Call], bool], kind: Kind, status: int, said: str
) -> None:
    calls: Sequence[Call] = undisturbed.calls
    for _ in range(TRIES):  # threads ask in another order each time
        number = next(call.number for call in calls if concerns(call))
        with undisturbed.faulted(Fault(number, kind, stays=kind is Kind.ENOSPC)) as disturbed:
            disturbed.check()
            calls = disturbed.calls
            if any(concerns(call) for call in disturbed.hit):
                assert disturbed.ended.status == status
                assert disturbed.ended.err.rstrip().endswith(said)
                assert disturbed.place.left() == [] or kind is Kind.EIO
                return
    pytest.fail(f"in {TRIES} runs no such call was hit")
