"""Let every call of the C library fail once, in each command that writes: with ENOSPC, EIO and EACCES in turn.

    python -m tests.faults                             all commands: two hours of CPU
    python -m tests.faults slim matrix --jobs 4
    python -m tests.faults matrix --at 212 --kind EIO  one call again

What has to hold is in `tests.factories.disturbed_runs`. The status is 1 if it did not somewhere.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.factories.disturbed_runs import UndisturbedRun
from tests.factories.faults import Call, Fault, Kind
from tests.factories.writing_commands import WRITING_COMMANDS, WritingCommand

KINDS = (Kind.ENOSPC, Kind.EIO, Kind.EACCES)
REMOVALS = tuple(kind for kind in Kind if kind.is_removal)
MOST = 1500  # characters of a finding
PLACES = re.compile("/(?:counted|place)/")  # where a run has its files: the undisturbed one, and the others
AGAIN = 4  # so many faults, and then a run that nothing disturbs


def chosen(calls: Sequence[Call], *, at: int | None, every: int, kind: Kind | None) -> list[tuple[Call, Fault]]:
    """A fault for each of *calls* that can fail, or only for the one *at* a number, or of one *kind*."""
    found = []
    tried = KINDS if kind is None else (kind,)
    for call in calls[::every]:
        kinds = [one for one in tried if one.fits(call)]
        if kinds and at in {None, call.number}:
            found.append((call, Fault(call.number, kinds[call.number % len(kinds)])))
    return found


def finding(undisturbed: UndisturbedRun, call: Call, fault: Fault) -> str | None:
    """What does not hold after *fault* at *call*; None if all holds."""
    hit = call
    try:
        with undisturbed.faulted(fault) as disturbed:
            # with threads, another may have the number in this run
            hit = next(iter(disturbed.hit), call)
            disturbed.check()
            if fault.at % AGAIN == 0:
                disturbed.check_again()
    except Exception as error:  # noqa: BLE001 - each is a finding, and the others are tried all the same
        path = PLACES.split(hit.path)[-1]
        return f"{undisturbed.command}: {fault}, {hit.name} {path}: {type(error).__name__}: {str(error)[-MOST:]}"
    return None


def tried(command: WritingCommand, *, jobs: int, at: int | None, every: int, kind: Kind | None) -> int:
    """How many faults of *command* were findings; all of them are printed."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, ThreadPoolExecutor(jobs) as pool:
        undisturbed = UndisturbedRun.of(command, Path(folder) / command.name)
        faults = chosen(undisturbed.calls, at=at, every=every, kind=kind)
        found = 0
        for text in pool.map(lambda one: finding(undisturbed, *one), faults):
            if text:
                found += 1
                print(text, flush=True)
    print(f"{command}: {len(undisturbed.calls)} calls, {len(faults)} failed once, {found} findings", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.partition("\n")[0])
    named = {command.name: command for command in WRITING_COMMANDS}
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=", ".join(named))
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="let N runs fail at a time")
    parser.add_argument("--at", type=int, metavar="CALL", help="only the call of this number")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth call")
    parser.add_argument("--kind", type=Kind, choices=[*KINDS, *REMOVALS], help="only this error")
    asked = parser.parse_args()
    if unknown := [name for name in asked.commands if name not in named]:
        parser.error(f"unknown: {', '.join(unknown)}; expected some of {', '.join(named)}")
    try_all = partial(tried, jobs=asked.jobs, at=asked.at, every=asked.every, kind=asked.kind)
    return min(1, sum(try_all(named[name]) for name in asked.commands or named))


if __name__ == "__main__":
    sys.exit(main())
