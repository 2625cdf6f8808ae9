"""Libraries that need one another and none of the system's, and what the system's own loader finds of them."""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.factories.elf import rpath as rpath_flags
from vbuild.binary.loading import Loading

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
    """A shared library that NEEDs libraries with the SONAMEs *needs*, whether there are such or not."""
    with tempfile.TemporaryDirectory() as folder:
        others = []
        for number, name in enumerate(needs):
            others.append(Path(folder) / f"lib{number}.so")
            _linked("int other;", others[-1], f"-Wl,-soname,{name}")
        output = Path(folder) / "demo.so"
        names = (f"-Wl,-soname,{soname}",) if soname else ()
        paths = rpath_flags(rpath, new=False) if rpath else rpath_flags(runpath) if runpath else ()
        _linked(source, output, "-Wl,--no-as-needed", *names, *paths, *flags, others=others)
        return output.read_bytes()


def _linked(source: str, output: Path, *flags: str, others: list[Path] | None = None) -> None:
    command: list[str | Path] = ["gcc", "-shared", "-fPIC", "-nostdlib", *flags, "-x", "c", "-", "-x", "none"]
    command += [*(others or []), "-o", output]
    subprocess.run(command, input=source.encode(), check=True, capture_output=True)


def laid(root: Path, files: Mapping[str, bytes]) -> dict[str, Loading]:
    """*files* by their paths below *root*, written there; as they are read."""
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        (root / path).chmod(0o755)
    return {path: Loading.parse(data) for path, data in files.items()}


def found(root: Path, path: str) -> dict[str, str | None]:
    """What the loader finds for the file at *path*: names, and paths below *root*; None where it finds nothing."""
    command: list[str | Path] = ["ldd", root / path]
    ran = subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    answers = {}
    for line in ran.stdout.splitlines():
        match = _LINE.fullmatch(line)
        if match and not line.startswith("\tlinux-vdso") and line != "\tstatically linked":
            place = match["path"] or match["name"]
            answers[match["name"]] = None if place == "not found" else str(Path(place).resolve().relative_to(root))
    return answers
