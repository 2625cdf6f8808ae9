"""A wheel to join, open: its compiled files, which file of another build each is, and what keeps it out.

demo.libs/libx-1a2b3c4d.so.1   demo.libs/libx-5e6f7a8b.so.1   the same library of two builds: the hash is its bytes'
demo.libs/libx-1a2b3c4d.so.1.2 demo.libs/libx-5e6f7a8b.so.1.3 the same, if no other is called libx.so.1

A build's copy of a file is refused for one of these reasons:

kind       the loader chooses among shared libraries of x86-64, not among programs
SONAME     one for all levels: it is the name by which a library that is loaded already is known
exports    whatever the baseline's copy gives, by name and version; more does no harm, since only files of the same
           build use that. A wheel that was added needs only what somebody may use (`missed`)
code       no instruction above the level, by disassembly
platform   no library, and no version of a symbol, that the wheel's tags do not promise
"""

import posixpath
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from re import Pattern
from typing import Self

from msgspec import Struct, field

from vbuild.binary.linkage import Via
from vbuild.elf.catalogue import PlatformPolicy, hashed, plain
from vbuild.elf.code import Elf
from vbuild.elf.hwcaps_folders import GLIBC_HWCAPS, soname_fault
from vbuild.elf.interface import Interface, Versioned, digest
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
from vbuild.wheel.metadata import recorded_sha256
from vbuild.wheel.zip_read import Member

BASELINE = Cpu("x86_64", "v1")

# bytes: of a larger library the code is read again
_MOST_CODE = 1 << 25
# bytes: a larger file is hashed only where it may be the same as another
_MOST_HASHED = 1 << 24
# a library's name without the rest of its version: libx.so.1
_SHORT = re.compile(r"(?P<short>.+?\.so(?:\.\d+)?)(?:\.\d+)*")


class LevelBuild(Struct, frozen=True, eq=False):
    """The wheel *offered*, built for *cpu*; one that *is_added* was built elsewhere, and gives what fits."""

    cpu: Cpu
    offered: OfferedWheel
    bundle: Bundle
    is_added: bool = False
    _seen: "_Seen" = field(default_factory=lambda: _Seen(keeps_code=False))

    @classmethod
    def of(
        cls, cpu: Cpu, offered: OfferedWheel, wheel: Wheel, *, is_added: bool = False, same: Collection[str | None] = ()
    ) -> Self:
        """The build whose file *wheel* is open; `RepackageError` if somebody has joined levels in it already.

        Files whose hashes in RECORD are among *same* are not looked into: all wheels of the join have them.
        """
        seen = _Seen(keeps_code=not cpu.is_baseline, passed=frozenset(filter(None, map(recorded_sha256, same))))
        bundle = WheelReader(seen.look).read(wheel)
        build = cls(cpu, offered, bundle, is_added, seen)
        if there := next((path for path in bundle.binaries if f"{GLIBC_HWCAPS}/" in path), None):
            raise RepackageError(f"{build}: {there}: copies for levels are in it already; expected a wheel of one")
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
        """Its compiled files by installed path."""
        return self.bundle.binaries

    def member(self, path: str) -> Member:
        """The member that is installed at *path*."""
        return self.pieces[path].member

    def interface(self, path: str) -> Interface:
        """What the compiled file at *path* gives and takes."""
        key = self.pieces[path].sha256
        if key not in self._seen.interfaces:
            with self.bundle.wheel.mapped(self.member(path)) as data, at(self), at(path):
                self._seen.interfaces[key] = Interface.parse(data)
        return self._seen.interfaces[key]

    def digest(self, path: str) -> str:
        """The digest of what is loaded of the compiled file at *path*."""
        key = self.pieces[path].sha256
        if key not in self._seen.digests:
            with self.bundle.wheel.mapped(self.member(path)) as data, at(self), at(path):
                self._seen.digests[key] = digest(data)
        return self._seen.digests[key]

    def elf(self, path: str) -> Elf:
        """The code of the compiled file at *path*, which is kept no longer."""
        if found := self._seen.elfs.pop(self.pieces[path].sha256, None):
            return found
        with self.bundle.wheel.mapped(self.member(path)) as data, at(self), at(path):
            return Elf.parse(data)

    def reached(self, path: str) -> tuple[str, ...]:
        """The files of the wheel that the loader brings in with the one at *path*, itself left out."""
        found: dict[str, None] = {}
        queue = [path]
        while queue:
            for edge in self.bundle.graph.needs(queue.pop()):
                if edge.provider and edge.provider != path and edge.provider not in found:
                    found[edge.provider] = None
                    queue.append(edge.provider)
        return tuple(found)


class _Seen(Struct, frozen=True, eq=False):
    """What is known of compiled files by SHA-256, those *passed* left out: learnt while they are inflated once.

    Code is kept where it *keeps_code*: what is above the baseline is disassembled later.
    """

    keeps_code: bool
    passed: Collection[str] = ()
    interfaces: dict[str, Interface] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    elfs: dict[str, Elf] = field(default_factory=dict)

    def look(self, _name: str, _loading: Loading, data: memoryview, sha256: str) -> None:
        """Learn from *data*; what cannot be read is refused where somebody asks for it."""
        if sha256 in self.passed:
            return
        with suppress(BinaryError):
            self.interfaces[sha256] = Interface.parse(data)
            if len(data) <= _MOST_HASHED:
                self.digests[sha256] = digest(data)
            if self.keeps_code and (elf := Elf.parse(data)).code_size <= _MOST_CODE:
                self.elfs[sha256] = elf


