"""The installed files that may have GPU code: which there are, who owns each, and why some have to stay as they are.

    environment -> InstalledFiles.found: regular files in it, each once, whatever its names
                -> InstalledFiles.outside: those that links lead out to, by distribution

Nothing is read of a file here but its first bytes.
"""

import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from vbuild.files.reading import open_file
from vbuild.gpu_code.device_file import is_named
from vbuild.slimming.plan import worth_reading
from vbuild.slimming.results import FileLeft
from vbuild.wheel.installed import InstalledDistribution
from vbuild.wheel.metadata import RecordRow

# a line of /proc/PID/maps: addresses, permissions, offset, device, inode, path
_MAPPED = re.compile(r"(?:\S+\s+){4}(?P<inode>\d+)\s+(?P<path>/.*)\n?")


class Owner(Struct, frozen=True):
    """A distribution, and what its listing says of a file."""

    distribution: InstalledDistribution
    row: RecordRow


class InstalledFile(Struct, frozen=True):
    """A regular file of an environment: its *paths*, if several are names of it, from the root, and who owns it."""

    paths: tuple[str, ...]
    status: os.stat_result
    owners: tuple[Owner, ...]
    why_left: str | None = None

    @property
    def path(self) -> str:
        return self.paths[0]


class InstalledFiles:
    """The files of *distributions* below *root* that may have GPU code, in *found*.

    *sizes* are the bytes of each distribution, by its listing, and *outside* the files of each that lie elsewhere.
    """

    def __init__(self, root: Path, distributions: Iterable[InstalledDistribution]) -> None:
        self._root = root
        self._inside: dict[str, bool] = {}
        self.sizes: Counter[str] = Counter()
        self.outside: dict[str, list[FileLeft]] = {}
        self.found = tuple(self._found(distributions))

    def _found(self, distributions: Iterable[InstalledDistribution]) -> Iterator[InstalledFile]:
        """Yield the files that may have GPU code, each once, those of one distribution next to each other."""
        by_path: dict[str, list[Owner]] = {}
        for one in distributions:
            for row in one.rows:
                by_path.setdefault(str(one.place(row.path)), []).append(Owner(one, row))
        names: dict[tuple[int, int], list[tuple[str, os.stat_result, list[Owner]]]] = {}
        for path, owners in by_path.items():
            with suppress(OSError):  # what is listed and not there is of no concern
                status = os.lstat(path)
                key = str(owners[0].distribution.listing)
                if stat.S_ISLNK(status.st_mode):
                    self._look_at_link(path, key)
                elif stat.S_ISREG(status.st_mode) and self._is_inside(path):
                    names.setdefault((status.st_dev, status.st_ino), []).append((path, status, owners))
                elif stat.S_ISREG(status.st_mode):
                    self._look_outside(path, key, "lies outside of the environment")
        running = _running(path for found in names.values() for path, _, _ in found)
        for found in names.values():
            path, status, owners = found[0]
            self.sizes[str(owners[0].distribution.listing)] += status.st_size
            if _is_worth_reading(path):
                everyone = tuple(owner for _, _, several in found for owner in several)
                paths = tuple(_from(self._root, os.path.realpath(each)) for each, _, _ in found)
                yield InstalledFile(paths, status, everyone, _why_left(path, status, running))

    def _is_inside(self, path: str) -> bool:
        """Whether no link on the way to *path* leads out of the environment."""
        folder = path.rpartition(os.sep)[0]
        if folder not in self._inside:
            self._inside[folder] = Path(os.path.realpath(folder)).is_relative_to(self._root)
        return self._inside[folder]

    def _look_at_link(self, path: str, key: str) -> None:
        target = os.path.realpath(path)
        if not Path(target).is_relative_to(self._root):
            self._look_outside(path, key, f"a link to {target}, outside of the environment")

    def _look_outside(self, path: str, key: str, why: str) -> None:
        if _is_worth_reading(path):
            self.outside.setdefault(key, []).append(FileLeft(_from(self._root, path), why))


def _why_left(path: str, status: os.stat_result, running: Mapping[tuple[str, int], str]) -> str | None:
    """Why the file at *path* has to stay as it is, whatever is in it; None if nothing speaks for that."""
    if process := running.get((path, 0)) or running.get((path.rpartition(os.sep)[2], status.st_ino)):
        return f"in use by {process}; end it first"
    if not status.st_mode & stat.S_IWUSR:
        return "read-only; chmod u+w makes it writable"
    if hasattr(os, "geteuid") and os.geteuid() not in {0, status.st_uid}:
        return f"belongs to another user, {status.st_uid}"
    if not os.access(path.rpartition(os.sep)[0], os.W_OK | os.X_OK):
        return "its folder cannot be written to"
    return None


def _from(root: Path, path: str) -> str:
    """Where *path* is from *root*, as RECORD has it: with slashes."""
    return Path(os.path.relpath(path, root)).as_posix()


def _is_worth_reading(path: str) -> bool:
    if is_named(path):
        return True
    try:
        with open_file(path) as file:
            return worth_reading(path, lambda size: _head(file, size))
    except OSError:
        return True  # who reads all of it says why that cannot be


def _head(file: BinaryIO, size: int) -> bytes:
    file.seek(0)
    return file.read(size)


def _running(paths: Iterable[str]) -> dict[tuple[str, int], str]:
    """Who has files mapped: by path and 0, or by name and inode for processes that see other paths.

    A process that has the file by another name, as in the environment that uv has linked it into, too, keeps that.
    """
    wanted = {path.rpartition(os.sep)[2] for path in paths}
    found: dict[tuple[str, int], str] = {}
    if sys.platform != "linux":  # Windows replaces no file that is mapped: it is named then
        return found
    here = _seen(Path("/proc/self"))
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        # processes of others, and those that have ended meanwhile
        with suppress(OSError), (process / "maps").open() as lines:
            rows = {match.group("path", "inode") for line in lines if (match := _MAPPED.fullmatch(line))}
            for path, inode in rows:
                if (name := path.rpartition("/")[2]) in wanted:
                    who = f"process {process.name} ({(process / 'comm').read_text().strip()})"
                    found[path, 0] = who
                    if _seen(process) != here:
                        found[name, int(inode)] = who
    return found


def _seen(process: Path) -> tuple[str, str]:
    """Where the paths of *process* begin: its root in its own view of what is mounted."""
    return str((process / "root").readlink()), str((process / "ns/mnt").readlink())
