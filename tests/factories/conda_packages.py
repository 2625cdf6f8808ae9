"""Packages for conda made with the standard library and zstandard."""

import hashlib
import io
import json
import posixpath
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zstandard

MOMENT = 1_700_000_000
Content = bytes | tuple[str, str]


def conda_package(
    folder: Path,
    stem: str,
    files: Mapping[str, Content],
    *,
    index: Mapping[str, Any] | None = None,
    paths: Any = None,
) -> Path:
    """The package *stem* in *folder*: of *files*, each bytes, or ("symlink" or "hardlink", target).

    *index* is more of its index.json; *paths* is what paths.json says instead of the truth.
    """
    name, version, build = stem.rsplit("-", 2)
    number = int(build.rpartition("_")[2])
    described = {
        "info/index.json": json.dumps(
            {
                "arch": "x86_64",
                "build": build,
                "build_number": number,
                "depends": ["__glibc >=2.17,<3.0.a0"],
                "license": "Apache-2.0",
                "name": name,
                "platform": "linux",
                "subdir": "linux-64",
                "timestamp": 1_750_000_000_000,
                "version": version,
                **(index or {}),
            },
            indent=2,
        ).encode(),
        "info/hash_input.json": b'{"cuda_compiler_version": "12.6"}',
        "info/about.json": b"{}",
        "info/files": "".join(f"{path}\n" for path in files).encode(),
        "info/paths.json": json.dumps(
            paths or {"paths": [_stated(path, files) for path in files], "paths_version": 1}, indent=2
        ).encode(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{stem}.conda"
    pack = zstandard.ZstdCompressor().compress
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("metadata.json", '{"conda_pkg_format_version": 2}')
        archive.writestr(f"pkg-{stem}.tar.zst", pack(tarred(files)))
        archive.writestr(f"info-{stem}.tar.zst", pack(tarred(described)))
    return target


def _stated(path: str, files: Mapping[str, Content]) -> dict[str, Any]:
    content, kind = files[path], "hardlink"
    if isinstance(content, tuple):
        kind = "softlink" if content[0] == "symlink" else "hardlink"
        leads_to = posixpath.normpath(posixpath.join(posixpath.dirname(path), content[1]))
        content = files[content[1] if kind == "hardlink" else leads_to]
        assert isinstance(content, bytes)
    digest = hashlib.sha256(content).hexdigest()
    return {"_path": path, "path_type": kind, "sha256": digest, "size_in_bytes": len(content)}


def tarred(files: Mapping[str, Content]) -> bytes:
    """An archive of *files* as conda-package-handling makes it: times with fractions, owner 0, modes."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for number, (path, content) in enumerate(files.items()):
            entry = tarfile.TarInfo(path)
            entry.mtime, entry.mode = MOMENT + number + 0.25, 0o755 if path.endswith(".so") else 0o644
            if isinstance(content, tuple):
                entry.type = tarfile.SYMTYPE if content[0] == "symlink" else tarfile.LNKTYPE
                entry.linkname = content[1]
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()
