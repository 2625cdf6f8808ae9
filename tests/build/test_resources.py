"""How many builds run at a time, and how many processes each starts."""

import pytest

from vbuild.build.job import build_shares

GB = 10**9


@pytest.mark.parametrize(
    ("builds", "asked", "cores", "memory", "expected"),
    [
        (1, None, 16, 128 * GB, (1, 16)),  # one build has the machine
        (4, None, 16, 128 * GB, (4, 4)),
        (40, None, 16, 128 * GB, (16, 1)),
        (4, 2, 16, 128 * GB, (2, 8)),
        (3, None, 2, 24 * GB, (2, 1)),
        (3, None, 16, 5 * GB, (2, 1)),  # memory, not cores
        (3, None, 16, GB, (1, 1)),
        (3, 8, 2, 24 * GB, (3, 1)),  # what is asked for is done
    ],
)
def test_builds_share_cores_and_memory(
    builds: int, asked: int | None, cores: int, memory: int, expected: tuple[int, int]
) -> None:
    assert build_shares(builds, asked, cores=cores, memory=memory) == expected
