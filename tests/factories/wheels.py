"""The smallest valid wheels, made with the standard library's zipfile so that vbuild is never its own judge."""

import base64
import csv
import hashlib
import io
import stat
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

DAY = (2024, 5, 6, 7, 8, 10)


def wheel(
    folder: Path,
    name: str = "demo-1.0-py3-none-any.whl",
    files: Mapping[str, bytes | str] | None = None,
    *,
    metadata: str = "",
    record: str | None = None,
    modes: Mapping[str, int] | None = None,
    compression: int = zipfile.ZIP_DEFLATED,
    compressions: Mapping[str, int] | None = None,
    day: tuple[int, int, int, int, int, int] = DAY,
    tamper: Callable[[zipfile.ZipFile], None] | None = None,
    **members: bytes | str,
) -> Path:
    """The wheel *name* in *folder* with *files* by path, and a METADATA, WHEEL and RECORD that fit.

    *metadata* is more header lines; *record* takes the place of the fitting RECORD; *tamper* may change the entries
    of the central directory before it is written.
    """
    whole = everything(name, {**(files or {}), **members}, metadata=metadata)
    dist_info = dist_info_of(name)
    whole[f"{dist_info}/RECORD"] = (record_of(whole, dist_info) if record is None else record).encode()
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, data in whole.items():
            method = (compressions or {}).get(path, compression)
            mode = (modes or {}).get(path, 0o644)
            archive.writestr(entry(path, mode=mode, compression=method, day=day), data)
        if tamper:
            tamper(archive)
    return folder / name


def everything(name: str, files: Mapping[str, bytes | str] | None = None, *, metadata: str = "") -> dict[str, bytes]:
    """What the wheel *name* with these *files* holds by path, RECORD excepted."""
    distribution, version, *_, python, abi, platform = plain(name).split("-")
    dist_info = dist_info_of(name)
    whole = {path: data.encode() if isinstance(data, str) else data for path, data in (files or {}).items()}
    basics = {
        "METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n{metadata}",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: demo\nRoot-Is-Purelib: true\nTag: {python}-{abi}-{platform}\n",
    }
    for file, text in basics.items():
        whole.setdefault(f"{dist_info}/{file}", text.encode())
    return whole


def plain(name: str) -> str:
    """The file name without suffix and variant label."""
    parts = name.removesuffix(".whl").split("-")
    most = 6 if parts[2][0].isdigit() else 5
    return "-".join(parts[:most])


def dist_info_of(name: str) -> str:
    return "-".join(name.split("-")[:2]) + ".dist-info"


def record_of(files: Mapping[str, bytes], dist_info: str) -> str:
    """The RECORD that lists *files* and itself."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerows((path, hashed(data), len(data)) for path, data in files.items())
    rows.writerow((f"{dist_info}/RECORD", "", ""))
    return text.getvalue()


def hashed(data: bytes, algorithm: str = "sha256") -> str:
    """The hash of *data* as RECORD has it."""
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=").decode()
    return f"{algorithm}={digest}"


def entry(
    path: str,
    *,
    mode: int = 0o644,
    compression: int = zipfile.ZIP_DEFLATED,
    day: tuple[int, int, int, int, int, int] = DAY,
) -> zipfile.ZipInfo:
    """The zip entry of a regular file."""
    info = zipfile.ZipInfo(path, day)
    info.external_attr = (stat.S_IFREG | mode) << 16
    info.create_system = 3
    info.compress_type = compression
    return info


def contents(path: Path) -> dict[str, bytes]:
    """Every member of the archive at *path* in order, as zipfile reads it."""
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def piped(file: IO[bytes]) -> Any:
    """*file* as a pipe is, without a position: zipfile then writes sizes behind the data."""
    return SimpleNamespace(write=file.write, flush=file.flush)


def with_entries(path: Path, files: Mapping[str, bytes]) -> Path:
    """The archive *path* of just these *files*, wheel or not."""
    with zipfile.ZipFile(path, "w") as archive:
        for file, data in files.items():
            archive.writestr(entry(file), data)
    return path


def poked(path: Path, offset: int, data: bytes) -> Path:
    """The file with *data* at *offset*, from the end where that is negative."""
    whole = bytearray(path.read_bytes())
    offset %= len(whole)
    whole[offset : offset + len(data)] = data
    path.write_bytes(whole)
    return path


def renamed(path: Path, old: bytes, new: bytes) -> Path:
    """The archive with *new*, as many bytes, wherever *old* was."""
    path.write_bytes(path.read_bytes().replace(old, new))
    return path
