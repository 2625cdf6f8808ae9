"""Which files of a wheel only compilers and build systems read: what ``--outputs`` puts into the -dev wheel.

    headers            *.h *.hh *.hpp *.hxx *.h++ *.cuh *.inl; *.inc *.ipp *.tpp *.txx in folders called include
    static libraries   *.a and *.la
    CMake              *.cmake
    pkg-config         *.pc

The last three only where the first bytes are such a file's. conda's packages are the model: what C and C++ projects
build against is another package, but what the Python package itself hands out or compiles at run time stays with it.
numpy.get_include() works without numpy-dev, CuPy compiles kernels against headers that it ships, and
torch.utils.cpp_extension finds torch/include. So a header stays where Python code of the wheel has the name of its
file, or of a folder below the package's own that it is in, as a string; what only a build system can read never does.
All go to the same path in the -dev wheel: whoever installs both has what the whole wheel had.

Two kinds stay at any rate. Headers in the wheel's ``.data/headers``: installers put them into a folder named after the
project that brings them, which would be another one. And libcudadevrt.a, which is linked to kernels at run time.
"""

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

_HEADERS = frozenset({".h", ".hh", ".hpp", ".hxx", ".h++", ".cuh", ".inl"})
_INCLUDED = frozenset({".inc", ".ipp", ".tpp", ".txx"})
_INCLUDE = "include"
_DATA_HEADERS = re.compile(r"[^/]+\.data/headers/")
_AT_RUN_TIME = frozenset({"libcudadevrt.a"})
_ARCHIVES = (b"!<arch>\n", b"!<thin>\n")
_LIBTOOL = b"libtool library file"
_PKG_CONFIG = re.compile(rb"^(Name|Description|Version):", re.MULTILINE)
# a string with blanks in it is prose, and one this long is data
_LONGEST = 255
# characters of code that is read as such
_LARGEST = 1 << 20
_SEPARATORS = re.compile(r"[/\\]")


class Kind(StrEnum):
    """What a development file is."""

    HEADER = "headers"
    STATIC = "static libraries"
    CMAKE = "CMake"
    PKG_CONFIG = "pkg-config"


@dataclass(frozen=True, slots=True)
class Group:
    """The development files of one kind: how many, and their bytes."""

    kind: Kind
    files: int
    size: int


def kind_of(path: str, head: bytes, *, named: Iterable[str] = frozenset()) -> Kind | None:
    """What development file the one at *path* is, by its first kilobyte *head*; None where it stays.

    *named* are the strings of the wheel's Python code, as `named_by` gives them.
    """
    file = PurePosixPath(path)
    suffix = file.suffix.lower()
    if suffix in _HEADERS or (suffix in _INCLUDED and _INCLUDE in file.parts[:-1]):
        stays = _DATA_HEADERS.match(path) or not {*file.parts[1:]}.isdisjoint(named)
        return None if stays else Kind.HEADER
    if suffix == ".a" and head.startswith(_ARCHIVES) and file.name not in _AT_RUN_TIME:
        return Kind.STATIC
    if suffix == ".la" and _LIBTOOL in head:
        return Kind.STATIC
    if suffix == ".cmake" and b"\0" not in head:
        return Kind.CMAKE
    if suffix == ".pc" and _PKG_CONFIG.search(head):
        return Kind.PKG_CONFIG
    return None


def named_by(sources: Iterable[str]) -> frozenset[str]:
    """The names of files and folders that may be meant by strings in Python *sources*: their parts between slashes.

    Of a source that this Python cannot parse, every word counts: what cannot be read might name anything.
    """
    return frozenset(name for source in sources for name in _names(source))


def groups(kinds: Mapping[str, Kind], sizes: Mapping[str, int]) -> tuple[Group, ...]:
    """The development files by kind, of the *kinds* and *sizes* in bytes of each by path; no empty ones."""
    found = []
    for kind in Kind:
        paths = [path for path, of in kinds.items() if of is kind]
        if paths:
            found.append(Group(kind, len(paths), sum(sizes[path] for path in paths)))
    return tuple(found)


def _names(source: str) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that a later Python will refuse
            # a tree takes more than a hundred times the memory
            tree = ast.parse(source if len(source) <= _LARGEST else "(")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        yield from re.findall(r"[\w.+-]+", source)
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
            text = node.value if isinstance(node.value, str) else node.value.decode(errors="replace")
            if len(text) <= _LONGEST and len(text.split()) == 1:
                yield from filter(None, _SEPARATORS.split(text))
