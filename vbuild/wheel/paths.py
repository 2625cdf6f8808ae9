"""Paths in wheels: which are safe, where installers put a member, and which scripts they make.

    demo/_C.so                          -> demo/_C.so      below site-packages
    demo-1.0.data/platlib/demo/_C.so    -> demo/_C.so
    demo-1.0.data/scripts/tool          -> bin/tool        not below site-packages

    [console_scripts] demo = demo.cli:main  ->  bin/demo

Some installers read entry_points.txt as Python's configparser does, some line by line.
https://packaging.python.org/en/latest/specifications/binary-distribution-format/#the-data-directory
https://packaging.python.org/en/latest/specifications/entry-points/
"""

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator

from packaging.version import Version

from vbuild.errors import WheelError, at
from vbuild.wheel.metadata import MetadataHeaders
from vbuild.wheel.name import WheelName

_DRIVE = re.compile(r"[A-Za-z]:")
# control, format, surrogate and private characters, separators of lines and paragraphs
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
# bytes: NAME_MAX of Linux, PATH_MAX of macOS
_LONGEST_PART = 255
_LONGEST_PATH = 1024


def check_path(path: str) -> None:
    """`WheelError` unless *path* stays below the folder it is unpacked into, on every system."""
    parts = path.removesuffix("/").split("/")
    if path.startswith("/") or _DRIVE.match(path):
        raise WheelError("an absolute path")
    if ".." in parts:
        raise WheelError("a path that leaves its folder")
    if "" in parts or "." in parts:
        raise WheelError("a path with an empty part or '.' in it")
    if "\\" in path or "\0" in path or path.splitlines() != [path]:
        raise WheelError("a path with a backslash, NUL or line break in it")
    if not path.isprintable() and any(unicodedata.category(letter) in _UNSEEN for letter in path):
        raise WheelError("a path with a character that cannot be printed")
    encoded = path.encode()
    if len(encoded) > _LONGEST_PATH or max(map(len, encoded.split(b"/"))) > _LONGEST_PART:
        raise WheelError(
            f"a path of {len(encoded)} bytes, expected {_LONGEST_PATH} at most and {_LONGEST_PART} in each part"
        )


def check_places(paths: Iterable[str]) -> None:
    """`WheelError` if one of *paths*, of which folders end in a slash, is a file and a folder at once."""
    files: set[str] = set()
    folders: set[str] = set()
    for path in paths:
        (folders if path.endswith("/") else files).add(path.removesuffix("/"))
        parent = path.removesuffix("/").rpartition("/")[0]
        while parent and parent not in folders:
            folders.add(parent)
            parent = parent.rpartition("/")[0]
    if both := min(files & folders, default=None):
        raise WheelError(f"{both}: a file and a folder")


def folded(path: str) -> str:
    """The file that Windows or macOS takes *path* for.

    Neither case nor Unicode form counts, nor dots and spaces at ends; and ``a.py:b`` is a stream of ``a.py``.
    """
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
    return "/".join(part.partition(":")[0].rstrip(". ") for part in folded.split("/"))


_DATA = re.compile(r"[^/]+-[^/]+\.data/(?P<scheme>[^/]+)/(?P<rest>.+)")


def scheme_of(path: str) -> tuple[str, str]:
    """The installation scheme of the member *path*, and its path there; ``platlib`` counts as ``purelib``."""
    if not (match := _DATA.fullmatch(path)):
        return "purelib", path
    return "purelib" if match["scheme"] == "platlib" else match["scheme"], match["rest"]


def installed_path(path: str) -> str | None:
    """Its path below site-packages; None for scripts, headers and data."""
    scheme, rest = scheme_of(path)
    return rest if scheme == "purelib" else None


_SCHEMES = ("data", "headers", "platlib", "purelib", "scripts")
# file systems of others tell apart what differs in case or Unicode form alone
_EXACT = ("linux", "manylinux", "musllinux")


def check_placing(paths: Iterable[str], dist_info: str, name: WheelName, *, scripts: Collection[str] = ()) -> None:
    """`WheelError` if installers would put two of *paths* and *scripts* at one place, or disagree."""
    data = dist_info.removesuffix("dist-info") + "data"
    placed: dict[str, str] = {}
    for path in paths:
        with at(path):
            target = _installed_path(path, data)
            if other := placed.get(target):
                raise WheelError(f"installed at the place of {other}")
        placed[target] = path
    for script in scripts:
        target = f"{data}/data/bin/{script}"
        if other := placed.get(target):
            raise WheelError(f"entry point {script!r}: installed at the place of {other}")
        placed[target] = f"entry point {script!r}"
    check_places(placed)
    if all(platform.startswith(_EXACT) for platform in name.platform.split(".")):
        return
    seen: dict[str, str] = {}
    for target in placed:
        if (other := seen.setdefault(folded(target), target)) != target:
            raise WheelError(f"{target}: the same file as {other} on Windows or macOS, for which the wheel also is")
    with at("on Windows or macOS, for which the wheel also is"):
        check_places(seen)


def _installed_path(path: str, data: str) -> str:
    top, _, rest = path.partition("/")
    if not top.endswith(".data"):
        return path
    if top != data:
        raise WheelError(f"in a .data folder that is not {data}: some installers put it elsewhere")
    folder, _, below = rest.partition("/")
    if folder not in _SCHEMES or not below:
        raise WheelError(f"expected one of the folders {', '.join(_SCHEMES)} in {data}, and the file below it")
    scheme, target = scheme_of(path)
    if scheme == "scripts":
        if "/" in target:
            raise WheelError("a folder among scripts")
        return f"{data}/data/bin/{target}"
    return target if scheme == "purelib" else path


_SCRIPTS = ("console_scripts", "gui_scripts")
# Windows takes backslash and colon for parts of a path
_NAME = re.compile(r"(?!\.+$)[^\s\0/\\:\[\]]+")
_GROUP = re.compile(r"\[(?P<name>[^\[\]]+)\]")
_FUNCTION = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*(\s*\[[^\[\]]*\w[^\[\]]*\])?")
# what they would replace in a virtual environment; uv refuses them
_RESERVED = re.compile(r"pythonw?(\d+(\.\d+)?)?", re.IGNORECASE)
# configparser reads it into every group
_DEFAULT = "DEFAULT"


def scripts_in(text: str) -> tuple[tuple[str, str], ...]:
    """Yield name and function of each script; `WheelError` if installers refuse one, or disagree about it."""
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
    return tuple(references)


def _pairs(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield group, name and value of each line; `WheelError` for lines that are read in two ways."""
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
    """`WheelError` unless each ``.egg-info`` of older tools among *paths* has a version; *read* gives texts.

    Without it, pip fails after it installed everything.
    """
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
