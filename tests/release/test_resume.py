"""A matrix that was stopped goes on where it was, and one with nothing to do starts no compiler.

A compiler that is started says so in a file: gcc and the like are scripts here, which start the real ones.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.factories.kernels import TWO, cuda_project
from tests.factories.projects import setuptools_project, tree
from tests.factories.tools import host_compilers, needs
from tests.factories.workdir import Workdir, stage_folders, wheels

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64"),
    needs("gcc", "g++"),
]

LEVELS = ["x86-64", "x86-64-v2", "x86-64-v3"]
CPUS = 'cpu = ["x86-64", "x86-64-v2", "x86-64-v3"]'
CUDA = TWO
COMPILERS = re.compile(r"(.*-)?(gcc|g\+\+|cc|c\+\+|clang|clang\+\+|cc1|cc1plus|as|ld|collect2|rustc)(-\d+)?")
CUDA_PROGRAMS = {"nvcc", "cicc", "cudafe++", "ptxas", "fatbinary", "nvlink"}

# stops at the place whose file is there, until it is gone
GATE = """
import os, re, sys, time
from pathlib import Path

folder = Path({folder!r})
place = "test" if "test" in sys.argv else re.findall("-march=(\\\\S+)", os.environ["CFLAGS"])[-1]
if (folder / place).exists():
    (folder / "reached").touch()
    while (folder / place).exists():
        time.sleep(0.05)
"""


@dataclass(frozen=True, slots=True)
class Workplace:
    """A workdir with a recipe, compilers that say when they are started, and gates in setup.py and in the test."""

    workdir: Workdir

    @classmethod
    def at(cls, folder: Path, matrix: str = CPUS) -> "Workplace":
        gate = GATE.format(folder=str(folder / "gates"))
        project = (cuda_project if matrix == CUDA else setuptools_project)(folder / "project")
        tree(project, {"setup.py": gate + (project / "setup.py").read_text()})
        workdir = Workdir.at(folder)
        for name, program in host_compilers().items():
            said = name.rpartition("linux-gnu-")[2]
            workdir.add_program(name, f'echo "{said} $*" >> "${{0%/*}}/../started"\nexec {program} "$@"')
        test = (
            f"[test]\ncommand = \"python {folder}/gates/gate.py test && python -c 'import demo'\"\nemulate = 'never'\n"
        )
        build = '[build]\ncache = "none"\ncuda.archs = "replace"\n' if matrix == CUDA else '[build]\ncache = "none"\n'
        recipe = f'name = "demo"\n[source]\npath = "project"\n[matrix]\n{matrix}\n{build}{test}'
        tree(folder, {"demo.toml": recipe, "gates/gate.py": gate})
        return cls(workdir)

    @property
    def dist(self) -> Path:
        return self.workdir.folder / "dist"

    def ran(self, *options: str, into: str = "dist") -> list[str]:
        """What a run says that has to succeed, line by line."""
        (self.workdir.folder / "started").unlink(missing_ok=True)
        ran = self.workdir.vbuild("matrix", "demo.toml", "-o", into, "--jobs", "1", *options, PATH=self.workdir.path())
        assert (ran.returncode, ran.stderr) == (0, "")
        assert stage_folders(self.workdir.folder / into) == []
        return ran.stdout.splitlines()

    def begun(self, *options: str, into: str = "dist") -> subprocess.Popen[str]:
        return self.workdir.started(
            "matrix", "demo.toml", "-o", into, "--jobs", "1", *options, PATH=self.workdir.path()
        )

    def killed(self, place: str) -> None:
        """Begin a run and kill it, and it alone, where it comes to *place*; what it had started is killed later."""
        gates = self.workdir.folder / "gates"
        (gates / place).touch()
        process = self.begun()
        deadline = time.monotonic() + 60
        while not (gates / "reached").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert len(stage_folders(self.dist)) == 1
        for pid in _running_in(self.workdir.folder):
            with suppress(ProcessLookupError):  # its keeper has ended it
                os.kill(pid, signal.SIGKILL)
        (gates / place).unlink()
        (gates / "reached").unlink()

    def started(self) -> list[str]:
        """The commands of compilers in the last run."""
        file = self.workdir.folder / "started"
        return file.read_text().splitlines() if file.exists() else []

    def compiled(self) -> list[str]:
        """The levels that sources were compiled for in the last run."""
        levels = {
            level for line in self.started() if " -c " in line for level in re.findall(r"-march=(\S+)", line)[-1:]
        }
        return sorted(levels)


def _running_in(folder: Path) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "cwd").readlink().is_relative_to(folder):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def _kept(lines: list[str]) -> str:
    [line] = [line for line in lines if line.startswith("kept from an earlier run: ")]
    return line.removeprefix("kept from an earlier run: ")


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace.at(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A run that nobody stopped."""
    place = Workplace.at(tmp_path_factory.mktemp("undisturbed"))
    lines = place.ran()
    assert not [line for line in lines if "kept" in line]
    assert place.compiled() == LEVELS
    return place


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("x86-64", None),  # in the first build
        ("x86-64-v2", "1 build"),  # between builds
        ("x86-64-v3", "2 builds"),
        ("test", "3 builds"),  # while wheels are finished
    ],
)
def test_a_run_that_was_killed_goes_on_where_it_was(
    place: Workplace, undisturbed: Workplace, where: str, kept: str | None
) -> None:
    place.killed(where)
    assert wheels(place.dist) == {}
    lines = place.ran()
    missing = LEVELS[LEVELS.index(where) :] if where in LEVELS else []
    assert place.compiled() == missing
    if kept:
        assert _kept(lines) == f"{kept}; --fresh builds them again"
    else:
        assert not [line for line in lines if "kept" in line]
    assert [line.split()[3] for line in lines if " MB " in line].count("kept") == 3 - len(missing)
    assert wheels(place.dist) == wheels(undisturbed.dist)
    assert sorted(path.name for path in place.dist.iterdir() if path.suffix != ".whl") == [
        "demo-1.0-variants.json",
        "provenance.json",
        "report.html",
        "report.json",
    ]


