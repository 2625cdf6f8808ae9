"""Decide which compiled files of several builds become copies for levels, and check that the result is sound.

    matched, file by file -> what differs from the next lower level's -> checked -> LevelFamily, one for each file
    every file at every level -> what it takes from others exists in the copies that are chosen with it

    demo.libs/libx-1a2b3c4d.so.1   demo.libs/libx-5e6f7a8b.so.1   the same library of two builds: the hash is its bytes'
    demo.libs/libx-1a2b3c4d.so.1.2 demo.libs/libx-5e6f7a8b.so.1.3 the same, if no other is called libx.so.1

A copy is refused for one of these reasons:

    kind       the loader chooses among shared libraries of x86-64, not among programs
    SONAME     one for all levels: the loader knows a loaded library by it
    exports    all of the baseline's, by name and version; more does no harm, since only files of the same build use
               that. A wheel that was added needs only what somebody may use (`missed`)
    code       no instruction above the level, by disassembly
    platform   no library, and no version of a symbol, that the wheel's tags do not promise

All files of the wheels of one release have to fit, or nothing is joined. Of an added wheel the files that fit are
taken, with what they need; the notes name the rest. Other members have to be the same in every wheel, except for:

    *.dist-info/RECORD, WHEEL, variant.json, sboms/*   each wheel has its own; the join gets new ones
    *.dist-info/METADATA                               the same requirements; the baseline's is taken
    *.pyc with its *.py                                Python makes it again: the baseline's is taken
    texts, and strings in Python code                  flags of a compiler, absolute paths and the name of a level may
                                                       differ, as in records of a build: the baseline's is taken
"""

import io
import posixpath
import re
import tokenize
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cached_property, partial
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
from vbuild.hardware.cpu import Cpu
from vbuild.process.pool import ProcessPool
from vbuild.publishing.lint.metadata import shown
from vbuild.publishing.releases import OfferedWheel
from vbuild.splitting.bundle import Bundle, WheelBinary, WheelReader
from vbuild.splitting.library_mentions import is_pattern, matches_pattern
from vbuild.verification.levels import Claim, Levels
from vbuild.verification.model import Severity
from vbuild.wheel.archive import Wheel
from vbuild.wheel.metadata import is_dist_info, recorded_sha256
from vbuild.wheel.paths import installed_path
from vbuild.wheel.zip_read import Member

BASELINE = Cpu("x86_64", "v1")

# bytes: of a larger library the code is read again
_MOST_CODE = 1 << 25
# bytes: a larger file is hashed only where it may be the same as another
_MOST_HASHED = 1 << 24
# a library's name without the rest of its version: libx.so.1
_SHORT = re.compile(r"(?P<short>.+?\.so(?:\.\d+)?)(?:\.\d+)*")


