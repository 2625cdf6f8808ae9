"""A conda package of either format, unpacked into one file that nobody else sees, and held against its paths.json.

    demo-1.0-h1_0.conda      a zip of pkg-*.tar.zst, the files, and info-*.tar.zst, what describes them
    demo-1.0-h1_0.tar.bz2    one archive with both: what is in info/ describes the rest

    unpacked(path) -> UnpackedPackage -> .members, .head, .mapped     as slimming asks them of wheels
                                         .index, .paths, .described   index.json, paths.json, and all of info/

What a package unpacks to is limited by the sizes in paths.json, by the room on the disk, and by a ratio that no real
package comes near.
https://docs.conda.io/projects/conda-build/en/stable/resources/package-spec.html
https://github.com/conda/ceps/blob/main/cep-0034.md for paths.json and index.json
"""

import bz2
import hashlib
import io
import posixpath
import re
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from vbuild.errors import RepackageError, at
from vbuild.files.archives import BoundedInfo
from vbuild.files.json_text import json_object
from vbuild.files.reading import open_file
from vbuild.hardware.cpu import available_cores
from vbuild.publishing.conda.file_names import CONDA, stem_of
from vbuild.publishing.conda.reading import LARGEST, Chunks, OpenCondaPackage, open_package
from vbuild.publishing.conda.tarred import TarEntry, TarImage, TarKind, counted_entries
from vbuild.wheel.licence import Prohibition, prohibitions
from vbuild.wheel.metadata import Metadata, RecordRow, unpadded
from vbuild.wheel.unpacking import mapped

INDEX, PATHS, FILES = "info/index.json", "info/paths.json", "info/files"

_SUBDIR = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_CHUNK = 1 << 20
# how many bytes one packed byte may stand for, and below how many bytes nobody asks
_RATIO, _SMALL = 1000, 1 << 26
# bytes of an archive besides what its files hold: for each path, and for folders that are not listed
_HEADERS, _MORE = 1 << 12, 1 << 24
_TYPES = {"hardlink": (TarKind.FILE, TarKind.LINK), "softlink": (TarKind.SYMLINK,), "directory": (TarKind.FOLDER,)}


class PathEntry(Struct, frozen=True):
    """What paths.json says of a file; *placeholder* is what clients replace by the prefix in it, or None.

    It *is_binary* where they keep the file's length. Of symbolic links, SHA-256 and size may not be there.
    """

    path: str
    type: str
    sha256: str | None
    size: int | None
    placeholder: str | None = None
    is_binary: bool = False


def checked_index(data: bytes, stem: str) -> dict[str, Any]:
    """``info/index.json`` in *data*; `RepackageError` if it is not of the package called *stem*."""
    with at(INDEX):
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
            raise RepackageError("depends is no list of texts")
        return values


def checked_paths(data: bytes) -> dict[str, PathEntry]:
    """What ``info/paths.json`` in *data* says of each path; `RepackageError` for other JSON."""
    with at(PATHS):
        values = json_object(data, RepackageError)
        if (version := values.get("paths_version")) != 1:
            raise RepackageError(f"paths_version is {version!r}; expected 1")
        rows = values.get("paths")
        if not isinstance(rows, list):
            raise RepackageError("paths is no list; expected what is in the package")
        found: dict[str, PathEntry] = {}
        for row in rows:
            entry = _path_entry(row)
            if found.setdefault(entry.path, entry) is not entry:
                raise RepackageError(f"{entry.path} stands twice in it; expected once")
        return found


def _path_entry(row: Any) -> PathEntry:  # noqa: ANN401 - of JSON
    # the defaults of CEP 34
    path, kind = (row.get("_path"), row.get("path_type", "hardlink")) if isinstance(row, dict) else (None, None)
    if not isinstance(path, str) or not isinstance(kind, str) or kind not in _TYPES:
        raise RepackageError(f"a row is {str(row)[:80]!r}; expected _path, and path_type as hardlink or softlink")
    sha256, size = row.get("sha256"), row.get("size_in_bytes")
    if kind == "hardlink" and not (isinstance(sha256, str) and _SHA256.fullmatch(sha256) and type(size) is int):
        raise RepackageError(f"{path}: no sha256 and size_in_bytes; expected both of a file")
    placeholder, mode = row.get("prefix_placeholder") or None, row.get("file_mode") or "text"
    if not isinstance(placeholder, str | None) or mode not in ("text", "binary"):
        raise RepackageError(f"{path}: prefix_placeholder with file_mode {mode!r}; expected text or binary")
    known = sha256 if isinstance(sha256, str) else None
    return PathEntry(path, kind, known, size if type(size) is int else None, placeholder, mode == "binary")


