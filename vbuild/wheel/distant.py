"""A wheel as it looks from outside: its directory, METADATA and RECORD, and what is asked for of the rest.

    the end of the file -> central directory -> METADATA, RECORD
    head(path, 65536)   -> the local header of that member and the start of its data, nothing else

For wheels that are somewhere else. That all members are sound, and that RECORD is right, nobody has looked at:
whoever takes bytes of a member holds them against RECORD.
"""

from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from vbuild.errors import WheelError, at
from vbuild.wheel.distinfo import Metadata, Record, check_dist_info, dist_info_of
from vbuild.wheel.name import WheelName
from vbuild.wheel.zipreader import Member, ZipReader

T = TypeVar("T")

# NVIDIA's METADATA has a licence in it, the RECORD of the largest wheels ten thousand lines
_LARGEST = 1 << 24


class Distant:
    """The wheel called *name* in *file*; `WheelError` where its directory is not sound, or is no wheel's."""

    def __init__(self, file: BinaryIO, name: WheelName) -> None:
        self.name = name
        with at(name):
            self._source = ZipReader(file, largest=_LARGEST)
            self._by_path = {member.path: member for member in self._source.members}
            self._dist_info = dist_info_of(self._by_path)
            check_dist_info(self._dist_info, name)
            self.metadata = self._parsed("METADATA", Metadata.parse)
            self.record = self._parsed("RECORD", Record.parse)

    @property
    def members(self) -> tuple[Member, ...]:
        return self._source.members

    def head(self, path: str, size: int) -> bytes:
        """The first *size* bytes of the member at *path*, or all it has; `WheelError` where they cannot be inflated."""
        with at(self.name):
            member = self._member(path)
            wanted = min(size, member.size)
            head = self._source.head(member, wanted) if wanted else b""
            if len(head) < wanted:
                raise WheelError(f"{path}: damaged: its first {wanted} bytes cannot be inflated")
            return head

    def chunks(self, path: str) -> Iterator[bytes]:
        """What the member at *path* holds, in chunks of 1 MiB or less; `WheelError` unless size and CRC-32 agree."""
        with at(self.name):
            yield from self._source.inflated(self._member(path))

    def _member(self, path: str) -> Member:
        if not (member := self._by_path.get(path)):
            raise WheelError(f"{path}: no such member")
        return member

    def _parsed(self, file: str, parse: Callable[[str], T]) -> T:
        member = self._member(f"{self._dist_info}/{file}")
        if member.size > _LARGEST:
            raise WheelError(f"{member.path}: {member.size} bytes, expected {_LARGEST} at most")
        data = b"".join(self._source.inflated(member))
        with at(member.path):
            try:
                return parse(data.decode())
            except UnicodeDecodeError as error:
                raise WheelError("not UTF-8") from error