class LevelBuild(Struct, frozen=True, eq=False):
    """The wheel *offered*, built for *cpu*; one that *is_added* was built elsewhere, and what fits of it is taken."""

    cpu: Cpu
    offered: OfferedWheel
    bundle: Bundle
    is_added: bool = False
    _seen: "_Seen" = field(default_factory=lambda: _Seen(keeps_code=False))

    @classmethod
    def of(
        cls, cpu: Cpu, offered: OfferedWheel, wheel: Wheel, *, is_added: bool = False, same: Collection[str | None] = ()
    ) -> Self:
        """The build whose file *wheel* is open; `RepackageError` if it has copies for levels already.

        Files whose hashes in RECORD are among *same* are not looked into: all wheels of the join have them.
        """
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
        # what was built elsewhere may have the very name of the plain wheel, or of another level's
        return f"{name} for {self.level}" if self.is_added else name

    @property
    def level(self) -> str:
        return self.cpu.level

    @property
    def pieces(self) -> Mapping[str, WheelBinary]:
        return self.bundle.binaries

    def member(self, path: str) -> Member:
        return self.pieces[path].member

    def interface(self, path: str) -> Interface:
        key = self.pieces[path].sha256
        if key not in self._seen.interfaces:
            with self.bundle.wheel.mapped(self.member(path)) as data, at(self), at(path):
                self._seen.interfaces[key] = Interface.parse(data)
        return self._seen.interfaces[key]

    def digest(self, path: str) -> str:
        key = self.pieces[path].sha256
        if key not in self._seen.digests:
            with self.bundle.wheel.mapped(self.member(path)) as data, at(self), at(path):
                self._seen.digests[key] = digest(data)
        return self._seen.digests[key]

    def elf(self, path: str) -> Elf:
        """The code of the compiled file at *path*, which is not kept any longer."""
        if elf := self._seen.elfs.pop(self.pieces[path].sha256, None):
            return elf
        with self.bundle.wheel.mapped(self.member(path)) as data, at(self), at(path):
            return Elf.parse(data)

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
    """What is known of compiled files by SHA-256, without those *passed*: learnt while they are inflated once.

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
        outlines = [copy.piece.loading.outline for copy in (self, other)]
        names = [(outline.soname and plain(outline.soname), *map(plain, outline.needed)) for outline in outlines]
        if names[0] != names[1] or self.interface.checksum != other.interface.checksum:
            return False
        return self.build.digest(self.path) == other.build.digest(other.path)


class Matching(Struct, frozen=True):
    """Which file of the baseline each of another build is, by installed path; *alone* are those that are none."""

    to_base: Mapping[str, str]
    from_base: Mapping[str, str]
    alone: tuple[str, ...]

    @classmethod
    def of(cls, base: LevelBuild, other: LevelBuild) -> Self:
        """The files of *other* matched with those of *base*: by path, without the hash, then by the name alone."""
        matches: dict[str, str] = {path: path for path in other.pieces if path in base.pieces}
        for naming in (plain, short):
            taken = set(matches.values())
            unmatched = _only(naming, (path for path in other.pieces if path not in matches))
            base_paths = _only(naming, (path for path in base.pieces if path not in taken))
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


def _only(naming: Callable[[str], str], paths: Iterable[str]) -> dict[str, str]:
    """Those of *paths* that have a hash, by folder and *naming*, without those that share a name."""
    paths_of_name: dict[str, list[str]] = {}
    for path in paths:
        if hashed(path):
            paths_of_name.setdefault(posixpath.join(posixpath.dirname(path), naming(path)), []).append(path)
    return {name: several[0] for name, several in paths_of_name.items() if len(several) == 1}


MOVED = "libvb_"
"""How the names begin of libraries to which stubs lead."""

_MACHINE = "x86_64"


class Judge(Struct, frozen=True):
    """Judges copies; functions or paths that *allow* matches may go above the level."""

    allow: Sequence[Pattern[str]] = ()
    executor: ProcessPool | None = None

    def fault(self, base: LevelFile, copy: LevelFile, *, taken: Container[Versioned] | None = None) -> str | None:
        """What is wrong with *copy*, which replaces *base* on newer processors.

        With *taken*, the symbols that the wheel's files take, it may lack what nobody would miss.
        """
        exports = partial(_exports, taken=taken)
        checks: tuple[Callable[[LevelFile, LevelFile], str | None], ...] = (
            _kind,
            _soname,
            _modules,
            exports,
            self._code,
        )
        return next((fault for check in checks if (fault := check(base, copy))), None)

    def common_fault(self, copy: LevelFile) -> str | None:
        """What is wrong with *copy*, which the baseline lacks, and which every processor must be able to run."""
        fault = self._judged(copy, BASELINE)
        return fault and f"only the wheel for {copy.build.cpu} has it, and {fault}"

    def _code(self, base: LevelFile, copy: LevelFile) -> str | None:
        fault = self._judged(copy, copy.build.cpu)
        # what the baseline's code has too, no flag has caused
        return fault and self._judged(copy, copy.build.cpu, base.build.elf(base.path))

    def _judged(self, copy: LevelFile, cpu: Cpu, other: Elf | None = None) -> str | None:
        claim = Claim(cpu, is_explicit=True)
        elf = copy.build.elf(copy.path)
        levels = Levels(
            {copy.path: elf}, claim, baseline=lambda _: other, allow=tuple(self.allow), executor=self.executor
        )
        all_findings = (finding for _, findings in levels.verdicts() for finding in findings)
        return next((finding.what for finding in all_findings if finding.severity is Severity.ERROR), None)


def _kind(base: LevelFile, copy: LevelFile) -> str | None:
    for file in (base, copy):
        outline = file.piece.loading.outline
        if outline.machine != _MACHINE:
            return f"code for {outline.machine}: glibc knows levels of x86-64 only"
        if file.piece.loading.is_program or outline.type != "ET_DYN":
            return "a program, or no shared library: differs between levels, and the loader chooses libraries only"
    return None


def _soname(base: LevelFile, copy: LevelFile) -> str | None:
    base_soname, soname = (file.piece.loading.outline.soname for file in (base, copy))
    # tools that bundle put the file's name there, hash and all
    is_bundled = hashed(base.piece.name) and hashed(copy.piece.name)
    if base_soname == soname or (base_soname and soname and is_bundled and short(base_soname) == short(soname)):
        return None
    return soname_fault(soname and plain(soname), base_soname and plain(base_soname), where="the baseline's")


def _modules(base: LevelFile, copy: LevelFile) -> str | None:
    base_modules, modules = (set(file.piece.loading.modules) for file in (base, copy))
    if base_modules == modules:
        return None
    names = ", ".join(sorted(base_modules ^ modules))
    return f"one of this and the baseline's is the Python module {names}; expected the same modules at all levels"


def _exports(base: LevelFile, copy: LevelFile, *, taken: Container[Versioned] | None) -> str | None:
    lacking: Sequence[Versioned] = copy.interface.lacking(base.interface)
    if taken is not None:
        is_needed = bool(base.build.bundle.graph.consumers(base.path))
        lacking = missed(lacking, base.piece, taken, is_needed=is_needed)
    if not lacking:
        return None
    return f"exports no {shown(lacking)}, which the baseline's does; expected the same symbols at all levels"


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


def pattern_fault(copy: LevelFile, place: str) -> str | None:
    """Who opens libraries by a pattern that matches *place*, too: by its path, and so the baseline's."""
    for name, files in copy.build.bundle.mentions.items():
        for file in sorted(files) if is_pattern(name) else ():
            if matches_pattern(name, place, by=file):
                return f"{file} opens what {name} finds, by its path: no copy for a level would be chosen"
    return None


