"""The stage beside the results: what a killed run leaves goes with the next, what lives stays."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vbuild.errors import RecipeError
from vbuild.files.atomic import staging

RUN = """
import sys, time
from pathlib import Path
from vbuild.files.atomic import staging
with staging(Path(sys.argv[1])) as stage:
    (stage / "builds").mkdir()
    (stage / "builds/half.whl").write_text("half")
    print(stage, flush=True)
    time.sleep(120)
"""


@contextmanager
def run(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process at work in *folder*, with its stage."""
    with subprocess.Popen([sys.executable, "-c", RUN, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        stage = Path(process.stdout.readline().strip())
        try:
            yield process, stage
        finally:
            process.kill()


def test_a_stage_is_there_for_the_block_only(tmp_path: Path) -> None:
    with staging(tmp_path / "dist") as stage:
        assert stage.parent == tmp_path / "dist"
        (stage / "a").write_text("")
    assert not (tmp_path / "dist").exists()


def test_a_folder_with_results_stays_and_empty_logs_go(tmp_path: Path) -> None:
    with staging(tmp_path / "dist"):
        (tmp_path / "dist/logs").mkdir()
        (tmp_path / "dist/a.whl").write_text("")
    assert [path.name for path in (tmp_path / "dist").iterdir()] == ["a.whl"]


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    with run(tmp_path) as (process, stage):
        process.kill()
        process.wait()
        assert (stage / "builds/half.whl").exists()
        with staging(tmp_path) as own:
            assert [path.name for path in tmp_path.iterdir()] == [own.name]
    assert list(tmp_path.iterdir()) == []


def test_the_stage_of_a_living_run_stays(tmp_path: Path) -> None:
    with run(tmp_path) as (_, stage):
        with staging(tmp_path):
            assert (stage / "builds/half.whl").exists()
        assert (stage / "builds/half.whl").exists()


@pytest.mark.nightly
def test_a_compiler_that_outlives_its_run_does_not_keep_the_stage(tmp_path: Path) -> None:
    code = RUN.replace("    print", "    import subprocess; child = subprocess.Popen(['sleep', '60'])\n    print")
    code = code.replace("print(stage,", "print(stage, child.pid,")
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        stage, child = process.stdout.readline().split()
        process.kill()
        process.wait()
        with staging(tmp_path):
            assert not Path(stage).exists()
        os.kill(int(child), 9)


def test_stages_that_have_no_lock_yet_are_left_for_a_day(tmp_path: Path) -> None:
    for name in ("young", "old"):
        (tmp_path / f".vbuild-{name}").mkdir()
    os.utime(tmp_path / ".vbuild-old", (time.time() - 90000,) * 2)
    (tmp_path / ".vbuild-file").write_text("no stage")
    with staging(tmp_path) as own:
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([own.name, ".vbuild-young", ".vbuild-file"])


def test_what_cannot_be_removed_now_is_removed_another_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = tmp_path / ".vbuild-dead"
    (dead / "builds").mkdir(parents=True)
    (dead / "file").write_text("")
    (dead / "alive").write_text("")
    # as if a compiler wrote there again and again
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda _path, **_options: None)
        with staging(tmp_path):
            pass
    assert (dead / "alive").exists()
    with staging(tmp_path):
        assert not dead.exists()


def test_an_error_inside_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="mine"), staging(tmp_path / "dist"):
        raise OSError("mine")
    assert not (tmp_path / "dist").exists()


def test_a_disk_that_is_full_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/old.whl").write_text("")

    def fill() -> None:
        with staging(tmp_path / "dist") as stage:
            (stage / "half.whl").write_text("")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(RecipeError) as caught:
        fill()
    assert str(caught.value) == f"{tmp_path}/dist: cannot be written to: No space left on device"
    assert [path.name for path in (tmp_path / "dist").iterdir()] == ["old.whl"]


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError) as caught, staging(tmp_path / "file/dist"):
        pass
    assert str(caught.value) == f"{tmp_path}/file/dist: cannot be written to: Not a directory"
