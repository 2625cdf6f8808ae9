"""A folder of the layout that was damaged: what `vbuild check` says of it."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.factories import elf
from tests.factories.hwcaps_wheels import NAME, hwcaps_release, hwcaps_wheel, join, module, package, shared, so
from tests.factories.repaired_wheels import repaired
from tests.factories.wheels import contents
from vbuild.elf.linkage import at_level, level_of
from vbuild.elf.write import loader_stub
from vbuild.publishing.check import check_layout
from vbuild.publishing.hwcaps.plan import Hwcaps
from vbuild.publishing.publish import publish

LEVELS = ("v1", "v3")
Files = dict[str, bytes]
MISSPELT = "demo.libs/glibc-hwcaps/x86_64-v3/"
STUB = f"demo/{so('_c')}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """What the joined wheel holds: a module, and a library that needs another, each in two copies."""
    folder = tmp_path_factory.mktemp("release")

    def build(level: str) -> Mapping[str, bytes | str]:
        libraries = {
            "liby.so": shared("v1", "liby.so", function="y_level"),
            "libx.so": shared(level, "libx.so", needs=("liby.so",), runpath="$ORIGIN", more="int also;"),
        }
        of = {STUB: module(level), f"demo/{so('_d')}": module("v1", "_d", needs=("libx.so",), takes="x_level")}
        return repaired(of, libraries, runpath=True)

    return contents(join(folder / "out", hwcaps_release(folder, {level: build(level) for level in LEVELS})))


def said(folder: Path, files: Mapping[str, bytes]) -> list[str]:
    """What is wrong with a folder of the wheel of *files*."""
    whole = {path: data for path, data in files.items() if not path.endswith(("/RECORD", "/WHEEL"))}
    hwcaps_wheel(folder, whole)
    return [problem.what for problem in check_layout(folder, "hwcaps").problems if "index" not in problem.what]


def moved(files: Files) -> str:
    """The baseline's module behind the stub."""
    return next(path for path in files if "libvb__c" in path and level_of(path) is None)


def library(files: Files, name: str = "libx") -> str:
    return next(path for path in files if name in path and level_of(path) is None)


def without(files: Files, path: str) -> Files:
    return {name: data for name, data in files.items() if name != path}


def copy_of(path: str) -> str:
    return at_level(path, "v3")


def name(path: str) -> str:
    return path.rpartition("/")[2]


