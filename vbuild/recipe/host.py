"""The compiler of host code as a recipe asks for it."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from vbuild.errors import RecipeError
from vbuild.table import Table

_GLIBC = re.compile(r"2\.(?P<minor>\d{1,2})", re.ASCII)
_GLIBC_MINORS = range(17, 41)  # from manylinux2014's on


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
    match = _GLIBC.fullmatch(text)
    if not match or int(match["minor"]) not in _GLIBC_MINORS:
        first, last = _GLIBC_MINORS[0], _GLIBC_MINORS[-1]
        raise RecipeError(f"{text!r} is no glibc to build for; expected 2.{first} to 2.{last}")
    return 2, int(match["minor"])