def platform_fault(copy: LevelFile, platforms: Sequence[PlatformPolicy], *, own: Callable[[str], bool]) -> str | None:
    """What *copy* needs and a system of *platforms* may lack; the wheel's *own* libraries aside."""
    promising = [platform for platform in platforms if platform.promises]
    loading = copy.piece.loading
    outside = {
        edge.name
        for edge in copy.build.bundle.graph.needs(copy.path)
        if edge.provider is None and edge.via is not Via.DRIVER
    }
    taken: list[tuple[str, str | None]] = [(name, None) for name in loading.outline.needed]
    taken += [(needed.library, version) for needed in loading.taken for version in needed.versions]
    for library, version in taken:
        if library not in outside or own(library):
            continue
        for platform in promising:
            if not platform.has(library):
                return f"needs {library}, which {platform.tag} does not promise"
            if version and not platform.has_version(version):
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
    """A member that differs between two wheels, by its path in the other one, or that the other one lacks."""

    path: str
    what: str
    is_lack: bool = False


def differences(base: LevelBuild, other: LevelBuild) -> Iterator[MemberDifference]:
    """The members of *other* that are not compiled files, and differ from *base* by the rules."""
    ours, theirs = _rest(base), _rest(other)
    for place, path in theirs.items():
        if place not in ours:
            yield MemberDifference(path, f"only the wheel for {other.cpu} has it")
        elif not _is_same_member(base, ours[place], other, path):
            yield MemberDifference(path, _saying(base, other, path))
    for place, path in ours.items():
        if place not in theirs:
            yield MemberDifference(path, f"the wheel for {other.cpu} lacks it", is_lack=True)


def _saying(base: LevelBuild, other: LevelBuild, path: str) -> str:
    if path.endswith(".dist-info/METADATA"):
        for name in _REQUIRING:
            base_values, values = (build.offered.metadata.headers.values(name) for build in (base, other))
            if differing := sorted({*base_values} ^ {*values}):
                return f"{name}: {differing[0]}: in one of the wheels for {base.cpu} and {other.cpu} only"
    return f"the wheels for {base.cpu} and {other.cpu} differ in it, and no processor's level chooses such a file"


def _rest(build: LevelBuild) -> dict[str, str]:
    """The other members by installed path, without those that each wheel has its own."""
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


