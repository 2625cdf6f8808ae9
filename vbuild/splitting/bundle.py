"""The ELF files of one wheel by installed path, which of them loads which, and which of them its code names."""

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path, PurePosixPath

from msgspec import Struct

from vbuild.binary.linkage import LinkGraph
from vbuild.elf.catalogue import PlatformPolicy, hashed, is_shared_object, platforms_in
from vbuild.elf.linkage import link_graph, replaced_library
from vbuild.elf.read import Loading
from vbuild.elf.records import MAGIC
from vbuild.errors import BinaryError, at
from vbuild.hardware.cpu import available_cores
from vbuild.process.threads import in_threads
from vbuild.splitting.library_mentions import OWN_FOLDER, MentionReader, is_pattern, matches_pattern, spellings
from vbuild.splitting.official import Provenance, Unproved
from vbuild.wheel.archive import Wheel
from vbuild.wheel.metadata import recorded_sha256
from vbuild.wheel.paths import installed_path
from vbuild.wheel.zip_read import Member

Origin = Provenance | Unproved | None

# folders that repair tools make
_REPAIRED = re.compile(r"\.(libs|dylibs)$")
# by a library's file name, its headers, its bytes and its SHA-256
OriginFinder = Callable[[str, Loading, memoryview, str], Origin]


class SameLibrary(Struct, frozen=True):
    """The library that stays for another build of it, and the bytes in which they differ, by what these are.

    One that *is_published* stays in the wheel that has it.
    """

    sha256: str
    file_name: str
    traces: Mapping[str, int]
    is_published: bool = False


class WheelBinary(Struct, frozen=True, eq=False):
    """An ELF file of a wheel, installed at *path* below site-packages; a split may give it an *own_name*.

    It is another build of the library *same_as*; or *differs* says which one it is not the same as, and why.
    """

    member: Member
    path: str
    loading: Loading
    sha256: str
    origin: Origin = None
    own_name: str | None = None
    same_as: SameLibrary | None = None
    differs: str = ""

    @property
    def name(self) -> str:
        """The name of its file after the split."""
        return self.own_name or (self.same_as.file_name if self.same_as else self.file_name)

    @property
    def new_name(self) -> str | None:
        """Its name after the split, if that is another one."""
        return self.name if self.name != self.file_name else None

    @property
    def contents(self) -> str:
        """The SHA-256 of the library that stays for all builds of it."""
        return self.same_as.sha256 if self.same_as else self.sha256

    @property
    def file_name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def soname(self) -> str:
        """What the loader knows it by, before the split."""
        return self.loading.outline.soname or self.file_name

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def is_library(self) -> bool:
        return self.loading.outline.is_loadable and not (self.loading.modules or self.loading.is_program)

    @property
    def is_bundled(self) -> bool:
        """Whether a repair tool added it, under a name or in a folder that code does not know."""
        return hashed(self.file_name) is not None or _REPAIRED.search(self.folder) is not None

    @property
    def key(self) -> tuple[str, str]:
        """The same for the same library in another wheel."""
        return self.name, self.contents


