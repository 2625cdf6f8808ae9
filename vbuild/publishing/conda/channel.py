"""A folder of conda packages as a channel: its packages, and the repodata that clients read.

    channel/linux-64/demo-1.0-h1_0.conda, demo-1.0-h0_0.tar.bz2
    channel/linux-64/repodata.json, repodata.json.zst      packages.conda, packages: index.json, SHA-256, size
    channel/noarch/repodata.json, repodata.json.zst        there always: clients refuse a channel without

https://github.com/conda/ceps/blob/main/cep-0036.md
"""

import bz2
import io
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from vbuild.errors import RepackageError, at
from vbuild.files.archives import BoundedInfo
from vbuild.files.atomic import replacing
from vbuild.files.hashing import sha256_of
from vbuild.files.json_text import json_object
from vbuild.files.reading import open_file
from vbuild.files.turns import turn
from vbuild.publishing.conda.file_names import CONDA, packages_in, stem_of
from vbuild.publishing.conda.reading import LARGEST, NOARCH, Chunks, counted_entries, open_package
from vbuild.publishing.conda.writing import packed_repodata, repodata

_REPODATA = "repodata.json"
_INDEX = "info/index.json"
_SUBDIR = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
_CHUNK = 1 << 20
# how many bytes one packed byte may stand for, and below how many bytes nobody asks
_RATIO, _SMALL = 1000, 1 << 26


class IndexedSubdir(Struct, frozen=True):
    """A folder of a channel, by its name, the *packages* in it, and the *path* of the repodata that lists them."""

    subdir: str
    packages: tuple[str, ...]
    path: Path

    def data(self) -> dict[str, Any]:
        """The result for JSON."""
        return {"subdir": self.subdir, "packages": list(self.packages), "path": str(self.path)}


def index_channel(folder: Path) -> tuple[IndexedSubdir, ...]:
    """Write the repodata of the channel *folder*, of the packages in its folders; returns what each lists.

    Each file is the old or the new one. `RepackageError` if a package is damaged, lies in *folder* itself or in the
    folder of another platform; then nothing is written.
    """
    with turn(folder):
        if astray := [path for path in packages_in(folder) if path.parent == folder]:
            raise RepackageError(
                f"{astray[0]}: expected in a folder for its platform, {folder / 'linux-64'} or the like"
            )
        subdirs: dict[str, list[Path]] = {NOARCH: []}
        for path in packages_in(folder):
            subdirs.setdefault(path.parent.name, []).append(path)
        made = {subdir: repodata(subdir, dict(_listed(paths))) for subdir, paths in subdirs.items()}
        indexed = []
        for subdir, data in sorted(made.items()):
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
    """What repodata says of each of *packages*, by file name."""
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
        if not isinstance(depends, list) or not all(isinstance(one, str) for one in depends):
            raise RepackageError("depends: expected a list of texts")
        return values


def _index_of(path: Path) -> bytes:
    """The index.json of the package at *path*; `RepackageError` if there is none, or the package is damaged so far."""
    if path.name.endswith(CONDA):
        with open_package(path) as package:
            found = package.information().get(_INDEX)
    else:
        found = _first_index(path)
    if found is None:
        raise RepackageError(f"no {_INDEX}; expected a package that conda-build 3 or rattler-build has made")
    return found


def _first_index(path: Path) -> bytes | None:
    """The index.json in the one archive of the package at *path*, of which no more is read; None if there is none."""
    try:
        file = io.BufferedReader(Chunks(_bounded(_inflated(path), path.stat().st_size)))
        with file, tarfile.open(fileobj=file, mode="r|", tarinfo=BoundedInfo) as archive:
            for entry in counted_entries(archive, packed=path.stat().st_size):
                if entry.isfile() and entry.name == _INDEX:
                    if entry.size > LARGEST:
                        raise RepackageError(f"more than {LARGEST} bytes to describe a package")
                    held = archive.extractfile(entry)
                    return held.read() if held else b""
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
    """*chunks*, which so many *packed* bytes became; `RepackageError` for more than they ever are."""
    most, size = max(_SMALL, _RATIO * packed), 0
    for chunk in chunks:
        if (size := size + len(chunk)) > most:
            raise RepackageError(f"unpacks to more than {most} bytes; expected {most} at most of a package of its size")
        yield chunk
