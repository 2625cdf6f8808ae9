"""Write a conda channel: packages in format 2, the repodata of a folder, and the tables that pixi needs.

    demo-1.0-py311_0.conda           a zip of stored members
      metadata.json                  {"conda_pkg_format_version": 2}
      pkg-demo-1.0-py311_0.tar.zst   the files
      info-demo-1.0-py311_0.tar.zst  info/index.json, paths.json (sizes, SHA-256), files, about.json, link.json

The same wheel gives the same bytes: members are sorted, without owner, with the time of the wheel's METADATA or of
SOURCE_DATE_EPOCH; zstd works in jobs of one size, however many threads carry them out. Repodata is made of the packages
on disk.
https://docs.conda.io/projects/conda-build/en/stable/resources/package-spec.html

pixi solves for the machine that a manifest describes, not for the machine at hand: without one of these tables it takes
the plain build everywhere. A table states the least that a machine must have.

    platforms             since pixi 0.71: rich platforms, of which pixi takes the first that the machine satisfies
    system_requirements   before: an environment for each kind of machine

https://pixi.prefix.dev/latest/workspace/system_requirements/
"""

import hashlib
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from enum import StrEnum
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from vbuild.files import zstd
from vbuild.files.edited import EditedFile
from vbuild.files.hashing import Digests
from vbuild.files.records import Buffer
from vbuild.hardware.conda import MACHINES
from vbuild.hardware.cpu import available_cores
from vbuild.hardware.driver import Dotted
from vbuild.publishing.conda.reading import LEVEL_PACKAGE, NOARCH, listed, open_package
from vbuild.publishing.installing import InstalledFile, InstallEnvironment, installed, moment_of, scripts_of
from vbuild.wheel.archive import Wheel
from vbuild.wheel.metadata import recorded_sha256
from vbuild.wheel.shared import SharedWheels
from vbuild.wheel.unpacking import mapped
from vbuild.wheel.zip_write import PassedStream, StoredStream, write_stored

# what clients replace by the prefix of the environment, in a file that paths.json says to hold it; conda's own choice
PLACEHOLDER = "/opt/anaconda1anaconda2anaconda3"


class Independent(StrEnum):
    """What a package does not depend on: with ``python``, the version of Python, be it for one machine or for all."""

    PYTHON = "python"
    GENERIC = "generic"


class CondaRecord(Struct, frozen=True):
    """One package; *depends* are conda's match specifications, and the highest *number* of those that fit wins.

    *python* is the Python whose folder its files are in, as ``3.11`` or ``3.13t``, or None if it is independent of it.
    *label* is that of the variant it was made of.
    """

    name: str
    version: str
    build: str
    number: int
    subdir: str
    depends: tuple[str, ...]
    independent: Independent | None = None
    python: str | None = None
    license: str | None = None
    label: str | None = None

    @property
    def stem(self) -> str:
        """What the file and the archives in it are called after."""
        return f"{self.name}-{self.version}-{self.build}"

    @property
    def target(self) -> PurePosixPath:
        """Where it lies in the channel."""
        return PurePosixPath(self.subdir, f"{self.stem}.conda")

    def data(self) -> dict[str, Any]:
        """``index.json``."""
        data: dict[str, Any] = {
            "build": self.build,
            "build_number": self.number,
            "constrains": [],
            "depends": list(self.depends),
            "name": self.name,
            "subdir": self.subdir,
            "version": self.version,
        }
        if self.subdir != NOARCH:
            data |= {"arch": MACHINES[self.subdir], "platform": "linux"}
        if self.independent:
            data["noarch"] = str(self.independent)
        if self.license:
            data["license"] = self.license
        return data


# of the files, several hundred MB of code at times; what clients read first is small
_LEVEL, _SMALL_LEVEL = 3, 19
# twice as fast and more, and as good where bytes do not repeat: random ones, or what is compressed already
_FAST_LEVEL, _SAVING = 1, 1.005
# bytes at the beginning, and which part of them, by which one of the two is taken; with fewer, time does not matter
_LOOKED_AT, _SAMPLED, _TOO_SMALL = 1 << 25, 16, 1 << 20
_MOST_THREADS = 8
_BLOCK = tarfile.BLOCKSIZE


