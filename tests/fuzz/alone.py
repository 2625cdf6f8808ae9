"""Files read by a target in a process of its own, and measured by the laws: what a finding is reproduced with.

    python -m tests.fuzz.alone TARGET FILE...

The target reads its first seed before, so that what is imported or kept for good is not measured. What breaks the law
of seconds may have been disturbed, and is read again.
"""

import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.bounds import Outcome, measured, most_seconds
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

_ATTEMPTS = 3
# bytes of memory: enough to see how much an input takes, and not so much that the machine has none left
_DATA = 4_000_000_000
# what an input that never ends may take, many times what it is allowed
_ENDLESS = 20


def main() -> int:
    name, *files = sys.argv[1:]
    broken = 0
    for outcome, file in zip(outcomes(TARGETS[name], [Path(file).read_bytes() for file in files]), files, strict=True):
        print(f"{file}: {outcome.broken or 'holds'}: {outcome}")
        broken += outcome.broken is not None
    return int(broken > 0)


def outcomes(target: Target, inputs: Sequence[bytes]) -> list[Outcome]:
    """What comes of each of *inputs*, read here."""
    for sound in target.seeds():
        measured(target, sound)
        break
    return [_outcome(target, data) for data in inputs]


def _outcome(target: Target, data: bytes) -> Outcome:
    outcome = measured(target, data)
    for _ in range(_ATTEMPTS - 1):
        if outcome.broken != "seconds":
            break
        outcome = measured(target, data)
    return outcome


def limit(size: int) -> None:
    """Let this process end where an input of *size* bytes takes far more than it is allowed."""
    seconds = round(_ENDLESS + _ENDLESS * most_seconds(size))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (_DATA, _DATA))


if __name__ == "__main__":
    limit(max((Path(file).stat().st_size for file in sys.argv[2:]), default=0))
    sys.exit(main())
