"""One target fuzzed by atheris, which keeps inputs that reach new branches of the rooms that the target names.

Functions are made to count their branches in the process that fuzzes: it is slower afterwards, and no other is.
https://github.com/google/atheris
"""

import gc
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FunctionType

import atheris

from tests.fuzz.hunting import Hunt
from tests.fuzz.target import LONGEST, Target
from tests.fuzz.targets import TARGETS

# one input may take a minute, for vbuild is slower by what counting costs; and MB of memory
_LIMITS = ("-timeout=60", "-rss_limit_mb=4096", f"-max_len={LONGEST}")


def fuzz(name: str, seconds: float, folder: Path, corpus: Path) -> None:
    """Fuzz the target *name*, and end the process; suspects lie in *folder* then, and *corpus* has grown."""
    begun, target = time.monotonic(), TARGETS[name]
    hunt = Hunt(target, folder)
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    words = folder / "words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
    _count_branches(target.rooms)
    left = max(1, round(seconds - (time.monotonic() - begun)))
    options = [f"-max_total_time={left}", *_LIMITS, f"-dict={words}", f"-artifact_prefix={folder}/suspect-"]
    command = [sys.argv[0], *options, str(corpus)]
    atheris.Setup(command, hunt.read, **({"custom_mutator": _mutator(target)} if target.changed else {}))
    atheris.Fuzz()


def trace(name: str, folder: Path, inputs: Sequence[Path]) -> None:
    """Have the target *name* read *inputs*, and end the process; what each reached is in *folder* then, for `spare`.

    It is what libFuzzer does in a process that helps it to merge corpora.
    """
    target, control = TARGETS[name], folder / "control"
    control.write_text("".join(f"{line}\n" for line in (len(inputs), 0, *inputs)))
    _count_branches(target.rooms)
    command = [sys.argv[0], f"-merge_control_file={control}", "-merge_inner=1", *_LIMITS]
    atheris.Setup(command, Hunt(target, folder).read)
    atheris.Fuzz()


def spare(folder: Path, inputs: Sequence[Path]) -> Iterator[Path]:
    """Those of *inputs*, read by `trace`, that reached nothing but what former ones did, or ended the process."""
    reached: set[str] = set()
    latest = None
    for line in (folder / "control").read_text().splitlines()[len(inputs) + 2 :]:
        match line.split():
            case ["STARTED", number, _]:
                latest = inputs[int(number)]
            case ["FT", number, *branches]:
                latest = None
                if reached.issuperset(branches):
                    yield inputs[int(number)]
                reached.update(branches)
    if latest:
        yield latest


def _count_branches(rooms: tuple[str, ...]) -> None:
    """Have all functions in the packages *rooms* tell libFuzzer which of their branches are taken, and what differs."""
    prefixes = tuple(f"{room}." for room in rooms)
    for found in gc.get_objects():
        if isinstance(found, FunctionType) and f"{found.__module__}.".startswith(prefixes):
            atheris.instrument_func(found)


def _mutator(target: Target) -> Callable[[bytes, int, int], bytes]:
    """Half the time what *target* changes, else what libFuzzer does, for which this has to be called."""

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if target.changed and chance.random() < 1 / 2 and (found := target.changed(data, chance)) != data:
            return found[:most]
        return bytes(atheris.Mutate(data, most))

    return mutate


def _escaped(word: bytes) -> str:
    """*word* as libFuzzer's dictionaries have it."""
    return "".join(f"\\x{byte:02x}" for byte in word)
