"""The files of an image that slimming needs: what layers put on top of each other, as it is seen last.

layers, from the lowest -> ImageTree.add -> the files in one folder, each with the layer it comes from
"""

import os
import posixpath
import tarfile
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from vbuild.files.reading import open_file
from vbuild.publishing.oci.layers import OPAQUE, WHITEOUT, entry_path
from vbuild.slimming.device_files import is_alone, worth_reading
from vbuild.slimming.results import FileLeft

_LISTS = (".dist-info", "conda-meta")
_CHUNK = 1 << 20
# bytes of a file that is not an ELF one, in a folder of lists
_LARGEST = 1 << 24
_LINKED = "another name of it is in the image, a hard link; install with UV_LINK_MODE=copy, or without a cache"


class ImageTree:
    """The files of an image that say what is installed, or may have GPU code, below the folder *root*.

    *owners* are the layers that they come from, *first* the lowest that have something there, by path. If some are
    *wanted*, it is these alone. There are no links in it, so that nothing leads out: *links* are their paths.
    """

    def __init__(self, root: Path, wanted: Collection[str] | None = None) -> None:
        self._root, self._wanted = root, wanted
        self.owners: dict[str, int] = {}
        self.first: dict[str, int] = {}
        self.links: set[str] = set()
        # the files below each folder, however deep: a layer of ten thousands of files asks for each name
        self._below: dict[str, set[str]] = defaultdict(set)
        self._inodes: dict[str, int] = {}
        self._linked: set[str] = set()

    def add(self, archive: tarfile.TarFile, number: int) -> None:
        """Put on top what the layer *archive*, the one called *number*, has."""
        for entry in archive:
            path = entry_path(entry.name)
            folder, _, name = path.rpartition("/")
            if name == OPAQUE:
                self._remove(folder, below=number)
            elif name.startswith(WHITEOUT):
                gone = posixpath.join(folder, name.removeprefix(WHITEOUT))
                if gone:  # empty are names that lead nowhere, and the root
                    self._remove(gone, below=number)
                    self._forget(gone)
            elif entry.isdir():
                self._forget(path)
            else:
                if path:
                    self._remove(path, below=number + 1)
                self._forget(path)
                self.first.setdefault(path, number)
                self._linked.discard(path)
                self.links.discard(path)
                if entry.islnk() or entry.issym():
                    self.links.add(path)
                if entry.islnk():
                    self._linked |= {path, entry_path(entry.linkname)}
                elif entry.isreg() and path:
                    self._take(archive, entry, path, number)

    def settle(self) -> Iterator[FileLeft]:
        """Take out the files that have a second name, and yield those that might have been cut."""
        for path in sorted(self._linked):
            if path in self.owners:
                if not _is_listed(path):
                    yield FileLeft(path, _LINKED)
                self._forget(path)
        for folder, _, _ in os.walk(self._root, topdown=False):  # those all of whose files went
            with suppress(OSError):
                Path(folder).rmdir()
        self._root.mkdir(exist_ok=True)
        self._inodes = {path: (self._root / path).stat().st_ino for path in self.owners}

    def changed(self) -> list[str]:
        """The files that are others now than when the tree was settled, or gone."""
        places = ((self._root / path, path, inode) for path, inode in self._inodes.items())
        return [path for place, path, inode in places if not place.exists() or place.stat().st_ino != inode]

    def alone(self) -> Iterator[str]:
        """Yield the files that are nothing but GPU code."""
        for path in self.owners:
            with open_file(self._root / path) as file:
                size = os.fstat(file.fileno()).st_size
                if not _is_listed(path) and is_alone(path, size, partial(_head, file.fileno())):
                    yield path

    def _take(self, archive: tarfile.TarFile, entry: tarfile.TarInfo, path: str, number: int) -> None:
        if self._wanted is not None and path not in self._wanted:
            return
        is_listed = self._wanted is not None or (_is_listed(path) and entry.size <= _LARGEST)
        file = archive.extractfile(entry)
        head = file.read(_CHUNK) if file else b""
        if not file or not (is_listed or worth_reading(path, lambda size: head[:size])):
            return
        target = self._root / path
        folders = _folders(path)
        if not self.owners.keys().isdisjoint(folders):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as stream:
            while head:
                stream.write(head)
                head = file.read(_CHUNK)
        target.chmod(entry.mode & 0o777 | 0o400)
        os.utime(target, (entry.mtime, entry.mtime))
        self.owners[path] = number
        for folder in folders:
            self._below[folder].add(path)

    def _remove(self, folder: str, *, below: int) -> None:
        """Forget the files in *folder*, however deep, that come from layers *below* that one."""
        for path in [path for path in self._below.get(folder, ()) if self.owners[path] < below]:
            self._forget(path)

    def _forget(self, path: str) -> None:
        if self.owners.pop(path, None) is not None:
            (self._root / path).unlink()
            for folder in _folders(path):
                self._below[folder].discard(path)


def _head(file: int, size: int) -> bytes:
    return os.pread(file, size, 0)


def _folders(path: str) -> tuple[str, ...]:
    """The folders that the file at *path* is in, down from the root, which is empty."""
    parts = path.split("/")
    return tuple("/".join(parts[:depth]) for depth in range(len(parts)))


def _is_listed(path: str) -> bool:
    """Whether the file at *path* says what is installed."""
    return any(part.endswith(_LISTS) for part in path.split("/")[:-1])
