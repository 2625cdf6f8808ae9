"""The shared cache of toolkits: wheels unpacked once each, and CUDA_HOMEs that are made of them.

    components/<project>-<version>-<sha256>/   an unpacked wheel, for every toolkit that has it
    cuda-13.0-<identity>/                      a CUDA_HOME of hard links to the files of components
    pins/<project>-<version>-<machine>.json    what the index stated for a library, so that it is asked once

The stamp in an entry is written last and has its hashes, which are checked before it is used. Its time is when the
entry was used last.
"""

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, to_builtins
from packaging.version import Version

from vbuild.errors import BuildError, VbuildError
from vbuild.files.cache import ELSEWHERE, Cache, Part
from vbuild.hardware.driver import Dotted
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.located import Wanted
from vbuild.toolchain.toolkit import Toolkit, ToolkitPin
from vbuild.toolchain.toolkit_layout import STAMP, is_complete, lay_out, stamp_of, write_stamp
from vbuild.wheel.archive import open_wheel

# asked for only when something has to be fetched: pip takes most of a second to say where from
Places = Callable[[], Indexes]
OnProgress = Callable[[str], None]

COMPONENTS = "components"
PINS = "pins"
_DIGITS = 16
_AT_ONCE = 4
_PROGRAM = (b"\x7fELF", b"#!")


def silently(_step: str) -> None:
    pass


class ToolkitCache(Struct, frozen=True):
    """The cache in *folder*; all of it raises `BuildError` if nothing can be written there."""

    folder: Path

    @classmethod
    def at(cls, folder: Path | None = None) -> Self:
        """The store in *folder*, or the user's."""
        return cls(Cache.of(Part.TOOLKITS, folder).folder.absolute())

    @property
    def cache(self) -> Cache:
        return Cache(Part.TOOLKITS, self.folder)

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
        for pin in pins:  # as long as a toolkit is used, its components are worth keeping for the next one
            self.cache.mark(self.component_folder(pin))
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

        `FetchError` or `BuildError` soon after somebody has set *stop*.
        """
        folder, stop = self.component_folder(pin), stop or threading.Event()

        def make(part: Path) -> None:
            from vbuild.index_client.packages import download

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
        """The pin kept under *name*, or None if there is none."""
        if text := self.cache.text(f"{PINS}/{name}.json"):
            with suppress(ValueError, TypeError):
                return ToolkitPin(**json.loads(text))
        return None

    def remembered(self, name: str, ask: Callable[[], ToolkitPin]) -> ToolkitPin:
        """The pin kept under *name*, or what *ask* gives, which is kept."""
        if known := self.pin(name):
            return known
        pin = ask()
        with _writing(self.folder / PINS):
            self.cache.keep_text(f"{PINS}/{name}.json", json.dumps(to_builtins(pin)))
        return pin

    @contextmanager
    def locked(self, name: str, *, stop: threading.Event | None = None) -> Iterator[None]:
        """Hold the lock of the entry *name* for the block; `BuildError` if *stop* is set while this waits for it."""

        def check() -> None:
            if stop and stop.is_set():
                raise BuildError(f"{self.folder}: stopped waiting for {Path(name).name}")

        with ExitStack() as stack:
            with _writing(self.folder / ".locks"):
                stack.enter_context(self.cache.locked(name, check=check))
            yield

    def _made(
        self,
        folder: Path,
        stamp: Mapping[str, Any],
        make: Callable[[Path], None],
        stop: threading.Event | None = None,
    ) -> bool:
        """Whether *make* had to make *folder*; one that is complete is only marked as used."""
        name = folder.relative_to(self.folder).as_posix()
        if is_complete(folder):
            self.cache.mark(folder)
            return False
        with self.locked(name, stop=stop):
            if is_complete(folder):  # another process made it while this one waited
                return False
            with _writing(folder.parent), self.cache.replacing(name) as part:
                make(part)
                write_stamp(part, stamp)
        return True


def component_name(pin: ToolkitPin) -> str:
    """The name of the folder of *pin* among components."""
    return f"{pin.project}-{pin.version}-{pin.sha256[:_DIGITS]}"


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
                        raise BuildError(f"{wheel.name}: stopped")
                    out.write(chunk)
            # some packages leave the bit out
            runs = member.is_executable or ("/bin/" in member.path and opened.head(member, 4).startswith(_PROGRAM))
            target.chmod(0o555 if runs else 0o444)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BuildError(f"{folder}: cannot be written: {error.strerror}; {ELSEWHERE}") from error


class KeptToolkit(Struct, frozen=True):
    """A toolkit of the cache: its size in bytes, with what it shares with others, and when it was last *used*."""

    version: Dotted
    root: Path
    pins: tuple[ToolkitPin, ...]
    size: int
    used: datetime

    @classmethod
    def at(cls, root: Path) -> Self | None:
        """The toolkit in *root*, or None if there is no complete one."""
        if not (stamp := stamp_of(root)):
            return None
        with suppress(KeyError, TypeError, ValueError, OSError, VbuildError):
            pins = tuple(ToolkitPin(**pin) for pin in stamp["pins"])
            used = datetime.fromtimestamp((root / STAMP).stat().st_mtime, UTC)
            return cls(Dotted.parse(stamp["version"]), root, pins, int(stamp["size"]), used)
        return None


def kept_in(store: ToolkitCache) -> tuple[KeptToolkit, ...]:
    """The toolkits of *store*, the newest version first."""
    found = [kept for root in store.folder.glob("cuda-*") if (kept := KeptToolkit.at(root))]
    return tuple(sorted(found, key=lambda kept: (kept.version, kept.root), reverse=True))


def prune(store: ToolkitCache, *, before: datetime) -> tuple[tuple[KeptToolkit, ...], int]:
    """Remove what nobody used since *before*, and what killed processes left; gives the toolkits of it, and bytes.

    `BuildError` if a process is making a toolkit now. One that uses a toolkit does not show: *before* has to be
    longer ago than the longest build.
    """
    toolkits = kept_in(store)
    old = tuple(kept for kept in toolkits if kept.used < before)
    for pin in {pin for kept in toolkits if kept not in old for pin in kept.pins}:
        store.cache.mark(store.component_folder(pin))
    removed = store.cache.empty(before=before.timestamp())
    if removed is None:
        raise BuildError(f"{store.folder}: a toolkit is being fetched there; try again when it is done")
    return old, removed.size
