"""Releases of vbuild to measure, each from its wheel, in an environment of its own.

Both sides of a comparison are installed in the same way, with the versions that this environment has of what vbuild
needs: the ratios are of vbuild, not of what came with it, or of how it was installed.
"""

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.benchmarks.figure import Installed, Unavailable
from tests.benchmarks.inputs import last_line

ROOT = Path(__file__).parents[2]
PROJECT, ENTRY = "vbuild-wheels", "vbuild/__init__.py"
EXTRAS = "cibuildwheel"
UV = (sys.executable, "-m", "uv", "--quiet")


def built(source: Path, folder: Path) -> Path:
    """The wheel of the vbuild in *source*, in *folder*. Raises Unavailable if it cannot be built."""
    _uv("build", "--wheel", "--out-dir", folder, source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed(wheel: Path, folder: Path) -> Installed:
    """*wheel*, in a new environment in *folder*. Raises Unavailable if it is none of vbuild, or does not install."""
    # the project has had another name
    if not zipfile.is_zipfile(wheel) or ENTRY not in zipfile.ZipFile(wheel).namelist():
        raise Unavailable(f"{wheel}: expected a wheel with {ENTRY}")
    _uv("venv", "--python", sys.executable, folder)
    python = folder / "bin" / "python"
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in _versions().items()))
    found = f"{wheel.name.partition('-')[0]}[{EXTRAS}] @ {wheel.resolve().as_uri()}"
    _uv("pip", "install", "--python", python, "--constraint", constraints, "--compile-bytecode", found)
    return Installed(python)


def _versions() -> dict[str, str]:
    """What is installed here, without vbuild."""
    found = {one.name: one.version for one in importlib.metadata.distributions()}
    return {name: version for name, version in sorted(found.items()) if name != PROJECT}


def _uv(*arguments: str | Path) -> None:
    command = [*UV, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Unavailable(f"uv {arguments[0]}: {last_line(ran.stderr)}")
