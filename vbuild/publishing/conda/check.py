"""Check a channel of conda packages: repodata against files, and files against their descriptions.

repodata.json, repodata.json.zst -> each package: size, hashes, index.json -> paths.json -> its files -> RECORD
"""

import hashlib
import json
import posixpath
import tarfile
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import zstandard

from vbuild.errors import VbuildError
from vbuild.files.hashing import sha256_of
from vbuild.publishing.conda.hardware import LEVEL_PACKAGE
from vbuild.publishing.conda.package import NOARCH, OpenCondaPackage, open_package
from vbuild.publishing.conda.writing import listed
from vbuild.publishing.model import PublishRule
from vbuild.verification.model import Finding, Severity
from vbuild.wheel.metadata import Record, recorded_sha256

_REPODATA = "repodata.json"
# bytes of a whole channel's repodata
_LARGEST = 1 << 30


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
        data = path.read_bytes()
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
        return zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=_LARGEST) == data
    except (OSError, zstandard.ZstdError):
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


def _contents(package: OpenCondaPackage) -> Iterator[str]:
    """What is wrong with the files of *package*: against paths.json, and against the RECORD among them."""
    try:
        entries = json.loads(package.information()["info/paths.json"])["paths"]
        expected = {str(entry["_path"]): (entry["size_in_bytes"], entry["sha256"]) for entry in entries}
        made = {str(entry["_path"]) for entry in entries if "prefix_placeholder" in entry}
    except (ValueError, KeyError, TypeError, RecursionError):
        yield "has no paths.json that lists its files"
        return
    found: dict[str, tuple[int, str]] = {}
    records: dict[str, str] = {}
    for entry, chunks in package.entries():
        found[entry.name] = yield from _file(entry, b"".join(chunks) if _is_record(entry) else chunks, records)
    for file in sorted({*expected, *found}):
        if file not in found:
            yield f"{file}: is in paths.json, and is not there"
        elif file not in expected:
            yield f"{file}: is not in paths.json"
        elif found[file] != expected[file]:
            yield f"{file}: does not match its size and hash in paths.json"
    for file, text in records.items():
        yield from _record(file, text, found, made)


def _is_record(entry: tarfile.TarInfo) -> bool:
    return entry.name.endswith(".dist-info/RECORD")


def _file(
    entry: tarfile.TarInfo, content: bytes | Iterator[bytes], records: dict[str, str]
) -> Generator[str, None, tuple[int, str]]:
    """What is wrong with one file; gives its size and SHA-256, and keeps it in *records* where it is a RECORD."""
    if not entry.isfile() or entry.name.startswith("/") or ".." in entry.name.split("/"):
        yield f"{entry.name}: is no regular file below the prefix"
    hashing = hashlib.sha256()
    for chunk in (content,) if isinstance(content, bytes) else content:
        hashing.update(chunk)
    if isinstance(content, bytes):
        records[entry.name] = content.decode("utf-8", "replace")
    return entry.size, hashing.hexdigest()


def _record(file: str, text: str, found: Mapping[str, tuple[int, str]], made: set[str]) -> Iterator[str]:
    """What is wrong with the RECORD *text* of *file*; what was *made* for the prefix has no hash that stays."""
    root = posixpath.dirname(posixpath.dirname(file))
    by_place = {_installed(path, root): (path, *rest) for path, rest in found.items()}
    try:
        rows = Record.parse(text).rows
    except VbuildError as error:
        yield f"{file}: {error}"
        return
    for row in rows:
        place = posixpath.normpath(posixpath.join(_root(root), row.path))
        if place not in by_place:
            if row.hash:
                yield f"{file}: lists {row.path}, which is not there"
            continue
        path, size, digest = by_place.pop(place)
        if row.hash and path not in made and (row.size != size or not _agrees(row.hash, digest)):
            yield f"{file}: {row.path} does not match its size and hash"
    for path, *_ in sorted(by_place.values()):
        yield f"{file}: does not list {path}"


def _root(site_packages: str) -> str:
    """Where *site_packages* of a package is in a prefix, whatever the Python."""
    return site_packages if "/" in site_packages else f"lib/python/{site_packages}"


def _installed(path: str, root: str) -> str:
    """Where the file at *path* of a package with its modules in *root* ends up."""
    if path.startswith(f"{root}/"):
        return posixpath.join(_root(root), path.removeprefix(f"{root}/"))
    return f"bin/{path.removeprefix('python-scripts/')}" if path.startswith("python-scripts/") else path


def _agrees(recorded: str, digest: str) -> bool:
    """Whether the hash that *recorded* in RECORD is the SHA-256 *digest*; others are not looked at."""
    return not recorded.startswith("sha256=") or recorded_sha256(recorded) == digest


def _problem(place: str, what: str) -> Finding:
    return Finding(Severity.ERROR, PublishRule.CHANNEL, (place,), what, "publish it again")
