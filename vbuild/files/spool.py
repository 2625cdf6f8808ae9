"""Edited files one behind the other in one file: thousands of them take one descriptor, and no memory."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from vbuild.errors import RepackageError


@dataclass(slots=True, eq=False)
class Spool:
    """An unnamed file in *folder* that is there until *stack* closes, and as long as there are views of it."""

    stack: ExitStack
    folder: Path | None
    _file: IO[bytes] | None = None
    _end: int = 0
    _mapped: memoryview = field(default_factory=lambda: memoryview(b""))

    def put(self, data: memoryview) -> range:
        """Append *data*, and say where it is; `RepackageError` where there is no room for it."""
        with _keeping():
            if not self._file:
                # unbuffered: what could not be written would be tried once more when the file is closed
                file = TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115 - closed with the stack
                self._file = self.stack.enter_context(file)
            written = 0
            while written < len(data):
                written += self._file.write(data[written:])
        place = range(self._end, self._end + written)
        self._end = place.stop
        return place

    def view(self, place: range) -> memoryview:
        """What was put at *place*, read-only; all that was put before the first view is mapped as one."""
        if self._file and place.stop > len(self._mapped):
            with _keeping():
                self._mapped = memoryview(mmap(self._file.fileno(), 0, access=ACCESS_READ))
        return self._mapped[place.start : place.stop]


@contextmanager
def _keeping() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RepackageError(f"cannot be kept until it is written: {error.strerror}") from error
