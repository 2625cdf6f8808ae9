"""What a split writes: wheels as lists of copied and new members, and sdists that state the same requirements.

    demo-1.0/PKG-INFO          Requires-Dist, as in METADATA of each wheel
    demo-1.0/pyproject.toml    dependencies of [project], so that a wheel built from it states the same (PEP 643)

Both or neither. An sdist whose requirements are Dynamic stays as it is: nobody reads them from PKG-INFO, and tools that
lock take those of a wheel.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from vbuild.errors import WheelError, at
from vbuild.files.edited import EditedFile
from vbuild.files.records import Buffer
from vbuild.sbom.keeping import Changes, bill_of, carries, path_of, revised
from vbuild.sbom.model import BillChange, Gone, Treatment, package_url
from vbuild.splitting.bundle import Bundle
from vbuild.splitting.companion import Companion
from vbuild.splitting.decisions import DecisionKind
from vbuild.splitting.other_packages import merged
from vbuild.splitting.patches import PatchedFile, PatchPlan
from vbuild.splitting.pools import Pool
from vbuild.wheel.archive import Wheel, forget
from vbuild.wheel.metadata import Metadata, RecordRow, is_dist_info, unpadded
from vbuild.wheel.name import WheelName
from vbuild.wheel.sdist import PKG_INFO, read_files, release_of
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
    place: Member | str
    data: Buffer | EditedFile

    @property
    def path(self) -> str:
        return self.place.path if isinstance(self.place, Member) else self.place

    @property
    def size(self) -> int:
        return self.data.size if isinstance(self.data, EditedFile) else len(self.data)

    def write(self, writer: WheelWriter) -> None:
        writer.write(self.place, self.data)
        forget(self.data.source if isinstance(self.data, EditedFile) else self.data)


class OutputWheel(Struct, frozen=True, eq=False):
    """A wheel to write; new members get the time of those of *like*, or none if that is None."""

    name: WheelName
    like: Wheel | None
    parts: tuple[CopiedMember | NewMember, ...]

    @property
    def unpacked(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(part.path for part in self.parts if not is_dist_info(part.path))


def thin_wheel(
    bundle: Bundle,
    plan: PatchPlan,
    *,
    requires: Iterable[str],
    companions: Mapping[Pool, Companion],
    new_files: Mapping[str, bytes],
    bill: bool,
) -> OutputWheel | None:
    """The wheel of *bundle* without the libraries that leave it, or None if nothing changes.

    If libraries left or changed, it gets a *bill*.
    """
    wheel = bundle.wheel
    decisions = plan.decisions.by_bundle[bundle]
    gone = {bundle.binaries[path].member.path for path, decision in decisions.items() if decision.is_gone}
    patched = {file.patch.member_path: file for file in plan.staying[bundle] if file.data is not None}
    renamed = {file.patch.binary.member.path: path for path, file in patched.items()}
    metadata = wheel.metadata()
    lines = merged(metadata, requires)
    has_new_lines = lines != metadata.requires_dist
    stubs = plan.stubs(bundle)
    left_out = gone - stubs.keys() | {path for path, new in renamed.items() if path != new}
    if not (left_out or stubs or patched or has_new_lines or new_files):
        return None
    changed: dict[str, Buffer | EditedFile] = {
        path: file.data for path, file in patched.items() if file.data is not None
    }
    changed |= {**stubs, **new_files}
    changed |= _renamed_texts(bundle, new_files)
    if has_new_lines:
        changed[f"{wheel.dist_info}/METADATA"] = str(metadata.replacing("Requires-Dist", lines)).encode()
    if (carries(wheel) and (left_out or stubs or patched or new_files)) or (bill and (patched or gone)):
        bill_changes = Changes(
            {path: BillChange(file.patch.binary.sha256, _HOW) for path, file in patched.items()},
            gone=tuple(_gone(bundle, plan, companions)),
        )
        hashes = {path: file.sha256 for path, file in patched.items()}
        hashes |= {path: sha256(data).hexdigest() for path, data in stubs.items()}
        bill_bytes = _bill(wheel, hashes, bill_changes, left_out=left_out, renamed=renamed)
        changed[path_of(wheel.dist_info)] = bill_bytes
    return OutputWheel(wheel.name, wheel, tuple(_parts(wheel, changed, left_out, renamed)))


def _renamed_texts(bundle: Bundle, new_files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The texts of *bundle*, or those in *new_files*, that name libraries with names of their own, with these."""
    texts: dict[str, bytes] = {}
    for library in (binary for binary in bundle.libraries if binary.own_name):
        names = b"|".join(re.escape(name.encode()) for name in {library.file_name, library.soname})
        for path in bundle.texts_naming(library):
            text = texts.get(path) or new_files.get(path) or bundle.wheel.read(path)
            texts[path] = re.sub(rb"(?<![\w.+-])(?:%s)(?![\w+-]|\.\w)" % names, library.name.encode(), text)
    return texts


