"""What package indexes say about official packages: each question is asked once, and lasting answers are kept.

nvidia-cufft-cu12  ->  its wheels for Linux on x86_64, the newest release first
a wheel            ->  Requires-Dist and the libraries in RECORD, read by HTTP range
official/<sha256>.json in the user's cache: the same, by the hash that the index states for the wheel
"""

import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Generic, Self, TypeVar

from msgspec import Struct, to_builtins
from unearth.fetchers import PyPIClient

from vbuild.errors import WheelError
from vbuild.files.cache import Cache, Part
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.listing import ListedFile, files_of
from vbuild.index_client.places import client_of
from vbuild.index_client.ranged import Ranged, opened
from vbuild.wheel.archive import Distant
from vbuild.wheel.metadata import recorded_sha256
from vbuild.wheel.name import WheelName

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")
R = TypeVar("R")

_LIBRARY = re.compile(r"(?!.*/stubs/)(?:.*/)?lib[^/]*\.so(?:\.\d[\w.]*)?")
_SHA256_SIZE = 32
_AT_ONCE = 8


class CachedLibrary(Struct, frozen=True):
    """A shared library in a wheel: its path, its SHA-256 in hexadecimal digits, and its size in bytes."""

    path: str
    sha256: str
    size: int


class WheelFacts(Struct, frozen=True):
    """What a wheel contains: every line of Requires-Dist, and its libraries."""

    file: str
    requires: tuple[str, ...]
    libraries: tuple[CachedLibrary, ...]

    @classmethod
    def read(cls, distant: Distant) -> Self:
        """Read the facts of a wheel on a server."""
        sizes = {member.path: member.size for member in distant.members}
        libraries = tuple(
            CachedLibrary(row.path, sha256, sizes[row.path])
            for row in distant.record.rows
            if _LIBRARY.fullmatch(row.path) and row.path in sizes and (sha256 := recorded_sha256(row.hash))
        )
        return cls(str(distant.name), distant.metadata.requires_dist, libraries)

    @classmethod
    def parse(cls, data: Any) -> Self:  # noqa: ANN401 - JSON
        """Parse facts from the cache; raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        libraries = tuple(
            CachedLibrary(str(row["path"]), str(row["sha256"]), int(row["size"])) for row in data["libraries"]
        )
        if not all(len(bytes.fromhex(library.sha256)) == _SHA256_SIZE for library in libraries):
            raise ValueError("no SHA-256")
        return cls(str(data["file"]), tuple(str(line) for line in data["requires"]), libraries)


class OncePerKey(Generic[K, V]):
    """Remembers one result for each key; threads that ask for a key wait for the thread that computes it."""

    def __init__(self) -> None:
        self._made: dict[K, Future[V]] = {}
        self._lock = Lock()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the result for *key*, computed by *make* the first time; an error is not remembered."""
        with self._lock:
            future = self._made.get(key)
            if is_mine := future is None:
                future = self._made[key] = Future()
        assert future is not None  # noqa: S101 - for mypy, which does not see through the line above
        if is_mine:
            try:
                future.set_result(make())
            except BaseException as error:
                with self._lock:
                    del self._made[key]
                future.set_exception(error)
                raise
        return future.result()


