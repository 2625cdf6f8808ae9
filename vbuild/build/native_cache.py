"""Finished native dependencies, kept from run to run in the user's cache.

    native/<name>-<key>/prefix/      what was installed
    native/<name>-<key>/entry.json   the SHA-256 of all that
    native/<name>-<key>.lock         held by who builds it

An entry is complete or not there: it is made aside and renamed, and looked through before it is used. Processes that
need the same one at the same time build it once: the others wait for the lock.
"""

import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Self

from msgspec import Struct
from platformdirs import user_cache_path

from vbuild.build.environment import Prefix
from vbuild.errors import NativeError
from vbuild.files.hashing import sealed, unsealed

KEPT = 30 * 86400  # seconds that an entry stays without being used
LIMIT = 20 * 10**9  # bytes that all entries may take
_IN_USE = 86400  # seconds after which no build is at work any more that an entry was given to

_ENTRY = "entry.json"
_ASIDE = ".making-"
_TURN = 0.1  # seconds between two looks at a lock


class NativeCache(Struct, frozen=True):
    """The entries below *root*; with *fresh*, those that are older than *since* are passed over and replaced."""

    root: Path
    since: float = 0.0

    @classmethod
    def of_user(cls, *, fresh: bool = False) -> Self:
        """The shelf that all runs of this user share; where *fresh*, what it has had before now does not count."""
        return cls(user_cache_path("vbuild") / "native", time.time() if fresh else 0.0)

    def has(self, prefix: Prefix) -> bool:
        """Whether *prefix* is there, whole; it has been used then. One that is damaged is replaced by who builds it."""
        entry = prefix.folder.parent
        try:
            data = json.loads(unsealed((entry / _ENTRY).read_bytes()))
            if data["made"] < self.since or data["sha256"] != _digest(prefix.folder):
                return False
        except (OSError, ValueError, LookupError, TypeError):
            return False
        with suppress(OSError):  # it may be another user's
            os.utime(entry)
        return True

    def put(self, prefix: Prefix, tree: Path) -> None:
        """Keep a copy of *tree* as *prefix*, in the place of what was there; `NativeError` where that cannot be."""
        try:
            with self._aside() as folder:
                new = folder / "new"
                shutil.copytree(tree, new / prefix.folder.name, symlinks=True)
                entry = {"name": prefix.name, "made": time.time(), "sha256": _digest(new / prefix.folder.name)}
                (new / _ENTRY).write_text(sealed(json.dumps(entry)), encoding="utf-8")
                with suppress(FileNotFoundError):
                    prefix.folder.parent.rename(folder / "old")
                new.rename(prefix.folder.parent)
        except (OSError, shutil.Error) as error:
            said = (error.strerror if isinstance(error, OSError) else None) or error
            raise NativeError(f"{self.root}: cannot be written to: {said}") from error

    @contextmanager
    def building(self, prefix: Prefix, *, check: Callable[[], None]) -> Iterator[None]:
        """Nobody else builds *prefix* in the block; who waits for that calls *check*, which may raise."""
        lock = prefix.folder.parent.with_name(f"{prefix.folder.parent.name}.lock")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            file = lock.open("w")
        except OSError as error:
            raise NativeError(f"{self.root}: cannot be written to: {error.strerror}") from error
        with file:
            while _is_taken(file):
                check()
                time.sleep(_TURN)
            yield

    def sweep(self, *, kept: float = KEPT, limit: int = LIMIT) -> None:
        """Remove the entries not used for *kept* seconds, then those used longest ago, down to *limit* bytes.

        One that was used within a day stays: a build may be at work with it.
        """
        now, total = time.time(), 0
        with suppress(OSError):
            for left in (*self.root.glob(f"{_ASIDE}*"), *self.root.glob("*.lock")):
                if left.stat().st_mtime < now - max(kept, _IN_USE):
                    shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()
        for used, size, entry in sorted(self._entries(), reverse=True):
            total += size
            if used < now - kept or (total > limit and used < now - _IN_USE):
                self._remove(entry)

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """When each entry was used last, its size in bytes, and where it is."""
        for entry in self.root.glob("[!.]*/"):
            with suppress(OSError):
                size = sum(path.lstat().st_size for path in entry.rglob("*"))
                yield entry.stat().st_mtime, size, entry

    def _remove(self, entry: Path) -> None:
        """Take *entry* out at once, so that nobody finds half of it, and remove it."""
        with suppress(OSError), self._aside() as folder:
            entry.rename(folder / "old")

    @contextmanager
    def _aside(self) -> Iterator[Path]:
        self.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.root, prefix=_ASIDE, ignore_cleanup_errors=True) as folder:
            yield Path(folder)


def _is_taken(file: IO[str]) -> bool:
    """Whether another process has the lock on *file*; it is ours where not."""
    with suppress(OSError):  # some network file systems have no locks
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _digest(folder: Path) -> str:
    """The SHA-256 of all that is below *folder*: names, modes, links and contents."""
    total = hashlib.sha256()
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = Path(place, name)
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                content = os.fsencode(path.readlink())
            else:
                content = path.read_bytes() if stat.S_ISREG(mode) else b""
            head = b"%s\0%o\0%d\0" % (os.fsencode(path.relative_to(folder)), mode, len(content))
            total.update(head)
            total.update(content)
    return total.hexdigest()
