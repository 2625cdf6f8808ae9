"""The wheels that a split writes, as lists of their contents: copied members and new ones.

OutputWheel -> for each part WheelWriter.copy or .write

A -dev wheel has the files that only compilers and build systems read:

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
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import PurePosixPath

from msgspec import Struct

from vbuild.files.records import Buffer
from vbuild.sbom.keeping import Changes, bill_of, carries, path_of, revised
from vbuild.sbom.model import BillChange, Gone, Treatment, package_url
from vbuild.splitting.bundle import Bundle
from vbuild.splitting.companion import Companion, dev_companion
from vbuild.splitting.decisions import DecisionKind
from vbuild.splitting.library_mentions import parsed_source
from vbuild.splitting.licences import licence_texts
from vbuild.splitting.other_packages import merged
from vbuild.splitting.patch_plan import PatchedFile, PatchPlan
from vbuild.wheel.archive import Wheel, forget
from vbuild.wheel.metadata import RecordRow, Renaming, is_dist_info, unpadded
from vbuild.wheel.name import WheelName
from vbuild.wheel.write import WheelWriter
from vbuild.wheel.zip_read import Member

_HOW = "vbuild split"

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
# bytes at the beginning of a file that show what it is
_HEAD = 1024


class CopiedMember(Struct, frozen=True, eq=False):
    """A *member* of *wheel* that is copied to *path*."""

    wheel: Wheel
    member: Member
    path: str

    @property
    def size(self) -> int:
        """Bytes."""
        return self.member.size

    def write(self, writer: WheelWriter) -> None:
        writer.copy(self.wheel, self.member, path=self.path)


class NewMember(Struct, frozen=True, eq=False):
    """New bytes that replace a member, or have a path of their own with the permissions *mode*."""

    place: Member | str
    data: Buffer
    mode: int = 0o644

    @property
    def path(self) -> str:
        return self.place.path if isinstance(self.place, Member) else self.place

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)

    def write(self, writer: WheelWriter) -> None:
        writer.write(self.place, self.data, mode=self.mode)
        forget(self.data)


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
    patched = {one.patch.binary.member.path: one for one in plan.staying[bundle] if one.data is not None}
    metadata = wheel.metadata()
    lines = merged(metadata, requires)
    has_new_lines = lines != metadata.requires_dist
    left_out = gone.union(removed)
    if not (left_out or patched or has_new_lines or new_files):
        return None
    changed: dict[str, Buffer] = {path: one.data for path, one in patched.items() if one.data is not None}
    changed |= new_files or {}
    if has_new_lines:
        changed[f"{wheel.dist_info}/METADATA"] = str(metadata.replacing("Requires-Dist", lines)).encode()
    if (carries(wheel) and (left_out or patched or new_files)) or (bill and (patched or gone)):
        bill_changes = Changes(
            {path: BillChange(one.patch.binary.sha256, _HOW) for path, one in patched.items()},
            gone=tuple(_gone(bundle, plan, companion)),
        )
        changed[path_of(wheel.dist_info)] = _bill(wheel, patched, bill_changes, left_out=left_out)
    return OutputWheel(wheel.name, wheel, tuple(_parts(wheel, changed, left_out)))


def _parts(wheel: Wheel, changed: Mapping[str, Buffer], left_out: set[str]) -> Iterator[CopiedMember | NewMember]:
    for member in wheel.members:
        if member.path in changed:
            yield NewMember(member, changed[member.path])
        elif member.path not in left_out and member.path != f"{wheel.dist_info}/RECORD":
            yield CopiedMember(wheel, member, member.path)
    for path, data in changed.items():
        if not wheel.find(path):
            yield NewMember(path, data)


def _bill(wheel: Wheel, patched: Mapping[str, PatchedFile], changes: Changes, *, left_out: set[str]) -> bytes:
    """Return the bill of materials of the thin wheel, with what the bill of *wheel* had."""
    rows = []
    for row in (wheel.row(member) for member in wheel.members if member.path not in left_out):
        new = patched.get(row.path)
        rows.append(RecordRow(row.path, f"sha256={unpadded(bytes.fromhex(new.sha256))}") if new else row)
    earlier = bill_of(wheel)
    return revised(wheel.name, rows, earlier=[earlier] if earlier else [], changes=changes)


def _gone(bundle: Bundle, plan: PatchPlan, companion: Companion | None) -> Iterator[Gone]:
    """Yield the libraries that left the wheel of *bundle*, as its bill of materials lists them."""
    for path, decision in plan.decisions.by_bundle[bundle].items():
        binary = bundle.binaries[path]
        if decision.kind is DecisionKind.REPLACE and decision.provenance:
            found, library = decision.provenance.wheel, decision.provenance.library
            yield Gone(
                path=binary.member.path,
                sha256=binary.sha256,
                name=library.soname,
                fate=Treatment.MOVED,
                purl=package_url(found.project, found.version, file=found.file),
                target=library.path,
                version=found.version,
                evidence=str(decision.provenance.evidence),
            )
        elif decision.pool and companion:
            name = companion.name
            purl = package_url(name.project, name.version, file=str(name))
            target = f"{plan.libs_folders[decision.pool]}/{binary.name}"
            yield Gone(binary.member.path, binary.sha256, binary.name, Treatment.MOVED, purl, target)
        elif decision.kind is DecisionKind.DROP:
            yield Gone(binary.member.path, binary.sha256, binary.name, Treatment.DROPPED)


def libs_wheel(companion: Companion, files: Iterable[PatchedFile]) -> OutputWheel:
    """Return the -libs wheel with the libraries *files*.

    Its version is a hash of its contents, so it has no time and no bill of materials of the wheels they come from.
    """
    parts: list[CopiedMember | NewMember] = []
    for file in files:
        path = file.patch.path
        if file.data is None:
            parts.append(CopiedMember(file.patch.bundle.wheel, file.patch.binary.member, path))
        else:
            parts.append(NewMember(path, file.data))
    parts += (NewMember(path, data) for path, data in companion.members)
    return OutputWheel(companion.name, None, tuple(parts))


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
    made = []
    for alike in found.values():
        is_only = len(alike) == 1
        for several in alike.values():
            for group in [several] if is_only else [[wheel] for wheel in several]:
                first = group[0]
                tag = ("py3", "none") if is_only else (first.name.python, first.name.abi)
                texts, platform = licence_texts(first), first.name.platform
                companion = dev_companion(first.name, platform=platform, like=first.metadata(), licences=texts, tag=tag)
                made.append(DevWheel(companion, tuple(group), members[first]))
    # variants of one wheel with different files would get -dev wheels of one name, so they keep their files
    names = Counter(str(one.companion.name) for one in made)
    return tuple(one for one in made if names[str(one.companion.name)] == 1)


def _development_members(wheel: Wheel) -> Iterator[Member]:
    sources = (wheel.read(member).decode(errors="replace") for member in wheel.members if member.path.endswith(".py"))
    named = named_by(sources)
    for member in wheel.members:
        is_metadata = member.path.startswith(f"{wheel.dist_info}/")
        if not is_metadata and kind_of(member.path, wheel.head(member, _HEAD), named=named):
            yield member
