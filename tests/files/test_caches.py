"""A bit that flips in whatever cache vbuild has: noticed when the entry is asked for, and made good."""

import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.factories.official_wheels import official_wheel, officials_of
from tests.factories.sources import index, pinned, sdist, served
from tests.factories.toolkits import component, core, laid_out, places
from vbuild.build import plan
from vbuild.build.native import NativeCache, OwnFlagsRecord
from vbuild.build.prefixes import Prefix
from vbuild.build.source import fetched_source
from vbuild.hardware.cpu import Cpu
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.source import Git
from vbuild.release.cache import BuildCache, BuildKind
from vbuild.toolchain.interpreter import remembered
from vbuild.toolchain.toolkit import ToolkitPin
from vbuild.toolchain.toolkit_cache import SEEN
from vbuild.toolchain.toolkit_cache import ToolkitCache as Toolkits

KEY = "0123456789abcdef" * 4
FLIPS = 24  # of one bit each, in every cache

# What a file system says of files that nobody looks into; and who was where
_NOT_ASKED = (SEEN, ".lock", "/.locks/", "/.git/", "/.toolkits/")

Contents = dict[str, bytes]
# gives what is in a cache, below a folder, and made there where it is not; it says how often that was
Taking = Callable[[], tuple[Contents, int]]


def contents(folder: Path) -> Contents:
    """Every file below *folder* that anybody reads, by its path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return {str(path): path.read_bytes() for path in files if not any(part in str(path) for part in _NOT_ASKED)}


class Maker:
    """Counts how often it was asked."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> str:
        self.times += 1
        return "an answer that is long enough to be hit"


def _answers(folder: Path) -> Taking:
    program, made = folder / "cc", Maker()
    program.write_text("#!/bin/sh\n")

    def take() -> tuple[Contents, int]:
        answer = remembered("q", program, environment={}, ask=made, memory=folder / "cache")
        return contents(folder / "cache") | {"answer": answer.encode()}, made.times

    return take


def _builds(folder: Path) -> Taking:
    store, made = BuildCache(folder / "cache"), Maker()
    record = {"seconds": 1.5, "lists": ["80,90"]}

    def take() -> tuple[Contents, int]:
        kept = store.taken(BuildKind.BUILD, KEY, folder / "into")
        if kept is None:
            wheel = folder / "demo-1.0-py3-none-any.whl"
            wheel.unlink(missing_ok=True)
            wheel.write_text(made())
            store.keep(BuildKind.BUILD, KEY, wheel, record)
            kept = store.taken(BuildKind.BUILD, KEY, folder / "into")
        assert kept
        assert kept.record == record
        return contents(folder / "cache") | {"wheel": kept.wheel.read_bytes()}, made.times

    return take


def _natives(folder: Path) -> Taking:
    shelf, made = NativeCache(folder / "cache"), Maker()
    tree = folder / "installed"
    (tree / "lib").mkdir(parents=True)
    (tree / "lib/libone.so").write_bytes(bytes(range(256)) * 9)
    (tree / "lib/libone.pc").write_text("Name: one\n")
    prefix = Prefix("one", KEY, folder / "cache" / "one-0123" / "prefix", Cpu.parse("x86-64"), "")

    def take() -> tuple[Contents, int]:
        if not shelf.has(prefix):
            made()
            shelf.put(prefix, tree, OwnFlagsRecord())
        return contents(prefix.folder), made.times

    return take


def _components(folder: Path) -> Taking:
    pin, made = component(folder / "wheels", "nvidia-nccl-cu13", {"nvidia/nccl/lib/libnccl.so.2": "nccl" * 99}), Maker()
    store = Toolkits(folder / "cache")

    def asked() -> Indexes:
        made()
        return places(folder / "wheels")

    def take() -> tuple[Contents, int]:
        unpacked = store.component(pin, places=asked)
        found = contents(folder / "cache")
        return {path: data for path, data in found.items() if str(unpacked) in path}, made.times

    return take


def _toolkits(folder: Path) -> Taking:
    pins, made = core(folder / "wheels"), Maker()

    def take() -> tuple[Contents, int]:
        toolkit = laid_out(folder / "cache", pins, places(folder / "wheels"))
        if toolkit.is_new:
            made()
        # components have stamps with what else is in their wheels, and are another cache
        return contents(toolkit.root), made.times

    return take


def _pins(folder: Path) -> Taking:
    store, made = Toolkits(folder / "cache"), Maker()

    def ask() -> ToolkitPin:
        made()
        return ToolkitPin("nccl", "2.28.9", "nccl-2.28.9-py3-none-any.whl", KEY)

    def take() -> tuple[Contents, int]:
        pin = store.remembered("nccl-2.28.9", ask)
        return contents(folder / "cache") | {"pin": str(pin).encode() + pin.sha256.encode()}, made.times

    return take


def _crossing(folder: Path) -> Taking:
    place, made = folder / "cache" / "aarch64", Maker()

    def take() -> tuple[Contents, int]:
        before = place.stat().st_ino if place.is_dir() else None
        plan._write_crossing({"toolchain.cmake": "set(X y)\n", "cross.ini": "[binaries]\n"}, place)  # noqa: SLF001 - all of it
        if place.stat().st_ino != before:
            made()
        return contents(place), made.times

    return take


