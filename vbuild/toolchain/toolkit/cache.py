"""The shared cache of toolkits: wheels unpacked once each, and CUDA_HOMEs that are made of them.

    components/<project>-<version>-<sha256>/   an unpacked wheel, for every toolkit that has it
    cuda-13.0-<identity>/                      a CUDA_HOME of hard links to the files of components
    pins/<project>-<version>-<machine>.json    what the index stated for a library, so that it is asked once
    .locks/<name>                              held by the process that makes what has the name
    .locks/store                               shared by all that make something, to keep what they use

An entry is made in a folder beside and renamed when it is complete, the stamp in it written last; it is looked through
before it is used. The time of a toolkit's stamp is when it was last used.

What the shared cache of toolkits has, how long ago it was used, and taking it away.
"""

import fcntl
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, to_builtins
from packaging.version import Version
from platformdirs import user_cache_path

from vbuild.errors import ToolkitError, VbuildError
from vbuild.files.atomic import replacing
from vbuild.files.hashing import sealed, unsealed
from vbuild.hardware.driver import Dotted
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.download import Wanted, download
from vbuild.toolchain.toolkit.layout import STAMP, is_complete, lay_out, stamp_of, write_stamp
from vbuild.toolchain.toolkit.model import Toolkit, ToolkitPin
from vbuild.wheel.archive import Wheel, open_wheel
from vbuild.wheel.zip_read import Member

# asked for only when something has to be fetched: pip takes most of a second to say where from
Places = Callable[[], Indexes]
OnProgress = Callable[[str], None]

EVERYTHING = "store"
COMPONENTS = "components"
PINS = "pins"
_DIGITS = 16
_AT_ONCE = 4
_LOOKS = 0.05  # seconds between two looks at a lock: a thread that waits in the system hears of no Ctrl-C
_PROGRAM = (b"\x7fELF", b"#!")


def silently(_step: str) -> None:
    pass


