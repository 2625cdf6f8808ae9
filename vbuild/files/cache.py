"""The user's cache: what vbuild has fetched, built and asked before.

    vbuild/CACHEDIR.TAG          tells backup programs to leave the folder out
    vbuild/.swept                has the time of the last sweep
    vbuild/<part>/…              the entries of a part, files or folders; see `RULES`
    vbuild/<part>/.locks/<name>  locked while a process makes the entry of that name
    vbuild/<part>/.….part        an entry that is being made

An entry is renamed when it is complete. Its time is when it was used last. Nothing is flushed to the disk: each part
checks the hashes of an entry before it uses it, and makes a damaged one again.
https://bford.info/cachedir/
"""

import glob
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Self

from msgspec import Struct
from platformdirs import user_cache_path

from vbuild.errors import BuildError
from vbuild.files.atomic import NO_LOCKS, locked, name_unwritable_folder, replacing
from vbuild.files.hashing import seal, unseal
from vbuild.process.run import check_running
from vbuild.process.signals import uninterrupted

DAY = 86400  # seconds
ELSEWHERE = "point XDG_CACHE_HOME at a folder that can be"  # for a message that a folder cannot be written to
_GB = 10**9

_LOCKS = ".locks"
_GATE = "store"
_TAG = "CACHEDIR.TAG"
_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55\n# vbuild makes all of this again when it needs it.\n"
_SWEPT = ".swept"


class Part(StrEnum):
    BUILDS = "builds"
    NATIVE = "native"
    SDISTS = "sdists"
    COMMITS = "commits"
    ENVIRONMENTS = "environments"
    TOOLKITS = "toolkits"
    ZIG = "zig"
    CROSS = "cross"
    OFFICIAL = "official"
    PROBES = "probes"


class PartRule(Struct, frozen=True):
    """What a part of the cache *holds*, and when an entry is removed.

    *entries* are patterns of paths; without one, the folder is one entry. An entry is removed after *days* without use
    (None: never), and the oldest while all take more than *most* bytes, but none that was used within *grace* seconds.
    """

    holds: str
    entries: tuple[str, ...] = ("[!.]*",)
    days: float | None = 30
    most: int | None = 20 * _GB
    grace: float = DAY
    mark: str = ""  # the file whose time counts, if it is not the entry's own


RULES = {
    Part.BUILDS: PartRule(
        "repaired builds, wheels that are verified and tested",
        tuple(f"{kind}/[!.]*" for kind in ("builds", "products", "joined", "unrepaired", "looked", "benches")),
        most=50 * _GB,
        grace=0,  # builds get links or copies
    ),
    Part.NATIVE: PartRule("native dependencies"),
    Part.SDISTS: PartRule("source archives"),
    Part.COMMITS: PartRule("git checkouts"),
    Part.ENVIRONMENTS: PartRule("build environments", ("[!.]*/[!.]*",), mark=".vbuild-environment"),
    # a shell with its CUDA_HOME does not mark it as used
    Part.TOOLKITS: PartRule(
        "CUDA toolkits, and zig",
        ("cuda-*", "components/[!.]*", "pins/*.json"),
        days=None,
        most=None,
        mark=".vbuild.json",
    ),
    Part.ZIG: PartRule("what zig compiles for itself", ()),
    Part.CROSS: PartRule("settings for builds for another machine"),
    Part.OFFICIAL: PartRule("NVIDIA's libraries, and what is in its wheels"),
    Part.PROBES: PartRule("answers of compilers, interpreters and pip"),
}


class CacheEntry(Struct, frozen=True):
    path: Path
    size: int
    used: float


class Removed(Struct, frozen=True):
    part: Part
    count: int
    size: int


