"""Channels of conda packages made with the standard library and zstandard, so that vbuild is never its own judge."""

import hashlib
import io
import json
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zstandard

# what stands for CPython 3.11 in an environment: the Python that runs the tests
_PYTHON = """#!/bin/sh
here=$(dirname "$0")
PYTHONPATH="$here/../lib/python3.11/site-packages" exec {python} -S "$@"
"""


def package(
    folder: Path, name: str, version: str, build: str, *depends: str, files: Mapping[str, str | bytes] | None = None
) -> None:
    """Put a package for linux-64 into the channel *folder*; the first line of a file may make it executable."""
    stem = f"{name}-{version}-{build}"
    whole = {path: text if isinstance(text, bytes) else text.encode() for path, text in (files or {}).items()}
    number = int(build.partition("_")[0]) if build[0].isdigit() else 0
    index = {"name": name, "version": version, "build": build, "build_number": number, "depends": list(depends)}
    index |= {"subdir": "linux-64", "arch": "x86_64", "platform": "linux"}
    paths = [
        {"_path": path, "path_type": "hardlink", "sha256": hashlib.sha256(data).hexdigest(), "size_in_bytes": len(data)}
        for path, data in whole.items()
    ]
    about = {
        "info/index.json": json.dumps(index).encode(),
        "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}).encode(),
        "info/files": "\n".join(whole).encode(),
        "info/about.json": b"{}",
    }
    (folder / "linux-64").mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "linux-64" / f"{stem}.conda", "w") as archive:
        archive.writestr("metadata.json", '{"conda_pkg_format_version": 2}')
        archive.writestr(f"pkg-{stem}.tar.zst", _tarred(whole))
        archive.writestr(f"info-{stem}.tar.zst", _tarred(about))


def pythons(folder: Path) -> str:
    """The channel *folder* of packages that stand for CPython 3.11 and 3.12, by its URL."""
    for minor in (11, 12):
        version, site = f"3.{minor}.7", f"lib/python3.{minor}/site-packages/README.txt"
        files = {f"bin/python3.{minor}": _PYTHON.format(python=sys.executable), site: "here"}
        files["bin/python"] = files[f"bin/python3.{minor}"]
        abi = f"cp3{minor}"
        package(folder, "python", version, "0_cpython", f"python_abi 3.{minor}.* *_{abi}", files=files)
        package(folder, "python_abi", f"3.{minor}", f"8_{abi}")
        package(folder, "cpython", version, f"0_{abi}", f"python_abi 3.{minor}.* *_{abi}")
    package(folder, "_python_abi3_support", "1.0", "0_any", "cpython")
    return indexed(folder)


def indexed(folder: Path) -> str:
    """The channel *folder*, with repodata of the packages in it, by its URL."""
    for subdir in ("linux-64", "noarch"):
        (folder / subdir).mkdir(parents=True, exist_ok=True)
        records = {path.name: _listed(path) for path in sorted((folder / subdir).glob("*.conda"))}
        data = {"info": {"subdir": subdir}, "packages": {}, "packages.conda": records, "repodata_version": 1}
        (folder / subdir / "repodata.json").write_text(json.dumps(data))
    return folder.as_uri()


def described(path: Path) -> dict[str, bytes]:
    """What the describing archive of the package at *path* holds."""
    return _contents(path, "info")


def files(path: Path) -> dict[str, bytes]:
    """The files of the package at *path*."""
    return _contents(path, "pkg")


def entries(path: Path) -> list[tarfile.TarInfo]:
    """The files of the package at *path* as its archive has them, without contents."""
    with tarfile.open(fileobj=io.BytesIO(_plain(path, "pkg"))) as archive:
        return archive.getmembers()


def index(path: Path) -> dict[str, Any]:
    """The index.json of the package at *path*."""
    return dict(json.loads(described(path)["info/index.json"]))


def _listed(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {**index(path), "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def _contents(path: Path, kind: str) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(_plain(path, kind))) as archive:
        found = {entry.name: archive.extractfile(entry) for entry in archive.getmembers()}
        return {name: file.read() for name, file in found.items() if file}


def _plain(path: Path, kind: str) -> bytes:
    with zipfile.ZipFile(path) as archive:
        packed = archive.read(f"{kind}-{path.name.removesuffix('.conda')}.tar.zst")
    return zstandard.ZstdDecompressor().decompressobj().decompress(packed)


def _tarred(files: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o755 if data.startswith(b"#!") else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return zstandard.ZstdCompressor().compress(file.getvalue())
