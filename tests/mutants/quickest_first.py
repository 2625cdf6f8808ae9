"""mutmut, where each mutant has the quickest of the tests that reach it first, and no more than take five seconds.

Most mutants fail one of the first twenty; pytest takes longer to collect the others than to run those. Tests are chosen
by a plugin: pytest does not find every one by its name, and mutmut takes that for a failure.
"""

import sys
from collections.abc import Iterable, Sequence
from itertools import accumulate

import pytest
from mutmut.__main__ import cli
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.utils.file_utils import change_cwd

_FIRST = 20
_SECONDS = 5
_whole_run = PytestRunner.run_tests


class _Chosen:
    def __init__(self, names: Sequence[str]) -> None:
        self._places = {name: place for place, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self._places), key=self._place)

    def _place(self, item: pytest.Item) -> int:
        return self._places[item.nodeid]


def run_tests(self: PytestRunner, *, mutant_name: str | None, tests: Iterable[str]) -> int:
    if mutant_name is None:
        return int(_whole_run(self, mutant_name=None, tests=()))
    seconds: dict[str, float] = state().duration_by_test
    quickest = sorted(tests, key=lambda test: (seconds.get(test, 0), test))
    taken = accumulate(seconds.get(test, 0) for test in quickest)
    kept = [test for test, until in zip(quickest, taken, strict=True) if until < _SECONDS] or quickest[:1]
    with change_cwd("mutants"):
        for part in filter(None, (kept[:_FIRST], kept[_FIRST:])):
            files = sorted({test.partition("::")[0] for test in part})
            if code := self.execute_pytest(self._pytest_args_regular_run(files), plugins=[_Chosen(part)]):
                return int(code)
    return 0


if __name__ == "__main__":
    PytestRunner.run_tests = run_tests
    sys.exit(cli())