KINDS = {
    "answers of programs": _answers,
    "builds": _builds,
    "native dependencies": _natives,
    "components of toolkits": _components,
    "toolkits": _toolkits,
    "pins": _pins,
    "files for another machine": _crossing,
}


def _flipped(file: Path, place: int) -> None:
    """Change one bit of *file* and nothing else, whatever may be done with it."""
    data, mode = bytearray(file.read_bytes()), file.stat().st_mode
    data[place // 8] ^= 1 << place % 8
    file.chmod(0o644)
    file.write_bytes(data)
    file.chmod(mode)


def check(take: Taking, files: list[Path], *, flips: int = FLIPS) -> None:
    """Whether every one of some flipped bits in *files* is made good when *take* is called, by making it once."""
    dice = random.Random(8)
    sound, times = take()
    assert take() == (sound, times)
    for number in range(flips):
        file = files[number % len(files)]
        place = dice.randrange(file.stat().st_size * 8)
        _flipped(file, place)
        again, now = take()
        assert now == times + 1, f"{file}: bit {place}"
        assert {path: data for path, data in again.items() if "json" not in path} == {
            path: data for path, data in sound.items() if "json" not in path
        }
        assert take() == (again, now)
        times = now


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_noticed_and_made_good(kind: str, tmp_path: Path) -> None:
    take = KINDS[kind](tmp_path)
    take()
    files = [Path(path) for path in take()[0] if Path(path).is_absolute()]
    entries = [path for path in (tmp_path / "cache").rglob("entry.json") if path not in files]
    check(take, [file for file in (*files, *entries) if file.stat().st_size])


@pytest.mark.nightly
def test_a_flipped_bit_in_what_is_known_of_official_wheels_is_asked_again(tmp_path: Path) -> None:
    with officials_of(tmp_path, official_wheel(tmp_path / "made")) as (officials, server):
        store = tmp_path / "store"

        def take() -> tuple[Contents, int]:
            again = type(officials)("x86_64", indexes=lambda: server.indexes, store=store)
            return {"wheel": str(again.wheel("nvidia-cufft-cu12", SpecifierSet())).encode()}, len(server.ranges)

        take()
        check(take, list(store.iterdir()), flips=6)


def test_a_flipped_bit_in_an_sdist_is_fetched_again(tmp_path: Path) -> None:
    archive, asked = sdist(tmp_path / "files"), Maker()
    with served(index(tmp_path / "simple", archive)) as url:

        def take() -> tuple[Contents, int]:
            before = _inode(tmp_path / "cache/sdists")
            fetched_source(pinned(archive), tmp_path / "cache", indexes=Indexes(index_url=url))
            if _inode(tmp_path / "cache/sdists") != before:
                asked()
            return contents(tmp_path / "cache"), asked.times

        take()
        check(take, [Path(path) for path in take()[0]], flips=6)


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def repository(folder: Path, **files: str) -> Path:
    """A new repository in *folder* with *files*, all of them staged."""
    folder.mkdir()
    git(folder, "init", "--quiet")
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", ".")
    return folder


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", ["tree", "history", "submodule"])
def test_a_flipped_bit_in_a_checkout_is_fetched_again(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a submodule of which the project itself says that git need not look at it."""
    for name, text in (("COUNT", "1"), ("KEY_0", "protocol.file.allow"), ("VALUE_0", "always")):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", text)
    upstream, asked = repository(tmp_path / "upstream", setup="from setuptools import setup\nsetup()\n" * 9), Maker()
    inner = repository(tmp_path / "inner", code="int one;\n" * 9)
    git(inner, "commit", "--quiet", "-m", "one")
    git(upstream, "submodule", "--quiet", "add", inner.as_uri(), "inner")
    git(upstream, "config", "--file", ".gitmodules", "submodule.inner.ignore", "all")
    git(upstream, "add", ".gitmodules")
    git(upstream, "commit", "--quiet", "-m", "one")
    source = Git(upstream.as_uri(), git(upstream, "rev-parse", "HEAD"))

    def take() -> tuple[Contents, int]:
        before = _inode(tmp_path / "cache/commits")
        tree = fetched_source(source, tmp_path / "cache")
        if _inode(tmp_path / "cache/commits") != before:
            asked()
        return contents(tree), asked.times

    take()
    cached = tmp_path / "cache/commits" / source.commit
    for number in range(4):
        objects = (path for path in sorted((cached / ".git/objects").rglob("*")) if path.is_file())
        history = [path for path in objects if path.suffix != ".rev"]
        files = {"tree": [cached / "setup"], "history": history, "submodule": [cached / "inner/code"]}[part]
        sound, times = take()
        _flipped(files[number % len(files)], 100 + number)
        assert take() == (sound, times + 1)


def _inode(folder: Path) -> list[int]:
    """What stands for the entries of *folder*, which is another one when they are made again."""
    return [path.stat().st_ino for path in sorted(folder.glob("*"))] if folder.is_dir() else []