class UnpackedPackage:
    """A package that is open: *described* is the archive of info/, *files* that of what is installed.

    Both may be parts of one. What it says of itself is checked; what its files hold only by `check`.
    """

    dist_info = "info"

    def __init__(self, path: Path, described: TarImage, files: TarImage) -> None:
        self.path = path
        self.stem = stem_of(path)
        self.described, self.files = described, files
        information = self.information
        _check_described(information)
        self.index = checked_index(information[INDEX], self.stem)
        self.paths = checked_paths(information[PATHS])
        _check_alike(files, self.paths)

    @cached_property
    def information(self) -> dict[str, bytes]:
        """The files in info/, by path."""
        entries = [entry for entry in self.described.entries if entry.kind is TarKind.FILE]
        if (size := sum(entry.size for entry in entries)) > LARGEST:
            raise RepackageError(f"{size} bytes to describe a package; expected {LARGEST} at most")
        return {entry.path: bytes(self.described.contents(entry)) for entry in entries}

    @cached_property
    def members(self) -> tuple[TarEntry, ...]:
        """The files that are installed, without links, and without what lists the files of a distribution."""
        files = (entry for entry in self.files.entries if entry.kind is TarKind.FILE)
        return tuple(entry for entry in files if ".dist-info/" not in entry.path)

    def read(self, member: TarEntry | str) -> bytes:
        """What a file holds."""
        found = self._by_path[member] if isinstance(member, str) else member
        return bytes(self.files.contents(found))

    def head(self, member: TarEntry, size: int) -> bytes:
        """Its first *size* bytes, or all it has."""
        return bytes(self.files.contents(member)[:size])

    @contextmanager
    def mapped(
        self,
        member: TarEntry,
        *,
        folder: Path | None,  # noqa: ARG002 - it is there
        to_edit: bool,  # noqa: ARG002 - it can be
    ) -> Iterator[memoryview]:
        """A view of what it holds."""
        yield self.files.contents(member)

    def row(self, member: TarEntry) -> RecordRow:
        """What paths.json says of a file."""
        return RecordRow(member.path, f"sha256={unpadded(bytes.fromhex(self.digest(member.path)))}", member.size)

    def digest(self, path: str) -> str:
        """The SHA-256 that paths.json states of the file at *path*."""
        return self.paths[path].sha256 or ""

    @cached_property
    def links(self) -> dict[str, str]:
        """Where each link leads, from the top of the package: to a file in it, or elsewhere."""
        return {
            entry.path: entry.target
            if entry.kind is TarKind.LINK
            else posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), entry.target))
            for entry in self.files.entries
            if entry.target
        }

    def check(self) -> None:
        """`RepackageError` naming a file that has not the SHA-256 of paths.json."""
        entries = sorted(self.files.entries, key=lambda entry: entry.size, reverse=True)
        with ThreadPoolExecutor(available_cores()) as pool:
            wrong = [path for path in pool.map(self._differing, entries) if path]
        if wrong:
            raise RepackageError(f"{min(wrong)}: does not have its sha256 of {PATHS}; fetch the package again")

    def prohibitions(self) -> tuple[Prohibition, ...]:
        """What forbids to change it: in info/licenses, in index.json, and in texts among its files."""
        found = prohibitions(_Texts(self))
        # what METADATA is to a wheel
        own = f"{self.dist_info}/METADATA"
        return tuple(
            replace(one, place=one.place.replace(own, INDEX)) if one.place.startswith(own) else one for one in found
        )

    @cached_property
    def _by_path(self) -> dict[str, TarEntry]:
        return {entry.path: entry for entry in self.files.entries}

    def _differing(self, entry: TarEntry) -> str | None:
        if entry.kind in {TarKind.FOLDER, TarKind.SYMLINK}:
            return None
        held = self._by_path[entry.target] if entry.kind is TarKind.LINK else entry
        is_same = hashlib.sha256(self.files.contents(held)).hexdigest() == self.paths[entry.path].sha256
        return None if is_same else entry.path


class _Texts:
    """A package as `vbuild.wheel.licence` reads one."""

    dist_info = UnpackedPackage.dist_info

    def __init__(self, package: UnpackedPackage) -> None:
        self._package = package
        texts = [entry for entry in package.described.entries if entry.path.startswith("info/licenses/")]
        self.members = [entry for entry in (*package.files.entries, *texts) if entry.kind is TarKind.FILE]

    def metadata(self) -> Metadata:
        index = self._package.index
        licence = " ".join(str(index.get("license") or "").split())
        text = f"Metadata-Version: 2.1\nName: {index['name']}\nVersion: {index['version']}\n"
        return Metadata.parse(text + (f"License: {licence}\n" if licence else ""))

    def find(self, path: str) -> TarEntry | None:
        return next((member for member in self.members if member.path == path), None)

    def read(self, member: TarEntry) -> bytes:
        if member.path.startswith("info/"):
            return self._package.information[member.path]
        return self._package.read(member)


def information_at(path: Path) -> dict[str, bytes]:
    """The index.json and the paths.json of the package at *path*, and what else is read until both are there.

    `RepackageError` if they are not there, or the package is damaged as far as it is read.
    """
    if path.name.endswith(CONDA):
        with open_package(path) as package:
            found = package.information()
    else:
        stem_of(path)
        found = _first_information(path)
    _check_described(found)
    return found


def _check_described(information: Collection[str]) -> None:
    for name in (INDEX, PATHS):
        if name not in information:
            raise RepackageError(f"no {name}; expected a package that conda-build 3 or rattler-build has made")


