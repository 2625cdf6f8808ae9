"""What every test has: a user's cache with all that was fetched before, and no finished work in it."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from platformdirs import user_cache_path


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Let the programs under test hear Ctrl-C: what a shell starts in the background inherits that it is ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _no_work_from_before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep builds of one session from the next: what a test sees built was built by the code under test."""
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
