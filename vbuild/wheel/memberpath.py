"""Paths that stay below the folder they are unpacked into, and are the same file to every installer.

check_path(path)    -> one path
check_places(paths) -> all of an archive: none is also a folder
folded(path)        -> what Windows and macOS take a path for
"""

import re
import unicodedata
from collections.abc import Iterable

from vbuild.errors import WheelError

_DRIVE = re.compile(r"[A-Za-z]:")
# control, format, surrogate and private characters, line and paragraph separators; uv installs none of them
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
    if len(path.encode()) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_PART for part in parts):
        raise WheelError(
            f"a path of {len(path.encode())} bytes, expected {_LONGEST_PATH} at most and {_LONGEST_PART} in each part"
        )


def check_places(paths: Iterable[str]) -> None:
    """`WheelError` where one of *paths*, of which folders end in a slash, is a file and a folder at once."""
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
    """What Windows and macOS between them take *path* for.

    Neither case nor Unicode form counts, nor dots and spaces at ends; and ``a.py:b`` is a stream of ``a.py``.
    """
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
    return "/".join(part.partition(":")[0].rstrip(". ") for part in folded.split("/"))
