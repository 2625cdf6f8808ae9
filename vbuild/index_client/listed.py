"""A file of a project, as a package index lists it and as somebody wants it; `packages` asks the indexes for them."""

from dataclasses import dataclass, field

from msgspec import Struct
from packaging.version import Version


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a project on an index, with the SHA-256 that the index states, or None.

    *url* is where the bytes are. It says nothing about what the file is, so files with different ones may be equal.
    """

    file: str
    version: Version
    sha256: str | None = None
    is_yanked: bool = False
    url: str = field(default="", compare=False, repr=False)

    @property
    def is_wheel(self) -> bool:
        return self.file.endswith(".whl")


class Wanted(Struct, frozen=True):
    """A file of a release, pinned by SHA-256: the wheel *file*, or any sdist if that is None."""

    project: str
    version: Version
    sha256: str
    file: str | None = None

    def __str__(self) -> str:
        return f"{self.project}=={self.version}"
