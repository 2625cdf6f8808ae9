"""The -dev wheels of a run: what compilers and build systems read, once for all wheels that have the same.

Which files of a wheel only compilers and build systems read: what ``--outputs`` puts into the -dev wheel.

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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import PurePosixPath

from msgspec import Struct

from vbuild.splitting.companion import Companion, dev_wheel, licence_texts
from vbuild.splitting.output import New, PassedMember, ThinWheel
from vbuild.wheel.archive import Wheel
from vbuild.wheel.metadata import RecordRow
from vbuild.wheel.rename import Renaming
from vbuild.wheel.zip_read import Member

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


class DevelopmentKind(StrEnum):
    """What a development file is."""

    HEADER = "headers"
    STATIC = "static libraries"
    CMAKE = "CMake"
    PKG_CONFIG = "pkg-config"


class DevelopmentFiles(Struct, frozen=True):
    """The development files of one kind: how many, and their bytes."""

    kind: DevelopmentKind
    files: int
    size: int


def kind_of(path: str, head: bytes, *, named: Iterable[str] = frozenset()) -> DevelopmentKind | None:
    """What development file the one at *path* is, by its first kilobyte *head*; None where it stays.

    *named* are the strings of the wheel's Python code, as `named_by` gives them.
    """
    file = PurePosixPath(path)
    suffix = file.suffix.lower()
    if suffix in _HEADERS or (suffix in _INCLUDED and _INCLUDE in file.parts[:-1]):
        stays = _DATA_HEADERS.match(path) or not {*file.parts[1:]}.isdisjoint(named)
        return None if stays else DevelopmentKind.HEADER
    if suffix == ".a" and head.startswith(_ARCHIVES) and file.name not in _AT_RUN_TIME:
        return DevelopmentKind.STATIC
    if suffix == ".la" and _LIBTOOL in head:
        return DevelopmentKind.STATIC
    if suffix == ".cmake" and b"\0" not in head:
        return DevelopmentKind.CMAKE
    if suffix == ".pc" and _PKG_CONFIG.search(head):
        return DevelopmentKind.PKG_CONFIG
    return None


def named_by(sources: Iterable[str]) -> frozenset[str]:
    """The names of files and folders that may be meant by strings in Python *sources*: their parts between slashes.

    Of a source that this Python cannot parse, every word counts: what cannot be read might name anything.
    """
    return frozenset(name for source in sources for name in _names(source))


def groups(kinds: Mapping[str, DevelopmentKind], sizes: Mapping[str, int]) -> tuple[DevelopmentFiles, ...]:
    """The development files by kind, of the *kinds* and *sizes* in bytes of each by path; no empty ones."""
    found = []
    for kind in DevelopmentKind:
        paths = [path for path, of in kinds.items() if of is kind]
        if paths:
            found.append(DevelopmentFiles(kind, len(paths), sum(sizes[path] for path in paths)))
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


# of a file that is told by its first bytes
_HEAD = 1024


class Development(Struct, frozen=True, eq=False):
    """A -dev wheel, the *wheels* it was made from, and what is in it; *members* are those of the first."""

    companion: Companion
    wheels: tuple[Wheel, ...]
    members: tuple[Member, ...]
    groups: tuple[DevelopmentFiles, ...]

    @property
    def output(self) -> ThinWheel:
        """What it is written of: members at their paths, those of a ``.data`` folder in the one of its own name."""
        first = self.wheels[0]
        way = Renaming(first.name, self.companion.name, first.dist_info)
        paths = ((member, way.path(member.path)) for member in self.members)
        parts: list[PassedMember | New] = [PassedMember(first, member, path) for member, path in paths if path]
        parts += (New(path, data) for path, data in self.companion.members)
        return ThinWheel(self.companion.name, first, tuple(parts))


def developments(wheels: Iterable[Wheel]) -> tuple[Development, ...]:
    """The -dev wheels of *wheels*: one for all of a release and platform that have the same files, or one for each."""
    found: dict[tuple[str, str], dict[tuple[RecordRow, ...], list[Wheel]]] = {}
    kinds: dict[Wheel, Mapping[str, DevelopmentKind]] = {}
    for wheel in wheels:
        if chosen := dict(_kinds(wheel)):
            kinds[wheel] = chosen
            contents = tuple(wheel.row(member) for member in wheel.members if member.path in chosen)
            found.setdefault((wheel.name.release, wheel.name.platform), {}).setdefault(contents, []).append(wheel)
    made = [
        _development(one, kinds[one[0]], is_only=len(alike) == 1)
        for alike in found.values()
        for several in alike.values()
        for one in ([several] if len(alike) == 1 else [[wheel] for wheel in several])
    ]
    # variants of one wheel with other files each: there is one name for what they would give away, so they keep it
    names = Counter(str(each.companion.name) for each in made)
    return tuple(each for each in made if names[str(each.companion.name)] == 1)


def _development(wheels: list[Wheel], kinds: Mapping[str, DevelopmentKind], *, is_only: bool) -> Development:
    first = wheels[0]
    members = tuple(member for member in first.members if member.path in kinds)
    tag = ("py3", "none") if is_only else (first.name.python, first.name.abi)
    companion = dev_wheel(
        first.name, platform=first.name.platform, like=first.metadata(), licences=licence_texts(first), tag=tag
    )
    sizes = {member.path: member.size for member in members}
    return Development(companion, tuple(wheels), members, groups(kinds, sizes))


def _kinds(wheel: Wheel) -> Iterator[tuple[str, DevelopmentKind]]:
    sources = (wheel.read(member).decode(errors="replace") for member in wheel.members if member.path.endswith(".py"))
    named = named_by(sources)
    for member in wheel.members:
        if not member.path.startswith(f"{wheel.dist_info}/"):
            kind = kind_of(member.path, wheel.head(member, _HEAD), named=named)
            if kind is not None:
                yield member.path, kind