class LevelFile(Struct, frozen=True, eq=False):
    """What *build* has of a compiled file, at *path* there."""

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
        """The files of *other* alongside those of *base*: by path, without the hash, then by the name alone."""
        found: dict[str, str] = {path: path for path in other.pieces if path in base.pieces}
        for naming in (plain, short):
            taken = set(found.values())
            left = _only(naming, (path for path in other.pieces if path not in found))
            there = _only(naming, (path for path in base.pieces if path not in taken))
            found |= {path: there[name] for name, path in left.items() if name in there}
        return cls(
            found,
            {base_path: path for path, base_path in found.items()},
            tuple(path for path in other.pieces if path not in found),
        )


def short(name: str) -> str:
    """The file *name* of a library without hash, and without the rest of its version: ``libx.so.1``."""
    match = _SHORT.fullmatch(plain(name))
    return match["short"] if match else plain(name)


def _only(naming: Callable[[str], str], paths: Iterable[str]) -> dict[str, str]:
    """Those of *paths* that have a hash, by folder and the name that *naming* makes, without those that share one."""
    found: dict[str, list[str]] = {}
    for path in paths:
        if hashed(path):
            found.setdefault(posixpath.join(posixpath.dirname(path), naming(path)), []).append(path)
    return {name: several[0] for name, several in found.items() if len(several) == 1}


MOVED = "libvb_"
"""How the names begin of libraries to which stubs lead."""

_MACHINE = "x86_64"


class Judge(Struct, frozen=True):
    """What is looked at with disassembly; *allow* are names of functions, or paths, that may go above the level."""

    allow: Sequence[Pattern[str]] = ()
    executor: ProcessPool | None = None

    def fault(self, base: LevelFile, copy: LevelFile, *, taken: Container[Versioned] | None = None) -> str | None:
        """What is wrong with *copy*, which stands for *base* on newer processors.

        With *taken*, what the wheel's files take, it may lack what nobody would miss.
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
        """What is wrong with *copy*, which the baseline has not, and which every processor must be able to run."""
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
        found = (finding for _, findings in levels.verdicts() for finding in findings)
        return next((finding.what for finding in found if finding.severity is Severity.ERROR), None)


def _kind(base: LevelFile, copy: LevelFile) -> str | None:
    for one in (base, copy):
        outline = one.piece.loading.outline
        if outline.machine != _MACHINE:
            return f"code for {outline.machine}: glibc knows levels of x86-64 only"
        if one.piece.loading.is_program or outline.type != "ET_DYN":
            return "a program, or no shared library: differs between levels, and the loader chooses libraries only"
    return None


def _soname(base: LevelFile, copy: LevelFile) -> str | None:
    one, other = (each.piece.loading.outline.soname for each in (base, copy))
    # tools that bundle put the file's name there, hash and all
    is_bundled = hashed(base.piece.name) and hashed(copy.piece.name)
    if one == other or (one and other and is_bundled and short(one) == short(other)):
        return None
    return soname_fault(other and plain(other), one and plain(one), where="the baseline's")


def _modules(base: LevelFile, copy: LevelFile) -> str | None:
    one, other = (set(each.piece.loading.modules) for each in (base, copy))
    if one == other:
        return None
    names = ", ".join(sorted(one ^ other))
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
    """What of the symbols *lacking* in a copy of *base* somebody may take; *taken* are those that the wheel's files do.

    Nobody else knows a bundled library, whose name has a hash. A module that *is_needed* by no library is asked for
    PyInit_ by Python, for names of C by ctypes: those of C++ come and go with what is linked in of libstdc++.
    """
    if hashed(base.name) and not base.name.startswith(MOVED):
        return [one for one in lacking if one in taken]
    if base.loading.modules and not is_needed:
        return [one for one in lacking if not one.is_mangled]
    return list(lacking)


def pattern_fault(copy: LevelFile, place: str) -> str | None:
    """Who opens libraries by a pattern that finds the one at *place*, too: by its path, and so the baseline's."""
    for name, files in copy.build.bundle.mentions.items():
        for file in sorted(files) if is_pattern(name) else ():
            if matches_pattern(name, place, by=file):
                return f"{file} opens what {name} finds, by its path: no copy for a level would be chosen"
    return None


def platform_fault(copy: LevelFile, platforms: Sequence[PlatformPolicy], *, own: Callable[[str], bool]) -> str | None:
    """What *copy* takes that a system of *platforms* need not have; libraries that are the wheel's *own* aside."""
    promising = [platform for platform in platforms if platform.promises]
    loading = copy.piece.loading
    outside = {
        edge.name
        for edge in copy.build.bundle.graph.needs(copy.path)
        if edge.provider is None and edge.via is not Via.DRIVER
    }
    taken: list[tuple[str, str | None]] = [(name, None) for name in loading.outline.needed]
    taken += [(one.library, version) for one in loading.taken for version in one.versions]
    for library, version in taken:
        if library not in outside or own(library):
            continue
        for platform in promising:
            if not platform.has(library):
                return f"needs {library}, which {platform.tag} does not promise"
            if version and not platform.has_version(version):
                return f"needs {version} of {library}, which {platform.tag} does not promise"
    return None
