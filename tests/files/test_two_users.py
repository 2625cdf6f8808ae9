"""Two users of one machine: none gets programs from the other's cache, and root's can be read by all."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.factories.wheels import wheel
from tests.factories.writing_commands import WRITING_COMMANDS, CommandFolder

NOBODY = 65534
ELSEWHERE = "point XDG_CACHE_HOME at a folder of yours"

pytestmark = pytest.mark.skipif(
    os.name == "nt" or os.geteuid() != 0 or not shutil.which("setpriv"),
    reason="only root can run a command as another user, with setpriv",
)
named = {command.name: command for command in WRITING_COMMANDS}


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody may look into; pytest's own are root's alone."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def ran(*words: str, folder: Path, user: int, cache: Path) -> subprocess.CompletedProcess[str]:
    """The command *words* of vbuild, run by *user* in *folder* with the *cache*."""
    (folder / "tmp").mkdir(exist_ok=True)
    (folder / "tmp").chmod(0o1777)
    variables = {name: os.environ[name] for name in ("PATH", "VBUILD_NO_PROGRESS")}
    variables |= {"HOME": str(folder), "TMPDIR": str(folder / "tmp")}
    variables |= {"XDG_CACHE_HOME": str(cache), "PIP_NO_INDEX": "1", "UV_OFFLINE": "1"}
    # as root's own Python may lie where nobody else looks, others may read all, and write what is theirs
    other = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    other += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    command = [*(other if user else ()), sys.executable, "-m", "vbuild", *words]
    return subprocess.run(command, cwd=folder, env=variables, check=False, capture_output=True, text=True)


def project(folder: Path) -> CommandFolder:
    """What `vbuild matrix` builds, of which everybody may write the output."""
    inputs = folder / "inputs"
    inputs.mkdir()
    named["matrix"].fill(inputs)
    place = named["matrix"].prepared(folder / "place", inputs)
    for path in (folder / "place", *(folder / "place").rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o644)
    return place


def owned(folder: Path, user: int) -> Path:
    """*folder* with a cache in it that belongs to *user*."""
    (folder / "vbuild").mkdir(parents=True)
    for path in (folder, folder / "vbuild"):
        os.chown(path, user, user)
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("cache", "size"),
        ("cache", "prune"),
        ("cache", "clean"),
        ("matrix", "in/demo.toml", "-o", "out"),
        ("toolkit", "list"),
    ],
    ids=" ".join,
)
def test_a_cache_of_another_user_is_refused_in_one_line(words: tuple[str, ...], shared: Path) -> None:
    place = project(shared)
    cache = owned(shared / "cache", NOBODY)
    ended = ran(*words, folder=place.folder, user=0, cache=cache)
    why = f"belongs to another user, {NOBODY}, and builds run programs from there"
    assert (ended.returncode, ended.stderr) == (1, f"vbuild: {cache}/vbuild: {why}; {ELSEWHERE}\n")
    assert not list((cache / "vbuild").iterdir())


def test_a_cache_that_everybody_may_write_to_is_refused(shared: Path) -> None:
    place = project(shared)
    cache = owned(shared / "cache", 0)
    (cache / "vbuild").chmod(0o777)
    ended = ran("matrix", "in/demo.toml", "-o", "out", folder=place.folder, user=0, cache=cache)
    why = "everybody may write there, and builds run programs from there"
    assert (ended.returncode, ended.stderr) == (1, f"vbuild: {cache}/vbuild: {why}; {ELSEWHERE}\n")


def test_what_uses_no_cache_does_not_mind_whose_it_is(shared: Path) -> None:
    cache = owned(shared / "cache", NOBODY)
    given = wheel(shared)
    ended = ran("inspect", given.name, folder=shared, user=0, cache=cache)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_roots_cache_is_read_by_others_or_a_line_says_what_to_do(shared: Path) -> None:
    place = project(shared)
    cache = owned(shared / "cache", 0)
    as_root = ran("matrix", "in/demo.toml", "-o", "out", folder=place.folder, user=0, cache=cache)
    assert (as_root.returncode, as_root.stderr) == (0, "")
    before = sorted(path for path in cache.rglob("*"))
    other = ran("matrix", "in/demo.toml", "-o", "tmp/out", folder=place.folder, user=NOBODY, cache=cache)
    if other.returncode:
        assert other.returncode == 1
        assert other.stderr.count("\n") == 1
        assert "XDG_CACHE_HOME" in other.stderr
    assert "Traceback" not in other.stdout + other.stderr
    assert sorted(path for path in cache.rglob("*")) == before


@pytest.mark.parametrize("is_link", [False, True], ids=["folder", "link"])
def test_what_somebody_else_put_beside_a_mirror_is_not_taken(shared: Path, *, is_link: bool) -> None:
    (shared / "in").mkdir()
    named["mirror"].fill(shared / "in")
    theirs = shared / "theirs" if is_link else shared / ".site.mirror"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    if is_link:
        (shared / ".site.mirror").symlink_to(theirs)
    ended = ran("mirror", "in/pylock.toml", "-o", "site", "--gpu", "90", folder=shared, user=0, cache=shared / "cache")
    what = "is a link, or belongs to another user; expected a folder of yours, or none"
    assert (ended.returncode, ended.stderr) == (1, f"vbuild: {shared}/.site.mirror: {what}\n")
    assert not (shared / "site").exists()
    assert not list(theirs.iterdir())


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_temporary_folders_are_of_one_user_whatever_the_umask(umask: int, shared: Path) -> None:
    """A link that somebody else put under a name that is made up is nothing that anyone follows: names are random."""
    place = project(shared)
    watched = shared / "watched"
    watched.mkdir()
    program = (
        "import os, sys, tempfile\n"
        "real = os.mkdir\n"
        "def mkdir(path, mode=0o777, **more):\n"
        "    real(path, mode, **more)\n"
        "    line = f'{oct(os.stat(path).st_mode & 0o777)} {os.fsdecode(path)}\\n'\n"
        f"    open({str(watched / 'made')!r}, 'a').write(line)\n"
        "os.mkdir = mkdir\n"
        "from vbuild.cli.main import main\n"
        "sys.argv[0] = 'vbuild'\n"
        "main()\n"
    )
    cache = owned(shared / "cache", 0)
    variables = {**place.variables, "PATH": os.environ["PATH"], "HOME": str(place.folder), "XDG_CACHE_HOME": str(cache)}
    subprocess.run(
        [sys.executable, "-c", program, *place.arguments], cwd=place.folder, env=variables, umask=umask, check=True,
        capture_output=True,
    )  # fmt: skip
    lines = (watched / "made").read_text().splitlines()
    temporary = [line for line in lines if Path(line.split(" ", 1)[1]).parent == place.folder / "tmp"]
    assert all(line.startswith("0o700 ") for line in temporary), temporary
    stages = [line for line in lines if Path(line.split(" ", 1)[1]).name.startswith(".vbuild-")]
    assert stages
    assert all(line.startswith("0o700 ") for line in stages), stages