class Cache(Struct, frozen=True):
    part: Part
    folder: Path

    @classmethod
    def of(cls, part: Part, folder: Path | None = None) -> Self:
        """The *part* in *folder*; `BuildError` if others can put programs into the user's cache."""
        if folder is None and (why := _strange(cache_folder())):
            raise BuildError(f"{cache_folder()}: {why}; point XDG_CACHE_HOME at a folder of yours")
        return cls(part, folder or cache_folder() / part)

    @property
    def rule(self) -> PartRule:
        return RULES[self.part]

    def mark(self, path: Path) -> None:
        with suppress(OSError):  # it may be another user's
            os.utime(path / self.rule.mark if self.rule.mark and path.is_dir() else path)

    def text(self, name: str) -> str | None:
        """None if there is none, or a damaged one."""
        path = self.folder / name
        with suppress(OSError, ValueError):
            text = unseal(path.read_bytes())
            self.mark(path)
            return text
        return None

    def keep_text(self, name: str, text: str) -> None:
        path = self.folder / name
        self.make_folder(path.parent)
        with replacing(path) as part:
            part.write_text(seal(text), encoding="utf-8")

    @contextmanager
    def locked(self, name: str, *, wait: bool = True, check: Callable[[], None] = check_running) -> Iterator[bool]:
        """Hold the lock of the entry *name* for the block, and remove what a killed process left of it.

        Gives False if another holds it and *wait* is off. *check* is called while waiting; the default raises
        `BuildError` when this thread has to stop.
        """
        path, locks = self.folder / name, self.folder / _LOCKS
        self.make_folder(locks)
        with ExitStack() as stack:
            try:
                is_held = stack.enter_context(locked(locks / path.name, wait=wait, check=check))
                if is_held:
                    with locked(locks / _GATE, check=check):  # until a process that empties the cache has done so
                        pass
                    for left in path.parent.glob(f".{glob.escape(path.name)}.*part*"):
                        remove(left)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                is_held = True  # two may make the entry at the same time; the last one stays
            yield is_held

    @contextmanager
    def replacing(self, name: str) -> Iterator[Path]:
        """The path to write the entry *name* to, renamed if the block ends well; the caller holds its lock."""
        path = self.folder / name
        self.make_folder(path.parent)
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            yield part
            if part.is_dir():
                self.drop(path)
            part.replace(path)
        finally:
            with uninterrupted(), suppress(OSError):
                remove(part)

    def drop(self, path: Path) -> int:
        """Remove the entry at *path* in one step; gives the bytes that this frees."""
        if not self.rule.entries:  # a part of the cache may be a link to another disk
            path = path.resolve()
        gone = path.with_name(f".{path.name}.{secrets.token_hex(4)}.removed")
        with uninterrupted():
            try:
                path.rename(gone)
            except FileNotFoundError:
                return 0
            freed = sum(status.st_size for status in _files(gone) if status.st_nlink == 1)
            remove(gone)
        return freed

    def entries(self) -> Iterator[CacheEntry]:
        """Every entry; bytes that entries share on the disk count for the first."""
        seen = set[tuple[int, int]]()
        for path in self._paths():
            with suppress(OSError):
                used = (path / self.rule.mark if (path / self.rule.mark).is_file() else path).stat().st_mtime
                size = 0
                for status in _files(path):
                    size += status.st_size if (status.st_dev, status.st_ino) not in seen else 0
                    seen.add((status.st_dev, status.st_ino))
                yield CacheEntry(path, size, used)

    def sweep(self, *, most: int | None = None) -> Removed:
        """Remove what the rule says, with *most* instead of its own, but nothing being made."""
        rule, now, total, count, freed = self.rule, time.time(), 0, 0, self._sweep_remains(DAY)
        most = rule.most if most is None else most
        if rule.days is None:
            return Removed(self.part, 0, freed)
        for entry in sorted(self.entries(), key=lambda entry: entry.used, reverse=True):
            total += entry.size
            is_spare = entry.used < now - rule.days * DAY or (most is not None and total > most)
            if is_spare and entry.used <= now - rule.grace:
                with suppress(OSError), locked(lock := self._lock(entry.path), wait=False) as is_held:
                    if is_held:
                        freed += self.drop(entry.path)
                        count += 1
                        lock.unlink()
        return Removed(self.part, count, freed)

    def empty(self) -> Removed | None:
        """Remove all; gives None, and removes nothing, if an entry is being made."""
        with ExitStack() as stack:
            is_idle = True
            if self.rule.entries and self.folder.is_dir():
                locks = self.folder / _LOCKS
                locks.mkdir(exist_ok=True)
                is_idle = stack.enter_context(locked(locks / _GATE, wait=False))  # nobody begins an entry meanwhile
            if not is_idle or any(map(_is_locked, self._locks())):
                return None
            freed = self._sweep_remains(0)
            entries = [*self.entries()]
            freed += sum(self.drop(entry.path) for entry in entries)
        return Removed(self.part, len(entries), freed)

    def make_folder(self, folder: Path) -> None:
        """Make *folder* in this part, and mark the user's cache as a cache."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = name_unwritable_folder(error)
            advice = f"; {ELSEWHERE}" if self.folder.parent == cache_folder() else ""
            raise OSError(reason.errno, f"{reason.strerror}{advice}", reason.filename) from error
        tag = cache_folder() / _TAG
        if self.folder.parent == tag.parent and not tag.exists():
            with suppress(OSError), replacing(tag) as part:
                part.write_text(_SIGNATURE, encoding="ascii")

    def _paths(self) -> Iterator[Path]:
        if self.rule.entries:
            for pattern in self.rule.entries:
                yield from self.folder.glob(pattern)
        elif self.folder.is_dir():
            yield self.folder

    def _lock(self, path: Path) -> Path:
        if not self.rule.entries:
            return path.with_name(f"{path.name}.lock")
        self.make_folder(self.folder / _LOCKS)
        return self.folder / _LOCKS / path.name

    def _locks(self) -> list[Path]:
        if not self.rule.entries:
            return [lock for path in self._paths() if (lock := self._lock(path)).exists()]
        return [path for path in (self.folder / _LOCKS).glob("*") if path.name != _GATE]

    def _sweep_remains(self, age: float) -> int:
        if not self.rule.entries:
            return 0
        freed, names = 0, {path.name for path in self._paths()}
        for folder in {self.folder, *((self.folder / pattern).parent for pattern in self.rule.entries)}:
            for left in folder.glob(".*"):
                with suppress(OSError):
                    if left.name != _LOCKS and left.lstat().st_mtime <= time.time() - age:
                        freed += sum(status.st_size for status in _files(left) if status.st_nlink == 1)
                        remove(left)
        for lock in self._locks():
            with suppress(OSError):
                if lock.name not in names and lock.stat().st_mtime < time.time() - DAY and not _is_locked(lock):
                    lock.unlink()
        return freed


def cache_folder() -> Path:
    return user_cache_path("vbuild")


def _strange(folder: Path) -> str | None:
    """Why programs in *folder* should not be run; or None."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        status = folder.stat()
        if not hasattr(os, "geteuid"):  # Windows has other rules
            return None
        if status.st_uid not in {os.geteuid(), 0}:
            return f"belongs to another user, {status.st_uid}, and builds run programs from there"
        if status.st_mode & stat.S_IWOTH:
            return "everybody may write there, and builds run programs from there"
    return None