@dataclass(frozen=True, eq=False)
class Bundle:
    """A wheel, and its ELF files by installed path, *binaries*; *outside* are those not below site-packages, by member.

    *mentions* are names of libraries and of their folders, with the files that have them; *damaged* are ELF files that
    cannot be read, with the reason. *published* are libraries that its release may require, by name, with what
    their -libs wheel is named after.
    """

    wheel: Wheel
    binaries: Mapping[str, WheelBinary]
    outside: Mapping[str, Loading] = field(default_factory=dict)
    mentions: Mapping[str, Collection[str]] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def graph(self) -> LinkGraph:
        return link_graph({path: binary.loading for path, binary in self.binaries.items()}, platforms=self.platforms)

    @cached_property
    def platforms(self) -> tuple[PlatformPolicy, ...]:
        return platforms_in(self.wheel.name.platform)

    def new_name(self, path: str | None) -> str | None:
        return self.binaries[path].new_name if path else None

    def namer(self, binary: WheelBinary) -> str | None:
        """A file of the wheel that names *binary* or its folder, and may open it, or None."""
        return min(self.namers(binary), default=None)

    def namers(self, binary: WheelBinary) -> frozenset[str]:
        return self._namers_of[binary.path]

    @cached_property
    def _namers_of(self) -> Mapping[str, frozenset[str]]:
        return {
            path: frozenset(file for _, file in self._mentions_of(binary)) for path, binary in self.binaries.items()
        }

    def texts_naming(self, binary: WheelBinary) -> frozenset[str]:
        """The files that name *binary*, if each is a text in which nothing but its whole name stands for it."""
        whole = {binary.file_name, binary.soname}
        pairs = [*self._mentions_of(binary)]
        is_clear = all(name in whole and file not in self.binaries.keys() | self.outside.keys() for name, file in pairs)
        has_bytecode = any(member.path.endswith(".pyc") for member in self.wheel.members)
        return frozenset(file for _, file in pairs) if is_clear and not has_bytecode else frozenset()

    @cached_property
    def opened_by(self) -> Mapping[str, tuple[WheelBinary, ...]]:
        by_file: dict[str, list[WheelBinary]] = {}
        for binary in self.binaries.values():
            for file in self.namers(binary):
                by_file.setdefault(file, []).append(binary)
        return {file: tuple(binaries) for file, binaries in by_file.items()}

    @cached_property
    def hwcaps_copies(self) -> Mapping[str, str]:
        """By library, the copy that glibc loads instead of it on newer CPUs."""
        return {base: path for path in self.binaries if (base := replaced_library(path)) is not None}

    @cached_property
    def _patterns(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, file) for name, files in self.mentions.items() if is_pattern(name) for file in files)

    def _mentions_of(self, binary: WheelBinary) -> Iterator[tuple[str, str]]:
        """What stands for *binary* in other files: its name, its folder's, a pattern, or a beginning; and the file."""
        names = {binary.file_name, binary.soname, binary.folder.rpartition("/")[2]}
        if binary.folder.endswith(OWN_FOLDER):
            names.add(OWN_FOLDER)
        if not binary.is_bundled:
            starts = (binary.file_name[:end] for end in range(1, len(binary.file_name) + 1))
            names.update(start for start in starts if ".so" not in start)
        for pattern, file in self._patterns:
            if matches_pattern(pattern, binary.path, by=file):
                yield pattern, file
        for name in names:
            # libraries often have their own name in their data
            yield from ((name, file) for file in self.mentions.get(name, ()) if file != binary.path)

    @cached_property
    def folders(self) -> frozenset[str]:
        return frozenset(binary.folder for binary in self.binaries.values())

    @cached_property
    def libraries(self) -> tuple[WheelBinary, ...]:
        return tuple(binary for binary in self.binaries.values() if binary.is_library)


@dataclass(slots=True)
class WheelReader:
    """Reads wheels, a file that several have once; *room* is the folder for large inflated files."""

    find_origin: OriginFinder
    room: Path | None = None
    on_progress: Callable[[int], None] = lambda _size: None
    _known: dict[tuple[str, int, int], tuple[Loading, str, Origin]] = field(default_factory=dict)
    _mentions: MentionReader = field(default_factory=MentionReader)

    def read(self, wheel: Wheel) -> Bundle:
        # also what is named like an ELF file and cannot be inflated: reading it says why
        members = [
            member
            for member in wheel.members
            if (head := wheel.head(member, len(MAGIC))) == MAGIC
            or (not head and member.size > 0 and is_shared_object(member.path))
        ]
        members.sort(key=lambda member: member.size, reverse=True)
        damaged: dict[str, str] = {}
        binaries: dict[str, WheelBinary] = {}
        outside: dict[str, Loading] = {}
        results = in_threads(
            partial(self._read_member, wheel), members, size=lambda member: member.size, threads=available_cores()
        )
        for member, result in zip(members, results, strict=True):
            if isinstance(result, str):
                damaged[member.path] = result
                continue
            loading, sha256, origin = result
            if (path := installed_path(member.path)) is None:
                outside[member.path] = loading
            else:
                binaries[path] = WheelBinary(member, path, loading, sha256, origin)
        ordered = {path: binaries[path] for path in sorted(binaries)}
        names: set[str] = set()
        for binary in (library for library in ordered.values() if library.is_library):
            for name in (binary.file_name, binary.soname):
                names.update(spellings(name, is_bundled=binary.is_bundled))
            if _REPAIRED.search(binary.folder):
                names.add(binary.folder.rpartition("/")[2])
        mentions = self._mentions.names(wheel, names)
        for path, loading in (*outside.items(), *((path, binary.loading) for path, binary in ordered.items())):
            for name in loading.mentioned:
                mentions.setdefault(name, set()).add(path)
        return Bundle(wheel, ordered, outside, mentions, damaged)

    def _read_member(self, wheel: Wheel, member: Member) -> tuple[Loading, str, Origin] | str:
        stated = wheel.row(member).hash or ""
        # with a wrong hash in RECORD, the size and the CRC-32 of the archive still tell two files apart
        key = stated, member.size, member.header.crc
        if key not in self._known:
            try:
                with wheel.mapped(member, folder=self.room) as data, at(member.path):
                    loading = wheel.learnt(member, data, Loading.parse)
                    sha256 = recorded_sha256(stated) or hashlib.sha256(data).hexdigest()
                    name = PurePosixPath(member.path).name
                    self._known[key] = loading, sha256, self.find_origin(name, loading, data, sha256)
            except BinaryError as error:
                return str(error).removeprefix(f"{member.path}: ")
        self.on_progress(member.size)
        return self._known[key]
