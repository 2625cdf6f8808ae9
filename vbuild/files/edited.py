"""A file to be written, as ranges of an existing one and new bytes between them; and many of them in one file.

edited = EditedFile.of(source, [range(0, 64), b"patched", range(128, 4096)])
edited.buffers()  -> the pieces in order, none of them copied
Spool             thousands of edited files, one after the other: one descriptor, and no memory
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Self

from msgspec import Struct

from vbuild.errors import RepackageError
from vbuild.files.records import Buffer

Part = range | bytes


class EditedFile(Struct, frozen=True, eq=False):
    """The bytes of *parts*; a range is one of *source*."""

    source: memoryview
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, source: Buffer, parts: Iterable[Part]) -> Self:
        """Without empty parts, and with neighbours joined."""
        return cls(memoryview(source), tuple(_joined(part for part in parts if len(part))))

    @classmethod
    def whole(cls, source: Buffer) -> Self:
        return cls.of(source, [range(len(source))])

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))

    @property
    def is_unchanged(self) -> bool:
        """Whether it is all of its source."""
        return self.parts == (range(len(self.source)),) or (not self.parts and not len(self.source))

    def buffers(self) -> Iterator[memoryview]:
        for part in self.parts:
            yield self.source[part.start : part.stop] if isinstance(part, range) else memoryview(part)

    def read(self, start: int, stop: int) -> bytes:
        offset, pieces = 0, []
        for buffer in self.buffers():
            pieces.append(buffer[max(start - offset, 0) : max(stop - offset, 0)])
            offset += len(buffer)
        return b"".join(pieces)

    def __bytes__(self) -> bytes:
        return b"".join(self.buffers())


def _joined(parts: Iterable[Part]) -> Iterator[Part]:
    last: Part | None = None
    for part in parts:
        if isinstance(last, range) and isinstance(part, range) and last.stop == part.start:
            last = range(last.start, part.stop)
        elif isinstance(last, bytes) and isinstance(part, bytes):
            last += part
        else:
            if last is not None:
                yield last
            last = part
    if last is not None:
        yield last


@dataclass(slots=True, eq=False)
class Spool:
    """An unnamed file in *folder*, while *stack* is open or there are views of it."""

    stack: ExitStack
    folder: Path | None
    _file: IO[bytes] | None = None
    _end: int = 0
    _mapped: memoryview = field(default_factory=lambda: memoryview(b""))

    def put(self, data: memoryview) -> range:
        """Append *data*; `RepackageError` if there is no room for it."""
        with _as_repackage_error():
            if not self._file:
                # unbuffered: else closing would try again to write what could not be written
                file = TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115 - closed with the stack
                self._file = self.stack.enter_context(file)
            written = 0
            while written < len(data):
                written += self._file.write(data[written:])
        place = range(self._end, self._end + written)
        self._end = place.stop
        return place

    def view(self, place: range) -> memoryview:
        """What was put at *place*; all that was put before the first view is mapped at once."""
        if self._file and place.stop > len(self._mapped):
            with _as_repackage_error():
                self._mapped = memoryview(mmap(self._file.fileno(), 0, access=ACCESS_READ))
        return self._mapped[place.start : place.stop]


@contextmanager
def _as_repackage_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RepackageError(f"cannot be kept until it is written: {error.strerror}") from error
