"""The graph of libraries finds what the system's loader finds, and says of the rest why it is not found."""

import random
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.factories import extensions
from tests.factories.elf import MODULE, object_file, program, stripped
from tests.factories.tools import needs
from vbuild.binary.linkage import LinkGraph, Via
from vbuild.elf.catalogue import PlatformPolicy
from vbuild.elf.linkage import link_graph
from vbuild.elf.read import Loading

BY_PATH = {Via.OWN, Via.INHERITED}
_LINE = re.compile(r"\t(?P<name>\S+)(?: => (?P<path>/\S+|not found))?(?: \(0x\w+\))?")


@cache
def library(
    *needs: str,
    soname: str | None = None,
    rpath: str | None = None,
    runpath: str | None = None,
    source: str = "int nothing;",
    flags: tuple[str, ...] = (),
) -> bytes:
    """A shared library that NEEDs libraries with the SONAMEs *needs*, whether there are such or not, and no other."""
    alone = ("-nostdlib", *flags)
    return extensions.library(soname, needs, source=source, rpath_=rpath or "", runpath=runpath or "", flags=alone)


def laid(root: Path, files: Mapping[str, bytes]) -> dict[str, Loading]:
    """Write *files* below *root*, and read them."""
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        (root / path).chmod(0o755)
    return {path: Loading.parse(data) for path, data in files.items()}


def loader_choices(root: Path, path: str) -> dict[str, str | None]:
    """What the loader finds for the file at *path*: names, and paths below *root*; or None if it finds nothing."""
    command: list[str | Path] = ["ldd", root / path]
    ran = subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    answers = {}
    for line in ran.stdout.splitlines():
        match = _LINE.fullmatch(line)
        if match and not line.startswith("\tlinux-vdso") and "/ld-linux" not in line and line != "\tstatically linked":
            place = match["path"] or match["name"]
            answers[match["name"]] = None if place == "not found" else str(Path(place).resolve().relative_to(root))
    return answers


def graph(files: dict[str, bytes], *platforms: str) -> LinkGraph:
    parsed = {path: Loading.parse(data) for path, data in files.items()}
    return link_graph(parsed, platforms=[platform for tag in platforms if (platform := PlatformPolicy.parse(tag))])


def ways(files: dict[str, bytes]) -> dict[tuple[str, str], tuple[Via, str | None]]:
    return {(edge.consumer, edge.name): (edge.via, edge.provider) for edge in graph(files).edges}


def module(*needs: str, rpath: str | None = None, runpath: str | None = None) -> bytes:
    return library(*needs, rpath=rpath, runpath=runpath, source=MODULE)


# what the loader finds from m/mod.so on, and how each edge is called
TREES = {
    "DT_RPATH is inherited": (
        {
            "m/mod.so": module("libone.so", rpath="$ORIGIN/libs"),
            "m/libs/libone.so": library("libtwo.so", soname="libone.so"),
            "m/libs/libtwo.so": library("libthree.so", soname="libtwo.so"),
            "m/libs/libthree.so": library(soname="libthree.so"),
        },
        {"libone.so": Via.OWN, "libtwo.so": Via.INHERITED, "libthree.so": Via.INHERITED},
    ),
    "DT_RUNPATH is not": (
        {
            "m/mod.so": module("libone.so", runpath="$ORIGIN/libs"),
            "m/libs/libone.so": library("libtwo.so", soname="libone.so"),
            "m/libs/libtwo.so": library(soname="libtwo.so"),
        },
        {"libone.so": Via.OWN, "libtwo.so": Via.NAME},
    ),
    "a file's own DT_RUNPATH switches inheriting off": (
        {
            "m/mod.so": module("libone.so", rpath="$ORIGIN/libs"),
            "m/libs/libone.so": library("libtwo.so", soname="libone.so", runpath="$ORIGIN/nowhere"),
            "m/libs/libtwo.so": library(soname="libtwo.so"),
        },
        {"libone.so": Via.OWN, "libtwo.so": Via.NAME},
    ),
    "a DT_RUNPATH on the way does not": (
        {
            "m/mod.so": module("libone.so", rpath="$ORIGIN/libs:$ORIGIN/deep"),
            "m/libs/libone.so": library("libtwo.so", soname="libone.so", runpath="$ORIGIN/../more"),
            "m/more/libtwo.so": library("libthree.so", soname="libtwo.so"),
            "m/deep/libthree.so": library(soname="libthree.so"),
        },
        {"libone.so": Via.OWN, "libtwo.so": Via.OWN, "libthree.so": Via.INHERITED},
    ),
    "$ORIGIN is the folder of the file that says it": (
        {
            "m/mod.so": module("libone.so", rpath="${ORIGIN}/../libs"),
            "libs/libone.so": library("libtwo.so", soname="libone.so", rpath="$ORIGIN"),
            "libs/libtwo.so": library(soname="libtwo.so"),
        },
        {"libone.so": Via.OWN, "libtwo.so": Via.OWN},
    ),
    "absolute and relative paths lead nowhere": (
        {
            "m/mod.so": module("libone.so", rpath="/nonexistent/libs:libs"),
            "m/libs/libone.so": library(soname="libone.so"),
        },
        {"libone.so": Via.NAME},
    ),
    "the same SONAME twice": (
        {
            "m/mod.so": module("libone.so", rpath="$ORIGIN/libs"),
            "m/libs/libone.so": library(soname="libone.so"),
            "n/libs/libone.so": library(soname="libone.so", source="int another;"),
        },
        {"libone.so": Via.OWN},
    ),
    "a file of another machine is passed over": (
        {
            "m/mod.so": module("libone.so", rpath="$ORIGIN/arm:$ORIGIN/libs"),
            "m/arm/libone.so": library(soname="libone.so")[:18] + b"\xb7\0" + library(soname="libone.so")[20:],
            "m/libs/libone.so": library(soname="libone.so"),
        },
        {"libone.so": Via.OWN},
    ),
    "a SONAME that is not a file's name": (
        {
            "m/mod.so": module("libone.so.1", rpath="$ORIGIN/libs"),
            "m/libs/libone.so": library(soname="libone.so.1"),
        },
        {"libone.so.1": Via.NAME},
    ),
    "nowhere": ({"m/mod.so": module("libnowhere.so", rpath="$ORIGIN/libs")}, {"libnowhere.so": Via.MISSING}),
}