class CondaPackage(Struct, frozen=True):
    """The package *record* at *target*, made of the wheel at *wheel*; without a wheel it holds no files.

    *twin* is an earlier package of the same layout with the same contents: they are compressed once.
    """

    target: PurePosixPath
    record: CondaRecord
    wheel: Path | None = None
    twin: PurePosixPath | None = None

    @property
    def files(self) -> tuple[PurePosixPath, ...]:
        """The outputs whose hashes it contains: none."""
        return ()

    def write(self, folder: Path, *, digests: Digests, wheels: SharedWheels) -> None:  # noqa: ARG002 - as all are
        """Write it into the channel *folder*, where its twin is; `VbuildError` if its wheel is damaged."""
        with ExitStack() as stack:
            write_stored(folder / self.target, self._members(folder, wheels, stack))

    def _members(
        self, folder: Path, wheels: SharedWheels, stack: ExitStack
    ) -> Iterator[tuple[str, EditedFile | PassedStream | StoredStream]]:
        """What is in it, by name: what describes its files is known when these have been taken; *stack* ends later."""
        record = self.record
        wheel = stack.enter_context(wheels.open(self.wheel)) if self.wheel else None
        moment = moment_of([wheel] if wheel else [])
        yield "metadata.json", EditedFile.whole(_json({"conda_pkg_format_version": 2}))
        name = f"pkg-{record.stem}.tar.zst"
        if self.twin:
            twin = stack.enter_context(open_package(folder / self.twin))
            yield name, PassedStream(twin.source, twin.files)
            information = {name: data for name, data in twin.information().items() if name != "info/index.json"}
        elif wheel:
            folder_of_python = f"python{record.python}" if record.python else None
            prefix_python = f"{PLACEHOLDER}/bin/python"
            found = installed(wheel, InstallEnvironment("conda", prefix_python, folder_of_python, has_placeholder=True))
            entries: list[dict[str, Any]] = []
            packed = _packed(_tarred(wheel, found, entries, moment))
            most = zstd.most(sum(file.size + len(file.path.encode()) + 6 * _BLOCK for file in found) + 2 * _BLOCK)
            if StoredStream.fits(most):
                yield name, StoredStream(packed, most)
            else:
                folder_of_package = (folder / self.target).parent
                yield name, EditedFile.whole(stack.enter_context(mapped(packed, folder=folder_of_package)))
            information = _information(wheel, record, found, entries)
        else:
            yield name, EditedFile.whole(b"".join(_packed(_tar((), moment))))
            information = {
                "info/about.json": _json({}),
                "info/files": b"",
                "info/link.json": _json(_link(record, ())),
                "info/paths.json": _json({"paths": [], "paths_version": 1}),
            }
        information["info/index.json"] = _json(record.data())
        described = zstd.compressed(b"".join(_tar(sorted(information.items()), moment)), level=_SMALL_LEVEL)
        yield f"info-{record.stem}.tar.zst", EditedFile.whole(described)


class CondaIndex(Struct, frozen=True):
    """The repodata at *target*, a ``repodata.json``, of *files*, the packages written before it; and compressed."""

    target: PurePosixPath
    files: tuple[PurePosixPath, ...]

    def write(self, folder: Path, *, digests: Digests, wheels: SharedWheels) -> None:  # noqa: ARG002 - as all are
        """Write it into the channel *folder*: what its packages say of themselves, and size and hash of each.

        All of it is read again from the disk. There is no MD5, for clients that know SHA-256 ask for none.
        """
        packages = {path.name: listed(folder / path, sha256=digests.of(folder / path)) for path in sorted(self.files)}
        target = folder / self.target
        data = repodata(target.parent.name, packages)
        target.write_bytes(data)
        target.with_name(f"{target.name}.zst").write_bytes(packed_repodata(data))


