"""Write a channel: packages in conda's format 2, and the repodata of a folder, made of what lies in it.

    demo-1.0-py311_0.conda           a zip of stored members
      metadata.json                  {"conda_pkg_format_version": 2}
      pkg-demo-1.0-py311_0.tar.zst   the files
      info-demo-1.0-py311_0.tar.zst  info/index.json, paths.json (sizes, SHA-256), files, about.json, link.json

The same wheel gives the same bytes: the members of the archives are sorted, of nobody, and of the time of the wheel's
METADATA or of SOURCE_DATE_EPOCH; zstd works in jobs of one size, however many threads carry them out.
https://docs.conda.io/projects/conda-build/en/stable/resources/package-spec.html
"""

import hashlib
import json
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import zstandard

from vbuild.digest import Digests
from vbuild.hardware.cpu import available_cores
from vbuild.layout.conda.package import opened_package
from vbuild.layout.conda.record import PLACEHOLDER, CondaIndex, CondaPackage, CondaRecord, Independent
from vbuild.layout.installing import File, installed, scripts_of
from vbuild.layout.moment import moment_of
from vbuild.rope import Rope
from vbuild.wheel.archive import Wheel, open_wheel
from vbuild.wheel.distinfo import sha256_said
from vbuild.wheel.storing import Passed, write_stored
from vbuild.wheel.unpacking import mapped

# of the files, several hundred MB of code at times; what clients read first is small
_LEVEL, _SMALL_LEVEL = 3, 19
_MOST_THREADS = 8
_BLOCK = tarfile.BLOCKSIZE


def write_package(package: CondaPackage, folder: Path) -> None:
    """Write *package* into the channel *folder*, where its twin is; `VbuildError` where its wheel is damaged."""
    target, record = folder / package.target, package.record
    with ExitStack() as stack:
        wheel = stack.enter_context(open_wheel(package.wheel)) if package.wheel else None
        moment = moment_of([wheel] if wheel else [])
        if package.twin:
            twin = stack.enter_context(opened_package(folder / package.twin))
            files: Rope | Passed = Passed(twin.source, twin.files)
            information = {name: data for name, data in twin.information().items() if name != "info/index.json"}
        elif wheel:
            found = installed(wheel, record.environment)
            entries: list[dict[str, Any]] = []
            packed = _packed(_tarred(wheel, found, entries, moment))
            files = Rope.whole(stack.enter_context(mapped(packed, folder=target.parent)))
            information = _information(wheel, record, found, entries)
        else:
            files = Rope.whole(b"".join(_packed(_tar((), moment))))
            information = {"info/about.json": _json({}), "info/files": b"", "info/paths.json": _paths([])}
            information["info/link.json"] = _json(_link(record, ()))
        information["info/index.json"] = _json(record.data())
        compressor = zstandard.ZstdCompressor(level=_SMALL_LEVEL)
        described = compressor.compress(b"".join(_tar(sorted(information.items()), moment)))
        members = {
            "metadata.json": Rope.whole(_json({"conda_pkg_format_version": 2})),
            f"pkg-{record.stem}.tar.zst": files,
            f"info-{record.stem}.tar.zst": Rope.whole(described),
        }
        write_stored(target, members.items())


def write_repodata(index: CondaIndex, folder: Path, *, digests: Digests) -> None:
    """Write *index* into the channel *folder*: what its packages say of themselves, and size and hash of each.

    All of it is read again from the disk. There is no MD5, for clients that know SHA-256 ask for none.
    """
    packages = {path.name: listed(folder / path, sha256=digests.of(folder / path)) for path in sorted(index.files)}
    target = folder / index.target
    repodata = {
        "info": {"subdir": target.parent.name},
        "packages": {},
        "packages.conda": packages,
        "removed": [],
        "repodata_version": 1,
    }
    data = _json(repodata)
    target.write_bytes(data)
    target.with_name(f"{target.name}.zst").write_bytes(zstandard.ZstdCompressor(level=_SMALL_LEVEL).compress(data))


