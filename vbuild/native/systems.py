"""How each build system configures, builds and installs: commands, in a fresh tree of the source.

Everything is configured for `PREFIX/<name>`, where nothing can be, and installed below DESTDIR. So the libraries are
the same wherever the user's cache is, and what does not heed DESTDIR fails instead of writing into the system.
https://www.gnu.org/prep/standards/html_node/DESTDIR.html
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from vbuild.errors import NativeError
from vbuild.hardware.cpu import available_cores
from vbuild.native.step import Step
from vbuild.recipe.native import System

PREFIX = "/dev/null/vbuild"

_TREE = "vbuild-build"
# config.guess would name the processor of this very machine, and projects choose their code by it
_TRIPLETS = {"x86_64": "x86_64-pc-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step is built: its source *tree*, and *destination*, the root of what it installs."""

    tree: Path
    destination: Path


def commands(step: Step, place: Place, environment: Mapping[str, str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """What is run in the tree of *place*, each with variables of its own; PATH in *environment* decides on ninja.

    `NativeError` where the tree has not what the build system starts from.
    """
    own = {"PREFIX": prefix_of(step), "DESTDIR": str(place.destination), "JOBS": str(available_cores())}
    for line in step.native.before_build:
        yield ["sh", "-c", line], own
    match step.native.system:
        case System.AUTOTOOLS:
            yield from _autotools(step, place)
        case System.CMAKE:
            yield from _cmake(step, place, environment)
        case System.MESON:
            yield from _meson(step, place)
        case System.SCRIPT:
            yield ["sh", "-e", "-c", "\n".join(step.native.script)], own


def prefix_of(step: Step) -> str:
    """The folder that *step* is configured for."""
    return f"{PREFIX}/{step.native.name}"


def _autotools(step: Step, place: Place) -> Iterator[tuple[list[str], dict[str, str]]]:
    _check(place, "configure", "before-build = ['autoreconf -fi'], or the project's own way to make one")
    given = step.native.arguments_for(step.plan.cpu)
    triplet = _TRIPLETS[step.plan.cpu.machine]
    machine = [f"--{word}={triplet}" for word in ("build", "host") if not _has(given, f"--{word}")]
    yield ["./configure", f"--prefix={prefix_of(step)}", f"--libdir={prefix_of(step)}/lib", *machine, *given], {}
    yield ["make", f"-j{available_cores()}"], {}
    yield ["make", "install", f"DESTDIR={place.destination}"], {}


def _cmake(step: Step, place: Place, environment: Mapping[str, str]) -> Iterator[tuple[list[str], dict[str, str]]]:
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


def _meson(step: Step, place: Place) -> Iterator[tuple[list[str], dict[str, str]]]:
    _check(place, "meson.build", "source.subdirectory for one further down")
    fixed = [f"--prefix={prefix_of(step)}", "--libdir=lib", "--buildtype=release", "--wrap-mode=nodownload"]
    yield ["meson", "setup", _TREE, *fixed, *step.native.arguments_for(step.plan.cpu)], {}
    yield ["meson", "compile", "-C", _TREE], {}
    yield ["meson", "install", "-C", _TREE, "--no-rebuild", "--destdir", str(place.destination)], {}


def _check(place: Place, name: str, advice: str) -> None:
    if not (place.tree / name).exists():
        there = ", ".join(sorted(path.name for path in place.tree.iterdir())[:8])
        raise NativeError(f"no {name} in its source, which has {there}; expected it, or {advice}")


def _has(arguments: tuple[str, ...], option: str) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in arguments)
