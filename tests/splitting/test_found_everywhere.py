"""Where split packages find their libraries: in every way to install them, as clients of today lay them out."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories.clients import PIP, UV
from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import release
from tests.factories.tools import needs
from tests.factories.wheels import contents
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.preloads import MODULE
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.split import split

pytestmark = needs("gcc", "ldd")

SOURCE = "int count(void); int answer(void) { return count(); }"
TOP = library("libtop.so.1", ("libdeep.so.2",), source="int deep(void); int count(void) { return deep() + 1; }")
DEEP = library("libdeep.so.2", source="int deep(void) { return 41; }")
FILES: dict[str, bytes | str] = {
    "demo/__init__.py": "from demo import _c\n",
    "demo/_c.so": module("libtop.so.1", source=SOURCE),
}
NAMES = tuple(f"demo-1.0-py{major}-none-linux_x86_64.whl" for major in (2, 3))
HEAVY = "sorted({'ctypes', 'importlib.metadata'} & {*sys.modules})"
ASKS = f"import sys, demo; print(*{HEAVY}); import ctypes; print(ctypes.CDLL(demo._c.__file__).answer())"


def thin(folder: Path, *, preload: bool = True) -> Path:
    """A folder with a split release: demo for this machine, and its libraries."""
    fat = release(folder / "fat", FILES, {"libtop.so.1": TOP, "libdeep.so.2": DEEP}, names=NAMES)
    request = SplitRequest(smallest=0, preload=preload)
    split(fat, folder / "thin", request=request, indexes=lambda: Indexes(no_index=True))
    return folder / "thin"


def ran(*command: str | Path, **variables: str) -> str:
    """What *command* prints, or the last line of what went wrong."""
    clean = {key: text for key, text in os.environ.items() if not key.startswith(("PYTHON", "LD_", "PEX", "SHIV"))}
    run = subprocess.run(command, env={**clean, **variables}, capture_output=True, text=True, check=False)
    return run.stdout.strip() if not run.returncode else run.stderr.strip().splitlines()[-1]


def targeted(folder: Path, source: Path, project: str) -> Path:
    """*folder*, into which *project* was installed alone."""
    links = ("--no-config", "--no-index", "--no-deps", f"--find-links={source}", f"--python={sys.executable}")
    subprocess.run([UV, "pip", "install", *links, f"--target={folder}", project], check=True, capture_output=True)
    return folder


def prefix(folder: Path) -> tuple[Path, Path]:
    """An interpreter of its own in *folder*, with the standard library and nothing else, and its site-packages."""
    paths, version = sysconfig.get_paths(), f"python3.{sys.version_info[1]}"
    library_folder = folder / "lib" / version
    library_folder.mkdir(parents=True)
    for path in Path(paths["stdlib"]).iterdir():
        # nobody manages this one from outside, as Debian does its own
        if path.name not in {"site-packages", "EXTERNALLY-MANAGED"}:
            (library_folder / path.name).symlink_to(path)
    (folder / "bin").mkdir()
    python = folder / "bin" / version
    shutil.copy(os.path.realpath(sys.executable), python)
    # Debian's calls it dist-packages
    packages = Path(ran(python, "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    packages.mkdir(parents=True)
    return python, packages


def venv(python: Path | str, folder: Path, *options: str) -> tuple[Path, Path]:
    """A virtual environment of *python* in *folder*: its interpreter, and its site-packages."""
    subprocess.run([python, "-m", "venv", "--without-pip", *options, folder], check=True, capture_output=True)
    return folder / "bin" / "python", next(folder.glob("lib/python*/site-packages"))


def in_one_folder(folder: Path, source: Path) -> str:
    targeted(folder / "all", source, "demo-libs")
    return ran(sys.executable, "-c", ASKS, PYTHONPATH=str(targeted(folder / "all", source, "demo")))


def in_two_targets(folder: Path, source: Path) -> str:
    folders = (targeted(folder / "a", source, "demo"), targeted(folder / "b", source, "demo-libs"))
    return ran(sys.executable, "-c", ASKS, PYTHONPATH=os.pathsep.join(map(str, folders)))


def in_a_folder_for_each_wheel(folder: Path, source: Path) -> str:
    """As Nix does it: each in a store path of its own, all of them on PYTHONPATH, the libraries first."""
    inner = Path("lib", f"python3.{sys.version_info[1]}", "site-packages")
    paths = [targeted(folder / "store" / f"abc123-{name}-1.0" / inner, source, name) for name in ("demo-libs", "demo")]
    return ran(sys.executable, "-c", ASKS, PYTHONPATH=os.pathsep.join(map(str, paths)))


def in_a_venv_with_system_packages(folder: Path, source: Path) -> str:
    python, system = prefix(folder / "system")
    targeted(system, source, "demo-libs")
    inside, packages = venv(python, folder / "venv", "--system-site-packages")
    targeted(packages, source, "demo")
    return ran(inside, "-c", ASKS)


def for_the_user(folder: Path, source: Path) -> str:
    """What it requires is in the system's folder, so pip installs it alone for the user."""
    python, system = prefix(folder / "system")
    targeted(system, source, "demo-libs")
    user = {"PYTHONUSERBASE": str(folder / "user")}
    command = [*PIP, "--python", str(python), "install", "--user", "--no-index", f"--find-links={source}", "demo"]
    subprocess.run(command, env={**os.environ, **user}, check=True, capture_output=True)
    assert list((folder / "user").rglob("demo/_c.so"))
    assert not list((folder / "user").rglob("demo_libs"))
    return ran(python, "-c", ASKS, **user)


