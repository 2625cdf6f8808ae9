"""Read a conda channel: packages of format 2, and what is wrong in the channel.

    {name}-{version}-{build}.conda in the folder linux-64, linux-aarch64 or noarch
    noarch: python     files in site-packages/, put where the Python of the environment has it
    noarch: generic    no files for a machine or a Python

open_package(path) -> OpenCondaPackage -> .index(), .information(), .entries()
repodata.json, repodata.json.zst -> each package: size, hashes, index.json -> paths.json -> its files -> RECORD
https://docs.conda.io/projects/conda-build/en/stable/resources/package-spec.html
"""

import hashlib
import io
import json
import posixpath
import tarfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from vbuild.errors import RepackageError, VbuildError, at
from vbuild.files import zstd
from vbuild.files.archives import BoundedInfo
from vbuild.files.hashing import sha256_of
from vbuild.files.json_text import json_object
from vbuild.files.reading import read_file
from vbuild.files.records import Buffer
from vbuild.publishing.model import PublishRule
from vbuild.verification.model import Finding, Severity
from vbuild.wheel.metadata import Record, recorded_sha256
from vbuild.wheel.zip_read import Member, ZipReader
from vbuild.wheel.zip_write import open_stored

NOARCH = "noarch"
LEVEL_PACKAGE = "_x86_64-microarch-level"

_METADATA = "metadata.json"
# what describes a package that is made of a wheel; others have more
_OURS = {f"info/{name}" for name in ("about.json", "files", "index.json", "link.json", "paths.json")}
# bytes of what describes a package: paths.json of a hundred thousand files
LARGEST = 1 << 25
_READ = 1 << 20
# the largest packages have a hundred thousand files; entries of any package, and the most of a small one
_MOST_ENTRIES, _FEW_ENTRIES = 500_000, 20_000


class OpenCondaPackage(Struct, frozen=True):
    """A package open for reading as *source*: *files* is the archive of its files, *described* the other one."""

    source: ZipReader
    files: Member
    described: Member

    def information(self) -> dict[str, bytes]:
        """The members of the describing archive, by path; `RepackageError` if it is damaged, or unheard-of large."""
        with at(self.described.path):
            data = b"".join(self.plain(self.described, most=LARGEST))
            try:
                with tarfile.open(fileobj=io.BytesIO(data), mode="r:", tarinfo=BoundedInfo) as archive:
                    entries = counted_entries(archive, packed=self.described.size)
                    return {one.name: b"".join(_chunks(archive, one)) for one in entries if one.isfile()}
            except (tarfile.TarError, EOFError) as error:
                raise RepackageError(f"damaged: {str(error).splitlines()[0]}") from error

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

    def plain(self, member: Member, *, most: int) -> Iterator[bytes]:
        """The archive that *member* is, not compressed; `RepackageError` if it is damaged, or over *most* bytes."""
        stream = zstd.reading(io.BufferedReader(Chunks(self.source.inflated(member))))
        size = 0
        try:
            while chunk := stream.read(_READ):
                if (size := size + len(chunk)) > most:
                    raise RepackageError(f"unpacks to more than {most} bytes; expected no more")
                yield chunk
        except (zstd.ZstdError, EOFError) as error:
            raise RepackageError(f"damaged: {error}") from error

    @contextmanager
    def _opened(self, member: Member) -> Iterator[tarfile.TarFile]:
        """The archive that *member* is, to be read from start to end."""
        chunks = io.BufferedReader(Chunks(self.source.inflated(member)))
        stream = zstd.reading(chunks)
        with at(member.path):
            try:
                with tarfile.open(fileobj=stream, mode="r|", tarinfo=BoundedInfo) as archive:
                    yield archive
            except (zstd.ZstdError, tarfile.TarError, EOFError) as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise RepackageError(f"damaged: {reason}") from error


def counted_entries(archive: tarfile.TarFile, *, packed: int) -> Iterator[tarfile.TarInfo]:
    """The entries of *archive*; `RepackageError` when there are more than a package of *packed* bytes has.

    Entries that are alike and hold nothing take no room, and each takes time and memory.
    """
    most = min(_MOST_ENTRIES, max(_FEW_ENTRIES, packed))
    for number, entry in enumerate(archive):
        if number == most:
            raise RepackageError(f"more than {most} entries; expected no more in a package of its size")
        yield entry


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


