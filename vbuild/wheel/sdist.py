"""The sdist of a release: a gzipped tar archive with one folder at its top (PEP 625), read from its start to its end.

demo-1.0/PKG-INFO          as METADATA of a wheel (PEP 643)
demo-1.0/pyproject.toml
"""

import gzip
import os
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, cast

from packaging.utils import (
    InvalidName,
    InvalidSdistFilename,
    NormalizedName,
    canonicalize_name,
    parse_sdist_filename,
)
from packaging.version import Version

from vbuild.errors import WheelError
from vbuild.files.reading import BoundedInfo, bomb, most_unpacked, open_file
from vbuild.wheel.metadata import Metadata

SUFFIX = ".tar.gz"
PKG_INFO = "PKG-INFO"

LARGEST = 1 << 23
"""Bytes of PKG-INFO that are read, as many as of METADATA in a wheel."""

_PIECE = 1 << 16
_PLAIN = re.compile(r"[A-Za-z0-9._+!-]+")
_DAMAGE = (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError)


def release_of(filename: str) -> tuple[NormalizedName, Version]:
    """The project and the version in the *filename* of an sdist; `WheelError` if it is none."""
    try:
        name, version = parse_sdist_filename(filename)
        # the name becomes a path, and a part of pages
        canonicalize_name(name, validate=True)
    except (InvalidSdistFilename, InvalidName) as error:
        raise WheelError("not an sdist's file name: expected {name}-{version}.tar.gz (PEP 625)") from error
    if not _PLAIN.fullmatch(filename):
        raise WheelError(f"{filename!r}: expected letters, digits, and . _ - + ! alone")
    return name, version


def divided(paths: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """*paths* without sdists, and all sdists: those among *paths*, and those in folders among them."""
    sdists = tuple(path for path in paths if path.name.endswith(SUFFIX) and not path.is_dir())
    others = tuple(path for path in paths if path not in sdists)
    inside = (path for folder in others if folder.is_dir() for path in sorted(folder.glob(f"*{SUFFIX}")))
    return others, tuple(dict.fromkeys([*sdists, *inside]))


@contextmanager
def reading(sdist: Path | BinaryIO) -> Iterator[tarfile.TarFile]:
    """Open the archive *sdist*, whose members can be read once, in order.

    `WheelError` in the block if it is damaged, or unpacks to far more than source code does.
    """
    try:
        with ExitStack() as stack:
            file = stack.enter_context(open_file(sdist)) if isinstance(sdist, Path) else sdist
            # tarfile's own reader of gzip streams raises TypeError where one is cut short
            stream = stack.enter_context(_BoundedGzip(fileobj=file, mode="rb"))
            stream.most = most_unpacked(file.seek(0, os.SEEK_END))
            file.seek(0)
            yield stack.enter_context(tarfile.open(fileobj=stream, mode="r|", tarinfo=BoundedInfo))
    except _DAMAGE as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise WheelError(f"not a gzipped tar archive, or damaged: {reason}") from error


class _BoundedGzip(gzip.GzipFile):
    most: int

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if self.tell() > self.most:
            raise tarfile.ReadError(bomb(self.most))
        return data


def below_top(member: tarfile.TarInfo) -> str:
    return member.name.removeprefix("./").partition("/")[2]


def read_files(sdist: Path, *wanted: str) -> dict[str, bytes]:
    """Those of *wanted* that are there, at most `LARGEST` bytes each; `WheelError` for damage."""
    files: dict[str, bytes] = {}
    with reading(sdist) as archive:
        for member in archive:
            path = below_top(member)
            is_small = member.isreg() and member.size <= LARGEST
            if path in wanted and is_small and (file := archive.extractfile(member)):
                files[path] = file.read()
                if len(files) == len(wanted):
                    break
    return files


def sdist_metadata(sdist: Path) -> Metadata:
    """What PKG-INFO of *sdist* says; `WheelError` without one."""
    data = read_files(sdist, PKG_INFO).get(PKG_INFO)
    if data is None:
        raise WheelError(f"no sdist with a {PKG_INFO} in its top folder")
    return Metadata.parse(data.decode("utf-8", "replace"))


def write_changed(sdist: Path, target: Path, changed: Mapping[str, bytes]) -> None:
    """Write *sdist* to *target* with the *changed* files; order, times and modes stay. `WheelError` for damage."""
    with open_file(sdist) as file:
        seconds = int.from_bytes(file.read(8)[4:], "little")
    with (
        reading(sdist) as archive,
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=seconds) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as changed_archive,
    ):
        for member in archive:
            data = changed.get(below_top(member)) if member.isreg() else None
            if data is None:
                changed_archive.addfile(member, archive.extractfile(member) if member.isreg() else None)
            else:
                member.size = len(data)
                changed_archive.addfile(member, BytesIO(data))
        # a tar archive ends before gzip's checksum of it
        while cast("BinaryIO", archive.fileobj).read(_PIECE):
            pass