@needs("ldd")
@pytest.mark.parametrize(("files", "expected"), TREES.values(), ids=TREES)
def test_the_graph_and_the_loader_agree(files: dict[str, bytes], expected: dict[str, Via], tmp_path: Path) -> None:
    edges = {edge.name: edge for edge in link_graph(laid(tmp_path, files)).edges}
    assert {name: edge.via for name, edge in edges.items()} == expected
    answers = {name: edge.provider if edge.via in BY_PATH else None for name, edge in edges.items()}
    assert loader_choices(tmp_path, "m/mod.so") == answers


@needs("ldd")
def test_a_name_with_a_slash_is_a_path(tmp_path: Path) -> None:
    files = {
        "m/mod.so": module("$ORIGIN/libs/libone.so", "$ORIGIN/libs/libtwo.so", "libs/libone.so"),
        "m/libs/libone.so": library(soname="libone.so"),
    }
    assert ways(files) == {
        ("m/mod.so", "$ORIGIN/libs/libone.so"): (Via.OWN, "m/libs/libone.so"),
        ("m/mod.so", "$ORIGIN/libs/libtwo.so"): (Via.MISSING, None),
        ("m/mod.so", "libs/libone.so"): (Via.MISSING, None),
    }
    laid(tmp_path, files)
    answers = loader_choices(tmp_path, "m/mod.so")
    assert list(answers.values()) == ["m/libs/libone.so", None, None]


@needs("ldd")
def test_what_is_loaded_answers_to_its_soname(tmp_path: Path) -> None:
    files = {
        "m/mod.so": module("libone.so", "libtwo.so", rpath="$ORIGIN/libs"),
        "m/libs/libone.so": library(soname="libone.so.1"),
        "m/libs/libtwo.so": library("libone.so.1", soname="libtwo.so"),
    }
    assert ways(files)["m/libs/libtwo.so", "libone.so.1"] == (Via.NAME, "m/libs/libone.so")
    laid(tmp_path, files)
    assert None not in loader_choices(tmp_path, "m/mod.so").values()
    assert loader_choices(tmp_path, "m/libs/libtwo.so") == {"libone.so.1": None}


