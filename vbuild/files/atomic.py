"""What vbuild writes is complete or not there at all, however a run ends, also if the machine loses its power.

Work in progress is in a stage, a folder of one run in the folder for the results:

    dist/.vbuild-x7f3/alive     locked for as long as its run lives, whatever ends it

A killed run leaves its stage behind, without its lock: the next in that folder removes it.

    stage_in, staging           a stage
    replacing, replace_folder   a file, or a folder that others read meanwhile, such as an index, replaced in one step
    linked, duplicate           the same file under a second name, sharing its bytes if the file system can
    locked, turn, turn_for      one process or thread at a time; a lock ends with its process

Runs that write into one folder take turns: the lock is the folder's own, so it leaves no file. Linux lists who holds
it: a process that is stopped (SIGSTOP, Ctrl-Z) would keep all others waiting.
https://man7.org/linux/man-pages/man5/proc_locks.5.html

Archives take the time of SOURCE_DATE_EPOCH, never of the clock; a format that cannot hold it stores the nearest.
https://reproducible-builds.org/specs/source-date-epoch/
"""

import ctypes
import errno
import logging
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import gettempdir

from filelock import lock_descriptor

from vbuild.errors import BuildError, RecipeError, VbuildError, WheelError, refusal_of
from vbuild.files.reading import open_file
from vbuild.process.signals import uninterrupted

# of file systems without locks
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})

# of file systems that need no fsync
_UNSYNCED = NO_LOCKS | {errno.EINVAL, errno.EROFS, errno.EBADF}

# so many files do not wait for what other programs wrote
_FEW = 32

# of renameat2(2)
_HERE, _EXCHANGE = -100, 2

# bytes that one system call copies, and Python
_AT_ONCE, _BUFFER = 1 << 30, 1 << 20

_PAUSE = 0.05  # seconds between two tries: one that waits in the system hears no Ctrl-C

STAGE = ".vbuild-"
"""How the names of stages begin: such a folder in a project is not part of it."""

_ALIVE, _NEW = "alive", "alive.new"
_LEFT = 86400  # seconds after which a stage without the file has lost its process
_TRIES = 20  # killed processes may take a moment to end

LOGS = "logs"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_LOG = logging.getLogger("vbuild")
_SAID_AFTER, _STOPPED = 1.0, 10.0  # seconds
_SEEN_EVERY = 0.5  # seconds
_HELD = threading.local()

OLDEST = 315532800
"""1980-01-01 in seconds since 1970: the earliest that a zip archive can hold, and the default."""

LATEST = 253402300799
"""9999-12-31 23:59:59 in seconds since 1970: the latest with a year of four digits."""


def name_unwritable_folder(error: OSError) -> OSError:
    """*error* of a file that cannot be made, with the folder that takes no new one; /proc says that a name does not
    exist.
    """
    if not isinstance(error, FileNotFoundError | NotADirectoryError) or not error.filename:
        return error
    if (folder := Path(error.filename).parent).is_dir():
        return PermissionError(errno.EACCES, "nothing new can be made here", str(folder))
    return NotADirectoryError(errno.ENOTDIR, error.strerror, str(folder))


