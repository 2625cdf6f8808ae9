"""One wheel as split sees it: its ELF files by installed path, which loads which, and which of them code names.

members that are ELF files, in threads, each content once for all wheels -> Loading, origin -> Piece
code, texts, the data of ELF files -> the names of libraries, and of folders of them, that stand there
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Protocol

from msgspec import Struct

from vbuild.elf.hwcaps_folders import replaced_library
from vbuild.elf.library_names import hashed, is_shared_object
from vbuild.elf.linkage import LinkGraph
from vbuild.elf.policy import PlatformPolicy
from vbuild.elf.read import Loading
from vbuild.elf.records import MAGIC
from vbuild.errors import BinaryError, at
from vbuild.hardware.cpu import available_cores
from vbuild.process.threads import in_threads
from vbuild.splitting.naming import OWN_FOLDER, Naming, is_meant, is_pattern, sought
from vbuild.splitting.official import Provenance, Unproved
from vbuild.wheel.archive import Wheel
from vbuild.wheel.metadata import recorded_sha256
from vbuild.wheel.paths import installed_path
from vbuild.wheel.zip_read import Member

Origin = Provenance | Unproved | None

# folders and file names that repair tools make
_REPAIRED = re.compile(r"\.(libs|dylibs)$")


class OriginQuestions(Protocol):
    """What says where a bundled library comes from."""

    def __call__(self, name: str, loading: Loading, data: memoryview, sha256: str, /) -> Origin: ...


class BundledLibrary(Struct, frozen=True, eq=False):
    """An ELF file of a wheel, at *path* below site-packages; *sha256* is in hexadecimal digits."""

    member: Member
    path: str
    loading: Loading
    sha256: str
    origin: Origin = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """Where it is below site-packages; empty for the top."""
        return self.path.rpartition("/")[0]

    @property
    def is_library(self) -> bool:
        """Whether it is there to be loaded by others: a shared library that is no Python module and no program."""
        return self.loading.outline.is_loadable and not (self.loading.modules or self.loading.is_program)

    @property
    def is_bundled(self) -> bool:
        """Whether a repair tool put it there, under a name or in a folder that no code can foresee."""
        return hashed(self.name) is not None or _REPAIRED.search(self.folder) is not None

    @property
    def key(self) -> tuple[str, str]:
        """What makes it the same library in another wheel: its file name and its contents."""
        return self.name, self.sha256


@dataclass(frozen=True, eq=False)
class Bundle:
    """A wheel, and the ELF files in it.

    *elsewhere* are those that are not installed below site-packages, by member; *named* says which files of the wheel
    name a library, or a folder of libraries; *damaged* are ELF files that cannot be read, with the reason.
    """

    wheel: Wheel
    pieces: Mapping[str, BundledLibrary]
    elsewhere: Mapping[str, Loading] = field(default_factory=dict)
    named: Mapping[str, Collection[str]] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def graph(self) -> LinkGraph:
        """Which of its files loads which."""
        return LinkGraph.of({path: piece.loading for path, piece in self.pieces.items()}, platforms=self.platforms)

    @cached_property
    def platforms(self) -> tuple[PlatformPolicy, ...]:
        tags = self.wheel.name.platform.split(".")
        return tuple(platform for tag in tags if (platform := PlatformPolicy.parse(tag)))

    def namer(self, piece: BundledLibrary) -> str | None:
        """The file of the wheel in which *piece*, or its folder, is named as only somebody who opens it would do."""
        return min(self._namers(piece), default=None)

    @cached_property
    def opened(self) -> Mapping[str, tuple[BundledLibrary, ...]]:
        """The files of the wheel that others of it name, by who does."""
        found: dict[str, list[BundledLibrary]] = {}
        for piece in self.pieces.values():
            for file in self._namers(piece):
                found.setdefault(file, []).append(piece)
        return {file: tuple(pieces) for file, pieces in found.items()}

    @cached_property
    def better(self) -> Mapping[str, str]:
        """What glibc loads on newer CPUs in the stead of a library: it looks in folders below that library's own."""
        return {base: path for path in self.pieces if (base := replaced_library(path)) is not None}

    @cached_property
    def _patterns(self) -> tuple[tuple[str, str], ...]:
        """The patterns by which code looks for files, each with the member where it stands."""
        return tuple((name, file) for name, files in self.named.items() if is_pattern(name) for file in files)

    def _namers(self, piece: BundledLibrary) -> set[str]:
        names = {piece.name, piece.loading.outline.soname or piece.name, piece.folder.rpartition("/")[2]}
        if piece.folder.endswith(OWN_FOLDER):
            names.add(OWN_FOLDER)
        found = {file for name in names for file in self.named.get(name, ())}
        found |= {file for pattern, file in self._patterns if is_meant(pattern, piece.path, by=file)}
        if not piece.is_bundled:
            starts = (piece.name[:end] for end in range(1, len(piece.name) + 1))
            found |= {file for start in starts if ".so" not in start for file in self.named.get(start, ())}
        # many a library has its own name in its data
        return found - {piece.path}

    @cached_property
    def folders(self) -> frozenset[str]:
        """Where its files are."""
        return frozenset(piece.folder for piece in self.pieces.values())

    @cached_property
    def libraries(self) -> tuple[BundledLibrary, ...]:
        """The files that others load."""
        return tuple(piece for piece in self.pieces.values() if piece.is_library)