def _parts(
    wheel: Wheel, changed: Mapping[str, Buffer | EditedFile], left_out: set[str], renamed: Mapping[str, str]
) -> Iterator[CopiedMember | NewMember]:
    for member in wheel.members:
        path = renamed.get(member.path, member.path)
        if path in changed:
            yield NewMember(replace(member, path=path), changed[path])
        elif member.path not in left_out and member.path != f"{wheel.dist_info}/RECORD":
            yield CopiedMember(wheel, member, member.path)
    for path, data in changed.items():
        if not wheel.find(path) and path not in renamed.values():
            yield NewMember(path, data)


def _bill(
    wheel: Wheel, hashes: Mapping[str, str], changes: Changes, *, left_out: set[str], renamed: Mapping[str, str]
) -> bytes:
    rows = []
    for row in map(wheel.row, wheel.members):
        path = renamed.get(row.path, row.path)
        if path in hashes:
            rows.append(RecordRow(path, f"sha256={unpadded(bytes.fromhex(hashes[path]))}"))
        elif path not in left_out:
            rows.append(row)
    earlier = bill_of(wheel)
    return revised(wheel.name, rows, earlier=[earlier] if earlier else [], changes=changes)


def _gone(bundle: Bundle, plan: PatchPlan, companions: Mapping[Pool, Companion]) -> Iterator[Gone]:
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
        elif decision.pool:
            name = companions[decision.pool].name
            purl = package_url(name.project, name.version, file=str(name))
            target = f"{decision.pool.folder}/{binary.name}"
            yield Gone(binary.member.path, binary.sha256, binary.file_name, Treatment.MOVED, purl, target)


def libs_wheel(companion: Companion, files: Iterable[PatchedFile], *, stubs: Mapping[str, bytes]) -> OutputWheel:
    """Later releases with the same libraries require it: it has no time and no bill of these wheels."""
    moving = (
        CopiedMember(file.patch.bundle.wheel, file.patch.binary.member, file.patch.path)
        if file.data is None
        else NewMember(file.patch.path, file.data)
        for file in files
    )
    new = (NewMember(path, data) for path, data in (*stubs.items(), *companion.members))
    return OutputWheel(companion.name, None, (*moving, *new))


_PYPROJECT = "pyproject.toml"
_STATIC_SINCE = Version("2.2")
_TABLE = re.compile(r"^[ \t]*\[[ \t]*project[ \t]*\][ \t]*(#.*)?\r?\n", re.MULTILINE)
_LIST = re.compile(r"^[ \t]*dependencies[ \t]*=[ \t]*\[", re.MULTILINE)


class SourceFiles(Struct, frozen=True):
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
        """The files that state *lines*, too; none if all are there; or why the sdist cannot state them."""
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
    """The pyproject.toml *text* with *lines* before the dependencies of ``[project]``, or None if it has none.

    The parsed results are compared, so nothing else changes.
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
