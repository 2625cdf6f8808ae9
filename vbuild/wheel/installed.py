"""Installed distributions: where environments have them, which files each owns, and what lists these.

    a venv, a conda prefix, a folder of packages    lib/python3.12/site-packages/*.dist-info, conda-meta/*.json
    the tree of an unpacked image                   the same, wherever in it

    demo-1.0.dist-info/RECORD         path,sha256=…,size     paths from site-packages; ../../../bin/demo
    demo-1.0.dist-info/sboms/…        the bill of materials that vbuild writes
    conda-meta/demo-1.0-py312_0.json  paths_data: sha256_in_prefix, size_in_bytes; paths from the prefix

https://packaging.python.org/en/latest/specifications/recording-installed-packages/
"""

import csv
import io
import json
import os
import posixpath
import re
import shlex
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from importlib.metadata import distributions
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Self

from msgspec import Struct
from packaging.utils import canonicalize_name

from vbuild.errors import RepackageError, VbuildError, WheelError, at
from vbuild.files.reading import BoundedInfo, json_object, read_file
from vbuild.wheel.archive import files_in
from vbuild.wheel.metadata import Metadata, Record, RecordRow, unpadded

_PACKAGES = ("lib*/*/site-packages", "lib*/*/dist-packages", "Lib/site-packages", "local/lib*/*/dist-packages")
_DIST_INFO, _CONDA_META = ".dist-info", "conda-meta"
# no environment has both
_OF_A_TREE = ("etc", "usr")
_EXPECTED = (
    "a venv, a conda prefix, a folder of packages with their .dist-info, or the tree of an image, with etc and usr in "
    "it"
)
# what an archive of an image has at its top: that of docker save, and that of podman save --format oci-archive
_ARCHIVES = {"manifest.json": "docker-archive", "oci-layout": "oci-archive"}
_LIBRARY = re.compile(r"\.(so(\.[\w.]+)?|pyd|dll|dylib|cubin|ptx|fatbin|co|hsaco)$", re.IGNORECASE)
_NAME = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)")


class FileRow(NamedTuple):
    """The row of a file in a listing: its path from the listing's folder, SHA-256 in hex digits, size in bytes."""

    path: str
    sha256: str
    size: int


class OwnedFile(NamedTuple):
    path: str
    size: int


class InstalledDistribution(Struct, frozen=True, dict=True):
    """An installed distribution: *listing* lists its files, with paths from *folder*.

    *trouble* says why its files are not known, and *source* where the code of an editable one is. *texts* are licences
    beside it, by the path that they have in its package.
    """

    project: str
    version: str
    listing: Path
    folder: Path
    rows: tuple[RecordRow, ...] = ()
    trouble: str | None = None
    source: str | None = None
    license: str | None = None
    texts: tuple[tuple[str, Path], ...] = ()

    def __str__(self) -> str:
        return f"{self.project} {self.version}".rstrip()

    @property
    def is_conda(self) -> bool:
        return self.listing.suffix == ".json"

    @property
    def dist_info(self) -> str:
        """Its ``.dist-info`` folder; empty for a package of conda."""
        return "" if self.is_conda else self.listing.parent.name

    def path_of(self, path: str) -> Path:
        return Path(os.path.normpath(self.folder / path))

    @cached_property
    def members(self) -> tuple[OwnedFile, ...]:
        own = (OwnedFile(row.path, row.size or 0) for row in self.rows)
        return (*own, *(OwnedFile(path, file.stat().st_size) for path, file in self.texts))

    def find(self, path: str) -> OwnedFile | None:
        return next((member for member in self.members if member.path == path), None)

    def read(self, path: str) -> bytes:
        """The contents of its file at *path*; nothing if unreadable."""
        with suppress(OSError):
            return read_file(dict(self.texts).get(path, self.path_of(path)))
        return b""

    def metadata(self) -> Metadata:
        if self.is_conda:
            text = f"Metadata-Version: 2.1\nName: {self.project}\nVersion: {self.version}\n"
            return Metadata.parse(text + (f"License: {self.license}\n" if self.license else ""))
        return Metadata.parse(_text(self.listing.with_name("METADATA")))

    @classmethod
    def in_folder(cls, dist_info: Path) -> Self:
        """The distribution of the folder *dist_info*; what is wrong with it goes into *trouble*."""
        match = _NAME.fullmatch(dist_info.name.removesuffix(_DIST_INFO))
        name, version = (match["name"], match["version"]) if match else (dist_info.name, "")
        listing, source = dist_info / "RECORD", None
        try:
            metadata = Metadata.parse(_text(dist_info / "METADATA"))
            name, version = metadata.name, metadata.version
            source = _editable(dist_info / "direct_url.json")
            text = _text(listing)
            with at(listing.name):
                rows = Record.parse(text).rows
        except VbuildError as error:
            return cls(name, version, listing, dist_info.parent, trouble=str(error), source=source)
        return cls(name, version, listing, dist_info.parent, rows, source=source)

    @classmethod
    def of_files(cls, place: Path) -> Self:
        """The file or folder *place* by itself, which no package lists; links are not followed."""
        if place.is_file():
            return cls(place.name, "", place, place.parent, (RecordRow(place.name),))
        paths = (Path(folder) / name for folder, _, names in os.walk(place) for name in names)
        rows = (RecordRow(path.relative_to(place).as_posix()) for path in paths if not path.is_symlink())
        return cls(place.resolve().name, "", place / "RECORD", place, tuple(sorted(rows, key=lambda row: row.path)))

    @classmethod
    def in_conda(cls, file: Path) -> Self:
        prefix = file.parent.parent
        try:
            values = json_object(_text(file).encode(), WheelError)
            name, version = str(values["name"]), str(values["version"])
            rows = tuple(_conda_rows(values))
            texts = tuple(_conda_texts(values))
            licence = str(values.get("license") or "") or None
        except (VbuildError, KeyError, TypeError, AttributeError) as error:
            trouble = str(error) if isinstance(error, VbuildError) else "not as conda writes it"
            return cls(file.stem, "", file, prefix, trouble=f"{file.name}: {trouble}")
        return cls(name, version, file, prefix, rows, license=licence, texts=texts)


