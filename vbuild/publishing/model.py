"""What a layout plans: the files to write, and how consumers use them.

    Layout, with its options -> plan(offers) -> PublishPlan: outputs, consumers' commands, notes

Consumers' commands, from a layout's folder, or from the URL where it is served:

    https://example.org/whl/local    pip install --extra-index-url …/x86_64_v3/simple    uv pip install --index …
    the folder                       pip install --find-links x86_64_v3                  uv pip install --index ./…
      if others have such wheels     pip install --extra-index-url "file://$PWD/…"

Without a URL they work in the layout's folder, even if its path contains blanks: uv ends a URL at a blank, and pip does
not accept relative URLs.
"""

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from vbuild.elf.surgery.relink import Relink
from vbuild.errors import RepackageError
from vbuild.publishing.releases import OfferedRelease, OfferedWheel
from vbuild.sbom.keeping import LARGEST, is_bill, renamed_bill
from vbuild.wheel.archive import SharedWheels
from vbuild.wheel.metadata import VARIANT_JSON, Renaming
from vbuild.wheel.name import WheelName


class LinkedFile(Struct, frozen=True):
    """A hard link to *source* if possible, else a copy."""

    target: PurePosixPath
    source: Path


class Text(Struct, frozen=True):
    target: PurePosixPath
    data: bytes


class Copied(Struct, frozen=True):
    """A member of another wheel, its compressed bytes as they are."""

    wheel: Path
    member: str
    path: str


class Relinked(Struct, frozen=True):
    wheel: Path
    member: str
    path: str
    order: Relink


class Put(Struct, frozen=True):
    path: str
    data: bytes
    mode: int = 0o644


Member = Copied | Relinked | Put


class NewWheel(Struct, frozen=True):
    """A wheel of *members* in that order; new ones compress as in *like*."""

    folder: PurePosixPath
    name: WheelName
    like: Path
    members: tuple[Member, ...]

    @property
    def target(self) -> PurePosixPath:
        return self.folder / str(self.name)


class SimpleIndex(Struct, frozen=True):
    target: PurePosixPath
    files: tuple[PurePosixPath, ...]


class LayoutOutput(Protocol):
    @property
    def target(self) -> PurePosixPath:
        """Its path in the layout's folder."""

    @property
    def files(self) -> tuple[PurePosixPath, ...]:
        """The outputs written before it whose hashes it contains."""

    def write(self, folder: Path, *, wheels: SharedWheels) -> None:
        """Write it into the layout's *folder*; *wheels* may know hashes of *files*, and members that others read."""


Output = LinkedFile | Text | NewWheel | SimpleIndex | LayoutOutput


class PublishRule(StrEnum):
    ARCHIVE = "archive"
    NAME = "name"
    SIZE = "size"
    LOCAL_VERSION = "local-version"
    PLATFORM = "platform"
    VARIANT = "variant"
    INDEX = "index"
    LABELS = "labels"
    PLAIN = "plain"
    METADATA = "metadata"
    REQUIREMENT = "requirement"
    LICENSE = "license"
    SDIST = "sdist"
    SHARED_FILES = "shared-files"
    BLOB = "blob"
    IMAGE = "image"
    LEVELS = "levels"
    CHANNEL = "channel"
    PINS = "pins"


class ConsumerUse(Struct, frozen=True):
    """A sentence and the *text* to copy, in *language*: sh, toml, text."""

    what: str
    text: str
    language: str = "sh"


class PublishPlan(Struct, frozen=True):
    """What to write into the folder *layout*, in that order."""

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
    """A way to ship the wheels of a release, with its options."""

    @property
    def name(self) -> str:
        """Its name on the command line, and of its folder."""

    def plan(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        """The plan for *offers*; `RepackageError` if these wheels do not fit the layout."""


def renamed(
    wheel: OfferedWheel,
    name: WheelName,
    *,
    folder: str = "",
    requirement: Callable[[str], str] = str,
    document: bytes | None = None,
) -> NewWheel:
    """*requirement* gives each line of Requires-Dist anew, *document* is its variant.json if that changes.

    Bills of materials that are too large stay as they are.
    """
    renaming = Renaming(wheel.name, name, wheel.dist_info)
    metadata_path = f"{name.dist_info}/METADATA"
    metadata = renaming.metadata(wheel.metadata, requirement=requirement)
    paths = ((path, row.path) for row in wheel.rows if (path := renaming.path(row.path)) is not None)
    members: dict[str, Member] = {path: Copied(wheel.path, old, path) for path, old in paths}
    members[metadata_path] = Put(metadata_path, str(metadata).encode())
    if document:
        members[f"{name.dist_info}/{VARIANT_JSON}"] = Put(f"{name.dist_info}/{VARIANT_JSON}", document)
    bills = [row.path for row in wheel.rows if is_bill(row.path) and (row.size or 0) <= LARGEST]
    if bills:
        with wheel.opened() as opened:
            for old in bills:
                path = renaming.path(old) or old
                members[path] = Put(path, renamed_bill(opened.read(old), wheel.name, name))
    return NewWheel(PurePosixPath(folder), name, wheel.path, tuple(members.values()))


# what consumers read if other indexes may have wheels of that name and version
RIVALS = " (pip takes another index's where that is for a newer platform tag)"
_INDEX = "simple"
_SCHEMES = ("https", "http", "file")
# RFC 3986, section 2; nothing of it ends a string in TOML
_URL = re.compile(r"[A-Za-z0-9._~:/\[\]@!$&'()*+,;=%-]+")


def folder_url(text: str) -> str:
    """The URL *text* of a folder, without a slash at its end; `RepackageError` if it is not one, or holds a secret."""
    try:
        parts = urlsplit(text)
        is_named = bool(parts.path if parts.scheme == "file" else parts.hostname)
        is_sound = parts.scheme in _SCHEMES and is_named and parts.port != 0  # above 65535 it raises
    except ValueError:
        is_sound = False
    if not (is_sound and _URL.fullmatch(text)):
        raise RepackageError(
            f"{text!r}: expected the URL of a folder, https, http or file, as in https://example.org/whl"
        )
    if parts.username is not None:
        raise RepackageError(f"{parts.hostname}: a URL with a login, which everyone could read; leave that out")
    return text.rstrip("/")


def place_below(url: str | None, path: PurePosixPath | str) -> str:
    """Where *path* of a layout's folder is served below *url*; without one, relative to the folder."""
    return f"{url.rstrip('/') if url else '.'}/{path}"


def install_commands(wanted: str, *, url: str | None, folder: str = ".", has_rivals: bool = False) -> str:
    """The commands by which pip and uv install *wanted* from *folder*, which has wheels and their index.

    With *has_rivals* other indexes may have wheels of that name and version: of wheels that pip cannot tell apart it
    takes the last index's, and those of a folder after all indexes'.
    """
    if url:
        of_pip = f"--extra-index-url {_index(url, folder)}"
    elif has_rivals:
        of_pip = f'--extra-index-url "file://$PWD/{PurePosixPath(folder, _INDEX)}"'
    else:
        of_pip = f"--find-links {folder}"
    return f"pip install {of_pip} {wanted}\nuv pip install {uv_index_option(url, folder)} {wanted}"


def uv_index_option(url: str | None, folder: str = ".") -> str:
    return f"--index {_index(url, folder)}"


def _index(url: str | None, folder: str) -> str:
    return quote(place_below(url, PurePosixPath(folder, _INDEX)))
