"""What a split writes: wheels as lists of copied and new members, and sdists that state the same requirements.

    demo-1.0/PKG-INFO          Requires-Dist, as in METADATA of each wheel
    demo-1.0/pyproject.toml    dependencies of [project], so that a wheel built from it states the same (PEP 643)

Both or neither. An sdist whose requirements are Dynamic stays as it is: nobody reads them from PKG-INFO, and tools that
lock take those of a wheel.

A -dev wheel has what only compilers and build systems read, a -bin wheel programs that only people start:

    headers            *.h *.hh *.hpp *.hxx *.h++ *.cuh *.inl; *.inc *.ipp *.tpp *.txx in folders called include
    static libraries   *.a and *.la
    CMake              *.cmake
    pkg-config         *.pc
    programs           ELF files that the system starts

For static libraries, CMake and pkg-config, the first bytes must be those of such a file. What the Python package hands
out or compiles at run time stays: numpy.get_include() works without numpy-dev, CuPy compiles kernels against its own
headers. So a header stays if a string in the wheel's Python code names its file, or a folder around it; the other files
stay if a program of the wheel, as cmake, names them so. A program stays if such a string may be the beginning of its
name, or if any other file of the wheel has its name: libtorch starts torch_shm_manager. So do headers in the wheel's
``.data/headers``, because installers put them into a folder named after the project, which would change; commands in
``.data/scripts``; and libcudadevrt.a, which is linked at run time.
"""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from pathlib import Path, PurePosixPath

from msgspec import Struct
from packaging.version import Version

from vbuild.elf.catalogue import is_shared_object
from vbuild.elf.read import Loading
from vbuild.elf.records import MAGIC
from vbuild.errors import BinaryError, WheelError, at
from vbuild.files.edited import EditedFile
from vbuild.files.records import Buffer
from vbuild.sbom.keeping import Changes, bill_of, carries, path_of, revised
from vbuild.sbom.model import BillChange, Gone, Treatment, package_url
from vbuild.splitting.bundle import Bundle
from vbuild.splitting.companion import Companion, licence_texts, output_companion
from vbuild.splitting.decisions import DecisionKind
from vbuild.splitting.library_mentions import parsed_source
from vbuild.splitting.other_packages import merged
from vbuild.splitting.patches import PatchedFile, PatchPlan
from vbuild.wheel.archive import Wheel, forget
from vbuild.wheel.metadata import BIN, DEV, Metadata, RecordRow, Renaming, is_dist_info, unpadded
from vbuild.wheel.name import WheelName
from vbuild.wheel.paths import installed_path
from vbuild.wheel.sdist import PKG_INFO, SUFFIX, read_files, release_of
from vbuild.wheel.write import WheelWriter
from vbuild.wheel.zip_read import Member

_HOW = "vbuild split"


class CopiedMember(Struct, frozen=True, eq=False):
    wheel: Wheel
    member: Member
    path: str

    @property
    def size(self) -> int:
        return self.member.size

    def write(self, writer: WheelWriter) -> None:
        writer.copy(self.wheel, self.member, path=self.path)


class NewMember(Struct, frozen=True, eq=False):
    """New bytes that replace a member, or have a path of their own with the permissions *mode*."""

    place: Member | str
    data: Buffer | EditedFile
    mode: int = 0o644

    @property
    def path(self) -> str:
        return self.place.path if isinstance(self.place, Member) else self.place

    @property
    def size(self) -> int:
        return self.data.size if isinstance(self.data, EditedFile) else len(self.data)

    def write(self, writer: WheelWriter) -> None:
        writer.write(self.place, self.data, mode=self.mode)
        forget(self.data.source if isinstance(self.data, EditedFile) else self.data)


