"""Conda packages of format 2: what a package's ``info/index.json`` contains, and how to read a package.

    {name}-{version}-{build}.conda in the folder linux-64, linux-aarch64 or noarch
    noarch: python     files in site-packages/, put where the Python of the environment has it
    noarch: generic    no files for a machine or a Python

open_package(path) -> OpenCondaPackage -> .index(), .information(), .entries()
A channel's ``repodata.json`` repeats ``info/index.json`` of its packages.
https://docs.conda.io/projects/conda-build/en/stable/resources/package-spec.html
"""

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

import zstandard
from msgspec import Struct

from vbuild.errors import RepackageError, at
from vbuild.files.archives import BoundedInfo
from vbuild.files.json_text import json_object
from vbuild.files.records import Buffer
from vbuild.hardware.conda import MACHINES
from vbuild.publishing.installing import InstallEnvironment
from vbuild.wheel.zip_read import Member, ZipReader
from vbuild.wheel.zip_write import open_stored

_METADATA = "metadata.json"
# bytes of what describes a package: paths.json of a hundred thousand files; and of the window of its archives' frames
_LARGEST = 1 << 25
_WINDOW = 1 << 27
_READ = 1 << 20


class OpenCondaPackage(Struct, frozen=True):
    """A package open for reading as *source*: *files* is the archive of its files, *described* the other one."""

    source: ZipReader
    files: Member
    described: Member

    def information(self) -> dict[str, bytes]:
        """The members of the describing archive, by path; `RepackageError` if it is damaged, or unheard-of large."""
        found: dict[str, bytes] = {}
        left = _LARGEST
        with self._opened(self.described) as archive:
            for entry in archive:
                if entry.isfile():
                    if (left := left - entry.size) < 0:
                        raise RepackageError(f"{entry.name}: more than {_LARGEST} bytes to describe a package")
                    found[entry.name] = b"".join(_chunks(archive, entry))
        return found

    def index(self) -> dict[str, Any]:
        """``info/index.json``."""
        data = self.information().get("info/index.json", b"")
        with at("info/index.json"):
            return json_object(data, RepackageError)

    def entries(self) -> Iterator[tuple[tarfile.TarInfo, Iterator[bytes]]]:
        """What is in the archive of its files, with the chunks of each, to be read before the next one."""
        with self._opened(self.files) as archive:
            for entry in archive:
                yield entry, _chunks(archive, entry)

    @contextmanager
    def _opened(self, member: Member) -> Iterator[tarfile.TarFile]:
        """The archive that *member* is, to be read from start to end."""
        with at(member.path), _reading():
            chunks = io.BufferedReader(_Chunks(self.source.inflated(member)))
            stream = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(chunks)
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=BoundedInfo) as archive:
                yield archive


@contextmanager
def open_package(path: Path) -> Iterator[OpenCondaPackage]:
    """The package at *path*; `VbuildError` if it is damaged or of another format."""
    with open_stored(path) as source:
        stem = path.name.removesuffix(".conda")
        members = {member.path: member for member in source.members}
        names = (_METADATA, f"pkg-{stem}.tar.zst", f"info-{stem}.tar.zst")
        for name in names:
            if name not in members:
                raise RepackageError(f"{path.name}: no {name}; expected a package of conda's format 2")
        yield OpenCondaPackage(source, members[names[1]], members[names[2]])


class _Chunks(io.RawIOBase):
    """*chunks* as a file that can be read from the start."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:  # type: ignore[override] # bytes are never read into
        self._rest = self._rest or next(self._chunks, b"")
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (zstandard.ZstdError, tarfile.TarError, EOFError) as error:
        raise RepackageError(
            f"damaged: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error


def _chunks(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> Iterator[bytes]:
    file = archive.extractfile(entry) if entry.isfile() else None
    while file and (chunk := file.read(_READ)):
        yield chunk


NOARCH = "noarch"
# what clients replace by the prefix of the environment, in a file that paths.json says to hold it; conda's own choice
PLACEHOLDER = "/opt/anaconda1anaconda2anaconda3"


class Independent(StrEnum):
    """What a package does not depend on: with ``python``, the version of Python, be it for one machine or for all."""

    PYTHON = "python"
    GENERIC = "generic"


class CondaRecord(Struct, frozen=True):
    """One package; *depends* are conda's match specifications, and the highest *number* of those that fit wins.

    *python* is the Python whose folder its files are in, as ``3.11`` or ``3.13t``, or None if it is independent of it.
    *label* is that of the variant it was made of.
    """

    name: str
    version: str
    build: str
    number: int
    subdir: str
    depends: tuple[str, ...]
    independent: Independent | None = None
    python: str | None = None
    license: str | None = None
    label: str | None = None

    @property
    def stem(self) -> str:
        """What the file and the archives in it are called after."""
        return f"{self.name}-{self.version}-{self.build}"

    @property
    def target(self) -> PurePosixPath:
        """Where it lies in the channel."""
        return PurePosixPath(self.subdir, f"{self.stem}.conda")

    @property
    def environment(self) -> InstallEnvironment:
        """What its files are installed into."""
        folder = f"python{self.python}" if self.python else None
        return InstallEnvironment("conda", f"{PLACEHOLDER}/bin/python", folder, has_placeholder=True)

    def data(self) -> dict[str, Any]:
        """``index.json``."""
        data: dict[str, Any] = {
            "build": self.build,
            "build_number": self.number,
            "constrains": [],
            "depends": list(self.depends),
            "name": self.name,
            "subdir": self.subdir,
            "version": self.version,
        }
        if self.subdir != NOARCH:
            data |= {"arch": MACHINES[self.subdir], "platform": "linux"}
        if self.independent:
            data["noarch"] = str(self.independent)
        if self.license:
            data["license"] = self.license
        return data
