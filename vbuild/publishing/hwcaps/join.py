"""Decide which compiled files of several builds become copies for levels, and check that the result is sound.

    matched, file by file -> what differs from the next lower level's -> checked -> LevelFamily, one for each file
    every file at every level -> the symbols that it takes exist in the copies that are chosen with it

    demo.libs/libx-1a2b3c4d.so.1   demo.libs/libx-5e6f7a8b.so.1   the same library of two builds: the hash is its bytes'
    demo.libs/libx-1a2b3c4d.so.1.2 demo.libs/libx-5e6f7a8b.so.1.3 the same, if no other is called libx.so.1

A copy is refused for one of these reasons:

    kind       the loader chooses among shared libraries of x86-64, not among programs
    SONAME     one for all levels: the loader knows a loaded library by it
    exports    all of the baseline's, by name and version; only files of the same build use more. A wheel that was
               added needs only what somebody may use (`missed`)
    code       no instruction above the level, by disassembly
    platform   no library, and no version of a symbol, that the wheel's tags do not promise

All files of the wheels of one release have to fit, or nothing is joined. Of an added wheel the files that fit are
taken, with what they need; the notes name the rest. Other members have to be the same in every wheel, except for
these, of which the baseline's is taken:

    *.dist-info/RECORD, WHEEL, variant.json, sboms/*   written anew
    *.dist-info/METADATA                               with the same requirements
    *.pyc with its *.py                                Python makes it again
    texts, and strings in Python code                  flags of a compiler, absolute paths and names of levels may
                                                       differ, as in records of a build
"""

import io
import posixpath
import re
import tokenize
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cached_property
from re import Pattern
from typing import Self

from msgspec import Struct, field

from vbuild.binary.linkage import Edge, Via
from vbuild.elf.catalogue import PlatformPolicy, hashed, is_shared_object, plain
from vbuild.elf.code import Elf
from vbuild.elf.interface import Interface, Versioned, digest
from vbuild.elf.linkage import GLIBC_HWCAPS, soname_fault
from vbuild.elf.read import Loading
from vbuild.errors import BinaryError, RepackageError, at
from vbuild.files.wording import shown
from vbuild.hardware.cpu import Cpu
from vbuild.process.pool import ProcessPool
from vbuild.publishing.releases import OfferedWheel
from vbuild.splitting.bundle import Bundle, WheelBinary, WheelReader
from vbuild.verification.levels import Claim, Levels
from vbuild.verification.model import Severity
from vbuild.wheel.archive import Wheel
from vbuild.wheel.metadata import is_dist_info, recorded_sha256
from vbuild.wheel.paths import installed_path

BASELINE = Cpu("x86_64", "v1")

# bytes: of a larger library the code is read again
_MOST_CODE = 1 << 25
# bytes: a larger file is hashed only where it may be the same as another
_MOST_HASHED = 1 << 24
# a library's name without the rest of its version: libx.so.1
_SHORT = re.compile(r"(?P<short>.+?\.so(?:\.\d+)?)(?:\.\d+)*")


class LevelBuild(Struct, frozen=True, eq=False):
    """The wheel *offered*, built for *cpu*; of one that *is_added*, built elsewhere, what fits is taken."""

    cpu: Cpu
    offered: OfferedWheel
    bundle: Bundle
    is_added: bool = False
    _seen: "_Seen" = field(default_factory=lambda: _Seen(keeps_code=False))

    @classmethod
    def of(
        cls, cpu: Cpu, offered: OfferedWheel, wheel: Wheel, *, is_added: bool = False, same: Collection[str | None] = ()
    ) -> Self:
        """The build whose file *wheel* is open; files with hashes of *same*, which all builds have, stay unread."""
        seen = _Seen(keeps_code=not cpu.is_baseline, passed=frozenset(filter(None, map(recorded_sha256, same))))
        bundle = WheelReader(seen.look).read(wheel)
        build = cls(cpu, offered, bundle, is_added, seen)
        if joined_path := next((path for path in bundle.binaries if f"{GLIBC_HWCAPS}/" in path), None):
            raise RepackageError(
                f"{build}: {joined_path}: copies for levels are in it already; expected a wheel of one"
            )
        return build

    def __str__(self) -> str:
        name = self.offered.path.name
        # another wheel may have the same name
        return f"{name} for {self.level}" if self.is_added else name

    @property
    def level(self) -> str:
        return self.cpu.level

    @property
    def pieces(self) -> Mapping[str, WheelBinary]:
        return self.bundle.binaries

    def interface(self, path: str) -> Interface:
        key = self.pieces[path].sha256
        if key not in self._seen.interfaces:
            with self._mapped(path) as data:
                self._seen.interfaces[key] = Interface.parse(data)
        return self._seen.interfaces[key]

    def digest(self, path: str) -> str:
        key = self.pieces[path].sha256
        if key not in self._seen.digests:
            with self._mapped(path) as data:
                self._seen.digests[key] = digest(data)
        return self._seen.digests[key]

    def elf(self, path: str) -> Elf:
        """The code of the compiled file at *path*, which is not kept any longer."""
        if elf := self._seen.elfs.pop(self.pieces[path].sha256, None):
            return elf
        with self._mapped(path) as data:
            return Elf.parse(data)

    @contextmanager
    def _mapped(self, path: str) -> Iterator[memoryview]:
        with self.bundle.wheel.mapped(self.pieces[path].member) as data, at(self), at(path):
            yield data

    def reached(self, path: str) -> tuple[str, ...]:
        """The other files of the wheel that the loader brings in with the one at *path*."""
        providers: dict[str, None] = {}
        queue = [path]
        while queue:
            for edge in self.bundle.graph.needs(queue.pop()):
                if edge.provider and edge.provider != path and edge.provider not in providers:
                    providers[edge.provider] = None
                    queue.append(edge.provider)
        return tuple(providers)