def repodata(subdir: str, packages: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The repodata of the folder *subdir* of a channel: what it says of each of *packages*, by file name."""
    newer = {name: record for name, record in packages.items() if name.endswith(".conda")}
    return _json(
        {
            "info": {"subdir": subdir},
            "packages": {name: record for name, record in packages.items() if name not in newer},
            "packages.conda": newer,
            "removed": [],
            "repodata_version": 1,
        }
    )


def packed_repodata(data: bytes) -> bytes:
    """The repodata *data* as ``repodata.json.zst``, which most clients read first."""
    return zstd.compressed(data, level=_SMALL_LEVEL)


def _information(
    wheel: Wheel, record: CondaRecord, files: Iterable[InstalledFile], entries: list[dict[str, Any]]
) -> dict[str, bytes]:
    """The members of the archive that clients read before they take the files, index.json excepted."""
    headers = wheel.metadata().headers
    about = {"summary": headers.value("Summary"), "home": headers.value("Home-page"), "license": record.license}
    information = {
        "info/about.json": _json({key: value for key, value in about.items() if value}),
        "info/files": "".join(f"{file.path}\n" for file in files).encode(),
        "info/paths.json": _json({"paths": entries, "paths_version": 1}),
    }
    if record.independent:
        information["info/link.json"] = _json(_link(record, tuple(script.text for script in scripts_of(wheel))))
    return information


def _link(record: CondaRecord, scripts: tuple[str, ...]) -> dict[str, Any]:
    entry_points = {"entry_points": list(scripts)} if record.independent is Independent.PYTHON else {}
    return {"noarch": {"type": str(record.independent), **entry_points}, "package_metadata_version": 1}


def _tarred(
    wheel: Wheel, files: Iterable[InstalledFile], entries: list[dict[str, Any]], moment: int
) -> Iterator[Buffer]:
    """The tar archive of *files* of *wheel*, a chunk at a time; what paths.json says of each is added to *entries*."""
    for file in files:
        yield _header(file.path, file.size, moment, is_executable=file.is_executable)
        # the chunks of a member are checked against RECORD, whose hash needs no second look then
        recorded = None if isinstance(file.content, bytes) else recorded_sha256(wheel.row(file.content).hash)
        hashing = hashlib.sha256()
        for chunk in (file.content,) if isinstance(file.content, bytes) else wheel.chunks(file.content):
            if recorded is None:
                hashing.update(chunk)
            yield chunk
        yield bytes(-file.size % _BLOCK)
        sha256 = recorded or hashing.hexdigest()
        entry = {"_path": file.path, "path_type": "hardlink", "sha256": sha256, "size_in_bytes": file.size}
        if file.has_placeholder:
            entry |= {"file_mode": "text", "prefix_placeholder": PLACEHOLDER}
        entries.append(entry)
    yield bytes(2 * _BLOCK)


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


def _packed(chunks: Iterable[Buffer]) -> Iterator[bytes]:
    """*chunks* as one zstd frame, compressed on all cores."""
    first: list[Buffer] = []
    size = 0
    rest = iter(chunks)
    for chunk in rest:
        first.append(chunk)
        if (size := size + len(chunk)) >= _LOOKED_AT:
            break
    # no thread would be another kind of frame than one thread or many
    compressor = zstd.compressor(_level(first), threads=min(available_cores(), _MOST_THREADS))
    for chunk in chain(first, rest):
        if packed := compressor.compress(chunk):
            yield packed
    yield compressor.flush()


def _level(chunks: Sequence[Buffer]) -> int:
    """The level at which to compress what begins with *chunks*: the fast one where the other would save nothing."""
    if sum(map(len, chunks)) < _TOO_SMALL:
        return _LEVEL
    sample = b"".join(bytes(chunk[: len(chunk) // _SAMPLED]) for chunk in chunks)
    fast, slow = (len(zstd.compressed(sample, level=level)) for level in (_FAST_LEVEL, _LEVEL))
    return _FAST_LEVEL if fast <= slow * _SAVING else _LEVEL


def _json(data: Any) -> bytes:  # noqa: ANN401 - whatever JSON holds
    return json.dumps(data, indent=2, sort_keys=True).encode() + b"\n"


_ASKED = (LEVEL_PACKAGE, "__cuda", "__glibc")
_BOUND = re.compile(r"(>=|==|<)(?P<version>[\d.]+)")
_NAME = re.compile(r"[^a-z0-9]+")


class _Kind(Struct, frozen=True):
    """Machines, by what they have at least; *arch* is the compute capability of their GPUs."""

    name: str
    subdir: str
    level: str | None
    cuda: Dotted | None
    arch: Dotted | None
    glibc: Dotted | None


def platforms(records: Sequence[CondaRecord], asked: Mapping[str, str], *, channels: Sequence[str]) -> str:
    """The manifest of a workspace with the projects *asked*, by version, for the machines of *records*."""
    lines = [*_workspace(asked, channels), "platforms = ["]
    for kind in _kinds(records):
        driver = str(kind.cuda or Dotted(0, 0))
        keys = {
            "name": kind.name,
            "platform": kind.subdir,
            "archspec": f"x86_64_v{kind.level}" if kind.level else None,
            "cuda": {"driver": driver, "arch": str(kind.arch)} if kind.arch else kind.cuda and driver,
            "glibc": kind.glibc and str(kind.glibc),
        }
        lines.append(f"  {_inline(keys)},")
    return "\n".join([*lines, "]", "", *_dependencies(asked)])


def system_requirements(records: Sequence[CondaRecord], asked: Mapping[str, str], *, channels: Sequence[str]) -> str:
    """The same with an environment for each kind of machine, builds for some GPUs alone excepted."""
    kinds = [kind for kind in _kinds(records) if not kind.arch]
    subdirs = list(dict.fromkeys(kind.subdir for kind in kinds))
    lines = [*_workspace(asked, channels), f"platforms = {json.dumps(subdirs)}", "", *_dependencies(asked)]
    for kind in kinds:
        lines += ["", f"[feature.{kind.name}]", f"platforms = {json.dumps([kind.subdir])}"]
        lines += [f"[feature.{kind.name}.system-requirements]"]
        lines += [f'archspec = "x86_64_v{kind.level}"'] if kind.level else []
        lines += [f'cuda = "{kind.cuda}"'] if kind.cuda else []
        lines += [f'libc = {{ family = "glibc", version = "{kind.glibc}" }}'] if kind.glibc else []
    return "\n".join([*lines, "", "[environments]", *(f'{kind.name} = ["{kind.name}"]' for kind in kinds)])


def _kinds(records: Sequence[CondaRecord]) -> list[_Kind]:
    """The kinds of machines, the most preferred first, each once; of builds of one label the newest glibc counts."""
    found: dict[str, _Kind] = {}
    for record in sorted(records, key=lambda record: -record.number):
        for kind in _kinds_of(record):
            known = found.setdefault(kind.name, kind)
            newest = max(filter(None, (known.glibc, kind.glibc)), default=None)
            found[kind.name] = replace(known, glibc=newest)
    best: dict[_Kind, _Kind] = {}
    for kind in found.values():
        best.setdefault(replace(kind, name=""), kind)
    return list(best.values())


def _kinds_of(record: CondaRecord) -> Iterator[_Kind]:
    """The machines that *record* is for: with bounds on GPUs, one for each bound, the highest first.

    Above the highest the build does not run, so that this kind gets another one.
    """
    asked = {name: versions for name, _, versions in (text.partition(" ") for text in record.depends)}
    subdir = "linux-64" if record.subdir == NOARCH else record.subdir
    level, cuda, glibc = (min(_bounds(asked.get(name, "")), default=None) for name in _ASKED)
    archs: Iterable[Dotted | None] = sorted(_bounds(asked.get("__cuda_arch", "")), reverse=True) or (None,)
    for arch in archs:
        words = (subdir, record.label or "plain", *([str(arch)] if arch else []))
        name = _NAME.sub("-", "-".join(words)).strip("-")
        yield _Kind(name, subdir, str(level.major) if level else None, cuda, arch, glibc)


def _bounds(versions: str) -> frozenset[Dotted]:
    """The versions that *versions* begin or end with."""
    return frozenset(Dotted.parse(match["version"]) for match in _BOUND.finditer(versions))


def _workspace(asked: Mapping[str, str], channels: Sequence[str]) -> list[str]:
    return ["[workspace]", f"name = {json.dumps(next(iter(asked), 'demo'))}", f"channels = {json.dumps([*channels])}"]


def _dependencies(asked: Mapping[str, str]) -> list[str]:
    return ["[dependencies]", *(f'{json.dumps(name)} = "=={version}"' for name, version in asked.items())]


def _inline(keys: Mapping[str, object]) -> str:
    """*keys* as an inline table, those without a value left out."""
    found = ((key, value) for key, value in keys.items() if value is not None)
    pairs = (f"{key} = {_inline(value) if isinstance(value, dict) else json.dumps(value)}" for key, value in found)
    return f"{{ {', '.join(pairs)} }}"
