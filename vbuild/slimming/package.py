"""What slimming asks of a package: of a wheel, of a distribution that is installed."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from vbuild.wheel.metadata import RecordRow


class PackageFile(Protocol):
    """A file of a package: its path in it, and its size in bytes."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...


class Package(Protocol):
    """Files that can be read, each by the package that it was found in."""

    @property
    def members(self) -> Iterable[Any]: ...

    def read(self, member: Any) -> bytes: ...  # noqa: ANN401 - a file of its own


class OpenPackage(Package, Protocol):
    """A package that is open, to be cut: a file may also be mapped, and *row* has the hash that the package states."""

    @property
    def dist_info(self) -> str: ...

    def head(self, member: Any, size: int) -> bytes: ...  # noqa: ANN401 - a file of its own

    def mapped(
        self,
        member: Any,  # noqa: ANN401 - a file of its own
        *,
        folder: Path | None,
        to_edit: bool,
    ) -> AbstractContextManager[memoryview]: ...

    def row(self, member: Any) -> RecordRow: ...  # noqa: ANN401
