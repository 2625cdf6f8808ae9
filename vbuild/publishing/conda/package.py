"""Packages of conda's format 2, read and written, and the repodata of a folder.

    demo-1.0-py311_0.conda           a zip of stored members
      metadata.json                  {"conda_pkg_format_version": 2}
      pkg-demo-1.0-py311_0.tar.zst   the files
      info-demo-1.0-py311_0.tar.zst  info/index.json, paths.json (sizes, SHA-256), files, about.json, link.json

    noarch: python     files in site-packages/, which clients put where the environment's Python has it
    noarch: generic    no files for a machine or a Python

Clients call CPUs as archspec does: `x86_64_cpus` says which x86-64 level each of them reaches.

The same wheel gives the same bytes: members are sorted, without owner, with the time of the wheel's METADATA or of
SOURCE_DATE_EPOCH; zstd works in jobs of one size, whatever the number of threads.
https://docs.conda.io/projects/conda-build/en/stable/resources/package-spec.html
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from functools import lru_cache
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

import archspec.cpu
from msgspec import Struct

from vbuild.errors import RepackageError, at
from vbuild.files import zstd
from vbuild.files.edited import EditedFile
from vbuild.files.reading import BoundedInfo, json_object
from vbuild.files.records import Buffer
from vbuild.hardware.cpu import X86_64_LEVELS, available_cores
from vbuild.publishing.installing import InstalledFile, InstallEnvironment, installed, moment_of, scripts_of
from vbuild.wheel.archive import SharedWheels, Wheel, mapped
from vbuild.wheel.metadata import recorded_sha256
from vbuild.wheel.zip_read import Member, ZipReader
from vbuild.wheel.zip_write import PassedStream, StoredStream, open_stored, write_stored

MACHINES: Mapping[str, str] = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}


@lru_cache(maxsize=1)
def x86_64_cpus() -> tuple[tuple[int, str], ...]:
    """Archspec's x86-64 CPUs, each with the highest level that it reaches: ``(4, "zen4")``; sorted."""
    cpus = []
    for name, target in archspec.cpu.TARGETS.items():
        if target.family.name == "x86_64":
            reached = {name, *(ancestor.name for ancestor in target.ancestors)}
            levels = [rank for rank, level in enumerate(X86_64_LEVELS, 1) if f"x86_64_{level}" in reached]
            cpus.append((max(levels, default=1), name))
    return tuple(sorted(cpus))


NOARCH = "noarch"
LEVEL_PACKAGE = "_x86_64-microarch-level"

_METADATA = "metadata.json"
# bytes of what describes a package: paths.json of a hundred thousand files
_LARGEST = 1 << 25
_READ = 1 << 20
# entries of the archive that describes a package: each takes time and memory, and as good as no room if it is empty
_MOST_ENTRIES = 20_000


class OpenCondaPackage(Struct, frozen=True):
    source: ZipReader
    files: Member
    described: Member

    def information(self) -> dict[str, bytes]:
        members: dict[str, bytes] = {}
        size = 0
        with self._opened(self.described) as archive:
            for number, entry in enumerate(archive):
                if number == _MOST_ENTRIES:
                    raise RepackageError(f"more than {_MOST_ENTRIES} entries; expected no more")
                if (size := size + entry.size) > _LARGEST:
                    raise RepackageError(f"unpacks to more than {_LARGEST} bytes; expected no more")
                if entry.isfile():
                    members[entry.name] = b"".join(_chunks(archive, entry))
        return members

    def index(self) -> dict[str, Any]:
        data = self.information().get("info/index.json", b"")
        with at("info/index.json"):
            return json_object(data, RepackageError)

    def entries(self) -> Iterator[tuple[tarfile.TarInfo, Iterator[bytes]]]:
        """The entries of the archive of files, each with its chunks, to be read before the next one."""
        with self._opened(self.files) as archive:
            for entry in archive:
                yield entry, _chunks(archive, entry)

    @contextmanager
    def _opened(self, member: Member) -> Iterator[tarfile.TarFile]:
        stream = zstd.reading(io.BufferedReader(_Chunks(self.source.inflated(member))))
        with at(member.path):
            try:
                with tarfile.open(fileobj=stream, mode="r|", tarinfo=BoundedInfo) as archive:
                    yield archive
            except (zstd.ZstdError, tarfile.TarError, EOFError) as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise RepackageError(f"damaged: {reason}") from error


@contextmanager
def open_package(path: Path) -> Iterator[OpenCondaPackage]:
    with open_stored(path) as source:
        stem = path.name.removesuffix(".conda")
        members = {member.path: member for member in source.members}
        names = (_METADATA, f"pkg-{stem}.tar.zst", f"info-{stem}.tar.zst")
        for name in names:
            if name not in members:
                raise RepackageError(f"{path.name}: no {name}; expected a package of conda's format 2")
        yield OpenCondaPackage(source, members[names[1]], members[names[2]])


