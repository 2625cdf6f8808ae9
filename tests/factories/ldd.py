"""Libraries that need one another and none of the system's, and what the system's own loader finds of them."""

import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.factories import extensions
from vbuild.elf.read import Loading

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
    """*files* by their paths below *root*, written there; as they are read."""
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        (root / path).chmod(0o755)
    return {path: Loading.parse(data) for path, data in files.items()}


def found(root: Path, path: str) -> dict[str, str | None]:
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