class Environment(Struct, frozen=True):
    """The packages that one run changes: those in *folders* and in the conda *prefixes*, all inside *root*."""

    root: Path
    folders: tuple[Path, ...]
    prefixes: tuple[Path, ...] = ()

    @classmethod
    def at(cls, path: Path) -> Self:
        """The venv, prefix, folder of packages or tree of an image at *path*; `RepackageError` if it is none."""
        if image := _packed_image(path):
            unzip = f"gunzip --keep {shlex.quote(str(path))} && " if image.endswith(".gz") else ""
            copy = f"{unzip}skopeo copy {shlex.quote(image.removesuffix('.gz'))} oci:image:latest"
            unpack = f"{copy} && umoci unpack --rootless --image image:latest tree"
            raise RepackageError(f"{path}: an image that is packed; expected its tree, tree/rootfs of: {unpack}")
        if not path.is_dir():
            raise RepackageError(f"{path}: {'a file' if path.exists() else 'not there'}; expected {_EXPECTED}")
        root = path.resolve()
        if all((root / name).is_dir() for name in _OF_A_TREE):
            return cls.under(root)
        folders = tuple(
            # lib64 of a venv is a link to lib
            dict.fromkeys(folder.resolve() for pattern in _PACKAGES for folder in root.glob(pattern))
        )
        if not folders and any(root.glob(f"*{_DIST_INFO}")):
            folders = (root,)
        prefixes = (root,) if (root / _CONDA_META).is_dir() else ()
        if not folders and not prefixes:
            raise RepackageError(f"{path}: not an environment; expected {_EXPECTED}")
        return cls(root, folders, prefixes)

    @classmethod
    def under(cls, path: Path) -> Self:
        """All packages in the tree *path*, without following links; `RepackageError` if none."""
        root = path.resolve()
        folders, prefixes = [], []
        if not root.is_dir():
            raise RepackageError(f"{path}: not a folder; expected the tree of an unpacked image")
        device = root.stat().st_dev
        unread: list[OSError] = []
        for folder, names, _files in os.walk(root, onerror=unread.append):
            here = Path(folder)
            if any(name.endswith(_DIST_INFO) for name in names):
                folders.append(here)
            if _CONDA_META in names:
                prefixes.append(here)
            names[:] = sorted(name for name in names if _is_on(here / name, device))
        # another user's private folders are skipped
        for error in unread:
            if not isinstance(error, PermissionError) or not (folders or prefixes):
                raise RepackageError(f"{error.filename}: cannot be read: {error.strerror}") from error
        if not folders and not prefixes:
            raise RepackageError(f"{path}: no packages in it; expected *.dist-info or conda-meta somewhere below")
        return cls(root, tuple(folders), tuple(prefixes))

    def distributions(self) -> tuple[InstalledDistribution, ...]:
        """By name; one that conda and RECORD list counts twice. `WheelError` if a folder cannot be read."""
        infos = (info for folder in self.folders for info in files_in(folder, _DIST_INFO) if info.is_dir())
        metas = (file for prefix in self.prefixes for file in files_in(prefix / _CONDA_META, ".json"))
        installed = [*map(InstalledDistribution.in_folder, infos), *map(InstalledDistribution.in_conda, metas)]
        return tuple(
            sorted(
                installed,
                key=lambda distribution: (
                    distribution.project.lower(),
                    distribution.version,
                    str(distribution.listing),
                ),
            )
        )


def installed_at(place: Path) -> tuple[Environment | None, tuple[InstalledDistribution, ...]]:
    """The environment at *place* and what is installed in it; of a file, or a folder of libraries, these alone.

    `RepackageError` if there is neither.
    """
    try:
        environment = Environment.at(place)
    except RepackageError as error:
        if _packed_image(place):
            raise
        files = InstalledDistribution.of_files(place)
        if not any(_LIBRARY.search(row.path) for row in files.rows):
            raise RepackageError(f"{error}; or a wheel, a library, or a folder of libraries or wheels") from error
        return None, (files,)
    return environment, environment.distributions()


