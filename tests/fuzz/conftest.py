"""Coverage makes Python two or three times as slow, and the laws here are of seconds: it pauses meanwhile."""

from collections.abc import Iterator

import pytest
from coverage import Coverage


@pytest.fixture(autouse=True)
def untraced() -> Iterator[None]:
    tracing = []
    while found := Coverage.current():  # one of pytest's, one of the process's
        found.stop()
        tracing.append(found)
    yield
    for each in reversed(tracing):
        each.start()