class _Chunks(io.RawIOBase):
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


def _chunks(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> Iterator[bytes]:
    file = archive.extractfile(entry) if entry.isfile() else None
    while file and (chunk := file.read(_READ)):
        yield chunk


def listed(path: Path, *, sha256: str) -> dict[str, Any]:
    with open_package(path) as package:
        return {**package.index(), "sha256": sha256, "size": path.stat().st_size}


# what clients replace by the prefix of the environment, in a file that paths.json says to hold it; conda's own choice
PLACEHOLDER = "/opt/anaconda1anaconda2anaconda3"


class Independent(StrEnum):
    """What a package does not depend on: a version of Python, or that and the machine."""

    PYTHON = "python"
    GENERIC = "generic"


class CondaRecord(Struct, frozen=True):
    """One package; *depends* are conda's match specifications, and the highest *number* of those that fit wins.

    *python* is the Python whose folder its files are in, as ``3.11`` or ``3.13t``, or None for any.
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
        return f"{self.name}-{self.version}-{self.build}"

    @property
    def target(self) -> PurePosixPath:
        return PurePosixPath(self.subdir, f"{self.stem}.conda")

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


# of the files, several hundred MB of code at times; what clients read first is small
_LEVEL, _SMALL_LEVEL = 3, 19
# twice as fast and more, and as good where bytes do not repeat: random ones, or what is compressed already
_FAST_LEVEL, _SAVING = 1, 1.005
# bytes at the beginning, and which part of them, by which one of the two is taken; with fewer, time does not matter
_LOOKED_AT, _SAMPLED, _TOO_SMALL = 1 << 25, 16, 1 << 20
_MOST_THREADS = 8
_BLOCK = tarfile.BLOCKSIZE


class CondaPackage(Struct, frozen=True):
    """A package made of *wheel*, or without files.

    *twin* is an earlier package of the layout with the same contents, which are compressed once.
    """

    target: PurePosixPath
    record: CondaRecord
    wheel: Path | None = None
    twin: PurePosixPath | None = None

    @property
    def files(self) -> tuple[PurePosixPath, ...]:
        return ()

    def write(self, folder: Path, *, wheels: SharedWheels) -> None:
        with ExitStack() as stack:
            write_stored(folder / self.target, self._members(folder, wheels, stack))

    def _members(
        self, folder: Path, wheels: SharedWheels, stack: ExitStack
    ) -> Iterator[tuple[str, EditedFile | PassedStream | StoredStream]]:
        """What describes the files is known last; *stack* ends later."""
        record = self.record
        wheel = stack.enter_context(wheels.open(self.wheel)) if self.wheel else None
        moment = moment_of([wheel] if wheel else [])
        yield "metadata.json", EditedFile.whole(_json({"conda_pkg_format_version": 2}))
        name = f"pkg-{record.stem}.tar.zst"
        if self.twin:
            twin = stack.enter_context(open_package(folder / self.twin))
            yield name, PassedStream(twin.source, twin.files)
            information = {name: data for name, data in twin.information().items() if name != "info/index.json"}
        elif wheel:
            folder_of_python = f"python{record.python}" if record.python else None
            prefix_python = f"{PLACEHOLDER}/bin/python"
            files = installed(wheel, InstallEnvironment("conda", prefix_python, folder_of_python, has_placeholder=True))
            entries: list[dict[str, Any]] = []
            packed = _packed(_tarred(wheel, files, entries, moment))
            most = zstd.most(sum(file.size + len(file.path.encode()) + 6 * _BLOCK for file in files) + 2 * _BLOCK)
            if StoredStream.fits(most):
                yield name, StoredStream(packed, most)
            else:
                folder_of_package = (folder / self.target).parent
                yield name, EditedFile.whole(stack.enter_context(mapped(packed, folder=folder_of_package)))
            information = _information(wheel, record, files, entries)
        else:
            yield name, EditedFile.whole(b"".join(_packed(_tar((), moment))))
            information = {
                "info/about.json": _json({}),
                "info/files": b"",
                "info/link.json": _json(_link(record, ())),
                "info/paths.json": _json({"paths": [], "paths_version": 1}),
            }
        information["info/index.json"] = _json(record.data())
        described = zstd.compressed(b"".join(_tar(sorted(information.items()), moment)), level=_SMALL_LEVEL)
        yield f"info-{record.stem}.tar.zst", EditedFile.whole(described)


class CondaIndex(Struct, frozen=True):
    target: PurePosixPath
    files: tuple[PurePosixPath, ...]

    def write(self, folder: Path, *, wheels: SharedWheels) -> None:
        """Write the index of the packages on the disk, without MD5: clients that know SHA-256 ask for none."""
        paths = (folder / file for file in sorted(self.files))
        packages = {path.name: listed(path, sha256=wheels.digests.of(path)) for path in paths}
        target = folder / self.target
        data = repodata(target.parent.name, packages)
        target.write_bytes(data)
        target.with_name(f"{target.name}.zst").write_bytes(packed_repodata(data))


def repodata(subdir: str, packages: Mapping[str, Mapping[str, Any]]) -> bytes:
    of_format_1: dict[str, Any] = {}
    return _json(
        {
            "info": {"subdir": subdir},
            "packages": of_format_1,
            "packages.conda": packages,
            "removed": [],
            "repodata_version": 1,
        }
    )


def packed_repodata(data: bytes) -> bytes:
    """As ``repodata.json.zst``, which most clients read first."""
    return zstd.compressed(data, level=_SMALL_LEVEL)


def _information(
    wheel: Wheel, record: CondaRecord, files: Iterable[InstalledFile], entries: list[dict[str, Any]]
) -> dict[str, bytes]:
    headers = wheel.metadata().headers
    about = {"summary": headers.value("Summary"), "home": headers.value("Home-page"), "license": record.license}
    information = {
        "info/about.json": _json({key: value for key, value in about.items() if value}),
        "info/files": "".join(f"{file.path}\n" for file in files).encode(),
        "info/paths.json": _json({"paths": entries, "paths_version": 1}),
    }
    if record.independent:
        information["info/link.json"] = _json(_link(record, tuple(script.text for script in scripts_of(wheel))))
    return information


def _link(record: CondaRecord, scripts: tuple[str, ...]) -> dict[str, Any]:
    entry_points = {"entry_points": list(scripts)} if record.independent is Independent.PYTHON else {}
    return {"noarch": {"type": str(record.independent), **entry_points}, "package_metadata_version": 1}


def _tarred(
    wheel: Wheel, files: Iterable[InstalledFile], entries: list[dict[str, Any]], moment: int
) -> Iterator[Buffer]:
    """Adds the entries of paths.json to *entries*."""
    for file in files:
        yield _header(file.path, file.size, moment, is_executable=file.is_executable)
        # the chunks of a member are checked against RECORD, whose hash needs no second look then
        recorded = None if isinstance(file.content, bytes) else recorded_sha256(wheel.row(file.content).hash)
        hashing = hashlib.sha256()
        for chunk in (file.content,) if isinstance(file.content, bytes) else wheel.chunks(file.content):
            if recorded is None:
                hashing.update(chunk)
            yield chunk
        yield bytes(-file.size % _BLOCK)
        sha256 = recorded or hashing.hexdigest()
        entry = {"_path": file.path, "path_type": "hardlink", "sha256": sha256, "size_in_bytes": file.size}
        if file.has_placeholder:
            entry |= {"file_mode": "text", "prefix_placeholder": PLACEHOLDER}
        entries.append(entry)
    yield bytes(2 * _BLOCK)


def _tar(files: Iterable[tuple[str, bytes]], moment: int) -> Iterator[bytes]:
    for path, data in files:
        yield _header(path, len(data), moment, is_executable=False)
        yield data
        yield bytes(-len(data) % _BLOCK)
    yield bytes(2 * _BLOCK)


def _header(path: str, size: int, moment: int, *, is_executable: bool) -> bytes:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mtime, entry.mode = size, moment, 0o755 if is_executable else 0o644
    # GNU's form for long names, which every reader knows; the owner is nobody's
    return entry.tobuf(tarfile.GNU_FORMAT, "utf-8")


def _packed(chunks: Iterable[Buffer]) -> Iterator[bytes]:
    first: list[Buffer] = []
    size = 0
    rest = iter(chunks)
    for chunk in rest:
        first.append(chunk)
        if (size := size + len(chunk)) >= _LOOKED_AT:
            break
    # no thread would be another kind of frame than one thread or many
    compressor = zstd.compressor(_level(first), threads=min(available_cores(), _MOST_THREADS))
    for chunk in chain(first, rest):
        if packed := compressor.compress(chunk):
            yield packed
    yield compressor.flush()


def _level(chunks: Sequence[Buffer]) -> int:
    """The fast level if the other would save nothing."""
    if sum(map(len, chunks)) < _TOO_SMALL:
        return _LEVEL
    sample = b"".join(bytes(chunk[: len(chunk) // _SAMPLED]) for chunk in chunks)
    fast, slow = (len(zstd.compressed(sample, level=level)) for level in (_FAST_LEVEL, _LEVEL))
    return _FAST_LEVEL if fast <= slow * _SAVING else _LEVEL


def _json(data: Any) -> bytes:  # noqa: ANN401 - whatever JSON holds
    return json.dumps(data, indent=2, sort_keys=True).encode() + b"\n"
