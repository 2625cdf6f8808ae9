"""One conda package that slimming writes: its cut files, and all that lists them.

    cut files -> RECORD and the bill of materials of the distribution that they are of
              -> info/paths.json: sha256, size_in_bytes, also of links to them
              -> info/files, info/has_prefix: without what went
              -> info/index.json, if it is one of a family: build, build_number, depends
              -> pkg-*.tar.zst, info-*.tar.zst, as conda-package-handling makes them

Clients replace a prefix placeholder wherever they find it in a file, and keep the file's length. A cut is right for
such a file if every placeholder stays whole with the text that it begins, or goes whole, and none comes.
"""

import hashlib
import json
import posixpath
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from vbuild.files import zstd
from vbuild.files.edited import EditedFile
from vbuild.hardware.cpu import available_cores
from vbuild.publishing.conda.file_names import CONDA
from vbuild.publishing.conda.tarred import TarKind, TarOutput, sampled
from vbuild.publishing.conda.unpacked import FILES, INDEX, PATHS, PathEntry, UnpackedPackage
from vbuild.sbom.keeping import path_of, rehashed
from vbuild.slimming.device_files import kept_whole
from vbuild.slimming.library import LibraryPlan
from vbuild.slimming.plan import SlimPlan
from vbuild.slimming.request import Cuts
from vbuild.wheel.installed import FileRow, revised
from vbuild.wheel.unpacking import mapped
from vbuild.wheel.zip_write import write_stored

# conda-package-handling's
LEVEL, FAST_LEVEL = 19, 6
_MOST_THREADS = 8
_PIECE = 1 << 20
# bytes of an archive that an estimate compresses, of so many each
_SAMPLE, _EVERY = 1 << 18, 64 << 18
_METADATA = {"conda_pkg_format_version": 2}
_HAS_PREFIX = "info/has_prefix"


class CondaOutput(Struct, frozen=True):
    """A package to write: the files of *share*, and what is new in its index.json.

    *depends* are what it asks of a machine besides, and *build* its build string if that is new.
    """

    share: int
    build: str | None = None
    number: int = 0
    depends: tuple[str, ...] = ()

    def stem(self, package: UnpackedPackage) -> str:
        """What it and its archives are called after."""
        index = package.index
        return f"{index['name']}-{index['version']}-{self.build}" if self.build else package.stem

    def file(self, package: UnpackedPackage) -> str:
        """Its file name."""
        return f"{self.stem(package)}{CONDA}"

    def index(self, package: UnpackedPackage) -> EditedFile | None:
        """Its index.json, if that is new."""
        if self.build is None:
            return None
        depends = [*package.index.get("depends", []), *self.depends]
        new = {**package.index, "build": self.build, "build_number": self.number, "depends": depends}
        return EditedFile.whole(_json(new, like=package.information[INDEX]))


class SlimFiles(Struct, frozen=True):
    """What is in the two archives of the packages of one share: *installed* files, and those that *describe* them."""

    installed: TarOutput
    describing: TarOutput

    @classmethod
    def of(cls, package: UnpackedPackage, plan: SlimPlan, share: int) -> "SlimFiles":
        """The files of *package* as *plan* has them for *share*."""
        edits, gone = plan.files(share), _with_links(package, plan.gone(share))
        rows: dict[str, FileRow | None] = {path: _row(path, file) for path, file in edits.items()}
        rows |= dict.fromkeys(gone)
        for path, file in _listings(package, rows).items():
            edits[path], rows[path] = file, _row(path, file)
        installed = tuple(entry for entry in package.files.entries if entry.path not in gone)
        information = package.information
        described = {PATHS: EditedFile.whole(_paths(package, rows))}
        for name, column in ((FILES, 0), (_HAS_PREFIX, -1)) if gone else ():
            if name in information:
                described[name] = EditedFile.whole(_without(information[name], gone, column))
        return cls(
            TarOutput(package.files, installed, edits),
            TarOutput(package.described, package.described.entries, described),
        )

    def describing_with(self, index: EditedFile | None) -> TarOutput:
        """What describes them, with *index* instead of index.json if there is one."""
        files = {**self.describing.files, INDEX: index} if index else self.describing.files
        return replace(self.describing, files=files)

    @property
    def size(self) -> int:
        """Bytes of the installed files."""
        edits = self.installed.files
        return sum(edits[entry.path].size if entry.path in edits else entry.size for entry in self.installed.entries)


def safe_plan(package: UnpackedPackage, plan: SlimPlan, cuts: Cuts) -> SlimPlan:
    """*plan* without the cuts of files whose prefix clients could not replace any more as in the whole ones."""
    return replace(plan, libraries=tuple(_safe(package, library, cuts) for library in plan.libraries))


def _safe(package: UnpackedPackage, library: LibraryPlan, cuts: Cuts) -> LibraryPlan:
    stated = package.paths[library.member]
    if stated.placeholder is None or not library.is_changed:
        return library
    placeholder = stated.placeholder.encode()
    changed = [file for share, file in enumerate(library.files) if share not in library.gone and not file.is_unchanged]
    if stated.is_binary and not cuts.zstd and all(_keeps(file, placeholder) for file in changed):
        return library
    what = "clients put the prefix of their environment into it" + ("" if stated.is_binary else ", as into text")
    return kept_whole(library, f"{what}, and after the cut could not do that as before")


def _keeps(file: EditedFile, placeholder: bytes) -> bool:
    """Whether each *placeholder* stays with the rest of its text or goes with it, and none comes."""
    data = bytes(file.source)
    kept = [part for part in file.parts if isinstance(part, range)]
    count, start = 0, 0
    while (place := data.find(placeholder, start)) >= 0:
        start = place + len(placeholder)
        end = data.find(b"\0", start)
        end = end + 1 if end >= 0 else len(file.source)
        if any(part.start <= place and end <= part.stop for part in kept):
            count += 1
        elif any(part.start < end and place < part.stop for part in kept):
            return False
    return bytes(file).count(placeholder) == count