DAMAGED: dict[str, Callable[[Files], tuple[Files, list[str]]]] = {
    "the baseline's library is gone": lambda files: (
        without(files, library(files, "liby")),
        [f"{copy_of(library(files))}: {name(library(files, 'liby'))} is missing"],
    ),
    "a copy has another SONAME": lambda files: (
        {
            **files,
            copy_of(moved(files)): elf.patchelfed(files[copy_of(moved(files))], "--set-soname", "libother.so"),
        },
        [
            (
                f"{copy_of(moved(files))}: SONAME libother.so, and {name(moved(files))} in {moved(files)}; "
                "expected one for all levels"
            )
        ],
    ),
    "a copy is not found what it needs": lambda files: (
        {
            **files,
            copy_of(library(files)): elf.patchelfed(files[copy_of(library(files))], "--set-rpath", "$ORIGIN/elsewhere"),
        },
        [
            (
                f"{copy_of(library(files))}: {name(library(files, 'liby'))} is not found from there; {library(files)} "
                f"finds {library(files, 'liby')}"
            )
        ],
    ),
    "a copy exports less": lambda files: (
        {
            **files,
            copy_of(library(files)): shared(
                "v3",
                name(library(files)),
                function="other_level",
                needs=(name(library(files, "liby")),),
                runpath="$ORIGIN/../..",
            ),
        },
        [f"{copy_of(library(files))}: exports no x_level, which {library(files)} does"],
    ),
    "a copy has code above its level": lambda files: (
        {
            **files,
            copy_of(moved(files)): shared(
                "v3", name(moved(files)), march="v4", function="PyInit__c", more="int definition, methods;"
            ),
        },
        [f"{copy_of(moved(files))}: needs AVX512F (v4), above the claimed x86-64-v3: 1 function: sum ..."],
    ),
    "the stub leads nowhere": lambda files: (
        {**files, STUB: loader_stub(name(moved(files)), "$ORIGIN/elsewhere")},
        [f"{STUB}: {name(moved(files))} is not found from there"],
    ),
    "the stub leads to another module": lambda files: (
        {**without(files, STUB), f"demo/{so('_e')}": files[STUB]},
        [f"demo/{so('_e')}: leads to the module _c; expected _e"],
    ),
    "the stub is a module again": lambda files: (
        {**files, STUB: module("v1")},
        [f"{moved(files)}: no stub leads to it"],
    ),
    "the stub has code": lambda files: (
        {**files, STUB: shared("v1", None, needs=(name(moved(files)),), runpath="$ORIGIN/../demo.libs")},
        [f"{STUB}: leads to {name(moved(files))}, and has code or symbols of its own; expected none"],
    ),
    "a level without a baseline": lambda files: (
        {**files, "demo.libs/glibc-hwcaps/x86-64-v3/libz.so": shared("v3", "libz.so")},
        [
            (
                "demo.libs/glibc-hwcaps/x86-64-v3/libz.so: no demo.libs/libz.so; expected one for lesser processors, "
                "and for systems that know no levels"
            ),
        ],
    ),
    "a copy in a folder of no level": lambda files: (
        {**without(files, copy_of(library(files))), MISSPELT + name(library(files)): files[copy_of(library(files))]},
        [
            (
                f"{MISSPELT}{name(library(files))}: in no folder that glibc knows; expected x86-64-v2, "
                "x86-64-v3 or x86-64-v4"
            ),
        ],
    ),
    "a copy that is cut": lambda files: (
        {**files, copy_of(moved(files)): files[copy_of(moved(files))][:5000]},
        [f"{copy_of(moved(files))}: section header table at ...", f"{moved(files)}: no copy for any level"],
    ),
    "a copy that is a text": lambda files: (
        {**files, copy_of(moved(files)): b"version https://example.org/pointer\n"},
        [f"{copy_of(moved(files))}: no library", f"{moved(files)}: no copy for any level"],
    ),
    "a library that moved for nothing": lambda files: (
        without(files, copy_of(moved(files))),
        [f"{moved(files)}: no copy for any level"],
    ),
    "the copy for a level in the baseline's place": lambda files: (
        {**files, moved(files): files[copy_of(moved(files))]},
        [f"{moved(files)}: the same code as its copy for v3"],
    ),
    "code above the lowest level in the baseline's place": lambda files: (
        {
            **files,
            moved(files): shared("v4", name(moved(files)), function="PyInit__c", more="int definition, methods;"),
        },
        [f"{moved(files)}: needs AVX512F (v4), above the claimed x86-64-v3: 1 function: sum ..."],
    ),
    "nothing": lambda files: (files, []),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", DAMAGED)
def test_what_is_wrong_is_said_of_the_file(tmp_path: Path, files: Files, what: str) -> None:
    damaged, messages = DAMAGED[what](files)
    found = [re.sub(r"(?<=: sum ).*|(?<=section header table at ).*", "...", line) for line in said(tmp_path, damaged)]
    assert found == messages


def test_a_folder_that_was_published_is_sound(tmp_path: Path) -> None:
    wheels = hwcaps_release(tmp_path / "dist", {level: package(level) for level in LEVELS})
    publish(wheels, tmp_path / "site", layouts=[Hwcaps()])
    assert check_layout(tmp_path / "site", "hwcaps").problems == ()
    path = tmp_path / "site" / "hwcaps" / NAME
    path.write_bytes(path.read_bytes()[:-100])
    assert check_layout(tmp_path / "site", "hwcaps").problems