@pytest.mark.nightly
@needs("ldd")
def test_random_trees_resolve_as_the_loader_resolves_them(tmp_path: Path) -> None:
    names = [f"lib{number}.so" for number in range(4)]
    paths = [None, "$ORIGIN", "$ORIGIN/../a", "$ORIGIN/../b", "$ORIGIN/../b:$ORIGIN"]
    for seed in range(25):
        chosen = random.Random(seed)
        files = {"a/mod.so": module(*chosen.sample(names, 2), rpath=chosen.choice(paths))}
        for name in names:
            kind = chosen.choice(("rpath", "runpath"))
            wanted = chosen.sample([other for other in names if other != name], chosen.choice((0, 1, 1, 2)))
            folder = chosen.choice("ab")
            files[f"{folder}/{name}"] = library(*wanted, soname=name, **{kind: chosen.choice(paths)})
        root = tmp_path / str(seed)
        edges = link_graph(laid(root, files)).edges
        answers = loader_choices(root, "a/mod.so")
        loaded = {"a/mod.so", *answers.values()}
        for name, answer in answers.items():
            here = [edge for edge in edges if edge.name == name and edge.consumer in loaded]
            if answer:
                assert any(edge.via in BY_PATH and edge.provider == answer for edge in here), (seed, name)
            else:
                # another way to a library may lead further than the one that came first
                assert not any(edge.via is Via.OWN for edge in here), (seed, name)


def test_what_is_not_here_is_the_systems_the_drivers_anothers_or_missing() -> None:
    needed = ("libc.so.6", "libcuda.so.1", "libcublas.so.12", "libtorch.so", "libcudart.so.99", "libgomp.so.1")
    files = {"m/mod.so": module(*needed)}
    platform = "manylinux_2_28_x86_64"
    vias = [edge.via for edge in graph(files, platform).edges]
    assert vias == [Via.PLATFORM, Via.DRIVER, Via.OUTSIDE, Via.OUTSIDE, Via.MISSING, Via.MISSING]
    # a tag that promises nothing: what every glibc system has
    assert [edge.via for edge in graph(files, "linux_x86_64").edges] == vias


def test_a_path_to_another_package_makes_any_library_anothers() -> None:
    outside = {"m/mod.so": module("libother.so", rpath="$ORIGIN/../other/lib")}
    inside = {"m/mod.so": module("libother.so", rpath="$ORIGIN/other/lib:/usr/lib:$ORIGIN/..")}
    above = {"m/mod.so": module("libother.so", rpath="$ORIGIN/../../lib")}
    path = {"m/mod.so": module("$ORIGIN/../other/libother.so")}
    assert [edge.via for files in (outside, inside, above, path) for edge in graph(files).edges] == [
        Via.OUTSIDE,
        Via.MISSING,
        Via.OUTSIDE,
        Via.OUTSIDE,
    ]


def test_only_five_chains_are_told() -> None:
    files = {f"m/mod{number}.so": module("libone.so", rpath="$ORIGIN") for number in range(7)}
    whole = graph(files | {"m/libone.so": library(soname="libone.so")})
    assert whole.chains("m/libone.so") == tuple((f"m/mod{number}.so", "m/libone.so") for number in range(5))


def test_libraries_that_only_need_each_other_have_no_chain() -> None:
    files = {
        "m/libone.so": library("libtwo.so", soname="libone.so", rpath="$ORIGIN"),
        "m/libtwo.so": library("libone.so", soname="libtwo.so", rpath="$ORIGIN"),
    }
    assert graph(files).chains("m/libone.so") == ()


def test_unneeded_is_what_nothing_leads_to() -> None:
    opens = library(soname="libopens.so", source='const char *name = "libnamed.so"; const char *me = "libopens.so";')
    files = {
        "m/mod.so": module("libone.so", rpath="$ORIGIN"),
        "m/tool": program("int main(void) { return 0; }"),
        "m/part.o": object_file("int part;"),
        "m/libone.so": library(soname="libone.so"),
        "m/libidle.so": library("libbelow.so", soname="libidle.so", rpath="$ORIGIN"),
        "m/libbelow.so": library(soname="libbelow.so"),
        "m/libleft.so": library("libright.so", soname="libleft.so", rpath="$ORIGIN"),
        "m/libright.so": library("libleft.so", soname="libright.so", rpath="$ORIGIN"),
        "m/libnamed.so.3": library(soname="libnamed.so.3"),
        "m/libopens.so": stripped(opens),
    }
    whole = graph(files)
    # libbelow.so is needed, as long as libidle.so is there
    assert whole.unneeded(()) == ("m/libidle.so", "m/libleft.so", "m/libopens.so", "m/libright.so")
    assert whole.unneeded({"libidle.so", "libopens.so"}) == ("m/libleft.so", "m/libright.so")
    assert whole.unneeded({"libright.so", "libopen"}) == ("m/libidle.so", "m/libopens.so")


def test_the_order_of_the_files_does_not_matter() -> None:
    files, _ = TREES["a DT_RUNPATH on the way does not"]
    assert graph(files) == graph(dict(reversed(files.items())))