class _Seen(Struct, frozen=True, eq=False):
    """Compiled files by SHA-256, read while they are inflated once, without those *passed*.

    It *keeps_code* above the baseline, which is disassembled later.
    """

    keeps_code: bool
    passed: Collection[str] = ()
    interfaces: dict[str, Interface] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    elfs: dict[str, Elf] = field(default_factory=dict)

    def look(self, _name: str, _loading: Loading, data: memoryview, sha256: str) -> None:
        if sha256 in self.passed:
            return
        with suppress(BinaryError):
            self.interfaces[sha256] = Interface.parse(data)
            if len(data) <= _MOST_HASHED:
                self.digests[sha256] = digest(data)
            if self.keeps_code and (elf := Elf.parse(data)).code_size <= _MOST_CODE:
                self.elfs[sha256] = elf


class LevelFile(Struct, frozen=True, eq=False):
    build: LevelBuild
    path: str

    def __str__(self) -> str:
        return f"{self.build}: {self.path}"

    @property
    def piece(self) -> WheelBinary:
        return self.build.pieces[self.path]

    @property
    def interface(self) -> Interface:
        return self.build.interface(self.path)

    def is_same(self, other: Self) -> bool:
        """Whether both are one code, whatever the libraries that they need are called."""
        if self.piece.sha256 == other.piece.sha256:
            return True
        outlines = [file.piece.loading.outline for file in (self, other)]
        names = [(outline.soname and plain(outline.soname), *map(plain, outline.needed)) for outline in outlines]
        if names[0] != names[1] or self.interface.checksum != other.interface.checksum:
            return False
        return self.build.digest(self.path) == other.build.digest(other.path)


class Matching(Struct, frozen=True):
    """Installed paths of files in another build and in the baseline; *alone* are those that the baseline lacks."""

    to_base: Mapping[str, str]
    from_base: Mapping[str, str]
    alone: tuple[str, ...]

    @classmethod
    def of(cls, base: LevelBuild, other: LevelBuild) -> Self:
        """Matches by path, then without the hash, then by the name alone."""
        matches: dict[str, str] = {path: path for path in other.pieces if path in base.pieces}
        for short_name in (plain, short):
            taken = set(matches.values())
            unmatched = _unique(short_name, (path for path in other.pieces if path not in matches))
            base_paths = _unique(short_name, (path for path in base.pieces if path not in taken))
            matches |= {path: base_paths[name] for name, path in unmatched.items() if name in base_paths}
        return cls(
            matches,
            {base_path: path for path, base_path in matches.items()},
            tuple(path for path in other.pieces if path not in matches),
        )


def short(name: str) -> str:
    """The file *name* of a library without hash, and without the rest of its version: ``libx.so.1``."""
    match = _SHORT.fullmatch(plain(name))
    return match["short"] if match else plain(name)


def _unique(short_name: Callable[[str], str], paths: Iterable[str]) -> dict[str, str]:
    paths_of_name: dict[str, list[str]] = {}
    for path in filter(hashed, paths):
        paths_of_name.setdefault(posixpath.join(posixpath.dirname(path), short_name(path)), []).append(path)
    return {name: same[0] for name, same in paths_of_name.items() if len(same) == 1}


