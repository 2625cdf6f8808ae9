"""mutmut, where each mutant has the tests named like its module first, then the quickest that reach it.

All together take no more than fifteen seconds. Most mutants fail one of the first twenty; pytest takes longer to
collect the others than to run those. Tests are chosen by a plugin: pytest does not find every one by its name, and
mutmut takes that for a failure. What a test takes are seconds of CPU, its own and those of the programs that it runs:
on a machine that does other work, too, a clock would have the tests of a slow moment left out. So does a mutant that
never ends have sixty of them; by the clock mutmut ends only what does nothing.
"""

import os
import resource
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import pytest
from mutmut.__main__ import cli
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.utils.file_utils import change_cwd

_FIRST = 20
_SECONDS = 15
_MOST_SECONDS = 60
_whole_run = PytestRunner.run_tests
_execute_pytest = PytestRunner.execute_pytest


class _Chosen:
    def __init__(self, names: Sequence[str]) -> None:
        self._places = {name: place for place, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self._places), key=self._place)

    def _place(self, item: pytest.Item) -> int:
        return self._places[item.nodeid]


class _Measured:
    """The CPU seconds of each test, for mutmut, whose own plugin took the time before."""

    def __init__(self) -> None:
        self._taken: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        start = _cpu()
        try:
            return (yield)
        finally:
            self._taken[item.nodeid] = _cpu() - start

    def pytest_sessionfinish(self) -> None:
        state().duration_by_test.update(self._taken)


def _cpu() -> float:
    return sum(os.times()[:4])


def execute_pytest(self: PytestRunner, params: list[str], *, plugins: Sequence[object] = ()) -> int:
    return int(_execute_pytest(self, params, plugins=[*plugins, _Measured()]))


def run_tests(self: PytestRunner, *, mutant_name: str | None, tests: Iterable[str]) -> int:
    if mutant_name is None:
        return int(_whole_run(self, mutant_name=None, tests=()))
    most = int(_cpu()) + _MOST_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))
    seconds: dict[str, float] = state().duration_by_test
    own = f"test_{mutant_name.split('.')[-2]}.py::"
    quickest = sorted(tests, key=lambda test: (own not in test, seconds.get(test, 0), test))
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
    PytestRunner.execute_pytest = execute_pytest
    sys.exit(cli())
