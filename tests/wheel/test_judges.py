"""Tools from outside read what the writer makes."""

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from installer.sources import WheelFile

from tests.factories.tools import needs_judge
from tests.factories.wheels import contents, wheel
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.write import edit_wheel

FILES: dict[str, bytes | str] = {
    "demo/__init__.py": "VALUE = 1\n",
    "demo/a,b.txt": "comma",
    'demo/"quoted".txt': "quote",
    "demo/é✓.txt": "accent",
    "demo/_C.so": b"\x7fELF" + bytes(100_000),
    "demo-1.0.data/scripts/run": "#!python\nprint('hello')\n",
}
# of several pieces, of every kind of block
LARGE = b"".join(random.Random(1).randbytes(part) + b"some code" * 30_000 + bytes(part) for part in (10, 10**5, 10**6))
UV = Path(sys.executable).with_name("uv")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A wheel that was copied in part, edited in part, and grew a member."""
    source_path = wheel(tmp_path, files=FILES, modes={"demo-1.0.data/scripts/run": 0o755})
    new = {"demo/new.txt": b"new", "demo/large.bin": LARGE, "demo-1.0.dist-info/variant.json": b"{}"}
    edits = {"demo/a,b.txt": b"edited", **new}
    with open_wheel(source_path) as source:
        return edit_wheel(source, tmp_path / "out", source.name, edits=edits)


def run(*command: str | Path) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def expected(written: Path) -> dict[str, bytes]:
    return {path: data for path, data in contents(written).items() if path.startswith("demo/")}


def installed(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.glob("demo/*")
        if path.name != "__pycache__"
    }


def test_installer_finds_every_member_in_record(written: Path) -> None:
    with WheelFile.open(written) as judged:
        judged.validate_record()
        executable = [record[0] for record, _, is_executable in judged.get_contents() if is_executable]
    assert executable == ["demo-1.0.data/scripts/run"]


@pytest.mark.parametrize(
    ("tool", "argument", "verdict"),
    [("unzip", "-t", "No errors detected"), ("7z", "t", "Everything is Ok")],
)
def test_an_archiver_tests_it(written: Path, tool: str, argument: str, verdict: str) -> None:
    if not (command := shutil.which(tool)):
        pytest.skip(f"no {tool}")
    assert verdict in run(command, argument, written)


def test_wheel_unpacks_it(written: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "wheel", "unpack", "--dest", tmp_path / "unpacked", written)
    assert installed(tmp_path / "unpacked" / "demo-1.0") == expected(written)


@pytest.mark.nightly
def test_pip_installs_it(written: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", tmp_path / "target", written)
    assert installed(tmp_path / "target") == expected(written)
    assert (tmp_path / "target" / "bin" / "run").stat().st_mode & 0o111


def test_uv_installs_it(written: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    run(UV, "pip", "install", "--offline", "--no-index", "--no-cache", "--no-deps", "--target", target, written)
    assert installed(target) == expected(written)


@needs_judge("twine")
def test_twine_accepts_it(written: Path) -> None:
    assert "PASSED" in run(sys.executable, "-m", "twine", "check", written)
