"""What members hold, kept for as long as several readers may come to it: it is inflated and compared once.

Large members lie in an unnamed file each, small ones in memory. Once there is no more room, what comes later is not
kept, and inflated for each reader.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import gettempdir
from threading import Lock

from vbuild.process.threads import OncePerKey
from vbuild.wheel.unpacking import mapped

# bytes on the disk at most, of the quarter that is free; bytes in memory, of members up to that size
_MOST, _FREE = 1 << 34, 4
_MOST_IN_MEMORY, _SMALL = 1 << 26, 1 << 20

_Key = tuple[Path, str]


class KeptMembers:
    """What members hold, by wheel and path, in *folder* or in memory, until it is closed."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._views = OncePerKey[_Key, memoryview | None]()
        self._lock = Lock()
        # systems that do not say how much is free have no such function
        free = shutil.disk_usage(folder or gettempdir()).free if hasattr(shutil, "disk_usage") else _MOST
        self._room = min(free // _FREE, _MOST)
        self._room_in_memory = _MOST_IN_MEMORY

    def view(self, key: _Key, size: int, chunks: Callable[[], Iterator[bytes]]) -> memoryview | None:
        """What *key* stands for, its *size* bytes taken from *chunks* the first time; None if there is no room."""
        return self._views.get(key, lambda: self._kept(size, chunks) if self._has_room(size) else None)

    def close(self) -> None:
        self._stack.close()

    def _has_room(self, size: int) -> bool:
        with self._lock:
            if size <= _SMALL:
                self._room_in_memory -= size
                return self._room_in_memory >= 0
            self._room -= size
            return self._room >= 0

    def _kept(self, size: int, chunks: Callable[[], Iterator[bytes]]) -> memoryview:
        if size <= _SMALL:
            return memoryview(b"".join(chunks()))
        with ExitStack() as stack:
            view = stack.enter_context(mapped(chunks(), folder=self._folder))
            with self._lock:
                self._stack.push(stack.pop_all())
        return view
