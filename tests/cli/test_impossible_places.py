"""Places that cannot be: a name too long, a folder below a file, a file system where nothing new can be made."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.factories.mirrors import fleet, lock_of
from tests.factories.wheels import wheel
from vbuild.cli.main import main
from vbuild.mirroring.mirror import mirror
from vbuild.mirroring.model import MirrorRequest

LONG = "a" * 300
PROC = pytest.param(
    "/proc/vbuild", id="proc", marks=pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
)
SETUP = """\
from setuptools import Extension, setup
setup(name="demo", version="1.0", ext_modules=[Extension("demo", ["demo.c"])])
"""
STAMP = ("stamp", "WHEEL", "-l", "x86_64_v2", "-p", "x86_64 :: level :: v2", "-o")
READING = [
    *(("init",), ("matrix",), ("lock",), ("cibuildwheel", "-o", "out", "--"), ("collect", "-o", "out")),
    *(("slim", "--gpu", "90", "-o", "out"), ("slim", "--gpu", "90", "--environment"), ("split", "-o", "out")),
    *(("inspect",), ("verify",), ("bench", "WHEEL", "WHEEL", "--script"), ("select", "demo", "-f")),
    *(("mirror", "--gpu", "90", "-o", "out"), ("mirror", "LOCK", "-o", "out", "--machine"), ("mirror", "verify")),
    *(("mirror", "oci", "-o", "out"),),
    *(("doctor", "--gpu", "90"), ("index",), ("check",), ("publish", "--layout", "local", "-o", "out")),
]
WRITING = [
    *(STAMP, ("split", "WHEEL", "-o"), ("slim", "WHEEL", "--gpu", "90", "-o"), ("inspect", "WHEEL", "--html")),
    *(("mirror", "LOCK", "--gpu", "90", "-o"), ("mirror", "LOCK", "--gpu", "90", "-o", "out", "--originals")),
    *(("mirror", "oci", "site", "-o"),),
    *(("init", "project", "-o"), ("repair", "WHEEL"), ("publish", "WHEEL", "--layout", "oci", "-o")),
]


def told(folder: Path, words: tuple[str, ...], place: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The one line that a command says of *place*; nothing is left where it ran."""
    monkeypatch.chdir(folder)
    given = wheel(folder)
    lock = lock_of(folder / "pylock.toml", given)
    if "site" in words:
        mirror([str(lock)], folder / "site", fleet("9.0"), MirrorRequest())
    names = {"WHEEL": given.name, "LOCK": lock.name}
    (folder / "project").mkdir()
    (folder / "project/setup.py").write_text(SETUP)
    (folder / "project/demo.c").touch()
    before = sorted(folder.rglob("*"))
    result = CliRunner().invoke(main, [*(names.get(word, word) for word in words), place])
    assert (result.exit_code, result.stderr.count("\n")) in {(1, 1), (2, 2)}, (result.stderr, result.exception)
    assert sorted(folder.rglob("*")) == before
    return result.stderr


@pytest.mark.parametrize("words", [*READING, *WRITING], ids=" ".join)
def test_a_name_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    assert LONG in told(tmp_path, words, LONG, monkeypatch)


@pytest.mark.parametrize("place", [PROC, pytest.param("demo-1.0-py3-none-any.whl/out", id="file")])
@pytest.mark.parametrize("words", WRITING, ids=" ".join)
def test_a_place_where_nothing_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], place: str
) -> None:
    assert place.rpartition("/")[0] in told(tmp_path, words, place, monkeypatch)
