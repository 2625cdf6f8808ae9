"""Wheels as auditwheel leaves them: libraries under hashed names in a folder next to the package, found by DT_RPATH."""

import hashlib
import posixpath
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.factories.elf import patchelfed
from tests.factories.wheels import wheel

LINUX = "manylinux_2_17_x86_64"
NAME = f"demo-1.0-cp311-cp311-{LINUX}.whl"


def repaired(
    files: Mapping[str, bytes | str],
    libraries: Mapping[str, bytes],
    *,
    folder: str = "demo.libs",
    runpath: bool = False,
) -> dict[str, bytes | str]:
    """*files* and, in *folder*, what they need of *libraries*, by SONAME; each renamed after the SHA-256 of its bytes.

    Compiled files get an RPATH to *folder*, or a RUNPATH.
    """
    names = {soname: hashed(soname, data) for soname, data in libraries.items()}
    pairs = tuple(names.items())
    found: dict[str, bytes | str] = {}
    for path, data in files.items():
        if isinstance(data, bytes) and data.startswith(b"\x7fELF"):
            way = posixpath.relpath(f"/{folder}", "/" + posixpath.dirname(installed(path)))
            found[path] = _led(data, pairs, f"$ORIGIN/{way}", runpath=runpath)
        else:
            found[path] = data
    return found | {
        f"{folder}/{names[soname]}": _named(data, names[soname], pairs) for soname, data in libraries.items()
    }


def hashed(soname: str, data: bytes) -> str:
    """What auditwheel calls the library with that *soname* when it copies *data*."""
    stem, _, rest = soname.partition(".")
    return f"{stem}-{hashlib.sha256(data).hexdigest()[:8]}.{rest}"


def installed(path: str) -> str:
    """The place of the member *path* below site-packages, if it is of a ``.data`` folder for it."""
    return path.split("/", 2)[2] if ".data/" in path else path


def release(
    folder: Path,
    files: Mapping[str, bytes | str],
    libraries: Mapping[str, bytes],
    *,
    names: tuple[str, ...] = (NAME, NAME.replace("311", "312")),
    metadata: str = "",
    libs: str = "demo.libs",
) -> list[Path]:
    """The wheels *names* in *folder*, each with all of it."""
    whole = repaired(files, libraries, folder=libs)
    return [wheel(folder, name, {**whole, "demo/tag.txt": name}, metadata=metadata) for name in names]


@cache
def _led(data: bytes, names: tuple[tuple[str, str], ...], rpath: str, *, runpath: bool) -> bytes:
    return patchelfed(data, *_renames(names), *(() if runpath else ("--force-rpath",)), "--set-rpath", rpath)


@cache
def _named(data: bytes, name: str, names: tuple[tuple[str, str], ...]) -> bytes:
    return patchelfed(data, "--set-soname", name, *_renames(names))


def _renames(names: tuple[tuple[str, str], ...]) -> list[str]:
    return [word for old, new in names for word in ("--replace-needed", old, new)]