class Chunks(io.RawIOBase):
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


def _chunks(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> Iterator[bytes]:
    file = archive.extractfile(entry) if entry.isfile() else None
    while file and (chunk := file.read(_READ)):
        yield chunk


def listed(path: Path, *, sha256: str) -> dict[str, Any]:
    """What repodata says of the package at *path*, whose SHA-256 is *sha256*."""
    with open_package(path) as package:
        return {**package.index(), "sha256": sha256, "size": path.stat().st_size}


_REPODATA = "repodata.json"


def problems(folder: Path) -> Iterator[Finding]:
    """What is wrong with the channel *folder*, by its files alone."""
    subdirs = sorted(path.parent for path in folder.glob(f"*/{_REPODATA}"))
    if NOARCH not in {subdir.name for subdir in subdirs}:
        yield _problem(f"{NOARCH}/{_REPODATA}", "is not there, and clients refuse a channel without it")
    names: set[str] = set()
    asking: list[str] = []
    for subdir in subdirs:
        for file, record in (yield from _repodata(subdir)).items():
            names.add(str(record.get("name")))
            if any(text.startswith(f"{LEVEL_PACKAGE} ") for text in map(str, record["depends"])):
                asking.append(f"{subdir.name}/{file}")
    if names <= {LEVEL_PACKAGE}:
        yield _problem(folder.name, "holds no conda package of a wheel")
    if asking and LEVEL_PACKAGE not in names:
        yield _problem(min(asking), f"requires {LEVEL_PACKAGE}, which is not in the channel")


def _repodata(subdir: Path) -> Generator[Finding, None, Mapping[str, Mapping[str, Any]]]:
    """What is wrong in the folder *subdir*; gives what its repodata lists."""
    path = subdir / _REPODATA
    place = f"{subdir.name}/{_REPODATA}"
    try:
        data = read_file(path)
        values = json.loads(data)
        records, name_in_it = values["packages.conda"], values["info"]["subdir"]
        found = {name: {**record, "depends": [*record["depends"]]} for name, record in records.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        yield _problem(place, "is not repodata: expected JSON with info and packages.conda")
        return {}
    if name_in_it != subdir.name:
        yield _problem(place, f"says that it is of {name_in_it}, and lies in {subdir.name}")
    if not _is_same(path.with_name(f"{_REPODATA}.zst"), data):
        yield _problem(f"{place}.zst", f"is not {_REPODATA} compressed, and most clients read it first")
    files = {file.name for file in subdir.glob("*.conda")}
    for name in sorted({*found, *files}):
        place = f"{subdir.name}/{name}"
        if name not in files:
            yield _problem(place, f"is in {_REPODATA}, and is not there")
        elif name not in found:
            yield _problem(place, f"is not in {_REPODATA}, so that clients do not see it")
        else:
            yield from _package(subdir / name, place, found[name])
    return found


def _is_same(path: Path, data: bytes) -> bool:
    try:
        return zstd.decompressed(read_file(path), len(data)) == data
    except (OSError, zstd.ZstdError):
        return False


def _package(path: Path, place: str, record: Mapping[str, Any]) -> Iterator[Finding]:
    try:
        expected = listed(path, sha256=sha256_of(path))
        for key in sorted({*expected, *record}):
            if expected.get(key) != record.get(key):
                what = f"{_REPODATA} says {key} is {record.get(key)!r}, and the file has {expected.get(key)!r}"
                yield _problem(place, what)
        with open_package(path) as package:
            yield from (_problem(place, what) for what in _contents(package))
    except (VbuildError, OSError) as error:
        yield _problem(place, f"cannot be read: {str(error).removeprefix(f'{path.name}: ')}")


_File = tuple[int, str] | None
"""Size and SHA-256 of a file; None for a symbolic link."""


def _contents(package: OpenCondaPackage) -> Iterator[str]:
    """What is wrong with the files of *package*: against paths.json, and against the RECORD among them."""
    information = package.information()
    try:
        entries = json.loads(information["info/paths.json"])["paths"]
        expected = {str(entry["_path"]): _stated(entry) for entry in entries if entry.get("path_type") != "directory"}
        made = {str(entry["_path"]) for entry in entries if entry.get("prefix_placeholder")}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        yield "has no paths.json that lists its files"
        return
    found: dict[str, _File] = {}
    records: dict[str, str] = {}
    for entry, chunks in package.entries():
        if _is_outside(entry):
            yield f"{entry.name}: is no file below the prefix"
        if not entry.isdir():
            content = b"".join(chunks) if entry.name.endswith(".dist-info/RECORD") else chunks
            found[entry.name] = found.get(entry.linkname) if entry.islnk() else _held(entry, content, records)
    for file in sorted({*expected, *found}):
        if file not in found:
            yield f"{file}: is in paths.json, and is not there"
        elif file not in expected:
            yield f"{file}: is not in paths.json"
        elif found[file] != expected[file]:
            yield f"{file}: does not match its size and hash in paths.json"
    # others have files besides those of a wheel
    if {*information} <= _OURS:
        files = {path: file for path, file in found.items() if file}
        yield from (problem for path, text in records.items() for problem in _record(path, text, files, made))


def _stated(entry: Mapping[str, Any]) -> _File:
    return None if entry.get("path_type") == "softlink" else (entry["size_in_bytes"], entry["sha256"])


def _is_outside(entry: tarfile.TarInfo) -> bool:
    """Whether *entry* is outside the prefix, a link that leads there, or of a kind that packages do not have."""
    paths = [entry.name]
    if entry.issym():
        paths.append(posixpath.join(posixpath.dirname(entry.name), entry.linkname))
    elif entry.islnk():
        paths.append(entry.linkname)
    is_away = any(path.startswith("/") or posixpath.normpath(path).split("/")[0] == ".." for path in paths)
    return is_away or not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk())


def _held(entry: tarfile.TarInfo, content: bytes | Iterator[bytes], records: dict[str, str]) -> _File:
    """What *entry* is; its text is kept in *records* if it is a RECORD."""
    if entry.issym():
        return None
    hashing = hashlib.sha256()
    for chunk in (content,) if isinstance(content, bytes) else content:
        hashing.update(chunk)
    if isinstance(content, bytes):
        records[entry.name] = content.decode("utf-8", "replace")
    return entry.size, hashing.hexdigest()


def _record(file: str, text: str, found: Mapping[str, tuple[int, str]], made: set[str]) -> Iterator[str]:
    """What is wrong with the RECORD *text* of *file*; what was *made* for the prefix has no hash that stays."""
    root = posixpath.dirname(posixpath.dirname(file))
    # where the folder of the modules is in a prefix, whatever the Python
    site_packages = root if "/" in root else f"lib/python/{root}"
    by_place: dict[str, tuple[str, int, str]] = {}
    for path, (size, digest) in found.items():
        place = path
        if path.startswith(f"{root}/"):
            place = posixpath.join(site_packages, path.removeprefix(f"{root}/"))
        elif path.startswith("python-scripts/"):
            place = f"bin/{path.removeprefix('python-scripts/')}"
        by_place[place] = path, size, digest
    try:
        rows = Record.parse(text).rows
    except VbuildError as error:
        yield f"{file}: {error}"
        return
    for row in rows:
        place = posixpath.normpath(posixpath.join(site_packages, row.path))
        if place not in by_place:
            if row.hash:
                yield f"{file}: lists {row.path}, which is not there"
            continue
        path, size, digest = by_place.pop(place)
        # other hashes than SHA-256 are not looked at
        is_other = (row.hash or "").startswith("sha256=") and recorded_sha256(row.hash) != digest
        if row.hash and path not in made and (row.size != size or is_other):
            yield f"{file}: {row.path} does not match its size and hash"
    for path, *_ in sorted(by_place.values()):
        yield f"{file}: does not list {path}"


def _problem(place: str, what: str) -> Finding:
    return Finding(Severity.ERROR, PublishRule.CHANNEL, (place,), what, "publish it again")
