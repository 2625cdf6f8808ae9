"""Read a wheel that is somewhere else: its directory, METADATA and RECORD, and what is asked for of the rest.

    the end of the file -> central directory -> METADATA, RECORD
    head(path, 65536)   -> the local header of that member and the start of its data, nothing else

It does not check that members are sound, nor that RECORD is right: callers compare the bytes they take with RECORD.
"""

from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from vbuild.errors import WheelError, at
from vbuild.wheel.archive import Members, parsed, whole
from vbuild.wheel.metadata import Metadata, Record, check_dist_info, dist_info_of
from vbuild.wheel.name import WheelName
from vbuild.wheel.zip_read import ZipReader

T = TypeVar("T")

# NVIDIA's METADATA has a licence in it, the RECORD of the largest wheels ten thousand lines
_LARGEST = 1 << 24


class Distant(Members):
    """The wheel called *name* in *file*; `WheelError` if its directory is not sound, or is not a wheel's."""

    def __init__(self, file: BinaryIO, name: WheelName) -> None:
        self.name = name
        with at(name):
            super().__init__(ZipReader(file, largest=_LARGEST))
            self._dist_info = dist_info_of(self._by_path)
            check_dist_info(self._dist_info, name)
            self.metadata = self._text("METADATA", Metadata.parse)
            self.record = self._text("RECORD", Record.parse)

    def head(self, path: str, size: int) -> bytes:
        """The first *size* bytes of the member at *path*, or all it has; `WheelError` if they cannot be inflated."""
        with at(self.name):
            member = self.known(path)
            wanted = min(size, member.size)
            head = self.source.head(member, wanted) if wanted else b""
            if len(head) < wanted:
                raise WheelError(f"{path}: damaged: its first {wanted} bytes cannot be inflated")
            return head

    def chunks(self, path: str) -> Iterator[bytes]:
        """What the member at *path* holds, in chunks of 1 MiB or less; `WheelError` unless size and CRC-32 agree."""
        with at(self.name):
            yield from self.source.inflated(self.known(path))

    def _text(self, file: str, parse: Callable[[str], T]) -> T:
        member = self.known(f"{self._dist_info}/{file}")
        return parsed(parse, whole(self.source, member, most=_LARGEST), member.path)