class ToolkitCache(Struct, frozen=True):
    """The cache in *folder*; `ToolkitError` from all of it where nothing can be written there."""

    folder: Path

    @classmethod
    def at(cls, folder: Path | None = None) -> Self:
        """The store in *folder*, or the user's."""
        return cls((folder or user_cache_path("vbuild") / "toolkits").absolute())

    def root(self, version: Dotted, identity: str) -> Path:
        """Where the toolkit of this *identity* is, if it is there."""
        return self.folder / f"cuda-{version}-{identity[:_DIGITS]}"

    def toolkit(
        self,
        version: Dotted,
        pins: tuple[ToolkitPin, ...],
        *,
        identity: str,
        machine: str,
        release: str,
        places: Places,
        on_progress: OnProgress = silently,
    ) -> Toolkit:
        """The CUDA_HOME of *pins*, fetched from *places* and laid out unless it is there."""
        root = self.root(version, identity)
        stamp = {"version": str(version), "identity": identity, "pins": [to_builtins(pin) for pin in pins]}

        def make(part: Path) -> None:
            stop = threading.Event()
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                fetch = partial(self.component, places=places, on_progress=on_progress, stop=stop)
                work = [threads.submit(fetch, pin) for pin in pins]
                try:
                    done, _ = wait(work, return_when=FIRST_EXCEPTION)
                    folders = [one.result() for one in work if one in done]
                except BaseException:
                    stop.set()
                    threads.shutdown(wait=False, cancel_futures=True)
                    raise
            on_progress(f"laying out CUDA {version}")
            lay_out(part, dict(zip(pins, folders, strict=True)), machine=machine, release=release)

        is_new = self._made(root, stamp, make)
        return Toolkit(version, root, identity, pins, is_new=is_new)

    def component(
        self,
        pin: ToolkitPin,
        *,
        places: Places,
        on_progress: OnProgress = silently,
        stop: threading.Event | None = None,
    ) -> Path:
        """The folder of the unpacked wheel of *pin*, fetched from *places* unless it is there.

        `FetchError` or `ToolkitError` soon after somebody has set *stop*.
        """
        folder, stop = self.component_folder(pin), stop or threading.Event()

        def make(part: Path) -> None:
            on_progress(f"fetching {pin}")
            fetched = part.with_name(f"{part.name}.fetched")
            try:
                fetched.mkdir()
                wheel = fetched / pin.file
                wanted = Wanted(pin.project, Version(pin.version), pin.sha256, pin.file)
                download(wanted, wheel, indexes=places(), stop=stop)
                on_progress(f"unpacking {pin}")
                _unpack(wheel, part, stop)
            finally:
                shutil.rmtree(fetched, ignore_errors=True)

        self._made(folder, {"pins": [to_builtins(pin)]}, make, stop)
        return folder

    def component_folder(self, pin: ToolkitPin) -> Path:
        """Where the unpacked wheel of *pin* is, if it is there."""
        return self.folder / COMPONENTS / component_name(pin)

    def pin(self, name: str) -> ToolkitPin | None:
        """The pin kept under *name*; None where there is none."""
        with suppress(OSError, ValueError, TypeError):
            return ToolkitPin(**json.loads(unsealed((self.folder / PINS / f"{name}.json").read_bytes())))
        return None

    def remembered(self, name: str, ask: Callable[[], ToolkitPin]) -> ToolkitPin:
        """The pin kept under *name*, or what *ask* gives, which is kept."""
        if known := self.pin(name):
            return known
        pin, file = ask(), self.folder / PINS / f"{name}.json"
        with _writing(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as part:
                part.write_text(sealed(json.dumps(to_builtins(pin))), encoding="utf-8")
        return pin

    @contextmanager
    def locked(
        self, name: str, *, shared: bool = False, wait: bool = True, stop: threading.Event | None = None
    ) -> Iterator[bool]:
        """Hold the lock of *name* for the block; gives False, at once, where another has it and *wait* is off.

        `ToolkitError` where *stop* is set while it waits.
        """
        locks = self.folder / ".locks"
        with _writing(locks):
            locks.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(locks / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with _writing(locks):
                is_held = _flocked(descriptor, shared=shared)
            while wait and not is_held:
                if (stop or threading.Event()).wait(_LOOKS):
                    raise ToolkitError(f"{self.folder}: stopped waiting for {name}")
                is_held = _flocked(descriptor, shared=shared)
            yield is_held
        finally:
            os.close(descriptor)

    def _made(
        self,
        folder: Path,
        stamp: Mapping[str, Any],
        make: Callable[[Path], None],
        stop: threading.Event | None = None,
    ) -> bool:
        """Whether *make* had to make *folder*; one that is complete is only marked as used."""
        if is_complete(folder):
            touch(folder)
            return False
        with self.locked(EVERYTHING, shared=True, stop=stop), self.locked(folder.name, stop=stop):
            if is_complete(folder):  # another process made it while this one waited
                return False
            part = folder.with_name(f".{folder.name}.part")
            with _writing(folder.parent):
                remove(part)  # of a process that was killed; a living one would have the lock
                folder.parent.mkdir(parents=True, exist_ok=True)
                try:
                    make(part)
                    write_stamp(part, stamp)
                    remove(folder)
                    part.rename(folder)
                finally:
                    remove(part)
        return True


def component_name(pin: ToolkitPin) -> str:
    """The name of the folder of *pin* among components."""
    return f"{pin.project}-{pin.version}-{pin.sha256[:_DIGITS]}"


def touch(folder: Path) -> None:
    """Mark the entry *folder* as used now, where that can be written."""
    with suppress(OSError):
        os.utime(folder / STAMP)


def remove(folder: Path) -> None:
    """Take *folder* away, whether it is there or not."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _unpack(wheel: Path, folder: Path, stop: threading.Event) -> None:
    """Unpack *wheel* into *folder*, new, for everybody to read and nobody to change; each file as RECORD has it."""
    folder.mkdir()
    with open_wheel(wheel) as opened:
        for member in opened.members:
            target = folder / member.path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                for chunk in opened.chunks(member):
                    if stop.is_set():
                        raise ToolkitError(f"{wheel.name}: stopped")
                    out.write(chunk)
            target.chmod(0o555 if _is_program(opened, member) else 0o444)


def _is_program(wheel: Wheel, member: Member) -> bool:
    """Whether *member* is to run: some packages leave the bit out."""
    return member.is_executable or ("/bin/" in member.path and wheel.head(member, 4).startswith(_PROGRAM))


def _flocked(descriptor: int, *, shared: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ToolkitError(f"{folder}: cannot be written: {error.strerror}") from error


class KeptToolkit(Struct, frozen=True):
    """A toolkit of the cache: its size in bytes, with what it shares with others, and when it was last *used*."""

    version: Dotted
    root: Path
    pins: tuple[ToolkitPin, ...]
    size: int
    used: datetime

    @classmethod
    def at(cls, root: Path) -> Self | None:
        """The toolkit in *root*; None where there is no complete one."""
        if not (stamp := stamp_of(root)):
            return None
        with suppress(KeyError, TypeError, ValueError, OSError, VbuildError):
            pins = tuple(ToolkitPin(**pin) for pin in stamp["pins"])
            return cls(Dotted.parse(stamp["version"]), root, pins, int(stamp["size"]), _used(root / STAMP))
        return None


def kept_in(store: ToolkitCache) -> tuple[KeptToolkit, ...]:
    """The toolkits of *store*, the newest version first."""
    found = [kept for root in store.folder.glob("cuda-*") if (kept := KeptToolkit.at(root))]
    return tuple(sorted(found, key=lambda kept: (kept.version, kept.root), reverse=True))


def prune(store: ToolkitCache, *, before: datetime) -> tuple[tuple[KeptToolkit, ...], int]:
    """Take away what nobody used since *before*, and what processes that were killed left; gives what, and bytes.

    `ToolkitError` where a process is making a toolkit now. One that uses a toolkit does not show: *before* has to be
    longer ago than the longest build.
    """
    if not store.folder.is_dir():
        return (), 0
    with store.locked(EVERYTHING, wait=False) as is_ours:
        if not is_ours:
            raise ToolkitError(f"{store.folder}: a toolkit is being fetched there; try again when it is done")
        toolkits = kept_in(store)
        old = tuple(kept for kept in toolkits if kept.used < before)
        needed = {component_name(pin) for kept in toolkits if kept not in old for pin in kept.pins}
        try:
            freed = sum(_removed(folder) for folder in (*(kept.root for kept in old), *_remains(store)))
            freed += sum(_removed(folder) for folder in _unused(store, needed, before))
            for file in (store.folder / PINS).glob("*.json"):
                if _used(file) < before:
                    file.unlink()
        except OSError as error:
            raise ToolkitError(f"{error.filename}: cannot be removed: {error.strerror}") from error
    return old, freed


def _unused(store: ToolkitCache, needed: set[str], before: datetime) -> Iterator[Path]:
    for folder in (store.folder / COMPONENTS).glob("[!.]*"):
        stamp = folder / STAMP
        if folder.name not in needed and not (stamp.exists() and _used(stamp) >= before):
            yield folder


def _remains(store: ToolkitCache) -> Iterator[Path]:
    """What a process that was killed left behind, and toolkits without a stamp."""
    for place in (store.folder, store.folder / COMPONENTS):
        for pattern in (".*.part", ".*.part.fetched", ".*.removed"):
            yield from place.glob(pattern)
    yield from (root for root in store.folder.glob("cuda-*") if not KeptToolkit.at(root))


def _removed(folder: Path) -> int:
    """Take *folder* away, at once for those who look; gives the bytes of what no hard link keeps."""
    gone = folder if folder.name.startswith(".") else folder.rename(folder.with_name(f".{folder.name}.removed"))
    files = (Path(parent, name).lstat() for parent, _, names in os.walk(gone) for name in names)
    size = sum(file.st_size for file in files if file.st_nlink == 1)
    remove(gone)
    return size


def _used(file: Path) -> datetime:
    return datetime.fromtimestamp(file.stat().st_mtime, UTC)