def _first_information(path: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    left = LARGEST
    try:
        file = io.BufferedReader(Chunks(_bounded(_inflated(path), _room_for(path.stat().st_size, None))))
        with file, tarfile.open(fileobj=file, mode="r|", tarinfo=BoundedInfo) as archive:
            for entry in counted_entries(archive, packed=path.stat().st_size):
                if {INDEX, PATHS} <= found.keys():
                    break
                if entry.isfile() and entry.name.startswith("info/"):
                    if (left := left - entry.size) < 0:
                        raise RepackageError(f"more than {LARGEST} bytes to describe a package")
                    held = archive.extractfile(entry)
                    found[entry.name] = held.read() if held else b""
    except OSError as error:
        raise RepackageError(f"cannot be read: {error.strerror or error}") from error
    except (tarfile.TarError, EOFError) as error:
        raise RepackageError(f"damaged: {str(error).splitlines()[0]}") from error
    return found


@contextmanager
def unpacked(path: Path, *, room: Path | None) -> Iterator[UnpackedPackage]:
    """The package at *path*, unpacked in the folder *room*; views of it should be gone by the end of the block.

    `RepackageError`, or `WheelError` for its zip archive, if it is damaged, contradicts itself, or unpacks to too much.
    """
    with at(path.name):
        if path.name.endswith(CONDA):
            with open_package(path) as package, _unpacked_zip(path, package, room) as found:
                yield found
            return
        stem_of(path)
        try:
            chunks = _bounded(_inflated(path), _room_for(path.stat().st_size, room))
            with mapped(chunks, folder=room) as data:
                image = TarImage.read(data, packed=path.stat().st_size)
                own = [entry for entry in image.entries if entry.path.partition("/")[0] == "info"]
                rest = tuple(entry for entry in image.entries if entry.path.partition("/")[0] != "info")
                yield UnpackedPackage(path, replace(image, entries=tuple(own)), replace(image, entries=rest))
        except OSError as error:
            raise RepackageError(f"cannot be read: {error.strerror or error}") from error


@contextmanager
def _unpacked_zip(path: Path, package: OpenCondaPackage, room: Path | None) -> Iterator[UnpackedPackage]:
    with at(package.described.path):
        data = b"".join(package.plain(package.described, most=LARGEST))
        described = TarImage.read(memoryview(data), packed=package.described.size)
    paths = next((entry for entry in described.entries if entry.path == PATHS), None)
    stated = checked_paths(bytes(described.contents(paths))) if paths else {}
    most, why = _room_for(package.files.size, room)
    listed = sum(entry.size or 0 for entry in stated.values()) + _HEADERS * len(stated) + _MORE
    with ExitStack() as stack:
        with at(package.files.path):
            if listed > most + _MORE:
                what = f"{listed - _MORE} bytes by {PATHS}, of {package.files.size} packed ones"
                raise RepackageError(f"{what}; expected {most} at most {why}")
            view = stack.enter_context(mapped(package.plain(package.files, most=listed), folder=room))
            files = TarImage.read(view, packed=package.files.size)
        yield UnpackedPackage(path, described, files)


def _room_for(packed: int, room: Path | None) -> tuple[int, str]:
    """How many bytes so many *packed* ones may become in the folder *room*, and why no more."""
    free = shutil.disk_usage(room or tempfile.gettempdir()).free
    most = max(_SMALL, _RATIO * packed)
    return (most, "of a package of its size") if most < free else (free, "as the disk has room for no more")


def _inflated(path: Path) -> Iterator[bytes]:
    try:
        with open_file(path) as raw, bz2.open(raw) as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except (EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise RepackageError(f"damaged: {error}") from error


def _bounded(chunks: Iterable[bytes], bound: tuple[int, str]) -> Iterator[bytes]:
    (most, why), size = bound, 0
    for chunk in chunks:
        if (size := size + len(chunk)) > most:
            raise RepackageError(f"unpacks to more than {most} bytes; expected {most} at most {why}")
        yield chunk


def _check_alike(files: TarImage, paths: Mapping[str, PathEntry]) -> None:
    """`RepackageError` unless *files* are what paths.json says: the same paths, kinds and sizes."""
    found = {entry.path: entry for entry in files.entries}
    there = {path for path, entry in found.items() if entry.kind is not TarKind.FOLDER}
    if (lacking := min((path for path in paths if path not in found), default=None)) is not None:
        raise RepackageError(f"{lacking}: is in {PATHS}, and not in the package")
    if (more := min(there - paths.keys(), default=None)) is not None:
        raise RepackageError(f"{more}: is in the package, and not in {PATHS}")
    for path, stated in paths.items():
        entry = found[path]
        if entry.kind not in _TYPES[stated.type]:
            raise RepackageError(f"{path}: a {entry.kind} in the package, a {stated.type} in {PATHS}")
        held = found[entry.target] if entry.kind is TarKind.LINK else entry
        if stated.type == "hardlink" and held.size != stated.size:
            raise RepackageError(f"{path}: {held.size} bytes, but {stated.size} in {PATHS}")
