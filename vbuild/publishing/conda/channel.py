"""A folder of conda packages as a channel: its repodata, written from the packages, and what is wrong in it.

    channel/linux-64/demo-1.0-h1_0.conda, demo-1.0-h0_0.tar.bz2
    channel/linux-64/repodata.json, repodata.json.zst      packages.conda, packages: index.json, SHA-256, size
    channel/noarch/repodata.json, repodata.json.zst        always: clients refuse a channel without it

    check: repodata.json, .zst -> each package: size, hashes, index.json -> paths.json -> its files -> RECORD

https://github.com/conda/ceps/blob/main/cep-0036.md
"""

import bz2
import hashlib
import io
import json
import posixpath
import re
import tarfile
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from vbuild.errors import RepackageError, VbuildError, at
from vbuild.files import zstd
from vbuild.files.atomic import replacing, turn
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import BoundedInfo, json_object, open_file, read_file
from vbuild.publishing.conda.package import (
    LARGEST,
    LEVEL_PACKAGE,
    NOARCH,
    Chunks,
    OpenCondaPackage,
    counted_entries,
    listed,
    open_package,
    packed_repodata,
    repodata,
)
from vbuild.publishing.model import PublishRule
from vbuild.verification.model import Finding, Severity
from vbuild.wheel.metadata import Record, recorded_sha256

CONDA, TAR_BZ2 = ".conda", ".tar.bz2"


def stem_of(path: Path) -> str:
    """Name, version and build in the file name of a package; `RepackageError` for another ending."""
    for ending in (CONDA, TAR_BZ2):
        if path.name.endswith(ending):
            return path.name.removesuffix(ending)
    raise RepackageError(f"{path.name}: expected a package for conda, {CONDA} or {TAR_BZ2}")


def packages_in(folder: Path) -> tuple[Path, ...]:
    """The packages in *folder*, and in its folders as a channel has them, sorted, without those of an unfinished run.

    `RepackageError` if one of them cannot be read.
    """
    try:
        shown = [path for path in folder.iterdir() if not path.name.startswith(".")]
        below = [
            path for subdir in shown if subdir.is_dir() for path in subdir.iterdir() if not path.name.startswith(".")
        ]
    except OSError as error:
        raise RepackageError(f"{error.filename or folder}: cannot be read: {error.strerror}") from error
    return tuple(sorted(path for path in (*shown, *below) if path.name.endswith((CONDA, TAR_BZ2))))


_REPODATA = "repodata.json"
_INDEX = "info/index.json"
_SUBDIR = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
_CHUNK = 1 << 20
# what describes a package that is made of a wheel; others have more
_OURS = {f"info/{name}" for name in ("about.json", "files", "index.json", "link.json", "paths.json")}
# how many bytes one packed byte may stand for, and below how many bytes nobody asks
_RATIO, _SMALL = 1000, 1 << 26


class IndexedSubdir(Struct, frozen=True):
    """A folder of a channel, the *packages* in it, and the *path* of its repodata."""

    subdir: str
    packages: tuple[str, ...]
    path: Path

    def data(self) -> dict[str, Any]:
        return {"subdir": self.subdir, "packages": list(self.packages), "path": str(self.path)}


def index_channel(folder: Path) -> tuple[IndexedSubdir, ...]:
    """Write the repodata of the channel *folder*, of the packages in its folders.

    Each file is the old or the new one. `RepackageError`, and nothing written, if a package is damaged, lies in
    *folder* itself or in the folder of another platform.
    """
    with turn(folder):
        if astray := [path for path in packages_in(folder) if path.parent == folder]:
            raise RepackageError(
                f"{astray[0]}: expected in a folder for its platform, {folder / 'linux-64'} or the like"
            )
        subdirs: dict[str, list[Path]] = {NOARCH: []}
        for path in packages_in(folder):
            subdirs.setdefault(path.parent.name, []).append(path)
        repodata_of = {subdir: repodata(subdir, dict(_listed(paths))) for subdir, paths in subdirs.items()}
        indexed = []
        for subdir, data in sorted(repodata_of.items()):
            target = folder / subdir / _REPODATA
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                for path, content in ((target.with_name(f"{_REPODATA}.zst"), packed_repodata(data)), (target, data)):
                    with replacing(path) as part:
                        part.write_bytes(content)
            except OSError as error:
                raise RepackageError(f"{target}: cannot be written: {error.strerror}") from error
            indexed.append(IndexedSubdir(subdir, tuple(path.name for path in subdirs[subdir]), target))
        return tuple(indexed)