def by_a_pth_file(folder: Path, source: Path) -> str:
    """One environment has the libraries, another one a line that leads to it."""
    _, other = venv(sys.executable, folder / "other")
    targeted(other, source, "demo-libs")
    python, packages = venv(sys.executable, folder / "venv")
    targeted(packages, source, "demo")
    (packages / "other.pth").write_text(f"{other}\n")
    return ran(python, "-c", ASKS)


APART: tuple[Callable[[Path, Path], str], ...] = (
    in_two_targets,
    in_a_folder_for_each_wheel,
    in_a_venv_with_system_packages,
    for_the_user,
    by_a_pth_file,
)


def test_where_the_rpath_leads_nothing_is_done(tmp_path: Path) -> None:
    assert in_one_folder(tmp_path, thin(tmp_path)) == "42"  # and nothing was imported for it


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", APART, ids=lambda way: way.__name__)
def test_a_package_apart_from_its_libraries_finds_them(tmp_path: Path, way: Callable[[Path, Path], str]) -> None:
    assert way(tmp_path, thin(tmp_path)).splitlines() == ["ctypes importlib.metadata", "42"]


def test_without_the_module_it_does_not(tmp_path: Path) -> None:
    said = in_two_targets(tmp_path, thin(tmp_path, preload=False))
    assert said.startswith("ImportError: libtop-")
    assert "cannot open shared object file" in said


@pytest.mark.nightly
def test_what_a_packager_leads_to_otherwise_is_not_missing(tmp_path: Path) -> None:
    source = thin(tmp_path)
    alone = targeted(tmp_path / "alone", source, "demo")
    libraries = targeted(tmp_path / "b", source, "demo-libs") / "demo_libs" / "lib"
    moved = shutil.move(libraries, tmp_path / "system")
    assert ran(sys.executable, "-c", ASKS, PYTHONPATH=str(alone), LD_LIBRARY_PATH=str(moved)).endswith("42")


def test_a_package_that_cannot_be_changed_is_named(tmp_path: Path) -> None:
    files = {**FILES, "demo/__init__.py": "print 'old'\n"}
    fat = release(tmp_path, files, {"libtop.so.1": TOP, "libdeep.so.2": DEEP}, names=NAMES)
    request = SplitRequest(smallest=0)
    result = split(fat, tmp_path / "thin", request=request, indexes=lambda: Indexes(no_index=True))
    warnings = [warning for one in result.wheels for warning in one.warnings]
    assert len(warnings) == 2
    assert warnings[0].startswith("demo/__init__.py: does not preload the libraries of its package: cannot be parsed")
    assert f"demo/{MODULE}.py" not in contents(tmp_path / "thin" / NAMES[0])


def tool(*command: str) -> None:
    """Run a client of the package index."""
    ran_ = subprocess.run([UV, "tool", "run", "--no-config", *command], capture_output=True, text=True, check=False)
    assert not ran_.returncode, ran_.stderr


@pytest.mark.nightly
@pytest.mark.network
@pytest.mark.parametrize(
    "options", [(), ("--venv", "prepend"), ("--layout", "packed"), ("--layout", "loose")], ids=" ".join
)
def test_a_pex_finds_them(tmp_path: Path, options: tuple[str, ...]) -> None:
    source, target = thin(tmp_path), tmp_path / "demo.pex"
    where = ("--no-pypi", f"--find-links={source}", "--python", sys.executable)
    tool("--from=pex>=2.40", "pex", *where, *options, "demo", "-o", str(target))
    program = target / "__main__.py" if target.is_dir() else target
    root = {"PEX_ROOT": str(tmp_path / "root")}
    assert ran(sys.executable, program, "-c", ASKS, **root).endswith("42")
