"""What every test has: a user's cache with all that was fetched before, and no finished work in it."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider
from hypothesis.internal.constants_ast import Constants
from platformdirs import user_cache_path

from tests.factories.once import FOLDER
from vbuild.hardware.cpu import available_cores

# also where the environment says otherwise: tests start some thousand processes, and each would compile vbuild again
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# what programs under test say there, tests ask for by themselves
os.environ.pop("CI", None)
# on a busy machine everything takes long
os.environ["VBUILD_NO_PROGRESS"] = "1"


class _OwnConstants(HypothesisProvider):
    """Hypothesis without the numbers and texts that it finds in vbuild: they take three seconds, and change with it."""

    _local_constants = Constants()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Give ``-n auto`` a worker more than there are cores: many tests wait, for installers, schedulers, containers."""
    return available_cores() + 1


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of what is made once in a session, in the first of its processes.

    Examples of Hypothesis are the same few in every run, but new and more ones in the nightly job: no change fails by
    what it did not touch. No example has a time limit, whatever else the machine does.
    """
    is_nightly = "not nightly" not in config.getoption("markexpr")
    settings.register_profile(
        "vbuild", deadline=None, derandomize=not is_nightly, max_examples=100 if is_nightly else 30
    )
    settings.load_profile("vbuild")
    if not is_nightly:
        AVAILABLE_PROVIDERS["hypothesis"] = _OwnConstants
    if not hasattr(config, "workerinput"):
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="vbuild-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(FOLDER), ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the ten thousand tests out of garbage collection, which would look at all of them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Collect from another end in each worker: what imports compile, Python and C, is compiled by one of them alone."""
    report = yield
    if isinstance(collector, pytest.Dir):
        number, middle = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 3, len(report.result) // 2
        orders = (report.result, report.result[::-1], report.result[middle:] + report.result[:middle])
        report.result = orders[number]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as ``nightly`` what the marker ``sampled`` leaves to the nightly job, before -m selects.

    All workers have to have one order.
    """
    items.sort(key=lambda item: item.path.parts)
    seen: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker is None or not isinstance(item, pytest.Function):
            continue
        (kept,), function = marker.args, f"{item.path}::{item.originalname}"
        seen[function] += 1
        if seen[function] > kept if isinstance(kept, int) else item.callspec.id != kept:
            item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="session", autouse=True)
def _signals_reach_programs_under_test() -> None:
    """Give SIGINT and SIGHUP back to child processes.

    A shell starts background jobs with SIGINT ignored, nohup starts its command with SIGHUP ignored, and children
    inherit that. exec resets handlers to the default, so SIGHUP gets a handler that does nothing: children react to it,
    and pytest itself survives the end of its terminal.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.fixture(scope="session", autouse=True)
def _no_work_from_before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep builds of one session from the next: what a test sees built was built by the code under test."""
    if sys.platform == "win32":  # nothing is built there, and the cache's folder is no variable's
        yield
        return
    real, mine = user_cache_path(), tmp_path_factory.mktemp("cache")
    (real / "vbuild").mkdir(parents=True, exist_ok=True)
    for name in ("sdists", "commits", "toolkits", "zig", "cross", "probes"):
        (real / "vbuild" / name).mkdir(exist_ok=True)  # what one session fetches, the next need not
    (mine / "vbuild").mkdir()
    _link(real, mine, but=("vbuild",))
    _link(real / "vbuild", mine / "vbuild", but=("builds", "native"))
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(mine))
    yield
    patch.undo()


def _link(real: Path, mine: Path, *, but: tuple[str, ...]) -> None:
    for entry in real.iterdir():
        if entry.name not in but:
            (mine / entry.name).symlink_to(entry)
