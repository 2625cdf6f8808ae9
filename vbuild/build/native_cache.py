"""Finished native dependencies in the user's cache.

    native/<name>-<key>/prefix/      what was installed
    native/<name>-<key>/entry.json   the SHA-256 of all that

Its hash is checked whenever an entry is used. Processes that need the same one at the same time build it once: the
others wait for its lock.
"""

import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from msgspec import Struct

from vbuild.build.environment import Prefix
from vbuild.errors import BuildError
from vbuild.files.cache import Cache, Part
from vbuild.files.hashing import sealed, unsealed

_ENTRY = "entry.json"


class NativeCache(Struct, frozen=True):
    """The entries below *root*; with *fresh*, those that are older than *since* are passed over and replaced."""

    root: Path
    since: float = 0.0

    @classmethod
    def of_user(cls, *, fresh: bool = False) -> Self:
        """The cache that all runs of this user share; if *fresh*, what it had before this run does not count."""
        return cls(Cache.of(Part.NATIVE).folder, time.time() if fresh else 0.0)

    def has(self, prefix: Prefix) -> bool:
        """Whether *prefix* is there, whole; it has been used then. One that is damaged is replaced by who builds it."""
        entry = prefix.folder.parent
        try:
            data = json.loads(unsealed((entry / _ENTRY).read_bytes()))
            if data["made"] < self.since or data["sha256"] != _digest(prefix.folder):
                return False
        except (OSError, ValueError, LookupError, TypeError):
            return False
        self._cache.mark(entry)
        return True

    def put(self, prefix: Prefix, tree: Path) -> None:
        """Keep a copy of *tree* as *prefix*, instead of what was there; `BuildError` if that cannot be."""
        try:
            with self._cache.replacing(prefix.folder.parent.name) as new:
                shutil.copytree(tree, new / prefix.folder.name, symlinks=True)
                entry = {"name": prefix.name, "made": time.time(), "sha256": _digest(new / prefix.folder.name)}
                (new / _ENTRY).write_text(sealed(json.dumps(entry)), encoding="utf-8")
        except (OSError, shutil.Error) as error:
            said = (error.strerror if isinstance(error, OSError) else None) or error
            raise BuildError(f"{self.root}: cannot be written to: {said}") from error

    @contextmanager
    def building(self, prefix: Prefix, *, check: Callable[[], None]) -> Iterator[None]:
        """Nobody else builds *prefix* in the block; who waits for that calls *check*, which may raise."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self._cache.locked(prefix.folder.parent.name, check=check))
            except OSError as error:
                raise BuildError(f"{self.root}: cannot be written to: {error.strerror}") from error
            yield

    @property
    def _cache(self) -> Cache:
        return Cache(Part.NATIVE, self.root)


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