def listed(path: Path, *, sha256: str) -> dict[str, Any]:
    """What repodata says of the package at *path*, whose SHA-256 is *sha256*."""
    with opened_package(path) as package:
        return {**package.index(), "sha256": sha256, "size": path.stat().st_size}


def _information(
    wheel: Wheel, record: CondaRecord, files: Iterable[File], entries: list[dict[str, Any]]
) -> dict[str, bytes]:
    """The members of the archive that clients read before they take the files, index.json excepted."""
    headers = wheel.metadata().headers
    about = {"summary": headers.value("Summary"), "home": headers.value("Home-page"), "license": record.license}
    information = {
        "info/about.json": _json({key: value for key, value in about.items() if value}),
        "info/files": "".join(f"{file.path}\n" for file in files).encode(),
        "info/paths.json": _paths(entries),
    }
    if record.independent:
        information["info/link.json"] = _json(_link(record, tuple(script.text for script in scripts_of(wheel))))
    return information


def _link(record: CondaRecord, scripts: tuple[str, ...]) -> dict[str, Any]:
    entry_points = {"entry_points": list(scripts)} if record.independent is Independent.PYTHON else {}
    return {"noarch": {"type": str(record.independent), **entry_points}, "package_metadata_version": 1}


def _paths(entries: list[dict[str, Any]]) -> bytes:
    return _json({"paths": entries, "paths_version": 1})


def _tarred(wheel: Wheel, files: Iterable[File], entries: list[dict[str, Any]], moment: int) -> Iterator[bytes]:
    """The tar archive of *files* of *wheel*, a chunk at a time; what paths.json says of each is added to *entries*."""
    for file in files:
        yield _header(file.path, file.size, moment, is_executable=file.is_executable)
        # the chunks of a member are held against RECORD, whose hash needs no second look then
        said = None if isinstance(file.content, bytes) else sha256_said(wheel.row(file.content).hash)
        hashing = hashlib.sha256()
        for chunk in (file.content,) if isinstance(file.content, bytes) else wheel.chunks(file.content):
            if said is None:
                hashing.update(chunk)
            yield chunk
        yield bytes(-file.size % _BLOCK)
        entries.append(_entry(file, said or hashing.hexdigest()))
    yield bytes(2 * _BLOCK)


def _entry(file: File, sha256: str) -> dict[str, Any]:
    """What paths.json says of *file*."""
    entry = {"_path": file.path, "path_type": "hardlink", "sha256": sha256, "size_in_bytes": file.size}
    if file.has_placeholder:
        entry |= {"file_mode": "text", "prefix_placeholder": PLACEHOLDER}
    return entry


def _tar(files: Iterable[tuple[str, bytes]], moment: int) -> Iterator[bytes]:
    """The tar archive of small *files*."""
    for path, data in files:
        yield _header(path, len(data), moment, is_executable=False)
        yield data
        yield bytes(-len(data) % _BLOCK)
    yield bytes(2 * _BLOCK)


def _header(path: str, size: int, moment: int, *, is_executable: bool) -> bytes:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mtime, entry.mode = size, moment, 0o755 if is_executable else 0o644
    # GNU's form for long names, which every reader knows; the owner is nobody's
    return entry.tobuf(tarfile.GNU_FORMAT, "utf-8")


def _packed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """*chunks* as one zstd frame, compressed on all cores."""
    # no thread would be another kind of frame than one thread or many
    compressor = zstandard.ZstdCompressor(level=_LEVEL, threads=min(available_cores(), _MOST_THREADS)).compressobj()
    for chunk in chunks:
        if packed := compressor.compress(chunk):
            yield packed
    yield compressor.flush()


def _json(data: Any) -> bytes:  # noqa: ANN401 - whatever JSON holds
    return json.dumps(data, indent=2, sort_keys=True).encode() + b"\n"
