"""What a layout plans: the files to write, and how consumers use them.

    Layout, with its options -> planned(offers) -> PublishPlan: outputs, consumers' commands, notes

A plan is a value: nothing is written before `vbuild.publishing.publish` carries it out.
renamed(wheel, name) plans a wheel of a release under another name: members keep their compressed bytes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol

from msgspec import Struct

from vbuild.elf.surgery.relink import Relink
from vbuild.errors import RepackageError
from vbuild.files.hashing import Digests
from vbuild.publishing.releases import OfferedRelease, OfferedWheel
from vbuild.sbom.keeping import LARGEST, is_bill, renamed_bill
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.metadata import Metadata, Renaming
from vbuild.wheel.name import WheelName


class LinkedFile(Struct, frozen=True):
    """The file at *source* as it is, at *target* in the layout's folder: a hard link where that can be."""

    target: PurePosixPath
    source: Path


class Text(Struct, frozen=True):
    """New bytes, at *target* in the layout's folder."""

    target: PurePosixPath
    data: bytes


class Copied(Struct, frozen=True):
    """The member *member* of the wheel at *wheel*, its compressed bytes as they are, at *path*."""

    wheel: Path
    member: str
    path: str


class Relinked(Struct, frozen=True):
    """The ELF file that is *member* of the wheel at *wheel*, with *order* carried out, at *path*."""

    wheel: Path
    member: str
    path: str
    order: Relink


class Put(Struct, frozen=True):
    """New bytes at *path*, with the permissions *mode*."""

    path: str
    data: bytes
    mode: int = 0o644


Member = Copied | Relinked | Put


class NewWheel(Struct, frozen=True):
    """The wheel *name*, in *folder* of the layout's, made of *members* in that order; RECORD is the writer's.

    New members take time and compression from the wheel at *like*.
    """

    folder: PurePosixPath
    name: WheelName
    like: Path
    members: tuple[Member, ...]

    @property
    def target(self) -> PurePosixPath:
        return self.folder / str(self.name)


class SimpleIndex(Struct, frozen=True):
    """A static simple index at *target* of *files*: wheels and variants.json that come before it, by their targets."""

    target: PurePosixPath
    files: tuple[PurePosixPath, ...]


class LayoutOutput(Protocol):
    """An output of one layout alone, which writes itself."""

    @property
    def target(self) -> PurePosixPath:
        """Its place in the layout's folder."""

    @property
    def files(self) -> tuple[PurePosixPath, ...]:
        """The outputs written before it whose hashes it contains."""

    def write(self, folder: Path, *, digests: Digests) -> None:
        """Write it into the layout's *folder*; *digests* may know the hashes of *files* already."""


Output = LinkedFile | Text | NewWheel | SimpleIndex | LayoutOutput


class ConsumerUse(Struct, frozen=True):
    """How a consumer gets what is there: *what* in a sentence, and the *text* to copy, in *language*: sh, toml, text.

    Shell commands work as they stand in the layout's folder, where no URL was given.
    """

    what: str
    text: str
    language: str = "sh"


class PublishPlan(Struct, frozen=True):
    """What is to be written into the folder called *layout*, in that order; *notes* are what a publisher should know.

    A README of *uses* is added by the writer.
    """

    layout: str
    outputs: tuple[Output, ...]
    uses: tuple[ConsumerUse, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse two outputs of one name, and a file where another one's folder is."""
        targets = [output.target for output in self.outputs]
        taken = {folder for target in targets for folder in target.parents}
        for target in targets:
            if target in taken:
                raise RepackageError(f"{target}: two outputs of this name; publish what they are made of apart")
            taken.add(target)


class PublishLayout(Protocol):
    """A way to ship the wheels of a release, with its options; implementations are frozen values."""

    @property
    def name(self) -> str:
        """What it is called on the command line, and its folder in the output."""

    def planned(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        """What it makes of *offers*; `RepackageError` if these wheels cannot be laid out so."""


def renaming(wheel: OfferedWheel, name: WheelName, *, project: str | None = None) -> Renaming:
    """The way from *wheel* to the wheel *name*; *project* as METADATA is to spell it."""
    return Renaming(wheel.name, name, wheel.dist_info, project)


def renamed(
    wheel: OfferedWheel,
    name: WheelName,
    *,
    folder: str = "",
    project: str | None = None,
    metadata: Metadata | None = None,
    changed: Mapping[str, Member | None] | None = None,
) -> NewWheel:
    """The wheel called *name*, in *folder* of a layout, with what *wheel* has.

    *metadata* is its METADATA, else the old wheel's under the new name, which *project* spells. *changed* are members
    in place of those at these paths of the new wheel, or further ones at its end; None leaves one out. Members come in
    the old wheel's order with their permissions and times.
    """
    way = renaming(wheel, name, project=project)
    described = f"{name.dist_info}/METADATA"
    text = str(metadata or way.metadata(wheel.metadata)).encode()
    found = ((path, row.path) for row in wheel.rows if (path := way.path(row.path)) is not None)
    members: dict[str, Member | None] = {path: Copied(wheel.path, old, path) for path, old in found}
    members |= {described: Put(described, text), **_bills(wheel, way), **(changed or {})}
    return NewWheel(
        PurePosixPath(folder), name, wheel.path, tuple(member for member in members.values() if member is not None)
    )


def _bills(wheel: OfferedWheel, way: Renaming) -> dict[str, Member]:
    """The bills of materials of *wheel* by new path, as they are after the renaming; without those that are endless."""
    paths = [row.path for row in wheel.rows if is_bill(row.path) and (row.size or 0) <= LARGEST]
    if not paths:
        return {}
    with open_wheel(wheel.path) as opened:
        bills = {way.path(path) or path: renamed_bill(opened.read(path), way.old, way.new) for path in paths}
    return {path: Put(path, data) for path, data in bills.items()}
