"""The -dev and -bin wheels of a split: what compilers read, and programs, apart as distributions of Linux have them.

A -dev wheel has the files that only compilers and build systems read, a -bin wheel programs that only people start:

    headers            *.h *.hh *.hpp *.hxx *.h++ *.cuh *.inl; *.inc *.ipp *.tpp *.txx in folders called include
    static libraries   *.a and *.la
    CMake              *.cmake
    pkg-config         *.pc
    programs           ELF files that the system starts

For static libraries, CMake and pkg-config, the first bytes must be those of such a file. As in conda's packages, what C
and C++ projects build against goes to another package, but what the Python package hands out or compiles at run time
stays: numpy.get_include() works without numpy-dev, CuPy compiles kernels against its own headers, and
torch.utils.cpp_extension finds torch/include. So a header stays if a string in the wheel's Python code names its file,
or a folder around it below the package's own. What only a build system can read stays in the wheels of build systems
alone: if a program of the wheel has the file's name in it, or that of a folder around it, as cmake has that of its
modules. Each file has the same path in the other wheel: who installs both gets all files of the original one.

A program stays if such a string may be the beginning of its name, or of a folder's, or if any other file of the wheel
has its name: libtorch starts torch_shm_manager.

Three kinds always stay: headers in the wheel's ``.data/headers``, because installers put them into a folder named after
the project, which would change; commands in ``.data/scripts``, for which people install the project; and
libcudadevrt.a, which is linked to kernels at run time.

Wheels of a release with the same such files get one wheel of them.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import PurePosixPath

from msgspec import Struct

from vbuild.elf.catalogue import is_shared_object
from vbuild.elf.read import Loading
from vbuild.elf.records import MAGIC
from vbuild.errors import BinaryError
from vbuild.splitting.companion import Companion, licence_texts, output_companion
from vbuild.splitting.library_mentions import parsed_source
from vbuild.splitting.output_wheels import CopiedMember, NewMember, OutputWheel
from vbuild.splitting.patches import PatchedFile
from vbuild.wheel.archive import Wheel
from vbuild.wheel.metadata import BIN, DEV, RecordRow, Renaming
from vbuild.wheel.paths import installed_path
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
# letters of a string that may be the beginning of a program's name
_SHORTEST = 3
# bytes at the beginning of a file that show what it is
_HEAD = 1024
# texts in a program, and the names of files and folders in them
_TEXTS = re.compile(rb"[\x20-\x7e]{3,}")
_PARTS = re.compile(r"[\w.+-]+")
_EXECUTABLE = 0o755


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
    found: set[str] = set()
    for source in sources:
        if (tree := parsed_source(source)) is None:
            found.update(re.findall(r"[\w.+-]+", source))
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
                text = node.value if isinstance(node.value, str) else node.value.decode(errors="replace")
                if len(text) <= _LONGEST and len(text.split()) == 1:
                    found.update(filter(None, re.split(r"[/\\]", text)))
    return frozenset(found)


class Output(Struct, frozen=True, eq=False):
    """A -dev or -bin wheel, the *wheels* for which it is made, and its *members*, which are those of the first."""

    companion: Companion
    wheels: tuple[Wheel, ...]
    members: tuple[Member, ...]

    def wheel(self, patched: Mapping[str, PatchedFile]) -> OutputWheel:
        """The wheel to write; members of the ``.data`` folder go to the folder of the new name.

        *patched* are the files of the first wheel that have other bytes now, by member.
        """
        first = self.wheels[0]
        renaming = Renaming(first.name, self.companion.name, first.dist_info)
        parts: list[CopiedMember | NewMember] = []
        for member in self.members:
            if not (path := renaming.path(member.path)):
                continue
            new = patched.get(member.path)
            if new is None or new.data is None:
                parts.append(CopiedMember(first, member, path))
            else:
                parts.append(NewMember(member if path == member.path else path, new.data, mode=_EXECUTABLE))
        parts += (NewMember(path, data) for path, data in self.companion.members)
        return OutputWheel(self.companion.name, first, tuple(parts))


def outputs_of(wheels: Iterable[Wheel]) -> tuple[Output, ...]:
    """Return the -dev and -bin wheels of *wheels*: one of each for a release and platform if its files are the same."""
    every = tuple(wheels)
    return (*_outputs(every, _development_members, DEV), *_outputs(every, _programs, BIN))


def _outputs(wheels: Iterable[Wheel], choose: Callable[[Wheel], Iterable[Member]], suffix: str) -> Iterator[Output]:
    found: dict[tuple[str, str], dict[tuple[RecordRow, ...], list[Wheel]]] = {}
    members: dict[Wheel, tuple[Member, ...]] = {}
    for wheel in wheels:
        if chosen := tuple(choose(wheel)):
            members[wheel] = chosen
            contents = tuple(map(wheel.row, chosen))
            found.setdefault((wheel.name.release, wheel.name.platform), {}).setdefault(contents, []).append(wheel)
    made = []
    for alike in found.values():
        is_only = len(alike) == 1
        for several in alike.values():
            for group in [several] if is_only else [[wheel] for wheel in several]:
                first = group[0]
                tag = ("py3", "none") if is_only else (first.name.python, first.name.abi)
                texts, platform = licence_texts(first), first.name.platform
                companion = output_companion(
                    first.name, suffix, platform=platform, like=first.metadata(), licences=texts, tag=tag
                )
                made.append(Output(companion, tuple(group), members[first]))
    # variants of one wheel with different files would get wheels of one name, so they keep their files
    names = Counter(str(one.companion.name) for one in made)
    yield from (one for one in made if names[str(one.companion.name)] == 1)


def _development_members(wheel: Wheel) -> Iterator[Member]:
    named = _named(wheel)
    found = [
        member
        for member in wheel.members
        if not member.path.startswith(f"{wheel.dist_info}/")
        and kind_of(member.path, wheel.head(member, _HEAD), named=named)
    ]
    read = _read_by_programs(wheel, {part for member in found for part in _below_package(member)})
    yield from (member for member in found if read.isdisjoint(_below_package(member)))


def _below_package(member: Member) -> tuple[str, ...]:
    """The name of *member*, and those of the folders around it below the package's own."""
    return PurePosixPath(member.path).parts[1:]


