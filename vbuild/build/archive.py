"""Unpack a source archive, ``.tar.gz`` or ``.zip``, without ever writing outside its one top folder (PEP 625, PEP 721).

    member -> checked path below the top folder -> file, mode 0o644 or 0o755, its own time | folder | link, made last

``tarfile``'s own filter does not exist in every Python 3.11, so the rules are here, and the same for both kinds.
"""

import calendar
import lzma
import os
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from vbuild.errors import BuildError, at
from vbuild.tarred import BoundedInfo

_LATEST = 1 << 33

# what the standard library raises for archives that are damaged, encrypted or of a kind it does not know
_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
    OverflowError,
    LookupError,
    struct.error,
)


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    kind: int
    mode: int
    time: int
    link: str
    opened: Callable[[], IO[bytes] | None]


def unpack(archive: Path, folder: Path) -> Path:
    """The top folder of *archive*, unpacked into *folder*; `BuildError` where it is damaged or reaches outside."""
    try:
        with _members(archive) as members:
            return _written(members, folder)
    except _DAMAGE as error:
        raise BuildError(f"cannot be unpacked: {error}") from error


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[_Member]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            yield (_of_zip(opened, info) for info in opened.infolist())
    else:
        with tarfile.open(archive, tarinfo=BoundedInfo) as tar:
            yield (_of_tar(tar, info) for info in tar)


def _of_zip(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    mode = info.external_attr >> 16
    # zipfile's own is_dir() takes every name for one that is not empty
    kind = stat.S_IFDIR if info.filename.endswith("/") else stat.S_IFMT(mode) or stat.S_IFREG
    link = archive.read(info).decode() if kind == stat.S_IFLNK else ""
    return _Member(info.filename, kind, mode, calendar.timegm(info.date_time), link, lambda: archive.open(info))


def _of_tar(archive: tarfile.TarFile, info: tarfile.TarInfo) -> _Member:
    kinds = {tarfile.DIRTYPE: stat.S_IFDIR, tarfile.SYMTYPE: stat.S_IFLNK}
    # a hard link is written as a second file
    known = stat.S_IFREG if info.isreg() or info.islnk() else 0
    kind = kinds.get(info.type, known)
    return _Member(info.name, kind, info.mode, int(info.mtime), info.linkname, lambda: archive.extractfile(info))


def _written(members: Iterator[_Member], folder: Path) -> Path:
    top: Path | None = None
    links: list[tuple[Path, str]] = []
    for member in members:
        with at(member.name):
            path = folder / _checked(member.name)
            if path == folder:
                continue
            mine = folder / path.relative_to(folder).parts[0]
            top = top or mine
            if mine != top:
                raise BuildError(f"found beside {top.name}; expected one top folder with everything in it")
            if member.kind == stat.S_IFLNK:
                links.append((path, member.link))
            else:
                _write(member, path)
    if top is None or not top.is_dir():
        raise BuildError("found no top folder; expected one with everything in it")
    _link(links, top)
    return top


def _checked(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise BuildError("reaches outside the archive; expected a relative path without ..")
    return path


def _write(member: _Member, path: Path) -> None:
    if member.kind == stat.S_IFDIR:
        path.mkdir(parents=True, exist_ok=True)
        return
    source = member.opened() if member.kind == stat.S_IFREG else None
    if source is None:
        raise BuildError("is neither a file, a folder nor a link")
    path.parent.mkdir(parents=True, exist_ok=True)
    with source, path.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    path.chmod(0o755 if member.mode & stat.S_IXUSR else 0o644)
    # make and autotools compare the times of what they are given
    time = min(max(member.time, 0), _LATEST)
    os.utime(path, (time, time))


def _link(links: list[tuple[Path, str]], top: Path) -> None:
    """Make the symbolic *links*; after all files, so that none was written through one, and so that all are there."""
    for path, target in links:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    inside = top.resolve()
    for path, target in links:
        with at(path.relative_to(top.parent)):
            if not path.resolve().is_relative_to(inside):
                raise BuildError(f"links outside the archive, to {target!r}")
