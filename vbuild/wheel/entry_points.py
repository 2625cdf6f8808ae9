"""The scripts that installers make of entry_points.txt, if all installers make the same; metadata of older tools.

    [console_scripts]
    demo = demo.cli:main   ->  bin/demo

Some installers read the file as Python's configparser does, some line by line: what is the end of a value, a comment or
a default for all groups to one of them is a line of its own to the other.
https://packaging.python.org/en/latest/specifications/entry-points/

demo.egg-info/PKG-INFO, or the file demo.egg-info, needs a Version: without one pip fails after it installed everything.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Self

from msgspec import Struct
from packaging.version import Version

from vbuild.errors import WheelError, at
from vbuild.wheel.metadata import MetadataHeaders
from vbuild.wheel.paths import installed_path

_SCRIPTS = ("console_scripts", "gui_scripts")
# no installer but pip takes blanks; Windows takes backslash and colon for parts of a path
_NAME = re.compile(r"(?!\.+$)[^\s/\\:\[\]]+")
_GROUP = re.compile(r"\[(?P<name>[^\[\]]+)\]")
_FUNCTION = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*(\s*\[[^\[\]]*\w[^\[\]]*\])?")
# what they would replace in a virtual environment; uv refuses them
_RESERVED = re.compile(r"pythonw?(\d+(\.\d+)?)?", re.IGNORECASE)
# configparser has it stand for every group
_DEFAULT = "DEFAULT"


class Scripts(Struct, frozen=True):
    """The name of each script and the function it runs, those with windows of their own included."""

    references: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """The scripts in entry_points.txt; `WheelError` if installers refuse one, or do not agree about it."""
        references = []
        for group, name, value in _pairs(text):
            if group not in _SCRIPTS:
                continue
            with at(f"[{group}] {name!r}"):
                if not _NAME.fullmatch(name):
                    raise WheelError("expected the name of a file in the folder of scripts")
                if _RESERVED.fullmatch(name):
                    raise WheelError("would take the place of Python itself")
                if not _FUNCTION.fullmatch(value):
                    raise WheelError(f"runs {value!r}, expected 'module:function'")
            references.append((name, value))
        return cls(tuple(references))


def _pairs(text: str) -> Iterator[tuple[str, str, str]]:
    """Group, name and value of each line; `WheelError` for lines that are read in two ways."""
    seen: set[tuple[str, str]] = set()
    group = ""
    indentation: int | None = None
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        with at(f"line {number}"):
            indented = len(raw) - len(raw.lstrip())
            if len(line.splitlines()) > 1 or (indentation is not None and indented > indentation):
                raise WheelError("goes on from the one above it to some installers; expected one for each name")
            name, equals, value = (part.strip() for part in line.partition("="))
            if header := _GROUP.fullmatch(line):
                group, name, indentation = header["name"], "", None
                if group == _DEFAULT:
                    raise WheelError(f"the group {_DEFAULT}, which some installers take for all of them")
            elif not (group and name and equals):
                raise WheelError("expected [group], or below one name = value")
            else:
                indentation = indented
            if (group, name) in seen:
                raise WheelError(f"[{group}] {name}".rstrip() + " is there twice")
            seen.add((group, name))
        if name:
            yield group, name, value


def check_eggs(paths: Iterable[str], read: Callable[[str], str]) -> None:
    """`WheelError` unless each ``.egg-info`` that *paths* put beside the package has a version; *read* gives texts."""
    eggs: dict[str, str] = {}
    for path in paths:
        egg, _, rest = (installed_path(path) or "").partition("/")
        if egg.endswith(".egg-info"):
            eggs[egg] = path if rest in {"", "PKG-INFO"} else eggs.get(egg, "")
    for egg, path in eggs.items():
        version = MetadataHeaders.parse(read(path)).value("Version") if path else None
        try:
            Version(version or "")
        except ValueError as error:
            raise WheelError(f"{egg}: Version {version or ''!r}, expected one that pip can read") from error
