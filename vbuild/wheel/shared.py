"""Wheels that several readers open, one after the other or at once: the same for all, and inflated once.

SharedWheels.open(path) -> Wheel, whose members are kept from the first reading on
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Lock
from types import TracebackType
from typing import Self

from msgspec import Struct

from vbuild.hardware.cpu import available_cores
from vbuild.process.threads import in_threads
from vbuild.wheel.archive import Wheel, open_wheel
from vbuild.wheel.kept import KeptMembers

# wheels that nobody reads just now, and may read again: each takes a descriptor, and memory for its members
_IDLE, _IDLE_MEMBERS = 100, 100_000


class _Open(Struct, eq=False):
    """A wheel that is open, how many read it, and what closes it."""

    wheel: Wheel
    stack: ExitStack
    readers: int = 0


class SharedWheels:
    """The wheels of one run. *keeps* says whether several readers are expected, and *folder* where there is room."""

    def __init__(self, folder: Path | None = None, *, keeps: bool) -> None:
        self._kept = KeptMembers(folder) if keeps else None
        self._open: dict[Path, _Open] = {}
        self._sound: dict[Path, set[str]] = {}
        # open and read by nobody, by the number of their members, and the sum of these
        self._idle_paths: dict[Path, int] = {}
        self._idle = 0
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._open.values():
            one.stack.close()
        if self._kept:
            self._kept.close()

    @contextmanager
    def open(self, path: Path) -> Iterator[Wheel]:
        """The wheel at *path*, as `open_wheel` has it."""
        with self._lock:
            if path not in self._open:
                self._open[path] = self._opened(path)
            found = self._open[path]
            found.readers += 1
            self._idle -= self._idle_paths.pop(path, 0)
        try:
            yield found.wheel
        finally:
            with self._lock:
                found.readers -= 1
                if not found.readers:
                    self._leave(path, len(found.wheel.members))

    def check(self, paths: Iterable[Path], *, stop: Event | None = None) -> None:
        """`WheelError` naming a wheel of *paths*, and in it a member, that does not match its CRC-32 or RECORD.

        What somebody has read is not read again; nothing more is read once *stop* is set.
        """
        until = stop or Event()

        def check(path: Path) -> None:
            with self.open(path) as wheel:
                wheel.check(stop=until)

        in_threads(check, sorted(paths), size=lambda path: path.stat().st_size, threads=available_cores(), stop=until)

    def _opened(self, path: Path) -> _Open:
        with ExitStack() as stack:
            wheel = stack.enter_context(open_wheel(path, kept=self._kept, sound=self._sound.setdefault(path, set())))
            return _Open(wheel, stack.pop_all())

    def _leave(self, path: Path, members: int) -> None:
        """Keep the wheel at *path* open for the next reader; of too many, close what has waited longest."""
        self._idle_paths[path] = members
        self._idle += members
        while len(self._idle_paths) > _IDLE or self._idle > _IDLE_MEMBERS:
            oldest = next(iter(self._idle_paths))
            self._idle -= self._idle_paths.pop(oldest)
            self._open.pop(oldest).stack.close()