@pytest.mark.nightly
def test_what_was_stopped_while_compiling_does_not_disturb_the_next_run(
    place: Workplace, undisturbed: Workplace
) -> None:
    """The backend goes on after its vbuild was killed, and its compilers write where the next run tidies up."""
    (place.workdir.folder / "gates/x86-64").touch()
    process = place.begun()
    while not (place.workdir.folder / "gates/reached").exists():
        time.sleep(0.02)
    process.kill()
    process.communicate()
    (place.workdir.folder / "gates/x86-64").unlink()
    ran = place.workdir.vbuild("matrix", "demo.toml", "-o", "dist", "-j", "1", PATH=place.workdir.path())
    assert (ran.returncode, ran.stderr) == (0, "")
    assert wheels(place.dist) == wheels(undisturbed.dist)


@pytest.mark.nightly
def test_what_could_not_be_repaired_is_not_compiled_again(tmp_path: Path) -> None:
    place = Workplace.at(tmp_path, 'cpu = ["x86-64"]')
    recipe = place.workdir.folder / "demo.toml"
    text = recipe.read_text()
    recipe.write_text(text + "[repair]\ncommand = 'false'\n")
    failed = place.workdir.vbuild("matrix", "demo.toml", "-o", "dist", "-j", "1", PATH=place.workdir.path())
    assert failed.returncode == 1
    assert "plain failed: sh failed with status 1" in failed.stdout
    assert place.compiled() == ["x86-64"]
    recipe.write_text(text + "[repair]\nskip = true\n")
    place.ran()
    assert place.compiled() == []


def _can_trace() -> bool:
    strace = shutil.which("strace")
    return strace is not None and not subprocess.run([strace, "-o", os.devnull, "true"], check=False).returncode


def _programs(place: Workplace, *arguments: str) -> set[str]:
    """The names of all programs that run while vbuild does, where strace can tell; else those of the compilers."""
    (place.workdir.folder / "started").unlink(missing_ok=True)
    workdir, trace = place.workdir, place.workdir.folder / "trace"
    if _can_trace():
        workdir = replace(workdir, inside=("strace", "-f", "-qq", "-e", "trace=execve", "-o", str(trace)))
    ran = workdir.vbuild(*arguments, PATH=workdir.path())
    assert (ran.returncode, ran.stderr) == (0, "")
    traced = trace.read_text() if trace.exists() else ""
    names = re.findall(r'execve\("([^"]+)".* = 0$', traced, re.MULTILINE)
    return {Path(name).name for name in names} | {line.split()[0] for line in place.started()}


def _compilers(programs: set[str]) -> set[str]:
    return {name for name in programs if COMPILERS.fullmatch(name)} | (programs & CUDA_PROGRAMS)


@pytest.mark.nightly
@pytest.mark.parametrize("matrix", [CPUS, CUDA], ids=["CPU", "CUDA"])
def test_a_second_run_starts_no_compiler(tmp_path: Path, matrix: str) -> None:
    place = Workplace.at(tmp_path, matrix)
    first = _programs(place, "matrix", "demo.toml", "-o", "dist")
    assert _compilers(first) >= ({"nvcc", "ptxas"} if matrix == CUDA and _can_trace() else {"gcc"})
    built = wheels(place.dist)
    # neither into the same folder, nor into another, nor for one wheel alone, nor to tell what would be done
    for arguments in (("-o", "dist"), ("-o", "other"), ("-o", "one", "--only", "plain"), ("-o", "none", "--dry-run")):
        assert _compilers(_programs(place, "matrix", "demo.toml", *arguments)) == set()
    assert wheels(place.dist) == wheels(tmp_path / "other") == built