def _listed(packages: Sequence[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in packages:
        with at(path.parent.name), at(path.name):
            index = checked_index(_index_of(path), stem_of(path))
            if (subdir := index["subdir"]) != path.parent.name:
                raise RepackageError(f"is for {subdir}; expected in the folder of that name")
            yield path.name, {**index, "sha256": sha256_of(path), "size": path.stat().st_size}


def checked_index(data: bytes, stem: str) -> dict[str, Any]:
    """``info/index.json`` in *data*; `RepackageError` if it is not of the package called *stem*."""
    with at(_INDEX):
        values = json_object(data, RepackageError)
        texts = {key: values.get(key) for key in ("name", "version", "build", "subdir")}
        for key, text in texts.items():
            if not isinstance(text, str) or not text:
                raise RepackageError(f"{key} is {text!r}; expected a text")
        named = f"{texts['name']}-{texts['version']}-{texts['build']}"
        if named != stem:
            raise RepackageError(f"is of {named}; expected {stem}, as the file is called")
        if not _SUBDIR.fullmatch(str(texts["subdir"])):
            raise RepackageError(f"subdir is {texts['subdir']!r}; expected one as linux-64")
        number, depends = values.get("build_number"), values.get("depends", [])
        if type(number) is not int or number < 0:
            raise RepackageError(f"build_number is {number!r}; expected a whole number")
        if not isinstance(depends, list) or not all(isinstance(spec, str) for spec in depends):
            raise RepackageError("depends: expected a list of texts")
        return values


def _index_of(path: Path) -> bytes:
    """The index.json of the package at *path*; `RepackageError` if it is missing, or the package is damaged before
    it.
    """
    if path.name.endswith(CONDA):
        with open_package(path) as package:
            index = package.information().get(_INDEX)
    else:
        index = _first_index(path)
    if index is None:
        raise RepackageError(f"no {_INDEX}; expected a package that conda-build 3 or rattler-build has made")
    return index


def _first_index(path: Path) -> bytes | None:
    """The index.json in the one archive of the package at *path*, which is not read further, or None."""
    try:
        file = io.BufferedReader(Chunks(_bounded(_inflated(path), path.stat().st_size)))
        with file, tarfile.open(fileobj=file, mode="r|", tarinfo=BoundedInfo) as archive:
            for entry in counted_entries(archive, packed=path.stat().st_size):
                if entry.isfile() and entry.name == _INDEX:
                    if entry.size > LARGEST:
                        raise RepackageError(f"more than {LARGEST} bytes to describe a package")
                    member = archive.extractfile(entry)
                    return member.read() if member else b""
    except OSError as error:
        raise RepackageError(f"cannot be read: {error.strerror or error}") from error
    except (tarfile.TarError, EOFError) as error:
        raise RepackageError(f"damaged: {str(error).splitlines()[0]}") from error
    return None


def _inflated(path: Path) -> Iterator[bytes]:
    try:
        with open_file(path) as raw, bz2.open(raw) as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except (EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise RepackageError(f"damaged: {error}") from error


def _bounded(chunks: Iterable[bytes], packed: int) -> Iterator[bytes]:
    """*chunks*, unpacked from so many *packed* bytes; `RepackageError` for more than those ever become."""
    most, size = max(_SMALL, _RATIO * packed), 0
    for chunk in chunks:
        if (size := size + len(chunk)) > most:
            raise RepackageError(f"unpacks to more than {most} bytes; expected {most} at most of a package of its size")
        yield chunk


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
    """What is wrong in the folder *subdir*; returns the records of its repodata."""
    path = subdir / _REPODATA
    place = f"{subdir.name}/{_REPODATA}"
    try:
        data = read_file(path)
        values = json.loads(data)
        records, name_in_it = values["packages.conda"], values["info"]["subdir"]
        records_by_file = {name: {**record, "depends": [*record["depends"]]} for name, record in records.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        yield _problem(place, "is not repodata: expected JSON with info and packages.conda")
        return {}
    if name_in_it != subdir.name:
        yield _problem(place, f"says that it is of {name_in_it}, and lies in {subdir.name}")
    if not _is_same(path.with_name(f"{_REPODATA}.zst"), data):
        yield _problem(f"{place}.zst", f"is not {_REPODATA} compressed, and most clients read it first")
    files = {file.name for file in subdir.glob("*.conda")}
    for name in sorted({*records_by_file, *files}):
        place = f"{subdir.name}/{name}"
        if name not in files:
            yield _problem(place, f"is in {_REPODATA}, and is not there")
        elif name not in records_by_file:
            yield _problem(place, f"is not in {_REPODATA}, so that clients do not see it")
        else:
            yield from _package(subdir / name, place, records_by_file[name])
    return records_by_file


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
    information = package.information()
    try:
        entries = json.loads(information["info/paths.json"])["paths"]
        expected = {str(entry["_path"]): _stated(entry) for entry in entries if entry.get("path_type") != "directory"}
        prefixed = {str(entry["_path"]) for entry in entries if entry.get("prefix_placeholder")}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        yield "has no paths.json that lists its files"
        return
    files_found: dict[str, _File] = {}
    records: dict[str, str] = {}
    for entry, chunks in package.entries():
        if _is_outside(entry):
            yield f"{entry.name}: is not a file below the prefix"
        if not entry.isdir():
            content = b"".join(chunks) if entry.name.endswith(".dist-info/RECORD") else chunks
            files_found[entry.name] = (
                files_found.get(entry.linkname) if entry.islnk() else _size_and_hash(entry, content, records)
            )
    for file in sorted({*expected, *files_found}):
        if file not in files_found:
            yield f"{file}: is in paths.json, and is not there"
        elif file not in expected:
            yield f"{file}: is not in paths.json"
        elif files_found[file] != expected[file]:
            yield f"{file}: does not match its size and hash in paths.json"
    # others have files besides those of a wheel
    if {*information} <= _OURS:
        files = {path: file for path, file in files_found.items() if file}
        yield from (problem for path, text in records.items() for problem in _record(path, text, files, prefixed))


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


def _size_and_hash(entry: tarfile.TarInfo, content: bytes | Iterator[bytes], records: dict[str, str]) -> _File:
    """The size and hash of *entry*; if it is a RECORD, its text is kept in *records*."""
    if entry.issym():
        return None
    hashing = hashlib.sha256()
    for chunk in (content,) if isinstance(content, bytes) else content:
        hashing.update(chunk)
    if isinstance(content, bytes):
        records[entry.name] = content.decode("utf-8", "replace")
    return entry.size, hashing.hexdigest()


def _record(file: str, text: str, files: Mapping[str, tuple[int, str]], prefixed: set[str]) -> Iterator[str]:
    """What is wrong with the RECORD *text* of *file*; what was *prefixed* for the prefix has no lasting hash."""
    root = posixpath.dirname(posixpath.dirname(file))
    # where the folder of the modules is in a prefix, whatever the Python
    site_packages = root if "/" in root else f"lib/python/{root}"
    by_place: dict[str, tuple[str, int, str]] = {}
    for path, (size, digest) in files.items():
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
        if row.hash and path not in prefixed and (row.size != size or is_other):
            yield f"{file}: {row.path} does not match its size and hash"
    for path, *_ in sorted(by_place.values()):
        yield f"{file}: does not list {path}"


def _problem(place: str, what: str) -> Finding:
    return Finding(Severity.ERROR, PublishRule.CHANNEL, (place,), what, "publish it again")
