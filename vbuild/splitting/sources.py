"""The sdist of a release that is split: it states the requirements that all its wheels state now.

    demo-1.0/PKG-INFO          Requires-Dist, as in METADATA of each wheel
    demo-1.0/pyproject.toml    dependencies of [project], so that a wheel built from it states the same (PEP 643)

Both or neither. An sdist whose requirements are Dynamic stays as it is: nobody reads them from PKG-INFO, and tools that
lock take those of a wheel.
"""

import gzip
import re
import tarfile
import tomllib
import zlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from msgspec import Struct
from packaging.utils import InvalidSdistFilename, parse_sdist_filename
from packaging.version import Version

from vbuild.errors import RepackageError, WheelError, at
from vbuild.files.archives import BoundedInfo
from vbuild.splitting.other_packages import merged
from vbuild.wheel.metadata import Metadata
from vbuild.wheel.name import WheelName

SDIST = ".tar.gz"

_PKG_INFO, _PYPROJECT = "PKG-INFO", "pyproject.toml"
_LARGEST = 1 << 23  # bytes of a file that is edited
_STATIC_SINCE = Version("2.2")
_DAMAGE = (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError)
_TABLE = re.compile(r"^[ \t]*\[[ \t]*project[ \t]*\][ \t]*(#.*)?\r?\n", re.MULTILINE)
_LIST = re.compile(r"^[ \t]*dependencies[ \t]*=[ \t]*\[", re.MULTILINE)


class SourceFiles(Struct, frozen=True):
    """The sdist at *path*, and its two files that state requirements; None for one that it does not have."""

    path: Path
    pkg_info: bytes | None
    pyproject: bytes | None

    def is_of(self, wheel: WheelName) -> bool:
        """Whether *wheel* is of the same release."""
        project, version = parse_sdist_filename(self.path.name)
        return (project, version) == (wheel.project, Version(wheel.version))

    @classmethod
    def read(cls, path: Path) -> "SourceFiles":
        """Read the sdist at *path*; `RepackageError` if it is none."""
        found: dict[str, bytes] = {}
        try:
            parse_sdist_filename(path.name)
            with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r|", tarinfo=BoundedInfo) as archive:
                for member in archive:
                    name = _below_top(member)
                    if name in {_PKG_INFO, _PYPROJECT} and member.isreg() and member.size <= _LARGEST:
                        file = archive.extractfile(member)
                        found[name] = file.read() if file else b""
        except InvalidSdistFilename as error:
            raise RepackageError(f"{path.name}: not an sdist's file name, expected name-version.tar.gz") from error
        except _DAMAGE as error:
            raise RepackageError(f"{path}: not a gzipped tar archive, or damaged: {error}") from error
        return cls(path, found.get(_PKG_INFO), found.get(_PYPROJECT))

    def changed(self, lines: Sequence[str]) -> dict[str, bytes] | str:
        """Return the files that state *lines*, too; none if all are there; or the reason why the sdist cannot."""
        try:
            with at(self.path.name):
                metadata = Metadata.parse((self.pkg_info or b"").decode())
                stated = Version(metadata.headers.value("Metadata-Version") or "0")
        except (WheelError, ValueError):
            return "its PKG-INFO cannot be read"
        dynamic = {value.lower() for value in metadata.headers.values("Dynamic")}
        if stated < _STATIC_SINCE or "requires-dist" in dynamic:
            return "its requirements are dynamic: they are known when it is built"
        wanted = merged(metadata, lines)
        if wanted == metadata.requires_dist:
            return {}
        pyproject = extended((self.pyproject or b"").decode(errors="surrogateescape"), lines)
        if pyproject is None:
            return "its pyproject.toml has no dependencies in [project] that can be added to"
        pkg_info = str(metadata.replacing("Requires-Dist", wanted)).encode()
        return {_PKG_INFO: pkg_info, _PYPROJECT: pyproject.encode(errors="surrogateescape")}

    def write(self, target: Path, changed: dict[str, bytes]) -> None:
        """Write the sdist with the *changed* files to *target*; all else is as it was, times and modes too."""
        with self.path.open("rb") as file:
            seconds = int.from_bytes(file.read(8)[4:], "little")
        with (
            gzip.open(self.path) as stream,
            tarfile.open(fileobj=stream, mode="r|", tarinfo=BoundedInfo) as archive,
            target.open("wb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=seconds) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as made,
        ):
            for member in archive:
                data = changed.get(_below_top(member)) if member.isreg() else None
                if data is None:
                    made.addfile(member, archive.extractfile(member) if member.isreg() else None)
                else:
                    member.size = len(data)
                    made.addfile(member, BytesIO(data))


def extended(text: str, lines: Sequence[str]) -> str | None:
    """Return the pyproject.toml *text* with *lines* before the dependencies of ``[project]``, or None if it has none.

    What it means then is compared with what it meant before, so nothing else changes.
    """
    try:
        before = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return None
    project, table = before.get("project"), _TABLE.search(text)
    if table is None or not isinstance(project, dict) or "dependencies" in project.get("dynamic", ()):
        return None
    rows = "".join(f"\n    '{line}'," for line in lines)
    found = _LIST.search(text, table.end())
    if "dependencies" not in project:
        new = f"{text[: table.end()]}dependencies = [{rows}\n]\n{text[table.end() :]}"
    elif found:
        new = f"{text[: found.end()]}{rows}{text[found.end() :]}"
    else:
        return None
    expected = {**before, "project": {**project, "dependencies": [*lines, *project.get("dependencies", ())]}}
    try:
        return new if tomllib.loads(new) == expected else None
    except tomllib.TOMLDecodeError:
        return None


def _below_top(member: tarfile.TarInfo) -> str:
    return member.name.removeprefix("./").partition("/")[2]


def divided(paths: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return what of *paths* is wheels or folders, and the sdists: those given, and those in the folders."""
    given = tuple(path for path in paths if path.name.endswith(SDIST) and not path.is_dir())
    others = tuple(path for path in paths if path not in given)
    inside = (path for folder in others if folder.is_dir() for path in sorted(folder.glob(f"*{SDIST}")))
    return others, tuple(dict.fromkeys([*given, *inside]))
