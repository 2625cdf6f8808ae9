"""The sdist of a release that is split: it states the requirements that all its wheels state now.

    demo-1.0/PKG-INFO          Requires-Dist, as in METADATA of each wheel
    demo-1.0/pyproject.toml    dependencies of [project], so that a wheel built from it states the same (PEP 643)

Both or neither. An sdist whose requirements are Dynamic stays as it is: nobody reads them from PKG-INFO, and tools that
lock take those of a wheel.
"""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from packaging.version import Version

from vbuild.errors import WheelError, at
from vbuild.splitting.other_packages import merged
from vbuild.wheel.metadata import Metadata
from vbuild.wheel.name import WheelName
from vbuild.wheel.sdist import PKG_INFO, SUFFIX, read_files, release_of

_PYPROJECT = "pyproject.toml"
_STATIC_SINCE = Version("2.2")
_TABLE = re.compile(r"^[ \t]*\[[ \t]*project[ \t]*\][ \t]*(#.*)?\r?\n", re.MULTILINE)
_LIST = re.compile(r"^[ \t]*dependencies[ \t]*=[ \t]*\[", re.MULTILINE)


class SourceFiles(Struct, frozen=True):
    """The sdist at *path*, and its two files that state requirements; None for one that it does not have."""

    path: Path
    pkg_info: bytes | None
    pyproject: bytes | None

    def is_of(self, wheel: WheelName) -> bool:
        """Whether *wheel* is of the same release."""
        return release_of(self.path.name) == (wheel.project, Version(wheel.version))

    @classmethod
    def read(cls, path: Path) -> "SourceFiles":
        """Read the sdist at *path*; `WheelError` if it is none."""
        with at(path):
            release_of(path.name)
            found = read_files(path, PKG_INFO, _PYPROJECT)
        return cls(path, found.get(PKG_INFO), found.get(_PYPROJECT))

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
        return {PKG_INFO: pkg_info, _PYPROJECT: pyproject.encode(errors="surrogateescape")}


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


def divided(paths: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return what of *paths* is wheels or folders, and the sdists: those given, and those in the folders."""
    given = tuple(path for path in paths if path.name.endswith(SUFFIX) and not path.is_dir())
    others = tuple(path for path in paths if path not in given)
    inside = (path for folder in others if folder.is_dir() for path in sorted(folder.glob(f"*{SUFFIX}")))
    return others, tuple(dict.fromkeys([*given, *inside]))
