"""What becomes of a project's own compiler flags that choose instructions, such as ``-mavx2`` and ``-march=native``.

Also which compiler compiles host code.
"""

import re
from enum import StrEnum
from typing import Self

from msgspec import Struct

from vbuild.config.table import Table
from vbuild.errors import RecipeError

# what `zig targets` lists: aarch64 came to glibc with 2.17, and x86-64 wheels have no tag for older ones either
OLDEST_GLIBC = (2, 17)
NEWEST_GLIBC = (2, 44)
_GLIBC = re.compile(r"(?P<major>2)\.(?P<minor>\d{1,2})", re.ASCII)


class OwnFlags(StrEnum):
    """The rule for all files that no other rule names.

    ``auto`` takes out the flags that steer the whole build, as the level does, and keeps those of single files,
    whose code the project chooses at run time; if the proof shows that it does not, these go, too.
    """

    AUTO = "auto"
    STRIP = "strip"
    KEEP = "keep"


class FlagRules(Struct, frozen=True):
    """The rule for the whole build, and globs of sources that *keep* or lose (*strip*) their own flags."""

    default: OwnFlags = OwnFlags.AUTO
    keep: tuple[str, ...] = ()
    strip: tuple[str, ...] = ()

    @classmethod
    def read(cls, table: Table) -> Self:
        return cls(
            OwnFlags(table.one_of("flags", tuple(OwnFlags))),
            keep=table.texts("keep-flags", ()),
            strip=table.texts("strip-flags", ()),
        )


class HostCompiler(StrEnum):
    """The system's compiler, zig from the package index, or zig if the system has none."""

    AUTO = "auto"
    SYSTEM = "system"
    ZIG = "zig"


class HostSettings(Struct, frozen=True):
    """Which compiler; *glibc* is the oldest that the wheels have to run on, which only zig can choose."""

    compiler: HostCompiler = HostCompiler.AUTO
    glibc: tuple[int, int] | None = None

    @classmethod
    def read(cls, build: Table) -> Self:
        """`RecipeError` for a glibc that the compiler of *build* cannot choose."""
        compiler = HostCompiler(build.one_of("host", HostCompiler))
        glibc = build.optional_parsed("glibc", _glibc)
        if glibc and compiler is not HostCompiler.ZIG:
            raise build.refuse("glibc", "can be chosen only with host = 'zig'")
        return cls(compiler, glibc)


def _glibc(text: str) -> tuple[int, int]:
    if match := _GLIBC.fullmatch(text):
        version = int(match["major"]), int(match["minor"])
        if OLDEST_GLIBC <= version <= NEWEST_GLIBC:
            return version
    first, last = (".".join(map(str, version)) for version in (OLDEST_GLIBC, NEWEST_GLIBC))
    raise RecipeError(f"{text!r} is not a glibc to build for; expected {first} to {last}")
