"""What becomes of a project's own compiler flags that choose instructions, such as ``-mavx2`` and ``-march=native``."""

from enum import StrEnum
from typing import Self

from msgspec import Struct

from vbuild.config.table import Table


class OwnFlags(StrEnum):
    """The rule for all files that no other rule names.

    ``auto`` takes out the flags that steer the whole build, as the level does, and keeps those of single files, whose
    code the project chooses at run time; where the proof shows that it does not, these go, too.
    """

    AUTO = "auto"
    STRIP = "strip"
    KEEP = "keep"


class FlagRules(Struct, frozen=True):
    """The rule for the whole build, and globs of the source files that *keep* or lose (*strip*) their own flags."""

    default: OwnFlags = OwnFlags.AUTO
    keep: tuple[str, ...] = ()
    strip: tuple[str, ...] = ()

    @classmethod
    def read(cls, table: Table) -> Self:
        """The keys ``flags``, ``keep-flags`` and ``strip-flags`` of *table*; `RecipeError` for values unknown."""
        return cls(
            OwnFlags(table.one_of("flags", tuple(OwnFlags))),
            keep=table.texts("keep-flags", ()),
            strip=table.texts("strip-flags", ()),
        )
