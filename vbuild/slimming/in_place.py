"""Files that are changed where they are installed: each is the old or the new one at every moment, and can come back.

    .vbuild-…/part-7      the new file, complete and beside the old ones
    backup                the old file under a second name, and a line in the backup's list
    .vbuild-slim.journal  a line: path, old and new SHA-256 and size
    rename                the old file is gone; any other name of it stays
    RECORD, conda-meta    and the bill of materials get true rows again

By the journal of a killed run the next one sets the rows of new files.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError, convert, to_builtins
from msgspec.structs import replace

from vbuild.errors import RepackageError, at
from vbuild.files.atomic import linked, locked, replacing, staging
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import json_object, read_file
from vbuild.files.wording import counted, sized
from vbuild.sbom.keeping import first_bill, has_past, path_of, rehashed
from vbuild.sbom.model import GpuCut
from vbuild.wheel.installed import Environment, FileRow, InstalledDistribution, rewrite_listing

JOURNAL = ".vbuild-slim.journal"
_LIST = "vbuild-slim.jsonl"


class FileChange(Struct, frozen=True):
    """A file that changes: SHA-256 and size before and after; None if it goes.

    *kept* is what the backup calls the old file. *listed* has, for one that goes, each listing and its path there.
    *cut* is what the bill of materials will say of one with fillers.
    """

    path: str
    old: str
    old_size: int
    new: str | None = None
    size: int = 0
    kept: str | None = None
    listed: tuple[tuple[str, str], ...] = ()
    cut: GpuCut | None = None


class Listings:
    """The files that list the files of an *environment*, each rewritten once its rows are known."""

    def __init__(self, environment: Environment, distributions: Iterable[InstalledDistribution]) -> None:
        self._root = environment.root
        self._by_listing = {
            os.path.relpath(distribution.listing, self._root): distribution for distribution in distributions
        }
        self._owners: dict[str, list[tuple[InstalledDistribution, str]]] = {}
        self._cuts: dict[str, GpuCut] = {}
        for distribution in self._by_listing.values():
            for row in distribution.rows:
                self._owners.setdefault(str(distribution.path_of(row.path)), []).append((distribution, row.path))

    def that_list(self, path: str) -> tuple[tuple[str, str], ...]:
        """Each listing's path from the root, and the file's path in it."""
        owners = self._owners.get(str(self._root / path), ())
        return tuple((os.path.relpath(distribution.listing, self._root), listed) for distribution, listed in owners)

    def list_again(self, change: FileChange) -> None:
        """Let the listings that had the file of *change* get a row of it again."""
        owners = self._owners.setdefault(str(self._root / change.path), [])
        for listing, listed in change.listed:
            distribution = self._by_listing.get(listing)
            if distribution and (distribution, listed) not in owners:
                owners.append((distribution, listed))

    def note(self, change: FileChange) -> None:
        """Let the bills of materials say of the new file of *change* how it was cut."""
        if change.cut:
            self._cuts[str(self._root / change.path)] = change.cut

    def update(self, changes: Mapping[str, FileRow | None]) -> None:
        """Write the rows of *changes*, by paths from the root, into every listing."""
        # conda lists RECORD, too
        records = self._written(changes, is_conda=False)
        self._written({**changes, **records}, is_conda=True)

    def _written(self, changes: Mapping[str, FileRow | None], *, is_conda: bool) -> dict[str, FileRow]:
        """Write *changes* into listings of one sort; return their rows and those of bills of materials."""
        by_listing: dict[Path, tuple[InstalledDistribution, dict[str, FileRow | None]]] = {}
        for path, now in changes.items():
            for distribution, listed in self._owners.get(str(self._root / path), ()):
                if distribution.is_conda is is_conda:
                    rows = by_listing.setdefault(distribution.listing, (distribution, {}))[1]
                    rows[listed] = FileRow(listed, now.sha256, now.size) if now else None
        written = {}
        for listing, (distribution, rows) in by_listing.items():
            bill = None if is_conda else self._rebilled(distribution, rows)
            data = read_file(listing)
            if (new := rewrite_listing(listing, data, rows)) != data:
                overwrite(listing, new)
            for file in filter(None, (listing, bill)):
                path = os.path.relpath(file, self._root)
                written[path] = FileRow(path, sha256_of(file), file.stat().st_size)
        return written

    def _rebilled(self, distribution: InstalledDistribution, rows: dict[str, FileRow | None]) -> Path | None:
        """Update the bill of materials of *distribution* and its row in *rows*; return its path, or None.

        One that had none gets one to tell which fatbins are fillers, which goes with the last of them.
        """
        path = path_of(distribution.dist_info)
        bill = distribution.path_of(path)
        hashes = {listed: row.sha256 if row else None for listed, row in rows.items()}
        places = {listed: str(distribution.path_of(listed)) for listed in rows}
        cuts = {listed: self._cuts[at_] for listed, at_ in places.items() if at_ in self._cuts and hashes[listed]}
        if bill.is_file():
            data = read_file(bill)
            new = rehashed(data, hashes, cuts)
        elif cuts:
            data, new = b"", first_bill(distribution, hashes, cuts)
        else:
            return None
        if not has_past(new):
            bill.unlink()
            with suppress(OSError):  # it has other bills
                bill.parent.rmdir()
            rows[path] = None
            return None
        if new != data:
            bill.parent.mkdir(exist_ok=True)
            overwrite(bill, new, like=bill if data else distribution.listing)
            rows[path] = FileRow(path, sha256_of(bill), len(new))
        return bill


def overwrite(path: Path, data: bytes, *, like: Path | None = None) -> None:
    """Replace the contents of *path* by *data*, with mode and owner of it or of *like*; `OSError` if impossible."""
    with replacing(path) as part:
        part.write_bytes(data)
        alike(part, like or path)


def alike(new: Path, old: Path) -> None:
    shutil.copystat(old, new)
    status = old.stat()
    if (status.st_uid, status.st_gid) != (new.stat().st_uid, new.stat().st_gid):
        os.chown(new, status.st_uid, status.st_gid)
        new.chmod(status.st_mode & 0o7777)  # another owner takes the set-user-ID bit away


class Journal:
    """The changes of one run, each written to *path* before it is made."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def left(self) -> tuple[FileChange, ...]:
        with suppress(OSError):
            return tuple(_changes(read_file(self.path)))
        return ()

    def write(self, change: FileChange) -> None:
        _append(self.path, to_builtins(change))

    def finish(self) -> None:
        self.path.unlink(missing_ok=True)


