"""Wheels unpacked together as in site-packages, and what the system's loader says of their libraries."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from tests.factories.repaired_wheels import installed

_OTHERS = re.compile(r"\.libs$|_libs/lib$")
_LOADS = """
import ctypes, os, sys
for path in sys.argv[1:]:
    if (child := os.fork()) == 0:
        try:
            ctypes.CDLL(path, mode=os.RTLD_NOW)
        except OSError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def site_packages(folder: Path, *wheels: Path) -> Path:
    """*folder* with what *wheels* bring, programs in the folder scripts."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                path = folder / installed(info.filename)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(info))
                path.chmod(0o755)
    return folder


def loader_complaints(folder: Path) -> list[str]:
    """What ldd misses for the compiled files below *folder*, and what dlopen does not load, RTLD_NOW, each alone.

    Libraries that a repair tool put into a folder of theirs count as parts of what loads them: they have no RPATH.
    """
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.read_bytes()[:4] == b"\x7fELF")
    paths = [path for path in files if not _OTHERS.search(path.parent.relative_to(folder).as_posix())]
    assert paths
    libraries = [path for path in paths if ".so" in path.name]
    command = [sys.executable, "-c", _LOADS, *map(str, libraries)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=_plain()).stdout.splitlines()
    for path in paths:
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True, env=_plain()).stdout
        said += [f"{path.name}: {line.strip()}" for line in listed.splitlines() if "not found" in line]
    return said


def program_output(folder: Path, program: str, *, beside: Iterable[Path] = ()) -> str:
    """What *program* prints in an interpreter that has *folder*, and folders *beside* it, as its site-packages."""
    places = [str(place) for place in (folder, *beside)]
    run = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {places!r}\n{program}"]
    return subprocess.run(run, capture_output=True, text=True, check=True, env=_plain()).stdout.strip()


def _plain() -> dict[str, str]:
    return {"PATH": os.environ["PATH"]}
