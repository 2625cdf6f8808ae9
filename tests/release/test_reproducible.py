"""What vbuild writes depends on what it was given, and on nothing around it: each verb, three times, byte for byte.

    plainly            umask 022, UTC, C.UTF-8
    by somebody else   umask 077, Kolkata, Turkish, one core, elsewhere; files made, named and read in another order
    on a server        umask 002, Los Angeles, C, hashes by another seed, in a folder with a long name

Only the modes of the files themselves are the user's own, by the umask.
"""

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.factories.extensions import library, module
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.level_wheels import PLAIN, level_wheel
from tests.factories.repaired_wheels import LINUX, release
from tests.factories.reversed_folders import reversed_order
from tests.factories.tools import needs
from tests.factories.wheels import wheel
from tests.factories.workdir import VBUILD, file_digests
from vbuild.cli.options import LAYOUTS

pytestmark = [
    needs("gcc"),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="levels are those of x86-64"),
]

_COUNT = "int count(void) { return 42; }"
_URL = "https://example.org/site"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a command runs: *below* a folder, with an *umask* and *variables*, by another command where one is before.

    Where it *turns*, inputs are there, named, and found in folders, in the opposite order, and are of another day.
    """

    name: str
    below: str
    umask: int
    variables: Mapping[str, str] = field(hash=False)
    before: tuple[str, ...] = ()
    turns: bool = False

    def __str__(self) -> str:
        return self.name

    def outcome(self, verb: "Verb", source: Path, folder: Path) -> dict[str, str]:
        """What *verb* writes here, by path, when its inputs are those in *source*; all of it happens in *folder*."""
        here = folder / self.below
        for name in ("home", "temporary"):
            (here / name).mkdir(parents=True)
        names = sorted((path.name for path in source.iterdir()), reverse=self.turns)
        inputs = here / "in"
        inputs.mkdir()
        for number, name in enumerate(names):
            shutil.copyfile(source / name, inputs / name)
            os.utime(inputs / name, (day := 10**9 * (1 + self.turns) + number, day))
        ran = subprocess.run(
            [*self.before, *VBUILD, *verb.words(names)],
            cwd=here,
            env={
                **_outside(),
                **(reversed_order() if self.turns else {}),  # ext4 has its own order, whatever was made first
                "HOME": str(here / "home"),
                "TMPDIR": str(here / "temporary"),
                **self.variables,
            },
            capture_output=True,
            text=True,
            check=False,
            umask=self.umask,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        return file_digests(here / verb.results)


@dataclass(frozen=True, slots=True)
class Verb:
    """A command on wheels that *made* writes; its *options* stand behind them, its *results* are *least* files or more.

    It is given the wheels, in ``in``, or that folder.
    """

    name: str
    made: Callable[[Path], None]
    least: int
    options: tuple[str, ...] = ("-o", "out")
    results: str = "out"
    takes_folder: bool = False

    def __str__(self) -> str:
        return self.name

    def words(self, names: Sequence[str]) -> list[str]:
        inputs = ["in"] if self.takes_folder else [f"in/{name}" for name in names]
        return [self.name, *inputs, *self.options]


PLAINLY = Surroundings("plainly", "a", 0o022, {"TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"})
OTHERS = (
    Surroundings(
        "by somebody else",
        "users/jürgen/with blanks",
        0o077,
        {"TZ": "Asia/Kolkata", "LC_ALL": "tr_TR.UTF-8", "PYTHONHASHSEED": "1"},
        before=("taskset", "-c", "0") if shutil.which("taskset") else (),
        turns=True,
    ),
    Surroundings(
        "on a server",
        "b" * 100,
        0o002,
        {"TZ": "America/Los_Angeles", "LC_ALL": "C", "LANG": "de_DE.UTF-8", "PYTHONHASHSEED": "4294967295"},
    ),
)


def _outside() -> dict[str, str]:
    """The variables of a process without those that this is about, and without a package index."""
    own = ("PIP_", "UV_", "LC_", "LANG", "SOURCE_DATE_EPOCH", "XDG_")
    plain = {name: text for name, text in os.environ.items() if not name.startswith(own)}
    return {**plain, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}


def fat(folder: Path) -> None:
    """Two wheels with GPU code, more than one core compresses at a time."""
    rng = random.Random(7)
    for number in (1, 2):
        codes = [fatbin(*(entry(arch=arch, code=cubin(arch, 1 << 14)) for arch in (80, 90))) for _ in range(4)]
        files = {f"demo/_{place}.so": device_library(code) for place, code in enumerate(codes)}
        more = {"demo/data.bin": rng.randbytes(1 << 16)}
        wheel(folder, f"demo{number}-1.0-py3-none-manylinux_2_28_x86_64.whl", {**files, **more})


def bundling(folder: Path) -> None:
    """Two wheels of a release that bundle the same library, and have headers."""
    call = module("libcount.so.1", source="int count(void); int answer(void) { return count(); }")
    files: dict[str, bytes | str] = {"demo/_c.so": call, "demo/include/count.h": "int count(void);\n"}
    names = tuple(f"demo-1.0-{python}-{python}-{LINUX}.whl" for python in ("cp311", "cp39"))
    release(folder, files, {"libcount.so.1": library("libcount.so.1", source=_COUNT)}, names=names)


def levels(folder: Path) -> None:
    """A release for two levels of x86-64."""
    for level in ("v1", "v3"):
        level_wheel(folder, level)


def plain(folder: Path) -> None:
    """One wheel, which says no time of its own."""
    level_wheel(folder, "v1")
    assert [path.name for path in folder.iterdir()] == [PLAIN]


SLIM = Verb(
    "slim", fat, 6, ("--variant", "sm80=80", "--variant", "sm90=90", "--strip", "debug", "--provenance", "-o", "out")
)
SPLIT = Verb("split", bundling, 4, ("--min-size", "0", "--provenance", "-o", "out"))
STAMP = Verb("stamp", plain, 1, ("-l", "v3", "-p", "x86_64 :: level :: v3", "-p", "x86_64 :: avx2 :: on", "-o", "out"))
INDEX = Verb("index", levels, 5, ("--simple", "site"), results=".", takes_folder=True)
PUBLISH = Verb(
    "publish",
    levels,
    20,
    ("--url", _URL, *(f"--layout={layout}" for layout in LAYOUTS), "-o", "out"),
    takes_folder=True,
)


@pytest.fixture(scope="module")
def locales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Turkish, whose small I is not i, where this machine can make it: the image may have no source."""
    folder = tmp_path_factory.mktemp("locales")
    if shutil.which("localedef"):
        command = ["localedef", "-i", "tr_TR", "-f", "UTF-8", str(folder / "tr_TR.UTF-8")]
        subprocess.run(command, capture_output=True, check=False)
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("verb", [SLIM, SPLIT, STAMP, INDEX, PUBLISH], ids=str)
def test_what_is_written_is_the_same_whoever_writes_it(
    verb: Verb, locales: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verb.made(tmp_path / "inputs")
    monkeypatch.setenv("LOCPATH", str(locales))
    expected = PLAINLY.outcome(verb, tmp_path / "inputs", tmp_path / "plainly")
    assert len([digest for digest in expected.values() if digest]) >= verb.least
    for number, other in enumerate(OTHERS):
        found = other.outcome(verb, tmp_path / "inputs", tmp_path / str(number))
        assert {path: (found.get(path), digest) for path, digest in expected.items() if found.get(path) != digest} == {}
        assert found.keys() == expected.keys()