def sweep_daily() -> None:
    stamp = cache_folder() / _SWEPT
    with suppress(OSError):
        if (
            not cache_folder().is_dir()
            or _strange(cache_folder())
            or (stamp.exists() and stamp.stat().st_mtime > time.time() - DAY)
        ):
            return
        stamp.touch()
        prune()


def prune() -> tuple[Removed, ...]:
    """Remove what the rules say."""
    removed = []
    for part in RULES:
        cache = Cache.of(part)
        with _as_build_error(cache.folder):
            removed.append(cache.sweep())
    return tuple(removed)


def clean(parts: Iterable[Part] = RULES) -> tuple[Removed, ...]:
    """`BuildError` if an entry of *parts* is being made."""
    removed = []
    for part in parts:
        cache = Cache.of(part)
        with _as_build_error(cache.folder):
            emptied = cache.empty()
        if emptied is None:
            raise BuildError(f"{cache.folder}: in use by another process; try again when it is done")
        removed.append(emptied)
    return tuple(removed)


@contextmanager
def _as_build_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BuildError(f"{folder}: cannot be read or removed: {error.strerror}; try again") from error


def sizes() -> dict[Part, tuple[CacheEntry, ...]]:
    return {part: tuple(Cache.of(part).entries()) for part in RULES}


def remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _is_locked(lock: Path) -> bool:
    with locked(lock, wait=False) as is_held:
        return not is_held


def _files(path: Path) -> Iterable[os.stat_result]:
    if not path.is_dir():
        return [path.lstat()]
    return (Path(folder, name).lstat() for folder, _, names in os.walk(path) for name in names)