@dataclass(slots=True)
class Reader:
    """Reads wheels; what one has that another had before is known already, by its hash in RECORD.

    *ask* tells the origin of libraries, *room* is the folder where large files are inflated, *on_progress* hears the
    bytes that were looked at.
    """

    ask: OriginQuestions
    room: Path | None = None
    on_progress: Callable[[int], None] = lambda _size: None
    _seen: dict[tuple[str, int, int], tuple[Loading, str, Origin]] = field(default_factory=dict)
    _naming: Naming = field(default_factory=Naming)

    def read(self, wheel: Wheel) -> Bundle:
        """The ELF files of *wheel*; `WheelError` where a member is damaged."""
        members = [member for member in wheel.members if _is_compiled(wheel, member)]
        members.sort(key=lambda member: member.size, reverse=True)
        damaged: dict[str, str] = {}
        pieces: dict[str, BundledLibrary] = {}
        elsewhere: dict[str, Loading] = {}
        looked = in_threads(
            partial(self._looked, wheel), members, size=lambda member: member.size, threads=available_cores()
        )
        for member, found in zip(members, looked, strict=True):
            if isinstance(found, str):
                damaged[member.path] = found
                continue
            loading, sha256, origin = found
            if (path := installed_path(member.path)) is None:
                elsewhere[member.path] = loading
            else:
                pieces[path] = BundledLibrary(member, path, loading, sha256, origin)
        ordered = {path: pieces[path] for path in sorted(pieces)}
        return Bundle(wheel, ordered, elsewhere, self._named(wheel, ordered, elsewhere), damaged)

    def _looked(self, wheel: Wheel, member: Member) -> tuple[Loading, str, Origin] | str:
        """What is known of *member*, or why it cannot be read."""
        stated = wheel.row(member).hash or ""
        # a RECORD that is wrong would make another library of this one; its CRC-32 is that of the archive
        known = stated, member.size, member.header.crc
        if known not in self._seen:
            try:
                with wheel.mapped(member, folder=self.room) as data, at(member.path):
                    loading = Loading.parse(data)
                    sha256 = recorded_sha256(stated) or hashlib.sha256(data).hexdigest()
                    name = PurePosixPath(member.path).name
                    self._seen[known] = loading, sha256, self.ask(name, loading, data, sha256)
            except BinaryError as error:
                return str(error).removeprefix(f"{member.path}: ")
        self.on_progress(member.size)
        return self._seen[known]

    def _named(
        self, wheel: Wheel, pieces: Mapping[str, BundledLibrary], elsewhere: Mapping[str, Loading]
    ) -> dict[str, set[str]]:
        """The names of libraries in code, texts and ELF files, with the files where each stands."""
        names = {name for piece in pieces.values() if piece.is_library for name in _names(piece)}
        found = self._naming.names(wheel, names)
        for path, loading in (*elsewhere.items(), *((path, piece.loading) for path, piece in pieces.items())):
            for name in loading.mentioned:
                found.setdefault(name, set()).add(path)
        return found


def _names(piece: BundledLibrary) -> Iterator[str]:
    """What whoever opens *piece* may say."""
    for name in (piece.name, piece.loading.outline.soname or piece.name):
        yield from sought(name, is_bundled=piece.is_bundled)
    if _REPAIRED.search(piece.folder):
        yield piece.folder.rpartition("/")[2]


def _is_compiled(wheel: Wheel, member: Member) -> bool:
    """Whether *member* is an ELF file, or is called so and cannot be inflated: whoever reads it then says why."""
    head = wheel.head(member, len(MAGIC))
    return head == MAGIC or (not head and member.size > 0 and is_shared_object(member.path))
