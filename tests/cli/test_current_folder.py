"""No command imports from the folder in which it runs, where a stranger's files may be; nor do its children.

That folder has a file for each module of the standard library and of what is installed, which leaves a trace if it is
run, and what uv and pyenv look for where they run.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from tests.factories.elf import shared_object
from tests.factories.level_wheels import PLAIN, level_files
from tests.factories.mirrors import fleet, lock_of, three_wheels
from tests.factories.projects import c_project
from tests.factories.variants import machine, variant_wheel
from tests.factories.wheels import wheel
from tests.factories.writing_commands import WRITING_COMMANDS
from vbuild.cli.main import main
from vbuild.mirroring.mirror import mirror
from vbuild.mirroring.model import MirrorRequest
from vbuild.variants.index import index
from vbuild.variants.select import save_machine

VBUILD = Path(sysconfig.get_path("scripts"), "vbuild")
PYTHON = "{}.{}".format(*sys.version_info)
BUILT = f"demo-1.0-py3-none-linux_{os.uname().machine}.whl"
LATER = f"later-1.0-cp3{sys.version_info[1] + 1}-none-any.whl"

# built-in functions alone: all modules are shadowed
_SHADOW = 'open(f"{__file__}.ran", "w").close()\nraise ImportError(f"{__name__} of the current folder")\n'
_INSTALLED = frozenset(name for name in importlib.metadata.packages_distributions() if name.isidentifier())
SHADOWED = frozenset({*sys.stdlib_module_names, *_INSTALLED, "sitecustomize", "usercustomize", "vbuild"})
# settings that uv refuses if it reads them, and a Python that it takes first
_FOR_UV = {
    "uv.toml": "none",
    "pyproject.toml": '[tool.uv]\nresolution = "none"\n',
    ".python-version": "none",
    ".venv/pyvenv.cfg": f"home = {sys.base_prefix}\n",
    ".venv/bin/python": '#!/bin/sh\n: > "$0.ran"\nexit 1\n',
}

_CODE = "\n".join(f".type f{i}, @function\nf{i}: .fill 5000, 1, 0x90\nret\n.size f{i}, .-f{i}" for i in range(1000))
_RECIPE = f"""
name = "demo"
[source]
path = "project"
[matrix]
cpu = ["x86-64"]
python = ["{PYTHON}"]
[build]
requires = ["helper"]
[test]
command = "python -c 'import demo'"
"""


@dataclass(frozen=True, slots=True)
class Row:
    """The *words* of a command, in a folder whose ``in`` is filled by *fill*; it ends with one of *statuses*."""

    words: str
    fill: Callable[[Path], object] = lambda _: None
    statuses: tuple[int, ...] = (0,)
    is_nightly: bool = False


def release(folder: Path) -> None:
    """A release with a variant, a package that requires nothing, and an environment with that variant."""
    wheel(folder, "demo-1.0-py3-none-any.whl", {"demo.py": ""})
    variant = variant_wheel(folder, "demo-1.0-py3-none-any-x86_64_v3.whl")
    index(folder)
    wheel(folder / "links", "toaster_provider-1.5-py3-none-any.whl", {"toaster_provider/__init__.py": ""})
    save_machine(machine(), folder / "machine.toml")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    shutil.unpack_archive(variant, folder / f"venv/lib/python{PYTHON}/site-packages", "zip")


def levels(folder: Path) -> None:
    """A wheel with 5 MB of code in one library, which several processes read, and one for another Python."""
    big = shared_object(f".text\n{_CODE}", "-nostdlib", language="assembler")
    wheel(folder, PLAIN, {**level_files("v1"), "levels/libbig.so": big})
    wheel(folder, LATER, {"later.py": ""})
    (folder / "bench.py").write_text("import levels\nprint('level', 1, 'ms')\n")


def project(folder: Path) -> None:
    """A project in C, with a recipe that requires a package."""
    _writing("matrix").fill(folder)
    wheel(folder / "links", "helper-1.0-py3-none-any.whl", {"helper.py": ""})
    (folder / "isolated.toml").write_text(_RECIPE)


def cibuildwheel_project(folder: Path) -> None:
    c_project(folder)
    with (folder / "pyproject.toml").open("a") as file:
        file.write('[tool.vbuild.matrix]\ncpu = ["x86-64", "x86-64-v3"]\n')


def built(folder: Path) -> None:
    """A wheel as a backend leaves it."""
    wheel(folder, BUILT, {"demo/_c.so": shared_object("int f(void) { return 1; }")})


def site(folder: Path) -> None:
    """A mirror, and a project with a uv.lock and an environment of its own."""
    three_wheels(folder)
    lock = lock_of(folder / "pylock.toml", *sorted(folder.glob("*.whl")))
    mirror([str(lock)], folder / "site", fleet("9.0"), MirrorRequest())


def _writing(name: str, *, is_nightly: bool = False) -> Row:
    command = next(each for each in WRITING_COMMANDS if each.name == name)

    def fill(folder: Path) -> None:
        command.fill(folder)
        if command.alongside:
            shutil.copytree(folder, folder.with_name("out") / "dist")

    return Row(" ".join(command.arguments), fill, is_nightly=is_nightly)


ROWS = (
    Row("init in/project -o demo.toml", project, is_nightly=True),
    Row("init in/project --check", project, (1,), is_nightly=True),  # no index has what its build requires
    Row("init in --emit github", cibuildwheel_project, is_nightly=True),
    Row("matrix in/isolated.toml -o out", project),
    _writing("matrix", is_nightly=True),
    Row("lock in/isolated.toml", project, is_nightly=True),
    Row("lock demo --machine in/machine.toml -f in -o out", release, is_nightly=True),
    Row("cibuildwheel -o out --dry-run -- in", cibuildwheel_project, is_nightly=True),
    _writing("collect", is_nightly=True),
    Row("toolkit list", is_nightly=True),
    Row("toolkit install 13.0", statuses=(1,), is_nightly=True),  # no index has it
    Row("toolkit path 13.0", statuses=(1,), is_nightly=True),
    Row("cache dir", is_nightly=True),
    Row("cache size", is_nightly=True),
    Row("cache prune", is_nightly=True),
    Row("cache clean", is_nightly=True),
    _writing("slim", is_nightly=True),
    _writing("slim-image", is_nightly=True),
    Row("slim --environment in/venv --gpu 90", release, is_nightly=True),
    _writing("split"),
    Row("split in -o out --min-size 0 --try true --check", _writing("split").fill, is_nightly=True),
    _writing("stamp", is_nightly=True),
    Row(f"repair in/{BUILT} out", built),
    Row(f"inspect in/{PLAIN} --html page.html --closure", levels, is_nightly=True),
    Row(f"verify in/{PLAIN}", levels),
    Row(f"verify in/{PLAIN} --run", levels, is_nightly=True),
    Row(f"verify in/{LATER} --run", levels, (0, 1), is_nightly=True),  # there may be no such Python
    Row(f"verify in/{PLAIN} --fetch --attestations", levels, (1,), is_nightly=True),  # no index has any
    Row(f"bench in/{PLAIN} in/{PLAIN} --script in/bench.py", levels, is_nightly=True),
    Row("select demo -f in --write-machine machine.toml", release, is_nightly=True),
    Row("doctor", release, (0, 1), is_nightly=True),  # what is installed here may be for another machine
    Row("doctor in/venv --gpu 90", release, is_nightly=True),
    _writing("index", is_nightly=True),
    Row("check in", release, is_nightly=True),
    _writing("publish", is_nightly=True),
    *(_writing(f"publish-{layout}", is_nightly=True) for layout in ("oci", "conda", "redirect")),
    _writing("mirror", is_nightly=True),
    Row("mirror make toaster-provider -o out --gpu 90", release, is_nightly=True),
    Row("mirror verify in/site", site, is_nightly=True),
    Row("mirror oci in/site -o out", site, is_nightly=True),
)


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=pytest.mark.nightly if row.is_nightly else (), id=row.words) for row in ROWS]
)
def test_nothing_is_imported_from_the_current_folder(tmp_path: Path, row: Row) -> None:
    (tmp_path / "in/links").mkdir(parents=True)
    row.fill(tmp_path / "in")
    ran = shadowed(tmp_path, VBUILD, *row.words.split())
    assert imported(tmp_path) == []
    assert ran.returncode in row.statuses, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


def test_python_m_vbuild_imports_no_dependency_from_the_current_folder(tmp_path: Path) -> None:
    # parts of the standard library are imported by -m itself, before vbuild runs
    (tmp_path / "in/links").mkdir(parents=True)
    built(tmp_path / "in")
    names = _INSTALLED - {"vbuild"} | {"json", "multiprocessing"}
    ran = shadowed(tmp_path, sys.executable, "-m", "vbuild", "inspect", f"in/{BUILT}", names=names)
    assert (imported(tmp_path), ran.returncode) == ([], 0), ran.stderr


def test_a_python_that_is_not_isolated_is_noticed(tmp_path: Path) -> None:
    shadowed(tmp_path, sys.executable, "-c", "import json")
    assert imported(tmp_path)


def test_each_command_has_a_row() -> None:
    rows = [row.words.split() for row in ROWS]
    lacking = [words for words in _commands(main) if not any(row[: len(words)] == words for row in rows)]
    assert lacking == []


def shadowed(folder: Path, *command: str | Path, names: frozenset[str] = SHADOWED) -> subprocess.CompletedProcess[str]:
    """What comes of *command* in *folder*, where files shadow the modules *names*; packages are in ``in/links``."""
    for name in names:
        (folder / f"{name}.py").write_text(_SHADOW)
    for path, text in _FOR_UV.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
        (folder / path).chmod(0o755)
    others = ("PYTHON", "PIP_", "UV_", "VIRTUAL_ENV")
    ours = {name: text for name, text in os.environ.items() if not name.startswith(others)}
    offline = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder / "in/links"),
        "UV_OFFLINE": "1",
    }
    places = {"XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder / "home")}
    return subprocess.run(
        command, cwd=folder, env={**ours, **offline, **places}, capture_output=True, text=True, check=False
    )


def imported(folder: Path) -> list[str]:
    """The traces of what was run in *folder*."""
    return [path.name for path in folder.rglob("*.ran")]


def _commands(group: click.Group) -> Iterator[list[str]]:
    """The words of each command of *group*, and of the groups in it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from ([name, *words] for words in _commands(command))
        else:
            yield [name]
