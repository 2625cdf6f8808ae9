"""The model of glibc's loader, compared with glibc's own on the same files."""

import os
import random
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.factories.elf import patchelfed
from tests.factories.extensions import laid_out, library
from vbuild.binary.linkage import Via
from vbuild.elf.catalogue import PlatformPolicy
from vbuild.verification.install_check import Loader, LoaderNeed

_TRACED = re.compile(r"\t(?P<name>\S+) => (?P<path>not found|\S+)")
ROOT = "demo/_c.so"


def played(folder: Path, root: str = ROOT) -> tuple[LoaderNeed, ...]:
    platform = PlatformPolicy.parse("manylinux_2_17_x86_64")
    assert platform
    return tuple(Loader(folder, folder=folder, own=(), platforms=(platform,)).needs(root))


def found(folder: Path, root: str = ROOT) -> dict[str, str | None]:
    """Where each name was found by the model, what the platform brings left out."""
    needs = [need for need in played(folder, root) if need.via is not Via.PLATFORM]
    return {need.name: need.provider if need.is_met else None for need in needs}


def judged(folder: Path, root: str = ROOT) -> dict[str, str | None]:
    """The same by glibc."""
    env = {name: text for name, text in os.environ.items() if not name.startswith("LD_")}
    ran = subprocess.run(["ldd", folder / root], env=env, capture_output=True, text=True, check=False)
    rows = [(match["name"], match["path"]) for match in _TRACED.finditer(ran.stdout)]
    return {
        name: None if path == "not found" else Path(os.path.normpath(path)).relative_to(folder).as_posix()
        for name, path in rows
        if not path.startswith(("/lib/", "/lib64/", "/usr/lib"))
    }


def ways(folder: Path) -> dict[tuple[str, str], tuple[Via, bool]]:
    return {(need.consumer, need.name): (need.via, need.is_loaded) for need in played(folder)}


def test_a_runpath_serves_its_own_library_alone_and_hides_the_rpaths_above_it(tmp_path: Path) -> None:
    folder = laid_out(
        tmp_path,
        {
            ROOT: library(None, ("liba.so",), rpath_="$ORIGIN/../lib"),
            "lib/liba.so": library("liba.so", ("libb.so",), runpath="$ORIGIN/nowhere"),
            "lib/libb.so": library("libb.so"),
        },
    )
    assert found(folder) == judged(folder) == {"liba.so": "lib/liba.so", "libb.so": None}
    hidden = LoaderNeed(
        "lib/liba.so", "libb.so", Via.NAME, "lib/libb.so", is_loaded=False, searched=("$ORIGIN/nowhere",)
    )
    assert hidden in played(folder)


def test_a_soname_counts_as_well_as_the_name_that_was_asked_for(tmp_path: Path) -> None:
    folder = laid_out(
        tmp_path,
        {
            ROOT: library(None, ("libx-1a2b3c4d.so", "libb.so"), runpath="$ORIGIN/../lib"),
            "lib/libx-1a2b3c4d.so": library("libx.so"),
            "lib/libb.so": library("libb.so", ("libx.so", "libx-1a2b3c4d.so")),
        },
    )
    assert found(folder)["libx.so"] == "lib/libx-1a2b3c4d.so"
    assert None not in judged(folder).values()
    assert ways(folder)["lib/libb.so", "libx.so"] == (Via.MISSING, True)


def test_a_file_for_another_machine_is_passed_over(tmp_path: Path) -> None:
    other = bytearray(library("liba.so"))
    other[18:20] = (183).to_bytes(2, "little")  # EM_AARCH64
    folder = laid_out(
        tmp_path,
        {
            ROOT: library(None, ("liba.so",), rpath_="$ORIGIN/../arm:$ORIGIN/../text:$ORIGIN/../lib"),
            "arm/liba.so": bytes(other),
            "lib/liba.so": library("liba.so"),
        },
    )
    assert found(folder) == judged(folder) == {"liba.so": "lib/liba.so"}


def test_a_path_out_of_the_environment_and_what_it_finds_are_told_apart_from_the_platforms(tmp_path: Path) -> None:
    outside = laid_out(tmp_path / "cuda", {"liba.so": library("liba.so"), "libc.so.6": library("libc.so.6")})
    packages = laid_out(tmp_path / "env", {ROOT: library(None, ("liba.so",), rpath_=str(outside))})
    assert [(need.name, need.via, need.provider) for need in played(packages)] == [
        ("liba.so", Via.OUTSIDE, f"{outside}/liba.so"),
        ("libc.so.6", Via.PLATFORM, None),
    ]


@pytest.mark.parametrize("entry", ["", "lib", "$LIB/x", "$ORIGINAL"])
def test_entries_that_depend_on_where_the_process_runs_lead_nowhere(entry: str, tmp_path: Path) -> None:
    folder = laid_out(tmp_path, {ROOT: library(None, ("liba.so",), rpath_=entry), "lib/liba.so": library("liba.so")})
    assert ways(folder)[ROOT, "liba.so"] == (Via.NAME, False)


def test_a_name_with_a_slash_is_a_path(tmp_path: Path) -> None:
    root = patchelfed(library(None, ("liba.so",)), "--replace-needed", "liba.so", f"{tmp_path}/lib/liba.so")
    folder = laid_out(tmp_path, {ROOT: root, "lib/liba.so": library("liba.so")})
    assert found(folder) == {f"{tmp_path}/lib/liba.so": "lib/liba.so"}
    (folder / "lib/liba.so").unlink()
    assert found(folder) == {f"{tmp_path}/lib/liba.so": None}


def test_damaged_files_lead_nowhere(tmp_path: Path) -> None:
    files = {ROOT: library(None, ("liba.so",), rpath_="$ORIGIN"), "demo/liba.so": b"\x7fELF and no more"}
    folder = laid_out(tmp_path, files)
    assert ways(folder)[ROOT, "liba.so"] == (Via.NAME, False)
    assert played(folder, "demo/liba.so") == ()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(12))
def test_any_tree_is_loaded_as_glibc_loads_it(seed: int, tmp_path: Path) -> None:
    folder = laid_out(tmp_path, _tree(random.Random(seed)))
    mine, glibcs = found(folder), judged(folder)
    assert mine == glibcs


def _tree(chance: random.Random) -> Mapping[str, bytes]:
    """Five libraries in three folders, RPATHs and RUNPATHs as it happens; some are twice, some nowhere."""
    names = [f"lib{letter * 3}.so" for letter in "pqrst"]
    folders = ["one", "two", "demo"]
    files: dict[str, bytes] = {}
    for place, name in ((ROOT, None), *((f"{chance.choice(folders)}/{name}", name) for name in [*names, *names[:2]])):
        needs = tuple(chance.sample([other for other in names if other != name], chance.randint(1, 3)))
        paths = ":".join(f"$ORIGIN/../{other}" for other in chance.sample(folders, chance.randint(1, 2)))
        kind = chance.choice(["rpath", "rpath", "runpath", ""])
        rpath, runpath = (paths if kind == each else "" for each in ("rpath", "runpath"))
        files[place] = library(name, needs, rpath_=rpath, runpath=runpath)
    return files
