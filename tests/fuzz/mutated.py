"""One target fuzzed with Hypothesis, blind to what an input reaches: where there is no atheris.

An input is a sound one with pieces flipped, cut, doubled, moved, or replaced by words of its format.
"""

import random
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.hunting import Hunt
from tests.fuzz.target import LONGEST, Target
from tests.fuzz.targets import TARGETS

_ROUND = 200
_NUMBERS = (
    b"\0",
    b"\1",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\n",
    b'"',
    b"\xff" * 4,
    b"\xff" * 7 + b"\x7f",
    b"\xff" * 8,
    bytes(8),
)
WAYS = ("replace", "insert", "cut", "double", "move", "end")


def fuzz(name: str, seconds: float, folder: Path, corpus: Path) -> None:
    """Fuzz the target *name*; suspects lie in *folder* then.

    What guided fuzzing left in *corpus* is taken as sound, too, and nothing is added.
    """
    begun, target = time.monotonic(), TARGETS[name]
    hunt = Hunt(target, folder)
    sound = [*target.seeds(), *(path.read_bytes() for path in sorted(corpus.iterdir()))]
    inputs = mutants(target, sound)
    until = max(begun + seconds, time.monotonic() + 1)
    while time.monotonic() < until:

        @seed(random.getrandbits(64))
        @settings(
            max_examples=_ROUND,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(inputs)
        def read(data: bytes) -> None:
            if time.monotonic() < until:
                hunt.read(data)

        read()
    print(f"Done {hunt.count} runs in {seconds} second(s)", flush=True)


def mutants(target: Target, sound: list[bytes]) -> st.SearchStrategy[bytes]:
    """Inputs of *target* made of *sound* ones."""
    pieces = st.sampled_from((*_NUMBERS, *target.words)) | st.binary(min_size=1, max_size=8)
    changes = st.tuples(st.sampled_from(WAYS), st.floats(0, 1), st.floats(0, 1), pieces)
    return st.builds(mutant, st.sampled_from(sound), st.lists(changes, min_size=1, max_size=6))


def mutant(data: bytes, changes: list[tuple[str, float, float, bytes]]) -> bytes:
    for way, first, second, piece in changes:
        start = int(first * len(data))
        # pieces are short more often than not
        stop = start + int(second**4 * (len(data) - start))
        match way:
            case "replace":
                data = data[:start] + piece + data[start + len(piece) :]
            case "insert":
                data = data[:start] + piece + data[start:]
            case "cut":
                data = data[:start] + data[stop:]
            case "double":
                data = data[:stop] + data[start:]
            case "move":
                data = data[:start] + data[stop:] + data[start:stop]
            case _:
                data = data[:stop]
    return data[:LONGEST]