def _read_by_programs(wheel: Wheel, names: set[str]) -> set[str]:
    """Return those of *names* that stand in a program of *wheel*."""
    left = {name for name in names if len(name) >= _SHORTEST}
    found: set[str] = set()
    for member in wheel.members if left else ():
        if wheel.head(member, len(MAGIC)) == MAGIC and _is_program(wheel, member):
            with wheel.mapped(member) as data:
                texts = b"\n".join(_TEXTS.findall(data)).decode()
            words = set(_PARTS.findall(texts))
            found |= {name for name in left if name in words}
    return found


def _named(wheel: Wheel) -> frozenset[str]:
    sources = (member for member in wheel.members if member.path.endswith(".py"))
    return named_by(wheel.read(member).decode(errors="replace") for member in sources)


def _programs(wheel: Wheel) -> Iterator[Member]:
    """Yield the programs of *wheel* that nothing in it seems to start."""
    candidates = [
        member
        for member in wheel.members
        if installed_path(member.path) and not is_shared_object(member.path) and wheel.head(member, len(MAGIC)) == MAGIC
    ]
    named = _named(wheel) if candidates else frozenset()
    for member in candidates:
        parts = PurePosixPath(member.path).parts[1:]
        is_named = any(part.startswith(word) for part in parts for word in named if len(word) >= _SHORTEST)
        if parts and not is_named and _is_program(wheel, member) and not _is_said(wheel, member):
            yield member


def _is_program(wheel: Wheel, member: Member) -> bool:
    try:
        with wheel.mapped(member) as data:
            return Loading.parse(data).is_program
    except BinaryError:
        return False


def _is_said(wheel: Wheel, program: Member) -> bool:
    """Whether another file of *wheel* has the name of *program* in it."""
    name = re.escape(PurePosixPath(program.path).name.encode())
    whole = re.compile(rb"(?<![\w.-])" + name + rb"(?![\w.-])")
    for member in wheel.members:
        if member is not program and not member.path.startswith(f"{wheel.dist_info}/"):
            with wheel.mapped(member) as data:
                if whole.search(data):
                    return True
    return False
