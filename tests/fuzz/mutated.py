"""One target fuzzed with Hypothesis, blind to what an input reaches: where there is no atheris.

An input is a sound one with pieces flipped, cut, doubled, moved, or replaced by words of its format, or with other
values where the target has them.
"""

import random
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.byte_changes import WAYS, mutant
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
    blind = st.builds(mutant, st.sampled_from(sound), st.lists(changes, min_size=1, max_size=6))
    if (change := target.changed) is None:
        return blind
    numbers = st.integers(0, (1 << 32) - 1).map(random.Random)
    return blind | st.builds(lambda data, chance: change(data, chance)[:LONGEST], st.sampled_from(sound), numbers)