def _with_links(package: UnpackedPackage, gone: frozenset[str]) -> frozenset[str]:
    """*gone* with the links to what went."""
    found = set(gone)
    while more := {path for path, target in package.links.items() if target in found} - found:
        found |= more
    return frozenset(found)


def _row(path: str, file: EditedFile) -> FileRow:
    digest = hashlib.sha256()
    for buffer in file.buffers():
        digest.update(buffer)
    return FileRow(path, digest.hexdigest(), file.size)


def _listings(package: UnpackedPackage, rows: Mapping[str, FileRow | None]) -> dict[str, EditedFile]:
    """The RECORDs and bills of materials in *package* that say what *rows* have otherwise, as they are then."""
    found = {}
    by_path = {entry.path: entry for entry in package.files.entries if entry.kind is TarKind.FILE}
    for path in [path for path in by_path if path.endswith(".dist-info/RECORD")]:
        info = PurePosixPath(path).parent
        root = str(info.parent)
        listed = {posixpath.relpath(each, root): row for each, row in rows.items()}
        data = package.read(by_path[path])
        # a row that is not there would be added
        names = {line.partition(",")[0].strip('"') for line in data.decode(errors="replace").splitlines()}
        own = {
            name: FileRow(name, row.sha256, row.size) if row else None for name, row in listed.items() if name in names
        }
        bill = posixpath.join(root, path_of(info.name))
        if own and bill in by_path:
            old = package.read(by_path[bill])
            new = rehashed(old, {name: row.sha256 if row else None for name, row in own.items()})
            if new != old:
                found[bill] = EditedFile.whole(new)
                own[path_of(info.name)] = _row(path_of(info.name), found[bill])
        if own:
            found[path] = EditedFile.whole(revised(Path(path), data, own))
    return found


def _paths(package: UnpackedPackage, rows: Mapping[str, FileRow | None]) -> bytes:
    """info/paths.json with what *rows* say."""
    data = package.information[PATHS]
    values = json.loads(data)
    kept = []
    for entry in values["paths"]:
        path = entry["_path"]
        leads_to = package.links.get(path, path)
        row = rows.get(path, rows.get(leads_to))
        if path in rows and row is None:
            continue
        # of a symbolic link it is the hash of what it leads to, or none
        is_its = package.paths[path].sha256 in {None, package.paths.get(leads_to, _NOTHING).sha256}
        if row and (path in rows or is_its):
            new = {"sha256": row.sha256, "size_in_bytes": row.size, "sha256_in_prefix": row.sha256}
            kept.append({**entry, **{key: value for key, value in new.items() if entry.get(key) is not None}})
        else:
            kept.append(entry)
    return _json({**values, "paths": kept}, like=data)


_NOTHING = PathEntry("", "", "", None)


def _without(data: bytes, gone: frozenset[str], column: int) -> bytes:
    """The lines of *data* whose path, the whole line or the last word, is not *gone*."""
    lines = data.decode().splitlines(keepends=True)
    words = (line.strip() if column == 0 else line.strip().rpartition(" ")[2].strip('"') for line in lines)
    return "".join(line for line, word in zip(lines, words, strict=True) if word not in gone).encode()


def _json(values: Mapping[str, Any], *, like: bytes) -> bytes:
    """*values* as JSON, indented as *like* is."""
    second = like.lstrip().partition(b"\n")[2]
    indent = len(second) - len(second.lstrip(b" ")) or None
    separators = (",", ":") if indent is None and b'": ' not in like else None
    text = json.dumps(values, indent=indent, separators=separators, ensure_ascii=like.isascii())
    return (text + ("\n" if like.endswith(b"\n") else "")).encode()


@contextmanager
def packed(
    output: TarOutput, *, level: int, folder: Path, on_progress: Callable[[int], None] = lambda _size: None
) -> Iterator[memoryview]:
    """The archive *output* as one zstd frame, in a file in *folder* that nobody else sees.

    The same on any number of cores: zstd works in jobs of one size.
    """

    def pieces() -> Iterator[bytes]:
        compressor = zstd.compressor(level, threads=min(available_cores(), _MOST_THREADS), size=output.size)
        for buffer in output.buffers():
            for start in range(0, len(buffer), _PIECE):
                piece = buffer[start : start + _PIECE]
                if done := compressor.compress(piece):
                    yield done
                on_progress(len(piece))
        yield compressor.flush()

    with mapped(pieces(), folder=folder) as view:
        yield view


def write_package(target: Path, stem: str, installed: memoryview, describing: memoryview) -> None:
    """Write the package *target* of two archives named after *stem*: the files, and what describes them."""
    members: dict[str, bytes | memoryview] = {
        "metadata.json": json.dumps(_METADATA).encode(),
        f"pkg-{stem}.tar.zst": installed,
        f"info-{stem}.tar.zst": describing,
    }
    write_stored(target, ((name, EditedFile.whole(data)) for name, data in members.items()))


def estimated(package: UnpackedPackage, files: SlimFiles, *, level: int) -> int:
    """About how many bytes a package with *files* will have, by samples of them and of what they were."""
    size = package.path.stat().st_size
    before, after = (
        len(zstd.compressed(sampled(output.buffers(), piece=_SAMPLE, every=_EVERY), level=level))
        for output in (TarOutput(package.files, package.files.entries, {}), files.installed)
    )
    return size * after // before
