"""A folder of conda packages as a channel: its repodata, written from the packages, and what is wrong in it.

    channel/linux-64/demo-1.0-h1_0.conda
    channel/linux-64/repodata.json, repodata.json.zst      packages.conda: index.json, SHA-256, size
    channel/noarch/repodata.json, repodata.json.zst        always: clients refuse a channel without it

    check: repodata.json, .zst -> each package: size, hashes, index.json -> paths.json -> its files

https://github.com/conda/ceps/blob/main/cep-0036.md
"""

import hashlib
import json
import posixpath
import re
import tarfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from vbuild.errors import RepackageError, VbuildError, at
from vbuild.files import zstd
from vbuild.files.atomic import replacing, turn
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import json_object, read_file
from vbuild.publishing.conda.package import (
    LEVEL_PACKAGE,
    NOARCH,
    OpenCondaPackage,
    listed,
    open_package,
    packed_repodata,
    repodata,
)
from vbuild.publishing.model import PublishRule
from vbuild.verification.model import Finding, Severity

_CONDA, _OLD = ".conda", ".tar.bz2"
_REPODATA = "repodata.json"
_INDEX = "info/index.json"
_SUBDIR = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)


def packages_in(folder: Path) -> tuple[Path, ...]:
    """The packages in *folder*, and in its folders as a channel has them, sorted."""
    try:
        visible = [path for path in folder.iterdir() if not path.name.startswith(".")]
        below = [
            path for subdir in visible if subdir.is_dir() for path in subdir.iterdir() if not path.name.startswith(".")
        ]
    except OSError as error:
        raise RepackageError(f"{error.filename or folder}: cannot be read: {error.strerror}") from error
    return tuple(sorted(path for path in (*visible, *below) if path.name.endswith((_CONDA, _OLD))))


class IndexedSubdir(Struct, frozen=True):
    """A folder of a channel, the *packages* in it, and the *path* of its repodata."""

    subdir: str
    packages: tuple[str, ...]
    path: Path

    def data(self) -> dict[str, Any]:
        return {"subdir": self.subdir, "packages": list(self.packages), "path": str(self.path)}


def index_channel(folder: Path) -> tuple[IndexedSubdir, ...]:
    """Write the repodata of the channel *folder*, of the packages in its folders.

    `RepackageError`, and nothing written, if a package is damaged, of the old format, or lies elsewhere than in the
    folder of its platform.
    """
    with turn(folder):
        subdirs: dict[str, list[Path]] = {NOARCH: []}
        for path in packages_in(folder):
            if path.parent == folder:
                fault = f"expected in a folder for its platform, {folder / 'linux-64'} or the like"
                raise RepackageError(f"{path}: {fault}")
            if path.name.endswith(_OLD):
                raise RepackageError(f"{path}: expected the format {_CONDA}, as cph transmute writes it")
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
            with open_package(path) as package:
                data = package.information().get(_INDEX)
            if data is None:
                raise RepackageError(f"no {_INDEX}; expected a package that conda-build 3 or rattler-build has made")
            index = checked_index(data, path.name.removesuffix(_CONDA))
            if (subdir := index["subdir"]) != path.parent.name:
                raise RepackageError(f"is for {subdir}; expected in the folder of that name")
            yield path.name, {**index, "sha256": sha256_of(path), "size": path.stat().st_size}


def checked_index(data: bytes, stem: str) -> dict[str, Any]:
    with at(_INDEX):
        values = json_object(data, RepackageError)
        texts = {key: values.get(key) for key in ("name", "version", "build", "subdir")}
        for key, text in texts.items():
            if not isinstance(text, str) or not text:
                raise RepackageError(f"{key} is {text!r}; expected a text")
        stem_in_index = f"{texts['name']}-{texts['version']}-{texts['build']}"
        if stem_in_index != stem:
            raise RepackageError(f"is of {stem_in_index}; expected {stem}, as the file is called")
        if not _SUBDIR.fullmatch(str(texts["subdir"])):
            raise RepackageError(f"subdir is {texts['subdir']!r}; expected one as linux-64")
        number, depends = values.get("build_number"), values.get("depends", [])
        if type(number) is not int or number < 0:
            raise RepackageError(f"build_number is {number!r}; expected a whole number")
        if not isinstance(depends, list) or not all(isinstance(spec, str) for spec in depends):
            raise RepackageError("depends: expected a list of texts")
        return values