MOVED = "libvb_"
"""How the names begin of libraries to which stubs lead."""

_MACHINE = "x86_64"


class Judge(Struct, frozen=True):
    """Judges copies; functions or paths that *allow* matches may go above the level."""

    allow: Sequence[Pattern[str]]
    executor: ProcessPool | None

    def fault(self, base: LevelFile, copy: LevelFile, *, taken: Container[Versioned] | None) -> str | None:
        """What is wrong with *copy*, which replaces *base* on newer processors.

        With *taken*, the symbols that the wheel's files take, it may lack what nobody would miss.
        """
        for loading in (base.piece.loading, copy.piece.loading):
            if loading.outline.machine != _MACHINE:
                return f"code for {loading.outline.machine}: glibc knows levels of x86-64 only"
            if loading.is_program or loading.outline.type != "ET_DYN":
                return "a program, or no shared library: differs between levels, and the loader chooses libraries only"
        base_soname, soname = (file.piece.loading.outline.soname for file in (base, copy))
        # tools that bundle put the file's name there, hash and all
        is_bundled = hashed(base.piece.name) and hashed(copy.piece.name)
        if not (base_soname and soname and is_bundled and short(base_soname) == short(soname)):
            plain_names = (soname and plain(soname), base_soname and plain(base_soname))
            if base_soname != soname and (fault := soname_fault(*plain_names, where="the baseline's")):
                return fault
        if modules := {*base.piece.loading.modules} ^ {*copy.piece.loading.modules}:
            problem = f"one of this and the baseline's is the Python module {', '.join(sorted(modules))}"
            return f"{problem}; expected the same modules at all levels"
        lacking: Sequence[Versioned] = copy.interface.lacking(base.interface)
        if taken is not None:
            is_needed = bool(base.build.bundle.graph.consumers(base.path))
            lacking = missed(lacking, base.piece, taken, is_needed=is_needed)
        if lacking:
            return f"exports no {shown(lacking)}, which the baseline's does; expected the same symbols at all levels"
        # what the baseline's code has too, no flag has caused
        fault = self.code_fault(copy, copy.build.cpu)
        return fault and self.code_fault(copy, copy.build.cpu, base.build.elf(base.path))

    def code_fault(self, copy: LevelFile, cpu: Cpu, base: Elf | None = None) -> str | None:
        levels = Levels(
            {copy.path: copy.build.elf(copy.path)},
            Claim(cpu, is_explicit=True),
            baseline=lambda _: base,
            allow=tuple(self.allow),
            executor=self.executor,
        )
        all_findings = (finding for _, findings in levels.verdicts() for finding in findings)
        return next((finding.what for finding in all_findings if finding.severity is Severity.ERROR), None)


def missed(
    lacking: Iterable[Versioned], base: WheelBinary, taken: Container[Versioned], *, is_needed: bool
) -> list[Versioned]:
    """The symbols *lacking* in a copy of *base* that somebody may take; the wheel's files take those *taken*.

    Nobody else knows a bundled library, whose name has a hash. Of a module that *is_needed* by no library Python takes
    PyInit_, ctypes names of C: those of C++ come and go with what is linked in of libstdc++.
    """
    if hashed(base.name) and not base.name.startswith(MOVED):
        return [symbol for symbol in lacking if symbol in taken]
    if base.loading.modules and not is_needed:
        return [symbol for symbol in lacking if not symbol.is_mangled]
    return list(lacking)


def with_and_without_versions(interfaces: Iterable[Interface]) -> frozenset[Versioned]:
    symbols = {symbol for interface in interfaces for symbol in interface.taken}
    return frozenset({*symbols, *(Versioned(symbol.name) for symbol in symbols)})


def platform_fault(copy: LevelFile, platforms: Sequence[PlatformPolicy], *, own: Container[str]) -> str | None:
    """What *copy* needs and a system of *platforms* may lack; the wheel's *own* libraries aside."""
    loading = copy.piece.loading
    outside = {
        edge.name
        for edge in copy.build.bundle.graph.needs(copy.path)
        if edge.provider is None and edge.via is not Via.DRIVER and edge.name not in own
    }
    needs: list[tuple[str, str | None]] = [(name, None) for name in loading.outline.needed]
    needs += [(needed.library, version) for needed in loading.taken for version in needed.versions]
    for library, version in needs:
        for platform in platforms if library in outside else ():
            if platform.promises and not platform.has(library):
                return f"needs {library}, which {platform.tag} does not promise"
            if platform.promises and version and not platform.has_version(version):
                return f"needs {version} of {library}, which {platform.tag} does not promise"
    return None