def _packed_image(place: Path) -> str | None:
    """The image layout or archive of an image at *place*, as skopeo names it; None if it is neither.

    https://github.com/containers/image/blob/main/docs/containers-transports.5.md
    """
    if str(place).startswith("oci:") or (place / "oci-layout").is_file():
        return f"oci:{str(place).removeprefix('oci:')}"
    with suppress(OSError, EOFError, tarfile.TarError, zlib.error), tarfile.open(place, tarinfo=BoundedInfo) as archive:
        kinds = (_ARCHIVES.get(posixpath.normpath(entry.name)) for entry in archive)
        if kind := next(filter(None, kinds), None):
            return f"{kind}:{place}"
    return None


def installed_versions(environment: Path) -> tuple[tuple[str, str], ...]:
    """The normalised name and the version of each distribution in *environment*."""
    folders = [str(folder) for folder in Environment.at(environment).folders]
    return tuple((canonicalize_name(package.name), package.version) for package in distributions(path=folders))


def rewrite_listing(listing: Path, data: bytes, changes: Mapping[str, FileRow | None]) -> bytes:
    """*listing*, now *data*, with the rows of *changes*; None removes a row, a new one goes to the end.

    A row of RECORD without hash keeps having none.
    """
    with at(listing):
        if listing.suffix == ".json":
            return _revised_conda(data, changes)
        return _revised_record(data, changes)


def _revised_record(data: bytes, changes: Mapping[str, FileRow | None]) -> bytes:
    left = dict(changes)
    lines = []
    for line in data.decode().splitlines(keepends=True):
        columns = next(csv.reader([line]), [])
        if not columns or columns[0] not in left:
            lines.append(line)
        elif (row := left.pop(columns[0])) is not None:
            ending = line[len(line.rstrip("\r\n")) :]
            lines.append(_record_line(row, ending) if columns[1] else line)
    lines += [_record_line(row, "\n") for row in left.values() if row]
    return "".join(lines).encode()


def _record_line(row: FileRow, ending: str) -> str:
    text = io.StringIO()
    digest = f"sha256={unpadded(bytes.fromhex(row.sha256))}"
    csv.writer(text, lineterminator=ending).writerow((row.path, digest, row.size))
    return text.getvalue()


def _revised_conda(data: bytes, changes: Mapping[str, FileRow | None]) -> bytes:
    values = json_object(data, WheelError)
    table = values.get("paths_data") or {}
    entries: list[dict[str, Any]] = []
    left = dict(changes)
    for entry in table.get("paths", ()):
        if (path := entry.get("_path")) not in left:
            entries.append(entry)
        elif row := left.pop(path):
            entries.append({**entry, "sha256_in_prefix": row.sha256, "size_in_bytes": row.size})
    new = [row for row in left.values() if row]
    entries += [
        {
            "_path": row.path,
            "path_type": "hardlink",
            "sha256": row.sha256,
            "sha256_in_prefix": row.sha256,
            "size_in_bytes": row.size,
        }
        for row in new
    ]
    if "paths" in table:
        table["paths"] = entries
    files = [path for path in values.get("files", ()) if changes.get(path, True)]
    values["files"] = [*files, *(row.path for row in new if row.path not in files)]
    indent = 2 if data.startswith(b"{\n") else None
    return (
        json.dumps(values, indent=indent, ensure_ascii=data.isascii()) + ("\n" if data[-1:] == b"\n" else "")
    ).encode()


def _conda_rows(values: Mapping[str, Any]) -> Iterator[RecordRow]:
    entries = {entry["_path"]: entry for entry in (values.get("paths_data") or {}).get("paths", ())}
    for path in {**dict.fromkeys(values.get("files", ())), **entries}:
        entry = entries.get(path, {})
        digest = entry.get("sha256_in_prefix") or entry.get("sha256")
        # of a file whose prefix was replaced, the size is that of the file in the package
        size = entry.get("size_in_bytes") if entry.get("sha256") == digest else None
        hashed = f"sha256={unpadded(bytes.fromhex(digest))}" if digest else None
        yield RecordRow(str(PurePosixPath(path)), hashed, size)


def _conda_texts(values: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """The licences of a package, which conda leaves in its cache."""
    if cached := values.get("extracted_package_dir"):
        folder = Path(cached) / "info" / "licenses"
        for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
            if file.is_file():
                yield f"licenses/{file.relative_to(folder).as_posix()}", file


def _editable(file: Path) -> str | None:
    try:
        values = json.loads(read_file(file))
        return str(values["url"]) if values["dir_info"]["editable"] else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _text(file: Path) -> str:
    try:
        return read_file(file).decode()
    except OSError as error:
        raise WheelError(f"no {file.name} that can be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WheelError(f"{file.name}: not UTF-8") from error


def _is_on(folder: Path, device: int) -> bool:
    with suppress(OSError):
        status = folder.lstat()
        return status.st_dev == device and not folder.is_symlink()
    return False