def _is_same_member(base: LevelBuild, ours: str, other: LevelBuild, theirs: str) -> bool:
    our_rows, their_rows = ({row.path: row for row in build.offered.rows} for build in (base, other))
    if our_rows[ours].hash == their_rows[theirs].hash:
        return True
    if is_dist_info(ours) and ours.endswith("/METADATA"):
        stated, known = (build.offered.metadata.headers for build in (base, other))
        return all(sorted(stated.values(name)) == sorted(known.values(name)) for name in _REQUIRING)
    if ours.endswith(".pyc"):
        return _CACHED.sub(r"\g<name>.py", ours) in our_rows
    if not ours.endswith((".py", *_TEXTS)) or max(our_rows[ours].size or 0, their_rows[theirs].size or 0) > _LARGEST:
        return False
    return _tells_same(base.bundle.wheel.read(ours), other.bundle.wheel.read(theirs), is_code=ours.endswith(".py"))


def _tells_same(one: bytes, other: bytes, *, is_code: bool) -> bool:
    try:
        if is_code:
            return _tokens(one) == _tokens(other)
        # without what tells of a build, and without the quotes around that
        first, second = (_BUILD.sub("", data.decode()).replace('"', "").replace("'", "") for data in (one, other))
    except (UnicodeDecodeError, tokenize.TokenError, SyntaxError):
        return one == other
    return first == second


def _tokens(source: bytes) -> list[tuple[int, str]]:
    """The tokens of the Python code *source* without comments; its strings without what depends on a build."""
    return [
        (token.type, _BUILD.sub("", token.string) if token.type == tokenize.STRING else token.string)
        for token in tokenize.tokenize(io.BytesIO(source).readline)
        if token.type not in {tokenize.COMMENT, tokenize.NL}
    ]


OWN_LIBRARY = (Via.OWN, Via.INHERITED)


class LevelFamily(Struct, frozen=True, eq=False):
    """A compiled file, *base*, and the *copies* for levels above the baseline, the lowest level first.

    One that *is_moved* is opened by its path, and the loader looks nowhere else for it: a stub has to lead to it.
    """

    base: LevelFile
    copies: tuple[LevelFile, ...]
    is_moved: bool

    def at(self, level: str) -> LevelFile:
        """The copy that processors of *level* load."""
        return [copy for copy in (self.base, *self.copies) if copy.build.level <= level][-1]