def problems(folder: Path) -> Iterator[Finding]:
    subdirs = sorted(path.parent for path in folder.glob(f"*/{_REPODATA}"))
    if NOARCH not in {subdir.name for subdir in subdirs}:
        yield _problem(f"{NOARCH}/{_REPODATA}", "is not there, and clients refuse a channel without it")
    names: set[str] = set()
    with_level: list[str] = []
    for subdir in subdirs:
        for file, record in (yield from _repodata(subdir)).items():
            names.add(str(record.get("name")))
            if any(text.startswith(f"{LEVEL_PACKAGE} ") for text in map(str, record["depends"])):
                with_level.append(f"{subdir.name}/{file}")
    if names <= {LEVEL_PACKAGE}:
        yield _problem(folder.name, "holds no conda package of a wheel")
    if with_level and LEVEL_PACKAGE not in names:
        yield _problem(min(with_level), f"requires {LEVEL_PACKAGE}, which is not in the channel")


def _repodata(subdir: Path) -> Generator[Finding, None, Mapping[str, Mapping[str, Any]]]:
    """What is wrong in the folder *subdir*; returns the records of its repodata."""
    path = subdir / _REPODATA
    subject = f"{subdir.name}/{_REPODATA}"
    try:
        data = read_file(path)
        values = json.loads(data)
        records, name_in_it = values["packages.conda"], values["info"]["subdir"]
        records_by_file = {name: {**record, "depends": [*record["depends"]]} for name, record in records.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        yield _problem(subject, "is not repodata: expected JSON with info and packages.conda")
        return {}
    if name_in_it != subdir.name:
        yield _problem(subject, f"says that it is of {name_in_it}, and lies in {subdir.name}")
    try:
        is_same = zstd.decompressed(read_file(path.with_name(f"{_REPODATA}.zst")), len(data)) == data
    except (OSError, zstd.ZstdError):
        is_same = False
    if not is_same:
        yield _problem(f"{subject}.zst", f"is not {_REPODATA} compressed, and most clients read it first")
    files = {file.name for file in subdir.glob("*.conda")}
    for name in sorted({*records_by_file, *files}):
        subject = f"{subdir.name}/{name}"
        if name not in files:
            yield _problem(subject, f"is in {_REPODATA}, and is not there")
        elif name not in records_by_file:
            yield _problem(subject, f"is not in {_REPODATA}, so that clients do not see it")
        else:
            yield from _package(subdir / name, subject, records_by_file[name])
    return records_by_file


def _package(path: Path, subject: str, record: Mapping[str, Any]) -> Iterator[Finding]:
    try:
        expected = listed(path, sha256=sha256_of(path))
        for key in sorted({*expected, *record}):
            if expected.get(key) != record.get(key):
                fault = f"{_REPODATA} says {key} is {record.get(key)!r}, and the file has {expected.get(key)!r}"
                yield _problem(subject, fault)
        with open_package(path) as package:
            yield from (_problem(subject, fault) for fault in _contents(package))
    except (VbuildError, OSError) as error:
        yield _problem(subject, f"cannot be read: {str(error).removeprefix(f'{path.name}: ')}")


def _contents(package: OpenCondaPackage) -> Iterator[str]:
    """Where the files of *package* differ from its paths.json; symbolic links have no size and hash."""
    try:
        entries = json.loads(package.information()["info/paths.json"])["paths"]
        listed_files: dict[str, tuple[int, str] | None] = {
            entry["_path"]: None if type_ == "softlink" else (entry["size_in_bytes"], entry["sha256"])
            for entry in entries
            if (type_ := entry.get("path_type")) != "directory"
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        yield "has no paths.json that lists its files"
        return
    files: dict[str, tuple[int, str] | None] = {}
    for entry, chunks in package.entries():
        if _is_outside(entry):
            yield f"{entry.name}: is not a file below the prefix"
        if entry.islnk():
            files[entry.name] = files.get(entry.linkname)
        elif not entry.isdir():
            hashing = hashlib.sha256()
            for chunk in chunks:
                hashing.update(chunk)
            files[entry.name] = None if entry.issym() else (entry.size, hashing.hexdigest())
    yield from _file_differences(files, listed_files)


def _file_differences(
    files: Mapping[str, tuple[int, str] | None], listed_files: Mapping[str, tuple[int, str] | None]
) -> Iterator[str]:
    for file in sorted({*listed_files, *files}):
        if file not in files:
            yield f"{file}: is in paths.json, and is not there"
        elif file not in listed_files:
            yield f"{file}: is not in paths.json"
        elif files[file] != listed_files[file]:
            yield f"{file}: does not match its size and hash in paths.json"


def _is_outside(entry: tarfile.TarInfo) -> bool:
    """Whether *entry* is outside the prefix, a link that leads there, or of a kind that packages do not have."""
    paths = [entry.name]
    if entry.issym():
        paths.append(posixpath.join(posixpath.dirname(entry.name), entry.linkname))
    elif entry.islnk():
        paths.append(entry.linkname)
    is_away = any(path.startswith("/") or posixpath.normpath(path).split("/")[0] == ".." for path in paths)
    return is_away or not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk())


def _problem(subject: str, fault: str) -> Finding:
    return Finding(Severity.ERROR, PublishRule.CHANNEL, (subject,), fault, "publish it again")
