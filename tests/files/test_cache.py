"""The user's cache: complete entries, one rule for each part, and nothing removed that is in use."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.factories.faults import COUNTING, Ended, Fault, Kind, calls, run
from tests.factories.tools import needs
from vbuild.errors import BuildError
from vbuild.files import cache as module
from vbuild.files.atomic import locked
from vbuild.files.cache import DAY, RULES, Cache, CacheEntry, Part, cache_folder, clean, prune, sizes, sweep_daily


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, which is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return cache_folder()


def _entry(cache: Cache, name: str, *, size: int = 1000, days: float = 0) -> Path:
    """An entry of *size* bytes that was used so many *days* ago."""
    with cache.locked(name), cache.replacing(name) as part:
        part.mkdir()
        (part / "data").write_bytes(bytes(size))
    os.utime(cache.folder / name, (time.time() - days * DAY,) * 2)
    return cache.folder / name


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize(
    ("home", "said"), [("/proc", "nothing new can be made here"), (sys.executable, "Not a directory")]
)
def test_a_cache_that_cannot_be_made_says_what_to_do(home: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    with pytest.raises(OSError, match=f"{said}; point XDG_CACHE_HOME at a folder that can be: '{home}"):
        Cache.of(Part.PROBES).keep_text("one.json", "text")


def _names(cache: Cache) -> set[str]:
    return {entry.path.name for entry in cache.entries()}


def test_the_folder_is_marked_as_a_cache_when_something_is_kept(folder: Path) -> None:
    assert Cache.of(Part.PROBES).text("one.json") is None
    assert not folder.exists()
    Cache.of(Part.PROBES).keep_text("one.json", "text")
    assert (folder / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")


def test_a_text_comes_back_and_is_marked_as_used(folder: Path) -> None:
    cache = Cache.of(Part.PROBES)
    cache.keep_text("one.json", "text")
    os.utime(folder / "probes/one.json", (1, 1))
    assert cache.text("one.json") == "text"
    assert (folder / "probes/one.json").stat().st_mtime > time.time() - 60
    (folder / "probes/one.json").write_text("text")
    assert cache.text("one.json") is None


def test_an_entry_that_is_not_finished_is_not_there(tmp_path: Path) -> None:
    cache = Cache(Part.NATIVE, tmp_path)
    _entry(cache, "one", size=5)

    def give_up(kind: type[BaseException]) -> None:
        with cache.replacing("one") as part:
            part.mkdir()
            raise kind

    for kind in (ValueError, KeyboardInterrupt):
        with pytest.raises(kind):
            give_up(kind)
    assert [path.name for path in tmp_path.iterdir() if path.name != ".locks"] == ["one"]
    assert (tmp_path / "one/data").stat().st_size == 5


def test_what_a_killed_process_left_goes_when_the_entry_is_made_again(tmp_path: Path) -> None:
    cache = Cache(Part.NATIVE, tmp_path)
    (tmp_path / ".one.0123.part/sub").mkdir(parents=True)
    (tmp_path / ".other.0123.part").mkdir()
    _entry(cache, "one")
    assert sorted(path.name for path in tmp_path.glob(".*part")) == [".other.0123.part"]


MAKE = """
import sys
from pathlib import Path
from vbuild.files.cache import Cache, Part

cache = Cache(Part.NATIVE, Path(sys.argv[1]))
for _ in range(60):
    with cache.locked("one"):
        with cache.replacing("one") as part:
            part.mkdir()
            for number in range(9):
                (part / str(number)).write_text("x")
        assert len(list((cache.folder / "one").iterdir())) == 9
    cache.sweep(most=0)
