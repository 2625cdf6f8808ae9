"""One of the wheels that are joined, open: its compiled files, each read once, and which of another's they are.

demo.libs/libx-1a2b3c4d.so.1   demo.libs/libx-5e6f7a8b.so.1   the same library of two builds: the hash is its bytes'
demo.libs/libx-1a2b3c4d.so.1.2 demo.libs/libx-5e6f7a8b.so.1.3 the same, where no other is called libx.so.1
"""

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from vbuild.binary.elf import Elf
from vbuild.binary.interface import Interface
from vbuild.binary.loading import Loading
from vbuild.errors import BinaryError, LayoutError, at
from vbuild.hardware.cpu import Cpu
from vbuild.layout.offer import Offered
from vbuild.linkage.hwcaps import GLIBC_HWCAPS
from vbuild.linkage.names import hashed, plain
from vbuild.splitting.bundle import Bundle, Piece, Reader
from vbuild.wheel.archive import Wheel
from vbuild.wheel.distinfo import sha256_said
from vbuild.wheel.zipreader import Member

BASELINE = Cpu("x86_64", "v1")

# bytes: of a larger library the code is read again
_MOST_CODE = 1 << 25
# a library's name without the rest of its version: libx.so.1
_SHORT = re.compile(r"(?P<short>.+?\.so(?:\.\d+)?)(?:\.\d+)*")


@dataclass(frozen=True, slots=True, eq=False)
class Build:
    """The wheel *offered*, built for *cpu*; one that *is_added* was built elsewhere, and gives what fits."""

    cpu: Cpu
    offered: Offered
    bundle: Bundle
    is_added: bool = False
    _seen: "_Seen" = field(default_factory=lambda: _Seen(keeps_code=False))

    @classmethod
    def of(
        cls, cpu: Cpu, offered: Offered, wheel: Wheel, *, is_added: bool = False, same: Collection[str | None] = ()
    ) -> Self:
        """The build whose file *wheel* is open; `LayoutError` where somebody has joined levels in it already.

        Files whose hashes in RECORD are among *same* are not looked into: all wheels of the join have them.
        """
        seen = _Seen(keeps_code=not cpu.is_baseline, passed=frozenset(filter(None, map(sha256_said, same))))
        bundle = Reader(seen.look).read(wheel)
        build = cls(cpu, offered, bundle, is_added, seen)
        if there := next((path for path in bundle.pieces if f"{GLIBC_HWCAPS}/" in path), None):
            raise LayoutError(f"{build}: {there}: copies for levels are in it already; expected a wheel of one")
        return build

    def __str__(self) -> str:
        name = self.offered.path.name
        # what was built elsewhere may have the very name of the plain wheel, or of another level's
        return f"{name} for {self.level}" if self.is_added else name

    @property
    def level(self) -> str:
        return self.cpu.level

    @property
    def pieces(self) -> Mapping[str, Piece]:
        """Its compiled files by installed path."""
        return self.bundle.pieces

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

    def elf(self, path: str) -> Elf:
        """The code of the compiled file at *path*, which is kept no longer."""
        if found := self._seen.elfs.pop(self.pieces[path].sha256, None):
            return found
        with self.bundle.wheel.mapped(self.member(path)) as data, at(self), at(path):
            return Elf.parse(data)

    def namers(self, path: str) -> tuple[str, ...]:
        """The files of code and texts in which the library at *path* is named: these may open it by its path."""
        piece = self.pieces[path]
        files = (file for file, opened in self.bundle.opened.items() if piece in opened)
        return tuple(sorted(file for file in files if file not in self.pieces and file not in self.bundle.elsewhere))

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


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """What is known of compiled files by SHA-256, those *passed* left out: learnt while they are inflated once.

    Code is kept where it *keeps_code*: what is above the baseline is disassembled later.
    """

    keeps_code: bool
    passed: Collection[str] = ()
    interfaces: dict[str, Interface] = field(default_factory=dict)
    elfs: dict[str, Elf] = field(default_factory=dict)

    def look(self, _name: str, _loading: Loading, data: memoryview, sha256: str) -> None:
        """Learn from *data*; what cannot be read is refused where somebody asks for it."""
        if sha256 in self.passed:
            return
        with suppress(BinaryError):
            self.interfaces[sha256] = Interface.parse(data)
            if self.keeps_code and (elf := Elf.parse(data)).code_size <= _MOST_CODE:
                self.elfs[sha256] = elf


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """What *build* has of a compiled file, at *path* there."""

    build: Build
    path: str

    def __str__(self) -> str:
        return f"{self.build}: {self.path}"

    @property
    def piece(self) -> Piece:
        return self.build.pieces[self.path]

    @property
    def interface(self) -> Interface:
        return self.build.interface(self.path)

    def is_same(self, other: Self) -> bool:
        """Whether both are one code, whatever the libraries that they need are called."""
        if self.piece.sha256 == other.piece.sha256:
            return True
        names = [_plain_names(copy.piece) for copy in (self, other)]
        return names[0] == names[1] and self.interface.digest == other.interface.digest


@dataclass(frozen=True, slots=True)
class Matching:
    """Which file of the baseline each of another build is, by installed path; *alone* are those that are none."""

    to_base: Mapping[str, str]
    from_base: Mapping[str, str]
    alone: tuple[str, ...]

    @classmethod
    def of(cls, base: Build, other: Build) -> Self:
        """The files of *other* beside those of *base*: by path, without the hash, then by the name alone."""
        found: dict[str, str] = {path: path for path in other.pieces if path in base.pieces}
        for key in (_without_hash, _short):
            taken = set(found.values())
            left = _only(key, (path for path in other.pieces if path not in found))
            there = _only(key, (path for path in base.pieces if path not in taken))
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


def _plain_names(piece: Piece) -> tuple[str | None, ...]:
    outline = piece.loading.outline
    return (outline.soname and plain(outline.soname), *map(plain, outline.needed))


def _without_hash(path: str) -> str | None:
    """Where the library at *path* is, without its hash; None for one that has none."""
    return posixpath.join(posixpath.dirname(path), plain(path)) if hashed(path) else None


def _short(path: str) -> str | None:
    return posixpath.join(posixpath.dirname(path), short(path)) if hashed(path) else None


def _only(key: Callable[[str], str | None], paths: Iterator[str] | Collection[str]) -> dict[str, str]:
    """The *paths* by *key*, those left out that share one."""
    found: dict[str, list[str]] = {}
    for path in paths:
        if name := key(path):
            found.setdefault(name, []).append(path)
    return {name: several[0] for name, several in found.items() if len(several) == 1}
