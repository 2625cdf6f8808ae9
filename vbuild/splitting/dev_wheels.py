"""The -dev wheels of a split: the files that only compilers and build systems read.

    headers            *.h *.hh *.hpp *.hxx *.h++ *.cuh *.inl; *.inc *.ipp *.tpp *.txx in folders called include
    static libraries   *.a and *.la
    CMake              *.cmake
    pkg-config         *.pc

For the last three, the first bytes must be those of such a file. As in conda's packages, what C and C++ projects build
against goes to another package, but what the Python package hands out or compiles at run time stays:
numpy.get_include() works without numpy-dev, CuPy compiles kernels against its own headers, and
torch.utils.cpp_extension finds torch/include. So a header stays if a string in the wheel's Python code names its file,
or a folder around it below the package's own. What only a build system can read never stays. Each file has the same
path in the -dev wheel: who installs both wheels gets all files of the original one.

Two kinds always stay: headers in the wheel's ``.data/headers``, because installers put them into a folder named after
the project, which would change; and libcudadevrt.a, which is linked to kernels at run time.

Wheels of a release with the same such files get one -dev wheel.
"""

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import PurePosixPath

from msgspec import Struct

from vbuild.splitting.companion import Companion, dev_companion, licence_texts
from vbuild.splitting.output_wheels import CopiedMember, NewMember, OutputWheel
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
# a string with spaces is prose, and a longer one is data
_LONGEST = 255
# characters; a larger source is not parsed
_LARGEST = 1 << 20
# bytes at the beginning of a file that show what it is
_HEAD = 1024
_SEPARATORS = re.compile(r"[/\\]")


class DevelopmentKind(StrEnum):
    """What a development file is."""

    HEADER = "headers"
    STATIC = "static libraries"
    CMAKE = "CMake"
    PKG_CONFIG = "pkg-config"


def kind_of(path: str, head: bytes, *, named: Iterable[str] = frozenset()) -> DevelopmentKind | None:
    """Return the kind of the development file at *path* with the first kilobyte *head*, or None if it stays.

    *named* are the names in the wheel's Python code, from `named_by`.
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
    """Return the names of files and folders that strings in Python *sources* may mean: their parts between slashes.

    In a source that this Python cannot parse, every word counts.
    """
    return frozenset(name for source in sources for name in _names(source))


def _names(source: str) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes that a later Python will refuse
            # a tree takes more than a hundred times the memory of its source
            tree = ast.parse(source if len(source) <= _LARGEST else "(")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        yield from re.findall(r"[\w.+-]+", source)
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
            text = node.value if isinstance(node.value, str) else node.value.decode(errors="replace")
            if len(text) <= _LONGEST and len(text.split()) == 1:
                yield from filter(None, _SEPARATORS.split(text))


class DevWheel(Struct, frozen=True, eq=False):
    """A -dev wheel, the *wheels* for which it is made, and its *members*, which are those of the first."""

    companion: Companion
    wheels: tuple[Wheel, ...]
    members: tuple[Member, ...]

    @property
    def output(self) -> OutputWheel:
        """The wheel to write; members of the ``.data`` folder go to the folder of the new name."""
        first = self.wheels[0]
        renaming = Renaming(first.name, self.companion.name, first.dist_info)
        paths = ((member, renaming.path(member.path)) for member in self.members)
        parts: list[CopiedMember | NewMember] = [CopiedMember(first, member, path) for member, path in paths if path]
        parts += (NewMember(path, data) for path, data in self.companion.members)
        return OutputWheel(self.companion.name, first, tuple(parts))


def dev_wheels(wheels: Iterable[Wheel]) -> tuple[DevWheel, ...]:
    """Return the -dev wheels of *wheels*: one for all wheels of a release and platform if their files are the same."""
    found: dict[tuple[str, str], dict[tuple[RecordRow, ...], list[Wheel]]] = {}
    members: dict[Wheel, tuple[Member, ...]] = {}
    for wheel in wheels:
        if chosen := tuple(_development_members(wheel)):
            members[wheel] = chosen
            contents = tuple(map(wheel.row, chosen))
            found.setdefault((wheel.name.release, wheel.name.platform), {}).setdefault(contents, []).append(wheel)
    made = [
        _dev_wheel(group, members[group[0]], is_only=len(alike) == 1)
        for alike in found.values()
        for several in alike.values()
        for group in ([several] if len(alike) == 1 else [[wheel] for wheel in several])
    ]
    # variants of one wheel with different files would get -dev wheels of one name, so they keep their files
    names = Counter(str(one.companion.name) for one in made)
    return tuple(one for one in made if names[str(one.companion.name)] == 1)


def _dev_wheel(wheels: list[Wheel], members: tuple[Member, ...], *, is_only: bool) -> DevWheel:
    first = wheels[0]
    tag = ("py3", "none") if is_only else (first.name.python, first.name.abi)
    companion = dev_companion(
        first.name, platform=first.name.platform, like=first.metadata(), licences=licence_texts(first), tag=tag
    )
    return DevWheel(companion, tuple(wheels), members)


def _development_members(wheel: Wheel) -> Iterator[Member]:
    sources = (wheel.read(member).decode(errors="replace") for member in wheel.members if member.path.endswith(".py"))
    named = named_by(sources)
    for member in wheel.members:
        is_metadata = member.path.startswith(f"{wheel.dist_info}/")
        if not is_metadata and kind_of(member.path, wheel.head(member, _HEAD), named=named):
            yield member