_OWN = re.compile(r"RECORD(?:\.jws|\.p7s)?|WHEEL|variant\.json|sboms/.*|direct_url\.json|INSTALLER|REQUESTED")
_REQUIRING = ("Requires-Dist", "Requires-Python", "Provides-Extra", "Requires-External")
_TEXTS = (".json", ".txt", ".pc", ".cmake", ".log", ".yaml", ".yml", ".toml", ".cfg", ".ini")
_CACHED = re.compile(r"(?:__pycache__/)?(?P<name>[^/]+?)(?:\.[\w-]+)?\.pyc$")
# bytes: a record of a build is short
_LARGEST = 1 << 20
_BUILD = re.compile(
    r"(?<![\w-])-[mfWODILgz][\w./=+,:-]*"  # flags of a compiler
    r"|(?<![\w.])/[\w./+@-]+"  # absolute paths
    r"|(?<!\w)x86[-_]64(?:[-_]v[1-4])?(?!\w)"
    r"|[\s,]+"
)


class MemberDifference(Struct, frozen=True):
    path: str
    what: str
    is_lack: bool = False


def differences(base: LevelBuild, other: LevelBuild) -> Iterator[MemberDifference]:
    base_members, members = _other_members(base), _other_members(other)
    for path_in_wheel, path in members.items():
        if path_in_wheel not in base_members:
            yield MemberDifference(path, f"only the wheel for {other.cpu} has it")
        elif fault := _member_difference(base, base_members[path_in_wheel], other, path):
            yield MemberDifference(path, fault)
    for path_in_wheel, path in base_members.items():
        if path_in_wheel not in members:
            yield MemberDifference(path, f"the wheel for {other.cpu} lacks it", is_lack=True)


def _other_members(build: LevelBuild) -> dict[str, str]:
    """The members that are not libraries, by installed path, without those that each wheel has its own."""
    compiled = {piece.member.path for piece in build.pieces.values()}
    compiled |= {*build.bundle.outside, *build.bundle.damaged}
    members = {}
    for row in build.offered.rows:
        _, _, name = row.path.partition(".dist-info/")
        if row.path not in compiled and not (is_dist_info(row.path) and _OWN.fullmatch(name)):
            installed = installed_path(row.path)
            # data folders have the version in their names
            members[installed or f"*.data{row.path.partition('.data')[2]}"] = row.path
    return members


def _member_difference(base: LevelBuild, base_path: str, other: LevelBuild, path: str) -> str | None:
    base_rows, rows = ({row.path: row for row in build.offered.rows} for build in (base, other))
    base_row, row = base_rows[base_path], rows[path]
    if base_row.hash == row.hash:
        return None
    if is_dist_info(base_path) and base_path.endswith("/METADATA"):
        for name in _REQUIRING:
            base_values, values = (set(build.offered.metadata.headers.values(name)) for build in (base, other))
            if differing := base_values ^ values:
                return f"{name}: {min(differing)}: in one of the wheels for {base.cpu} and {other.cpu} only"
        return None
    if base_path.endswith(".pyc") and _CACHED.sub(r"\g<name>.py", base_path) in base_rows:
        return None
    if base_path.endswith((".py", *_TEXTS)) and max(base_row.size or 0, row.size or 0) <= _LARGEST:
        content = _without_build_words if base_path.endswith(_TEXTS) else _tokens
        with suppress(UnicodeDecodeError, tokenize.TokenError, SyntaxError):
            if content(base.bundle.wheel.read(base_path)) == content(other.bundle.wheel.read(path)):
                return None
    return f"the wheels for {base.cpu} and {other.cpu} differ in it, and no processor's level chooses such a file"


def _without_build_words(text: bytes) -> str:
    return _BUILD.sub("", text.decode()).replace('"', "").replace("'", "")


def _tokens(source: bytes) -> list[tuple[int, str]]:
    return [
        (token.type, _BUILD.sub("", token.string) if token.type == tokenize.STRING else token.string)
        for token in tokenize.tokenize(io.BytesIO(source).readline)
        if token.type not in {tokenize.COMMENT, tokenize.NL}
    ]


OWN_LIBRARY = (Via.OWN, Via.INHERITED)