def settle(*paths: Path) -> None:
    """Wait until the disk has all of *paths*; after a power cut the new names may have zeros else.

    For many files Linux is asked once, for their whole file system. `OSError` if the disk is broken or full.
    """
    parts = [part for path in paths for part in _parts_of(path)]
    flush = _linux_call("syncfs") if len(parts) > _FEW else None
    for part in parts[:1] if flush else parts:
        descriptor = os.open(part, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            (flush or os.fsync)(descriptor)
        except OSError as error:
            if error.errno not in _UNSYNCED:
                raise
        finally:
            os.close(descriptor)


def _parts_of(path: Path) -> Iterator[Path]:
    if path.is_symlink():
        return
    if path.is_dir():
        for entry in path.iterdir():
            yield from _parts_of(entry)
        if os.name == "nt":  # Windows opens no folders
            return
    yield path


def _linux_call(name: str) -> Callable[..., object] | None:
    call = getattr(ctypes.CDLL(None, use_errno=True), name, None) if sys.platform == "linux" else None
    if call:
        call.errcheck = _check_result
    return call


def _check_result(result: int, *_call: object) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def settle_names(folder: Path) -> None:
    """Wait until the disk has the names in *folder*."""
    with suppress(OSError):  # all is renamed, and cannot be undone; Windows opens no folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def stage_in(folder: Path) -> Iterator[Path]:
    """A new folder in *folder* for work in progress, removed afterwards, as are those of killed runs."""
    # the name before the folder, so that no interrupt comes between
    stage = folder / f"{STAGE}{secrets.token_hex(4)}"
    try:
        try:
            stage.mkdir(mode=0o700)
            # Windows renames no open file, and removes none either
            alive = (stage / (_ALIVE if os.name == "nt" else _NEW)).open("w")
        except OSError as error:
            raise name_unwritable_folder(error) from error
        with alive:  # the stage lives for as long as this file is open; child processes do not inherit that
            with suppress(OSError):  # some network file systems have no locks
                lock_descriptor(alive.fileno(), blocking=False)
                if os.name != "nt":
                    (stage / _NEW).rename(stage / _ALIVE)
            sweep(folder)
            yield stage
    finally:
        with uninterrupted():
            _remove_whole(stage)


def sweep(folder: Path) -> None:
    """Remove the stages of killed runs from *folder*, as far as permitted."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(STAGE) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    _remove_if_dead(Path(entry))


def _remove_if_dead(stage: Path) -> None:
    try:
        file = open_file(stage / _ALIVE)
    except FileNotFoundError:
        if stage.stat().st_mtime < time.time() - _LEFT:
            shutil.rmtree(stage, ignore_errors=True)
        return
    with file:
        if not lock_descriptor(file.fileno(), blocking=False):  # its run lives
            return
        # a compiler that outlived its run may still write there
        is_empty = _is_emptied(stage)
    if is_empty:  # Windows removes no open file
        shutil.rmtree(stage, ignore_errors=True)


def _remove_whole(stage: Path) -> None:
    for _ in range(_TRIES):
        with suppress(OSError):  # CPython 3.11 closes a folder twice if the first time fails
            if _is_emptied(stage):
                shutil.rmtree(stage, ignore_errors=True)
        if not stage.exists():
            return
        time.sleep(_PAUSE)


def _is_emptied(stage: Path) -> bool:
    for path in stage.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != _ALIVE:
            path.unlink(missing_ok=True)
    return {path.name for path in stage.iterdir()} <= {_ALIVE}


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file's path; the file replaces *path* if the block ends well."""
    with replacing_all([path]) as parts:
        yield parts[path]


@contextmanager
def replacing_all(paths: Sequence[Path]) -> Iterator[Mapping[Path, Path]]:
    """For each of *paths*, all in one folder, a new file's path; all are complete before any is renamed."""
    folder = paths[0].parent
    with stage_in(folder) as stage:
        parts = {path: stage / path.name for path in paths}
        yield parts
        settle(*parts.values())
        for path, part in parts.items():
            part.replace(path)
        settle_names(folder)


def linked(source: Path, target: Path) -> Path:
    """Make *target* a hard link to *source*, or a copy; neither may be written to afterwards."""
    try:
        target.hardlink_to(source)
    except OSError:
        duplicate(source, target)
        shutil.copystat(source, target)
    return target


def duplicate(source: Path, target: Path) -> None:
    """Copy *source* to the new file *target*, sharing its bytes if possible."""
    with open_file(source) as read, target.open("xb") as written:
        # writing the rest tells why
        with suppress(AttributeError, OSError):
            while os.copy_file_range(read.fileno(), written.fileno(), _AT_ONCE):
                pass
        shutil.copyfileobj(read, written, _BUFFER)


def exchange(new: Path, old: Path) -> None:
    """Exchange the names of two folders, on Linux in one step.

    Elsewhere a process that is killed in between leaves *old* with ``.old`` after its name.
    """
    with suppress(OSError):  # a file system without this
        if call := _linux_call("renameat2"):
            call(_HERE, os.fsencode(new), _HERE, os.fsencode(old), _EXCHANGE)
            return
    with uninterrupted():
        aside = old.with_name(f"{old.name}.old")
        old.rename(aside)
        new.rename(old)
        aside.rename(new)


@contextmanager
def locked(path: Path, *, wait: bool = True, check: Callable[[], None] | None = None) -> Iterator[bool]:
    """Hold the lock on *path*, a folder, or a file that is made if missing, for the block.

    Windows opens no folders: a temporary file named by the folder's number has the lock. Gives False if another holds
    it and *wait* is off. *check* is called between two tries and may raise. `OSError` if the file system has no locks.
    """
    is_instead = os.name == "nt" and path.is_dir()
    if is_instead:
        number = path.stat()
        path = Path(gettempdir()) / f"vbuild-{number.st_dev:x}-{number.st_ino:x}.lock"
    while True:
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
        try:
            is_held = lock_descriptor(descriptor, blocking=False)
            # the holder before may have removed the file
            if is_held and os.fstat(descriptor).st_nlink == 0:
                continue
            if is_held or not wait:
                yield is_held
                return
        finally:
            os.close(descriptor)
            if is_instead:
                with suppress(OSError):  # another has it open
                    path.unlink()
        if check:
            check()
        time.sleep(_PAUSE)


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """In the block no other run that takes turns writes into *folder*; blocks may be nested.

    `BuildError` if the run that writes there is stopped for ten seconds. Without locks all go ahead.
    """
    held: set[tuple[int, int]] = _HELD.__dict__.setdefault("folders", set())
    if _key(folder) in held:
        yield
        return
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(locked(folder, check=_Waiting(folder)))
        key = _key(folder)
        held.add(key)
        stack.callback(held.discard, key)
        yield


def _key(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


class _Waiting:
    """Between two tries, says once what it waits for; gives up on a stopped process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun = self._moving = time.monotonic()
        self._seen = 0.0
        self._is_said = False

    def __call__(self) -> None:
        now = time.monotonic()
        if now < max(self._begun + _SAID_AFTER, self._seen + _SEEN_EVERY):
            return
        self._seen = now
        process = _holder(self._folder)
        who = f"process {process}" if process else "another process"
        if not self._is_said:
            self._is_said = True
            _LOG.warning("vbuild: %s: waiting for %s, which writes there", self._folder, who)
        if not (process and _is_stopped(process)):
            self._moving = now
        elif now > self._moving + _STOPPED:
            raise BuildError(
                f"{self._folder}: {who}, which writes there, was stopped; "
                f"let it go on ('kill -CONT {process}') or end it, and try again"
            )


def _holder(folder: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        device, inode = _key(folder)
        file = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            # 1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF; of those that wait, an arrow comes first
            words = line.split()
            if "->" not in words and words[1] == "FLOCK" and words[5] == file:
                return int(words[4]) or None
    return None


def _is_stopped(process: int) -> bool:
    with suppress(OSError):
        # the name, in brackets, may have anything in it
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in {"T", "t"}
    return False


@contextmanager
def turn_for(out: Path) -> Iterator[None]:
    """`turn` for *out*, which is made if it is missing, and removed again if it stays empty."""
    is_new = not os.path.lexists(out)
    try:
        if is_new:
            out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WheelError(f"{out}: cannot be written: {name_unwritable_folder(error).strerror}") from error
    try:
        with turn(out) if out.is_dir() else nullcontext():
            yield
    finally:
        if is_new:
            with suppress(OSError):  # there is something in it, as there should be
                out.rmdir()


@contextmanager
def replace_folder(out: Path) -> Iterator[Path]:
    """A new folder that takes the place of *out* if the block ends well; it may link to files of *out*."""
    path = out.absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with stage_in(path.parent) as stage:
            folder = stage / path.name
            folder.mkdir()
            yield folder
            settle(folder)
            if out.exists() and any(out.iterdir()):
                exchange(folder, out)  # the old folder goes with the stage
            else:
                if out.exists():
                    out.rmdir()
                folder.rename(out)
            settle_names(path.parent)
    except OSError as error:
        raise WheelError(f"{out}: cannot be written: {error.strerror}") from error


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A stage in *folder*, by a path without links; a new *folder* is removed again if it stays empty.

    `RecipeError` if it cannot be written to, or the disk is full; `VbuildError` if SOURCE_DATE_EPOCH is not a time.
    """
    source_date_epoch()
    is_new = not folder.exists()
    try:
        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                stage = stack.enter_context(stage_in(folder))
            except OSError as error:
                raise RecipeError(f"{folder}: cannot be written to: {error.strerror}") from error
            yield stage.resolve()
    except OSError as error:
        if error.errno in _FULL:
            raise RecipeError(f"{folder}: cannot be written to: {error.strerror}") from error
        if reason := refusal_of(error, where=folder):
            raise RecipeError(reason) from error
        raise
    finally:
        with uninterrupted():
            logs = folder / LOGS
            for empty in (logs, folder) if is_new else (logs,):
                with suppress(OSError):  # there is something in it, or another run has removed it
                    empty.rmdir()


def source_date_epoch() -> int | None:
    """SOURCE_DATE_EPOCH in seconds, or None if it is not set; `VbuildError` if it is not a time."""
    if (text := os.environ.get("SOURCE_DATE_EPOCH")) is None:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(LATEST))
    if not (is_number and int(text) <= LATEST):
        raise VbuildError(
            f"SOURCE_DATE_EPOCH is {text!r}; expected seconds since 1970, a whole number from 0 to {LATEST} (year 9999)"
        )
    return int(text)
