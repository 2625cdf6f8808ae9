"""The wheels that a split writes, as lists of what is in them: members passed on, and new ones.

Output -> for each part WheelWriter.copy or .write
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from vbuild.files.records import Buffer
from vbuild.sbom.keeping import Changes, bill_of, carries, path_of, revised
from vbuild.sbom.model import BillChange, Gone, Treatment, package_url
from vbuild.splitting.bundle import Bundle
from vbuild.splitting.companion import Companion
from vbuild.splitting.decisions import DecisionKind
from vbuild.splitting.plan import DependencyWheel, SplitPlan
from vbuild.splitting.requirements import merged
from vbuild.wheel.archive import Wheel
from vbuild.wheel.extract import forget
from vbuild.wheel.metadata import RecordRow, is_dist_info, unpadded
from vbuild.wheel.name import WheelName
from vbuild.wheel.write import WheelWriter
from vbuild.wheel.zip_read import Member

_MODE = 0o755
_HOW = "vbuild split"


class PassedMember(Struct, frozen=True, eq=False):
    """A *member* of *wheel*, to be passed on to *path*."""

    wheel: Wheel
    member: Member
    path: str

    @property
    def size(self) -> int:
        """Bytes."""
        return self.member.size

    def write(self, writer: WheelWriter) -> None:
        writer.copy(self.wheel, self.member, path=self.path)


class New(Struct, frozen=True, eq=False):
    """New bytes in place of a member, or at a path of their own with the permissions *mode*."""

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


class ThinWheel(Struct, frozen=True, eq=False):
    """A wheel to be written; new members get the time of those of *like*, and without it no member has one."""

    name: WheelName
    like: Wheel | None
    parts: tuple[PassedMember | New, ...]

    def prepare(self, writer: WheelWriter) -> None:
        """Tell *writer* where members take their times from, before anything is written."""
        if self.like:
            writer.follow(self.like)
        else:
            writer.anonymise(mode=_MODE)

    @property
    def unpacked(self) -> int:
        """Bytes of all that is in it, RECORD excepted."""
        return sum(part.size for part in self.parts)

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of what it brings, without those that describe it."""
        return tuple(part.path for part in self.parts if not is_dist_info(part.path))


def thin(
    bundle: Bundle,
    plan: SplitPlan,
    *,
    requires: Iterable[str],
    companion: Companion | None,
    gone: Iterable[str] = (),
    news: Mapping[str, bytes] | None = None,
    bill: bool = True,
) -> ThinWheel | None:
    """The wheel of *bundle* without what moved out of it, and the *gone* members; None where nothing changes.

    *requires* are lines for its METADATA, *companion* the wheel that has its shared libraries now, and *news* further
    files of it by path. Where libraries went or changed it gets a *bill* of materials; one that is there is kept true.
    """
    wheel = bundle.wheel
    fates = plan.decision.fates[bundle]
    left_out = {bundle.pieces[path].member.path for path, fate in fates.items() if fate.is_gone} | set(gone)
    edited = {made.order.piece.member.path: made.data for made in plan.staying[bundle] if made.data is not None}
    text = _metadata(wheel, requires)
    if not (left_out or edited or text or news):
        return None
    changed: dict[str, Buffer] = {**edited, **(news or {})}
    if text:
        changed[f"{wheel.dist_info}/METADATA"] = text
    if carries(wheel) or (bill and (edited or any(fate.is_gone for fate in fates.values()))):
        changed[path_of(wheel.dist_info)] = _bill(bundle, plan, companion, left_out)
    return ThinWheel(wheel.name, wheel, tuple(_parts(wheel, changed, left_out)))


def _parts(wheel: Wheel, changed: Mapping[str, Buffer], left_out: set[str]) -> Iterator[PassedMember | New]:
    for member in wheel.members:
        if member.path in changed:
            yield New(member, changed[member.path])
        elif member.path not in left_out and member.path != f"{wheel.dist_info}/RECORD":
            yield PassedMember(wheel, member, member.path)
    for path, data in changed.items():
        if not wheel.find(path):
            yield New(path, data)


def _metadata(wheel: Wheel, requires: Iterable[str]) -> bytes | None:
    """METADATA of *wheel* with the lines *requires*; None where it has them."""
    metadata = wheel.metadata()
    lines = merged(metadata, requires)
    return None if lines == metadata.requires_dist else str(metadata.with_requires_dist(lines)).encode()


def _bill(bundle: Bundle, plan: SplitPlan, companion: Companion | None, left_out: set[str]) -> bytes:
    """The bill of materials of the thin wheel, with what it had in the wheel of *bundle*."""
    wheel = bundle.wheel
    edited = {made.order.piece.member.path: made for made in plan.staying[bundle] if made.data is not None}
    rows = (wheel.row(member) for member in wheel.members if member.path not in left_out)
    earlier = bill_of(wheel)
    changes = Changes(
        {path: BillChange(made.order.piece.sha256, _HOW) for path, made in edited.items()},
        gone=tuple(_gone(bundle, plan, companion)),
    )
    return revised(
        wheel.name,
        [
            RecordRow(row.path, f"sha256={unpadded(bytes.fromhex(edited[row.path].sha256))}")
            if row.path in edited
            else row
            for row in rows
        ],
        earlier=[earlier] if earlier else [],
        changes=changes,
    )


def _gone(bundle: Bundle, plan: SplitPlan, companion: Companion | None) -> Iterator[Gone]:
    """The libraries that left the wheel of *bundle*, as its bill of materials lists them."""
    for path, fate in plan.decision.fates[bundle].items():
        piece = bundle.pieces[path]
        if fate.kind is DecisionKind.REPLACE and fate.provenance:
            found, library = fate.provenance.wheel, fate.provenance.library
            yield Gone(
                path=piece.member.path,
                sha256=piece.sha256,
                name=library.soname,
                fate=Treatment.MOVED,
                purl=package_url(found.project, found.version, file=found.file),
                target=library.path,
                version=found.version,
                evidence=str(fate.provenance.evidence),
            )
        elif fate.pool and companion:
            name = companion.name
            purl = package_url(name.project, name.version, file=str(name))
            target = f"{plan.homes[fate.pool]}/{piece.name}"
            yield Gone(piece.member.path, piece.sha256, piece.name, Treatment.MOVED, purl, target)
        elif fate.kind is DecisionKind.DROP:
            yield Gone(piece.member.path, piece.sha256, piece.name, Treatment.DROPPED)


def beside(companion: Companion, made: Iterable[DependencyWheel]) -> ThinWheel:
    """The dependency wheel with the libraries *made*.

    Its version is that of its contents, so it has nothing of the wheels they come from: no time, no bill of materials.
    """
    parts: list[PassedMember | New] = []
    for each in made:
        source, member = each.order.bundle.wheel, each.order.piece.member
        if each.data is None:
            parts.append(PassedMember(source, member, each.order.path))
        else:
            parts.append(New(each.order.path, each.data))
    parts += (New(path, data) for path, data in companion.members)
    return ThinWheel(companion.name, None, tuple(parts))