@dataclass(eq=False)
class Join:
    """The build of the baseline and those of levels, lowest first, joined; *notes* name what was left out."""

    base: LevelBuild
    others: Sequence[LevelBuild]
    judge: Judge
    notes: list[str] = dataclass_field(default_factory=list)

    @cached_property
    def families(self) -> dict[str, LevelFamily]:
        """What differs between levels, by installed path in the baseline; `RepackageError` if it cannot be joined."""
        for build in self.others:
            self._check(build)
        copies_of = {path: copies for path in self.base.pieces if (copies := tuple(self._differing(path)))}
        while dropped := self._unanswered(copies_of):
            gone = {(copy.build, copy.path) for copy in dropped}
            left = {
                path: tuple(copy for copy in copies if (copy.build, copy.path) not in gone)
                for path, copies in copies_of.items()
            }
            copies_of = {path: copies for path, copies in left.items() if copies}
        self._note_further(copies_of)
        return {
            path: LevelFamily(LevelFile(self.base, path), copies, self._is_opened(path))
            for path, copies in copies_of.items()
        }

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
        # what was linked against a system's library, and never repaired
        like = [path for path in self.base.pieces if hashed(path) and short(path) == short(edge.name)]
        return LevelFile(self.base, like[0]) if len(like) == 1 else None

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

    def _refuse(self, build: LevelBuild, path: str, what: str) -> None:
        if not build.is_added:
            raise RepackageError(f"{build}: {path}: {what}")
        self.notes.append(f"not taken from {build}: {path}: {what}")

    def _check(self, build: LevelBuild) -> None:
        """Refuse what differs and is not a library, and what only one of two wheels has, unless something needs it."""
        for difference in differences(self.base, build):
            if not (build.is_added and difference.is_lack):
                self._refuse(build, difference.path, difference.what)
        own, expected = ({row.path: row.hash for row in checked.offered.rows} for checked in (build, self.base))
        for path in build.bundle.outside:
            if own.get(path) != expected.get(path):
                self._refuse(build, path, "differs, and is installed where the loader does not look for libraries")
        for path, what in build.bundle.damaged.items():
            self._refuse(build, path, what)
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
            own_path = self.matchings[build].from_base.get(path)
            if own_path is None or last.is_same(copy := LevelFile(build, own_path)):
                continue
            if fault := self._fault(base, copy):
                self._refuse(build, own_path, fault)
                continue
            yield copy
            last = copy

    def _fault(self, base: LevelFile, copy: LevelFile) -> str | None:
        if fault := self.judge.fault(base, copy, taken=self._symbols_taken if copy.build.is_added else None):
            return fault
        for other in self.further(copy):
            if fault := self.judge.common_fault(other):
                return f"needs {other.path}: {fault}"
        if copy.build.is_added and (symbol := self._unknown(base, copy)):
            return f"takes {symbol}, which nothing in the wheel gives"
        return None

    @cached_property
    def _symbols_taken(self) -> frozenset[Versioned]:
        """The symbols that the baseline's files take of others, each name with its version and without."""
        symbols = {symbol for path in self.base.pieces for symbol in self.base.interface(path).taken}
        return frozenset({*symbols, *(Versioned(symbol.name) for symbol in symbols)})

    def _unknown(self, base: LevelFile, copy: LevelFile) -> Versioned | None:
        """A symbol that *copy* takes from a library of the baseline that it was not built with, and that lacks it."""
        edges = copy.build.bundle.graph.needs(copy.path)
        guessed = [lead for edge in edges if edge.provider is None and (lead := self.lead(copy, edge))]
        if not guessed or copy.piece.loading.modules:
            return None
        own = [
            *guessed,
            *(LevelFile(self.base, path) for library in guessed for path in self.base.reached(library.path)),
        ]
        own += [LevelFile(copy.build, path) for path in copy.build.reached(copy.path)]
        left = {symbol for symbol in copy.interface.taken - base.interface.taken if symbol.version is None}
        for library in own:
            left = {symbol for symbol in left if not library.interface.answers(symbol)}
        return min(left, key=str, default=None)

    def _unanswered(self, copies_of: dict[str, tuple[LevelFile, ...]]) -> set[LevelFile]:
        families = {
            path: LevelFamily(LevelFile(self.base, path), copies, is_moved=False) for path, copies in copies_of.items()
        }
        dropped: set[LevelFile] = set()
        for build in self.others:
            for path in self.base.pieces:
                consumer = families[path].at(build.level) if path in families else LevelFile(self.base, path)
                dropped |= {*self._lacking(consumer, build.level, families)}
        return dropped

    def _lacking(self, consumer: LevelFile, level: str, families: dict[str, LevelFamily]) -> Iterator[LevelFile]:
        matching = self.matchings.get(consumer.build)
        pairs = [
            (LevelFile(consumer.build, path), matching.to_base.get(path) if matching else path)
            for path in consumer.build.reached(consumer.path)
        ]
        if consumer.build is self.base and not any(path in families for _, path in pairs):
            return
        chosen = [
            own if path is None else families[path].at(level) if path in families else LevelFile(self.base, path)
            for own, path in pairs
        ]
        for symbol in sorted(consumer.interface.taken, key=str):
            givers = [number for number, (own, _) in enumerate(pairs) if own.interface.answers(symbol)]
            if not givers or any(library.interface.answers(symbol) for library in chosen):
                continue
            giver = chosen[givers[0]]
            blamed = consumer if consumer.build.is_added else giver
            what = f"at {level} {consumer.path} takes {symbol} from it, which it does not give"
            self._refuse(blamed.build, blamed.path if blamed is giver else f"{blamed.path}: {giver.path}", what)
            yield blamed
            return

    def _is_opened(self, path: str) -> bool:
        """Whether somebody may open the baseline's *path* by that path, so that no other folder is searched."""
        piece, bundle = self.base.pieces[path], self.base.bundle
        # code and texts that name it may open it by its path
        naming = {file for file, opened in bundle.opened_by.items() if piece in opened} - {*bundle.outside}
        if piece.loading.modules or naming - self.base.pieces.keys():
            return True
        return not any(edge.via in OWN_LIBRARY for edge in bundle.graph.consumers(path))

    def _note_further(self, copies_of: dict[str, tuple[LevelFile, ...]]) -> None:
        for path, copies in copies_of.items():
            for copy in copies:
                more = LevelFile(self.base, path).interface.lacking(copy.interface)
                if more and not copy.piece.loading.modules:
                    self.notes.append(
                        f"{copy}: exports {shown(more)}, which the baseline's does not: for what was built beside it, "
                        f"on processors of {copy.build.cpu} only"
                    )
