"""Libraries that a wheel has in several copies, one for each CPU level that glibc has a folder for.

a.libs/libx.so                          v1, every processor
a.libs/glibc-hwcaps/x86-64-v3/libx.so   v3
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from vbuild.elf.hwcaps_folders import baseline_of, level_of
from vbuild.elf.read import Outline
from vbuild.hardware.cpu import X86_64_LEVELS


class LevelCopy(Struct, frozen=True):
    """The copy of a library for processors of *level*; sizes in bytes."""

    level: str
    path: str
    size: int
    packed_size: int

    def data(self) -> dict[str, Any]:
        return {"level": self.level, "path": self.path, "bytes": self.size, "packed_bytes": self.packed_size}


class Copies(Struct, frozen=True):
    """The library that every processor may load at *path*, and its *copies*, its own first, by level."""

    path: str
    copies: tuple[LevelCopy, ...]

    def at(self, level: str) -> LevelCopy | None:
        """The copy for *level*; None if processors of it load a lower one's."""
        return next((copy for copy in self.copies if copy.level == level), None)

    def data(self) -> dict[str, Any]:
        return {"path": self.path, "copies": [copy.data() for copy in self.copies]}


class LevelSize(Struct, frozen=True):
    """What the copies for one level take together, in bytes."""

    level: str
    files: int
    size: int
    packed_size: int

    def data(self) -> dict[str, Any]:
        return {"level": self.level, "files": self.files, "bytes": self.size, "packed_bytes": self.packed_size}


def copies_of(libraries: Iterable[tuple[str, int, int]]) -> tuple[Copies, ...]:
    """Those of *libraries*, each a path and its installed and packed bytes, with copies for levels; by path."""
    sizes = {path: (size, packed) for path, size, packed in libraries}
    bases = sorted({baseline_of(path) for path in sizes if level_of(path)})
    found: dict[str, list[LevelCopy]] = {base: [] for base in bases}
    for path, (size, packed) in sizes.items():
        if (base := baseline_of(path)) in found:
            found[base].append(LevelCopy(level_of(path) or X86_64_LEVELS[0], path, size, packed))
    return tuple(Copies(base, tuple(sorted(several, key=lambda one: one.level))) for base, several in found.items())


def moved(outlines: Iterable[Outline]) -> frozenset[str]:
    """The names of the libraries that stubs among *outlines* lead to, which have no code and need one library."""
    stubs = (one for one in outlines if one.sections and all(section.name != ".text" for section in one.sections))
    return frozenset(stub.needed[0] for stub in stubs if len(stub.needed) == 1)


def level_sizes(copies: Iterable[Copies]) -> tuple[LevelSize, ...]:
    """What each level takes of *copies*, the baseline first."""
    every = [copy for several in copies for copy in several.copies]
    found = []
    for level in sorted({copy.level for copy in every}):
        mine = [copy for copy in every if copy.level == level]
        total, packed = sum(copy.size for copy in mine), sum(copy.packed_size for copy in mine)
        found.append(LevelSize(level, len(mine), total, packed))
    return tuple(found)
