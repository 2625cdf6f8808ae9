"""The compiler of host code as a recipe asks for it."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from vbuild.errors import RecipeError
from vbuild.table import Table

# what `zig targets` lists: aarch64 came to glibc with 2.17, and x86-64 wheels have no tag for older ones either
OLDEST_GLIBC = (2, 17)
NEWEST_GLIBC = (2, 44)

_GLIBC = re.compile(r"(?P<major>2)\.(?P<minor>\d{1,2})", re.ASCII)


class HostCompiler(StrEnum):
    """The system's compiler, zig from the package index, or zig where the system has none."""

    AUTO = "auto"
    SYSTEM = "system"
    ZIG = "zig"


@dataclass(frozen=True, slots=True)
class Host:
    """Which compiler; *glibc* is the oldest that the wheels have to run on, which only zig can choose."""

    compiler: HostCompiler = HostCompiler.AUTO
    glibc: tuple[int, int] | None = None

    @classmethod
    def read(cls, build: Table) -> Self:
        """The compiler that a ``[build]`` table asks for; `RecipeError` for a glibc that it cannot choose."""
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
    raise RecipeError(f"{text!r} is no glibc to build for; expected {first} to {last}")