class OutputWheel(Struct, frozen=True, eq=False):
    """A wheel to write; new members get the time of those of *like*, or none at all if that is None."""

    name: WheelName
    like: Wheel | None
    parts: tuple[CopiedMember | NewMember, ...]

    @property
    def unpacked(self) -> int:
        """Bytes of all members except RECORD."""
        return sum(part.size for part in self.parts)

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of all members outside the ``.dist-info`` folder."""
        return tuple(part.path for part in self.parts if not is_dist_info(part.path))


def thin_wheel(
    bundle: Bundle,
    plan: PatchPlan,
    *,
    requires: Iterable[str],
    companion: Companion | None,
    removed: Collection[str] = (),
    new_files: Mapping[str, bytes] | None = None,
    bill: bool = True,
) -> OutputWheel | None:
    """Return the wheel of *bundle* without the libraries that leave it, or None if nothing changes.

    *requires* are lines for its METADATA, *companion* is the -libs wheel that has its shared libraries now, *removed*
    are members that leave it, too, and *new_files* further files by path. If libraries left or changed, it gets a
    *bill* of materials; an existing one is updated unless only METADATA changes.
    """
    wheel = bundle.wheel
    decisions = plan.decisions.by_bundle[bundle]
    gone = {bundle.binaries[path].member.path for path, decision in decisions.items() if decision.is_gone}
    patched = {path: file for path, file in patched_files(plan, bundle).items() if path not in removed}
    metadata = wheel.metadata()
    lines = merged(metadata, requires)
    has_new_lines = lines != metadata.requires_dist
    stubs = plan.stubs(bundle)
    left_out = (gone - stubs.keys()).union(removed)
    if not (left_out or stubs or patched or has_new_lines or new_files):
        return None
    changed: dict[str, Buffer | EditedFile] = {
        path: file.data for path, file in patched.items() if file.data is not None
    }
    changed |= {**stubs, **(new_files or {})}
    if has_new_lines:
        changed[f"{wheel.dist_info}/METADATA"] = str(metadata.replacing("Requires-Dist", lines)).encode()
    if (carries(wheel) and (left_out or stubs or patched or new_files)) or (bill and (patched or gone)):
        bill_changes = Changes(
            {path: BillChange(file.patch.binary.sha256, _HOW) for path, file in patched.items()},
            gone=tuple(_gone(bundle, plan, companion)),
        )
        hashes = {path: file.sha256 for path, file in patched.items()}
        hashes |= {path: sha256(data).hexdigest() for path, data in stubs.items()}
        changed[path_of(wheel.dist_info)] = _bill(wheel, hashes, bill_changes, left_out=left_out)
    return OutputWheel(wheel.name, wheel, tuple(_parts(wheel, changed, left_out)))


def patched_files(plan: PatchPlan, bundle: Bundle) -> dict[str, PatchedFile]:
    """Return the files of the wheel of *bundle* that do not move and have other bytes, by member."""
    return {file.patch.binary.member.path: file for file in plan.staying[bundle] if file.data is not None}


def _parts(
    wheel: Wheel, changed: Mapping[str, Buffer | EditedFile], left_out: set[str]
) -> Iterator[CopiedMember | NewMember]:
    for member in wheel.members:
        if member.path in changed:
            yield NewMember(member, changed[member.path])
        elif member.path not in left_out and member.path != f"{wheel.dist_info}/RECORD":
            yield CopiedMember(wheel, member, member.path)
    for path, data in changed.items():
        if not wheel.find(path):
            yield NewMember(path, data)


def _bill(wheel: Wheel, hashes: Mapping[str, str], changes: Changes, *, left_out: set[str]) -> bytes:
    """Return the bill of materials of the thin wheel, with what that of *wheel* had and new *hashes* of files."""
    rows = []
    for row in (wheel.row(member) for member in wheel.members if member.path not in left_out):
        new = hashes.get(row.path)
        rows.append(RecordRow(row.path, f"sha256={unpadded(bytes.fromhex(new))}") if new else row)
    earlier = bill_of(wheel)
    return revised(wheel.name, rows, earlier=[earlier] if earlier else [], changes=changes)


def _gone(bundle: Bundle, plan: PatchPlan, companion: Companion | None) -> Iterator[Gone]:
    for path, decision in plan.decisions.by_bundle[bundle].items():
        binary = bundle.binaries[path]
        if decision.kind is DecisionKind.REPLACE and decision.provenance:
            wheel, library = decision.provenance.wheel, decision.provenance.library
            yield Gone(
                path=binary.member.path,
                sha256=binary.sha256,
                name=library.soname,
                fate=Treatment.MOVED,
                purl=package_url(wheel.project, wheel.version, file=wheel.file),
                target=library.path,
                version=wheel.version,
                evidence=str(decision.provenance.evidence),
            )
        elif decision.pool and companion:
            name = companion.name
            purl = package_url(name.project, name.version, file=str(name))
            target = f"{plan.libs_folders[decision.pool]}/{binary.name}"
            yield Gone(binary.member.path, binary.sha256, binary.name, Treatment.MOVED, purl, target)
        elif decision.kind is DecisionKind.DROP:
            yield Gone(binary.member.path, binary.sha256, binary.name, Treatment.DROPPED)


def libs_wheel(
    companion: Companion, files: Iterable[PatchedFile], *, stubs: Mapping[str, bytes] | None = None
) -> OutputWheel:
    """Return the -libs wheel with the libraries *files*, and *stubs* by path.

    Its version is a hash of its contents, so it has no time and no bill of materials of the wheels they come from.
    """
    parts: list[CopiedMember | NewMember] = []
    for file in files:
        path = file.patch.path
        if file.data is None:
            parts.append(CopiedMember(file.patch.bundle.wheel, file.patch.binary.member, path))
        else:
            parts.append(NewMember(path, file.data))
    parts += (NewMember(path, data) for path, data in (*(stubs or {}).items(), *companion.members))
    return OutputWheel(companion.name, None, tuple(parts))


_PYPROJECT = "pyproject.toml"
_STATIC_SINCE = Version("2.2")
_TABLE = re.compile(r"^[ \t]*\[[ \t]*project[ \t]*\][ \t]*(#.*)?\r?\n", re.MULTILINE)
_LIST = re.compile(r"^[ \t]*dependencies[ \t]*=[ \t]*\[", re.MULTILINE)


class SourceFiles(Struct, frozen=True):
    """The sdist at *path*, and its two files that state requirements."""

    path: Path
    pkg_info: bytes | None
    pyproject: bytes | None

    def is_of(self, wheel: WheelName) -> bool:
        return release_of(self.path.name) == (wheel.project, Version(wheel.version))

    @classmethod
    def read(cls, path: Path) -> "SourceFiles":
        with at(path):
            release_of(path.name)
            files = read_files(path, PKG_INFO, _PYPROJECT)
        return cls(path, files.get(PKG_INFO), files.get(_PYPROJECT))

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
    opening = _LIST.search(text, table.end())
    if "dependencies" not in project:
        new = f"{text[: table.end()]}dependencies = [{rows}\n]\n{text[table.end() :]}"
    elif opening:
        new = f"{text[: opening.end()]}{rows}{text[opening.end() :]}"
    else:
        return None
    expected = {**before, "project": {**project, "dependencies": [*lines, *project.get("dependencies", ())]}}
    try:
        return new if tomllib.loads(new) == expected else None
    except tomllib.TOMLDecodeError:
        return None


def divided(paths: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Divide *paths* into wheels or folders, and sdists: those given, and those in the folders."""
    sdists = tuple(path for path in paths if path.name.endswith(SUFFIX) and not path.is_dir())
    others = tuple(path for path in paths if path not in sdists)
    inside = (path for folder in others if folder.is_dir() for path in sorted(folder.glob(f"*{SUFFIX}")))
    return others, tuple(dict.fromkeys([*sdists, *inside]))


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
    """Return the parts of paths that strings in Python *sources* may mean; every word of a source that cannot be
    parsed.
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
    name = re.escape(PurePosixPath(program.path).name.encode())
    whole = re.compile(rb"(?<![\w.-])" + name + rb"(?![\w.-])")
    for member in wheel.members:
        if member is not program and not member.path.startswith(f"{wheel.dist_info}/"):
            with wheel.mapped(member) as data:
                if whole.search(data):
                    return True
    return False
