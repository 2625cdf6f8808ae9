"""What a layout is: a way to ship finished wheels, and the plan that it makes of those of a release.

    Layout, with its options -> planned(offers) -> Plan: outputs, and how consumers use them

A plan is a value: nothing is written before `vbuild.publishing.writing` carries it out.
"""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol

from msgspec import Struct

from vbuild.elf.surgery.relink import Relink
from vbuild.errors import LayoutError
from vbuild.publishing.conda.package import CondaIndex, CondaPackage
from vbuild.publishing.oci.model import Images
from vbuild.publishing.offer import OfferedRelease
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


Output = LinkedFile | Text | NewWheel | SimpleIndex | Images | CondaPackage | CondaIndex


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
                raise LayoutError(f"{target}: two outputs of this name; publish what they are made of apart")
            taken.add(target)


class PublishLayout(Protocol):
    """A way to ship the wheels of a release, with its options; implementations are frozen values."""

    @property
    def name(self) -> str:
        """What it is called on the command line, and its folder in the output."""

    def planned(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        """What it makes of *offers*; `LayoutError` where these wheels cannot be laid out so."""