def completed(environment: Environment, listings: Listings, changes: Iterable[FileChange]) -> int:
    """Correct what the listings say of files that a killed run or undo may have changed; return how many are new."""
    rows: dict[str, FileRow | None] = {}
    done = 0
    for change in changes:
        path = environment.root / change.path
        if change.new is None and not path.exists():
            rows[change.path] = None
            done += 1
        elif change.new is None:
            if path.is_file() and sha256_of(path) == change.old:  # not gone yet, or back
                listings.list_again(change)
                rows[change.path] = FileRow(change.path, change.old, change.old_size)
        elif path.is_file() and (digest := _one_of(path, change)):
            rows[change.path] = FileRow(change.path, digest, change.size if digest == change.new else change.old_size)
            done += digest == change.new
            if digest == change.new:
                listings.note(change)
    listings.update(rows)
    return done


def _one_of(path: Path, change: FileChange) -> str | None:
    if path.stat().st_size not in {change.size, change.old_size}:
        return None
    return digest if (digest := sha256_of(path)) in {change.old, change.new} else None


class Backup:
    """Old files in *folder*, and a list of them that begins with where they were."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder = folder
        self._list = folder / _LIST
        try:
            (folder / "files").mkdir(parents=True, exist_ok=True)
            if not self._list.exists():
                _append(self._list, {"root": str(root)})
            elif not read_file(self._list).endswith(b"\n"):  # a run was killed in the middle of a line
                with self._list.open("ab") as stream:
                    stream.write(b"\n")
        except OSError as error:
            raise RepackageError(f"{folder}: no place for a backup: {error.strerror}") from error
        recorded_root = _root_in(self._list)
        if recorded_root != root:
            raise RepackageError(f"{folder}: has a backup of {recorded_root}; expected a folder of its own for {root}")

    def keep(self, old: Path, change: FileChange) -> FileChange:
        """Keep *old*, by a second name where possible, and write *change* down."""
        recorded = replace(change, kept=change.old)
        target = self.folder / "files" / change.old
        if not target.exists():
            with replacing(target) as part:
                linked(old, part)
        _append(self._list, to_builtins(recorded))
        return recorded


class Undone(Struct, frozen=True):
    """What `undo` did: number of files and their bytes, and what was *left*, with the reason."""

    root: Path
    files: int
    size: int
    left: tuple[tuple[str, str], ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        first = f"{self.root}: {counted(self.files, 'file')} back, {sized(self.size)}"
        return (first, *(f"  left: {path}: {why}" for path, why in self.left))

    def data(self) -> dict[str, Any]:
        left = [{"path": path, "why": why} for path, why in self.left]
        return {"environment": str(self.root), "files": self.files, "size": self.size, "left": left}


def undo(folder: Path) -> Undone:
    """Put the files of the backup *folder* back; it goes, unless a file had to be left.

    A file that was changed since then stays. `RepackageError` if *folder* is not a backup, or its environment is gone
    or in use.
    """
    root, changes = backed_up(folder)
    if not root.is_dir():
        raise RepackageError(f"{folder}: a backup of {root}, which is not there")
    environment = Environment.under(root)
    listings = Listings(environment, environment.distributions())
    left, back, size = [], {}, 0
    with change_in_turn(environment) as (_stage, journal):
        completed(environment, listings, journal.left())
        for change in reversed(changes):
            journal.write(change)
            if why := restore_file(folder, root, change):
                left.append((change.path, why))
            else:
                listings.list_again(change)
                back[change.path] = FileRow(change.path, change.old, change.old_size)
                size += change.old_size
        listings.update(back)
        journal.finish()
    if not left:
        (folder / _LIST).unlink()
        shutil.rmtree(folder / "files", ignore_errors=True)
        with suppress(OSError):  # something else is in it
            folder.rmdir()
    return Undone(root, len(back), size, tuple(left))


@contextmanager
def change_in_turn(environment: Environment) -> Iterator[tuple[Path, Journal]]:
    """A stage and a journal for one run at a time."""
    places = (environment.root, *environment.folders)
    room = next((folder for folder in places if os.access(folder, os.W_OK | os.X_OK)), None)
    if room is None:
        raise RepackageError(f"{environment.root}: cannot be written to; expected an environment of this user's")
    journal = Journal(room / JOURNAL)
    with at(environment.root), staging(room) as stage, locked(stage.parent, wait=False) as is_held:
        if not is_held:
            raise RepackageError("another vbuild slim changes it; wait for its end")
        yield stage, journal


def backed_up(folder: Path) -> tuple[Path, tuple[FileChange, ...]]:
    """The root of the environment and the changes of the backup *folder*; `RepackageError` if it is none."""
    file = folder / _LIST
    if not file.is_file():
        raise RepackageError(f"{folder}: no backup of vbuild slim, which has a file {_LIST}")
    root = _root_in(file)
    return root, tuple(_changes(read_file(file)))


def restore_file(folder: Path, root: Path, change: FileChange) -> str | None:
    path, old_file = root / change.path, folder / "files" / str(change.kept)
    if path.is_symlink() or not path.parent.is_dir():
        return "is not what slimming left there"
    if path.exists() or change.new is not None:
        digest = sha256_of(path) if path.is_file() else None
        if digest == change.old:
            return None
        if digest != change.new:
            return "is not what slimming left there: installed again, or changed"
    if not old_file.is_file() or sha256_of(old_file) != change.old:
        return "its old file is missing in the backup, or damaged"
    with replacing(path) as part:
        linked(old_file, part)
    return None


def _root_in(file: Path) -> Path:
    first = read_file(file).partition(b"\n")[0]
    with at(file):
        root = json_object(first, RepackageError).get("root")
        if not isinstance(root, str):
            raise RepackageError("the first line names no root; expected what vbuild slim --backup writes")
        return Path(root)


def _changes(data: bytes) -> Iterator[FileChange]:
    """Without a last line that a killed run did not finish."""
    for line in data.splitlines():
        with suppress(ValueError, TypeError, ValidationError):
            values = json.loads(line)
            if "path" in values:
                yield convert(values, FileChange)


def _append(file: Path, values: object) -> None:
    with file.open("ab") as stream:
        stream.write(json.dumps(values).encode() + b"\n")
