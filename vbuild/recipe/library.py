"""A library beside a CUDA toolkit, as recipes and ``vbuild toolkit install`` name it.

cublas                               of the toolkit's own version
nccl==2.28.9                         of this version
nccl==2.28.9 sha256:4b0d… sha256:…   one of these wheels: of each machine there may be one
"""

import re
from dataclasses import dataclass
from typing import Self

from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.errors import RecipeError

_LIBRARY = re.compile(
    r"""
    (?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)
    (?: \s* == \s* (?P<version>[^\s=]+) (?P<hashes>(?:\s+sha256:[0-9a-f]{64})*) )?
    """,
    re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Library:
    """A library by its normalized name, with the *version* and the *hashes* of wheels, 64 hex digits, where given."""

    name: str
    version: Version | None = None
    hashes: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Self:
        """The library that *text* names; `RecipeError` where it is none."""
        if not (match := _LIBRARY.fullmatch(text.strip())):
            raise RecipeError(
                f"{text!r} is no library of CUDA; expected as in cublas, nccl==2.28.9, or nccl==2.28.9 sha256:…"
            )
        hashes = frozenset(part.removeprefix("sha256:") for part in (match["hashes"] or "").split())
        return cls(str(canonicalize_name(match["name"])), _version(text, match["version"]), hashes)

    def __str__(self) -> str:
        return " ".join((self.release, *(f"sha256:{sha256}" for sha256 in sorted(self.hashes))))

    @property
    def release(self) -> str:
        """It without the hashes."""
        return self.name if self.version is None else f"{self.name}=={self.version}"


def _version(text: str, version: str | None) -> Version | None:
    if version is None:
        return None
    try:
        return Version(version)
    except ValueError as error:  # InvalidVersion, or Python's limit of digits in an integer
        raise RecipeError(f"{text!r}: {version!r} is not a version (PEP 440)") from error