"""


def test_processes_take_turns(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKE, str(tmp_path)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=120)[1] for process in processes] == [""] * 3


def test_a_lock_whose_file_was_removed_counts_for_nobody(tmp_path: Path) -> None:
    got = threading.Event()

    def wait() -> None:
        with locked(tmp_path / "lock"):
            assert (tmp_path / "lock").exists()
            got.set()

    with locked(tmp_path / "lock"):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.2)
        assert not got.is_set()
        (tmp_path / "lock").unlink()  # who waits makes the file anew, and may have it at once
    thread.join(10)
    assert got.is_set()


def test_a_lock_that_is_taken_can_be_passed_over_and_waiting_given_up(tmp_path: Path) -> None:
    def stop() -> None:
        raise BuildError("stopped")

    with locked(tmp_path):
        with locked(tmp_path, wait=False) as is_held:
            assert not is_held
        with pytest.raises(BuildError, match="stopped"), locked(tmp_path, check=stop):
            pytest.fail("held twice")
    with locked(tmp_path, wait=False) as is_held:
        assert is_held


@pytest.mark.parametrize("part", [part for part, rule in RULES.items() if rule.days])
def test_every_part_loses_what_was_not_used_for_long(folder: Path, part: Part) -> None:
    cache, rule = Cache.of(part), RULES[part]
    if not rule.entries:  # the folder is the entry
        (folder / part / "o").mkdir(parents=True)
        os.utime(folder / part, (time.time() - 20 * DAY,) * 2)
        assert cache.sweep().count == 0
        os.utime(folder / part, (time.time() - 40 * DAY,) * 2)
        assert cache.sweep().count == 1
        assert not (folder / part).exists()
        return
    inner = {Part.BUILDS: "builds/", Part.ENVIRONMENTS: "python/"}.get(part, "")
    for name, days in (("old", 40.0), ("used", 20.0), ("new", 0.0)):
        _entry(cache, f"{inner}{name}", days=days)
    assert cache.sweep() == module.Removed(part, 1, 1000)
    assert _names(cache) == {"used", "new"}


def test_a_part_that_is_too_large_loses_what_was_used_longest_ago_but_nothing_in_use(tmp_path: Path) -> None:
    cache = Cache(Part.NATIVE, tmp_path)
    for name, days in (("a", 0.0), ("b", 0.5), ("c", 2.0), ("d", 3.0)):
        _entry(cache, name, days=days)
    cache.sweep(most=3500)
    assert _names(cache) == {"a", "b", "c"}
    cache.sweep(most=0)
    assert _names(cache) == {"a", "b"}


def test_builds_are_linked_out_of_the_cache_so_those_of_today_may_go(tmp_path: Path) -> None:
    cache = Cache(Part.BUILDS, tmp_path)
    for number in range(4):
        _entry(cache, f"products/{number}", days=number / 100)
    cache.sweep(most=2500)
    assert _names(cache) == {"0", "1"}


def test_an_entry_that_is_being_made_stays(tmp_path: Path) -> None:
    cache = Cache(Part.NATIVE, tmp_path)
    _entry(cache, "one", days=40)
    with cache.locked("one"):
        assert cache.sweep().count == 0
        assert cache.empty() is None
    assert cache.sweep().count == 1
    assert not (tmp_path / ".locks/one").exists()


def test_a_program_at_work_keeps_its_folder(folder: Path) -> None:
    (folder / "zig").mkdir(parents=True)
    os.utime(folder / "zig", (1, 1))
    with locked(folder / "zig.lock"):
        assert Cache.of(Part.ZIG).sweep().count == 0
        with pytest.raises(BuildError, match=f"^{folder}/zig: in use by another process; try again when it is"):
            clean([Part.ZIG])
    assert (folder / "zig").is_dir()


def test_remains_of_killed_processes_are_swept_after_a_day(tmp_path: Path) -> None:
    cache = Cache(Part.BUILDS, tmp_path)
    for name, days in ((".keeping-dead", 1.1), (".keeping-alive", 0.0), ("builds/.0123.part", 1.1)):
        (tmp_path / name).mkdir(parents=True)
        os.utime(tmp_path / name, (time.time() - days * DAY,) * 2)
    cache.sweep()
    assert [path.name for path in tmp_path.rglob(".*")] == [".keeping-alive"]


def test_toolkits_stay_until_somebody_asks(folder: Path) -> None:
    cache = Cache.of(Part.TOOLKITS)
    old = _entry(cache, "cuda-13.0-0", days=400)
    prune()
    assert old.is_dir()
    assert sum(removed.count for removed in clean([Part.TOOLKITS])) == 1
    assert not old.exists()
    assert folder.is_dir()


def test_a_part_that_is_a_link_to_another_disk_is_emptied_there(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "disk/zig/o").mkdir(parents=True)
    (tmp_path / "disk/zig/o/x").write_bytes(bytes(10))
    folder.mkdir(parents=True)
    (folder / "zig").symlink_to(tmp_path / "disk/zig")
    assert clean([Part.ZIG]) == (module.Removed(Part.ZIG, 1, 10),)
    assert not (tmp_path / "disk/zig").exists()


def test_an_entry_that_is_a_link_leaves_its_target_alone(tmp_path: Path) -> None:
    cache = Cache(Part.TOOLKITS, tmp_path / "toolkits")
    (tmp_path / "usr/bin").mkdir(parents=True)
    cache.folder.mkdir()
    (cache.folder / "cuda-13.0").symlink_to(tmp_path / "usr")
    assert cache.empty() == module.Removed(Part.TOOLKITS, 1, 0)
    assert (tmp_path / "usr/bin").is_dir()
    assert not (cache.folder / "cuda-13.0").is_symlink()


def test_sizes_count_shared_bytes_once(folder: Path) -> None:
    one = _entry(Cache.of(Part.TOOLKITS), "components/one", size=5000)
    root = _entry(Cache.of(Part.TOOLKITS), "cuda-13.0-0", size=10)
    (root / "linked").hardlink_to(one / "data")
    assert sum(entry.size for entry in sizes()[Part.TOOLKITS]) == 5010
    assert folder.is_dir()


def test_commands_sweep_once_a_day(folder: Path) -> None:
    sweep_daily()
    assert not folder.exists()
    cache = Cache.of(Part.SDISTS)
    _entry(cache, "one", days=40)
    sweep_daily()
    assert _names(cache) == set()
    _entry(cache, "two", days=40)
    sweep_daily()
    assert _names(cache) == {"two"}
    os.utime(folder / ".swept", (time.time() - 2 * DAY,) * 2)
    sweep_daily()
    assert _names(cache) == set()


def test_a_cache_that_cannot_be_written_is_read_and_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "home").write_text("a file")
    sweep_daily()
    assert Cache.of(Part.PROBES).text("one.json") is None
    assert sizes() == dict[Part, tuple[CacheEntry, ...]].fromkeys(RULES, ())
    with pytest.raises(OSError, match="Not a directory"):
        Cache.of(Part.PROBES).keep_text("one.json", "text")


@needs("gcc")
@pytest.mark.nightly
@pytest.mark.parametrize("words", [("clean",), ("prune",)], ids=" ".join)
def test_a_disk_that_fails_while_the_cache_is_emptied_is_told_in_one_line(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    entry = tmp_path / "vbuild/zig/one/two"

    variables = {"XDG_CACHE_HOME": str(tmp_path)}

    def ran(fault: Fault) -> Ended:
        entry.parent.mkdir(parents=True, exist_ok=True)
        entry.write_text("kept")
        os.utime(entry, (0, 0))
        disturbing = fault.variables(tmp_path, tmp_path.with_suffix(".log"))
        return run("cache", *words, folder=tmp_path, variables={**variables, **disturbing})

    assert ran(COUNTING).status == 0
    found = [call.number for call in calls(tmp_path.with_suffix(".log")) if Kind.EIO.fits(call)]
    assert found
    for number in found:
        ended = ran(Fault(number, Kind.EIO))
        assert (ended.status, ended.err.count("\n")) in {(0, 0), (1, 1)}, ended