class LevelFamily(Struct, frozen=True, eq=False):
    """A compiled file, *base*, and the *copies* for levels above the baseline, the lowest level first.

    The loader looks nowhere else for one that is opened by its path: it *is_moved*, and a stub leads to it.
    """

    base: LevelFile
    copies: tuple[LevelFile, ...]
    is_moved: bool

    def at(self, level: str) -> LevelFile:
        return [copy for copy in (self.base, *self.copies) if copy.build.level <= level][-1]


@dataclass(eq=False)
class Join:
    """The builds of the baseline and of levels, lowest first; *notes* name what was left out."""

    base: LevelBuild
    others: Sequence[LevelBuild]
    judge: Judge
    notes: list[str] = dataclass_field(default_factory=list)

    @cached_property
    def families(self) -> dict[str, LevelFamily]:
        """What differs between levels, by installed path in the baseline."""
        for build in self.others:
            self._check(build)
        copies_of = {path: tuple(self._differing(path)) for path in self.base.pieces}
        while dropped := self._unanswered(copies_of):
            gone = {(copy.build, copy.path) for copy in dropped}
            copies_of = {
                path: tuple(copy for copy in copies if (copy.build, copy.path) not in gone)
                for path, copies in copies_of.items()
            }
        families = {
            path: LevelFamily(LevelFile(self.base, path), copies, self._is_opened(path))
            for path, copies in copies_of.items()
            if copies
        }
        for family in families.values():
            for copy in family.copies:
                more = family.base.interface.lacking(copy.interface)
                if more and not copy.piece.loading.modules:
                    self.notes.append(
                        f"{copy}: exports {shown(more)}, which the baseline's does not: for what was built beside it, "
                        f"on processors of {copy.build.cpu} only"
                    )
        return families

    @cached_property
    def matchings(self) -> dict[LevelBuild, Matching]:
        return {build: Matching.of(self.base, build) for build in self.others}

    def lead(self, copy: LevelFile, edge: Edge) -> LevelFile | None:
        """The file that a NEEDED of *copy* leads to, of the baseline, or of its own build if only that has it."""
        build = copy.build
        if edge.provider is not None:
            matching = self.matchings.get(build)
            path = matching.to_base.get(edge.provider) if matching else edge.provider
            return LevelFile(build, edge.provider) if path is None else LevelFile(self.base, path)
        if not build.is_added or edge.via in {Via.PLATFORM, Via.DRIVER}:
            return None
        # it was linked against a system's library, and never repaired
        libraries = [path for path in self.base.pieces if hashed(path) and short(path) == short(edge.name)]
        return LevelFile(self.base, libraries[0]) if len(libraries) == 1 else None

    def leads(self, copy: LevelFile) -> Iterator[tuple[Edge, LevelFile]]:
        for edge in copy.build.bundle.graph.needs(copy.path):
            if lead := self.lead(copy, edge):
                yield edge, lead

    def further(self, copy: LevelFile) -> tuple[LevelFile, ...]:
        """The files that *copy* needs, directly or not, and the baseline lacks."""
        needed: dict[str, LevelFile] = {}
        queue = [copy]
        while queue:
            for _, file in self.leads(queue.pop()):
                if file.build is not self.base and file.path not in needed:
                    needed[file.path] = file
                    queue.append(file)
        return tuple(needed.values())

    def _refuse(self, build: LevelBuild, path: str, fault: str) -> None:
        if not build.is_added:
            raise RepackageError(f"{build}: {path}: {fault}")
        self.notes.append(f"not taken from {build}: {path}: {fault}")

    def _check(self, build: LevelBuild) -> None:
        """Refuse what differs and is not a library, and what only one of two wheels has, unless something needs it."""
        for difference in differences(self.base, build):
            if not (build.is_added and difference.is_lack):
                self._refuse(build, difference.path, difference.what)
        hashes, base_hashes = ({row.path: row.hash for row in joined.offered.rows} for joined in (build, self.base))
        for path in build.bundle.outside:
            if hashes.get(path) != base_hashes.get(path):
                self._refuse(build, path, "differs, and is installed where the loader does not look for libraries")
        for path, fault in build.bundle.damaged.items():
            self._refuse(build, path, fault)
        matching = self.matchings[build]
        for path in matching.alone:
            if not is_shared_object(path) or not build.bundle.graph.consumers(path):
                self._refuse(build, path, f"only the wheel for {build.cpu} has it")
        for path, piece in self.base.pieces.items():
            if path not in matching.from_base and not piece.is_bundled and not build.is_added:
                self._refuse(build, path, "only the wheel for the baseline has it")

    def _differing(self, path: str) -> Iterator[LevelFile]:
        """The copies of the baseline's *path* that differ from the next lower level's and can be joined."""
        base = last = LevelFile(self.base, path)
        for build in self.others:
            path_in_build = self.matchings[build].from_base.get(path)
            if path_in_build is None or last.is_same(copy := LevelFile(build, path_in_build)):
                continue
            if fault := self._fault(base, copy):
                self._refuse(build, path_in_build, fault)
                continue
            yield copy
            last = copy

    def _fault(self, base: LevelFile, copy: LevelFile) -> str | None:
        if fault := self.judge.fault(base, copy, taken=self._symbols_taken if copy.build.is_added else None):
            return fault
        for library in self.further(copy):
            # every processor must be able to run it
            if fault := self.judge.code_fault(library, BASELINE):
                return f"needs {library.path}: only the wheel for {library.build.cpu} has it, and {fault}"
        if copy.build.is_added and (symbol := self._unknown(base, copy)):
            return f"takes {symbol}, which nothing in the wheel gives"
        return None

    @cached_property
    def _symbols_taken(self) -> frozenset[Versioned]:
        return with_and_without_versions(self.base.interface(path) for path in self.base.pieces)

    def _unknown(self, base: LevelFile, copy: LevelFile) -> Versioned | None:
        """A symbol that *copy* takes from a library of the baseline that it was not built with, and that lacks it."""
        edges = copy.build.bundle.graph.needs(copy.path)
        guessed = [lead for edge in edges if edge.provider is None and (lead := self.lead(copy, edge))]
        if not guessed or copy.piece.loading.modules:
            return None
        libraries = [LevelFile(self.base, path) for library in guessed for path in self.base.reached(library.path)]
        libraries += [*guessed, *(LevelFile(copy.build, path) for path in copy.build.reached(copy.path))]
        new = (symbol for symbol in copy.interface.taken - base.interface.taken if symbol.version is None)
        unknown = (symbol for symbol in new if not any(library.interface.answers(symbol) for library in libraries))
        return min(unknown, key=str, default=None)

    def _unanswered(self, copies_of: dict[str, tuple[LevelFile, ...]]) -> set[LevelFile]:
        """The copies to drop: somebody takes a symbol that the chosen copies do not give."""
        families = {
            path: LevelFamily(LevelFile(self.base, path), copies, is_moved=False)
            for path, copies in copies_of.items()
            if copies
        }
        dropped: set[LevelFile] = set()
        for build in self.others:
            for path in self.base.pieces:
                consumer = families[path].at(build.level) if path in families else LevelFile(self.base, path)
                dropped |= {*self._lacking(consumer, build.level, families)}
        return dropped

    def _lacking(self, consumer: LevelFile, level: str, families: dict[str, LevelFamily]) -> Iterator[LevelFile]:
        matching = self.matchings.get(consumer.build)
        libraries = [LevelFile(consumer.build, path) for path in consumer.build.reached(consumer.path)]
        base_paths = [matching.to_base.get(library.path) if matching else library.path for library in libraries]
        if consumer.build is self.base and families.keys().isdisjoint(base_paths):
            return
        chosen = [
            library if path is None else families[path].at(level) if path in families else LevelFile(self.base, path)
            for library, path in zip(libraries, base_paths, strict=True)
        ]
        for symbol in sorted(consumer.interface.taken, key=str):
            givers = [number for number, library in enumerate(libraries) if library.interface.answers(symbol)]
            if not givers or any(library.interface.answers(symbol) for library in chosen):
                continue
            giver = chosen[givers[0]]
            blamed = consumer if consumer.build.is_added else giver
            fault = f"at {level} {consumer.path} takes {symbol} from it, which it does not give"
            self._refuse(blamed.build, blamed.path if blamed is giver else f"{blamed.path}: {giver.path}", fault)
            yield blamed
            return

    def _is_opened(self, path: str) -> bool:
        """Whether somebody may open the baseline's *path* by that path, so that no other folder is searched."""
        piece, bundle = self.base.pieces[path], self.base.bundle
        # code and texts that name it may open it by its path
        openers = {file for file, opened in bundle.opened_by.items() if piece in opened} - {*bundle.outside}
        if piece.loading.modules or openers - self.base.pieces.keys():
            return True
        return not any(edge.via in OWN_LIBRARY for edge in bundle.graph.consumers(path))