class OfficialIndex:
    """The wheels of official packages for Linux on *machine*, with a cache of what they contain."""

    def __init__(self, machine: str, indexes: Callable[[], Indexes], store: Path | None) -> None:
        self.machine = machine
        self._store = Cache.of(Part.OFFICIAL, store)
        self._ask = indexes
        self._indexes: OncePerKey[None, Indexes] = OncePerKey()
        self._listed: OncePerKey[str, tuple[ListedFile, ...]] = OncePerKey()
        self._facts: OncePerKey[str, WheelFacts] = OncePerKey()

    def listed(self, project: str) -> tuple[ListedFile, ...]:
        """Return every file of *project*, the newest release first; raises `FetchError` if no index answers."""
        return self._listed.get(project, lambda: files_of(project, indexes=self.indexes()))

    def wheels(self, project: str, *, any_platform: bool = False) -> tuple[ListedFile, ...]:
        """Return the wheels of *project* for this machine, or those for any platform, the newest release first."""
        return tuple(listed for listed in self.listed(project) if self._fits(listed, any_platform=any_platform))

    def indexes(self) -> Indexes:
        """Return the indexes to ask."""
        return self._indexes.get(None, self._ask)

    @contextmanager
    def session(self) -> Iterator["IndexSession"]:
        """Yield a session that reads wheels during the block, through one connection, in several threads."""
        with ExitStack() as stack:
            yield IndexSession(self, stack)

    def facts(self, listed: ListedFile, read: Callable[[], WheelFacts]) -> WheelFacts:
        """Return what *listed* contains, from the cache or by *read*."""
        return self._facts.get(
            f"{listed.sha256} {listed.url}", lambda: self._cached(listed) or self._read(listed, read)
        )

    def _fits(self, listed: ListedFile, *, any_platform: bool) -> bool:
        if not listed.is_wheel:
            return False
        try:
            platforms = WheelName.parse(listed.file).platform.split(".")
        except WheelError:
            return False
        if any_platform:
            return platforms == ["any"]
        return any(name.startswith(("manylinux", "linux_")) and name.endswith(f"_{self.machine}") for name in platforms)

    def _cached(self, listed: ListedFile) -> WheelFacts | None:
        """Return what the cache has of *listed*, or None if that is damaged or about another file."""
        if not listed.sha256:
            return None
        with suppress(ValueError, KeyError, TypeError):
            facts = WheelFacts.parse(json.loads(self._store.text(f"{listed.sha256}.json") or ""))
            return facts if facts.file == listed.file else None
        return None

    def _read(self, listed: ListedFile, read: Callable[[], WheelFacts]) -> WheelFacts:
        facts = read()
        if listed.sha256:
            with suppress(OSError):  # it is read again next time
                self._store.keep_text(f"{listed.sha256}.json", json.dumps(to_builtins(facts)))
        return facts


@dataclass(slots=True)
class IndexSession:
    """Reads wheels of *index*; counts the bytes *transferred*."""

    index: OfficialIndex
    _stack: ExitStack
    transferred: int = 0
    _clients: OncePerKey[None, PyPIClient] = field(default_factory=OncePerKey)
    _lock: Lock = field(default_factory=Lock)

    def facts(self, listed: ListedFile) -> WheelFacts:
        """Return what *listed* contains; raises `FetchError`, or `WheelError` if the wheel is damaged."""

        def read() -> WheelFacts:
            with self.opened(listed) as distant:
                return WheelFacts.read(distant)

        return self.index.facts(listed, read)

    @contextmanager
    def opened(self, listed: ListedFile) -> Iterator[Distant]:
        """Open the *listed* wheel on its server."""
        file: Ranged | None = None
        try:
            with opened(self._clients.get(None, self._client), listed) as file:
                # only methods that BinaryIO and raw files have in common are called
                yield Distant(file, WheelName.parse(listed.file))  # type: ignore[arg-type]
        finally:
            with self._lock:
                self.transferred += file.transferred if file else 0

    def _client(self) -> PyPIClient:
        return self._stack.enter_context(client_of(self.index.indexes(), lambda _response: None))


def all_of(work: Callable[[T], R], wanted: Iterable[T]) -> list[R]:
    """Return the results of *work* for *wanted*, computed several at a time."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        try:
            return list(threads.map(work, wanted))
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def first_of(work: Callable[[T], R | None], wanted: Iterable[T]) -> R | None:
    """Return the first result of *work* for *wanted* that is not None; later work is cancelled."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        try:
            return next((found for found in threads.map(work, wanted) if found is not None), None)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
