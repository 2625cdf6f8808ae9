"""Work in threads: on many files with a bound on the bytes in memory, and once for each key."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Event, Lock
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K", bound=Hashable)

_AT_WORK = 1 << 27
_AT_ONCE = 8


def in_threads(
    work: Callable[[T], R],
    things: Sequence[T],
    *,
    size: Callable[[T], int],
    threads: int,
    at_work: int = _AT_WORK,
    stop: Event | None = None,
) -> list[R]:
    """The results of *work* for *things*, in their order, on *threads*.

    Things at work together have at most *at_work* bytes by *size*, without the largest; the first that fits begins.
    After an error none begins; the error of the first thing is raised. An interrupt sets *stop*, for *work* to check,
    and waits for what has begun.
    """
    if len(things) == 1:  # a thread would take longer to start than much of the work
        return [work(things[0])]
    left = dict(enumerate(things))
    begun: dict[int, Future[R]] = {}
    running: dict[Future[R], int] = {}

    def fits(thing: T) -> bool:
        sizes = [*running.values(), size(thing)]
        return sum(sizes) - max(sizes) <= at_work

    def following() -> int | None:
        return next((index for index, thing in left.items() if fits(thing)), None) if len(running) < threads else None

    with ThreadPoolExecutor(threads) as pool:
        try:
            while left or running:
                while (index := following()) is not None:
                    thing = left.pop(index)
                    begun[index] = pool.submit(work, thing)
                    running[begun[index]] = size(thing)
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    del running[future]
                if any(future.exception() for future in done):
                    left.clear()
        except BaseException:
            if stop:
                stop.set()
            raise
    return [future.result() for _, future in sorted(begun.items())]


@contextmanager
def several_at_once(work: Callable[[T], R], things: Iterable[T]) -> Iterator[Iterator[R]]:
    """The results of *work* for *things*, in their order; the end of the block cancels the rest."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            yield pool.map(work, things)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def stoppable_pool(threads: int) -> Iterator[tuple[ThreadPoolExecutor, Callable[[], None]]]:
    """A pool whose end, as by an interrupt, cancels what has not begun, and a check that raises in what has."""
    stopped = Event()

    def check() -> None:
        if stopped.is_set():
            raise CancelledError

    with ThreadPoolExecutor(threads) as pool:
        try:
            yield pool, check
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)


class OncePerKey(Generic[K, R]):
    """Computes one result for each key; other threads wait for it, and get its error.

    Errors are remembered only with *keeps_errors*. Of more than *most* keys, the oldest are forgotten.
    """

    def __init__(self, *, keeps_errors: bool = False, most: int | None = None) -> None:
        self._keeps_errors = keeps_errors
        self._most = most
        self._made: dict[K, Future[R]] = {}
        self._lock = Lock()

    def keys(self) -> tuple[K, ...]:
        with self._lock:
            return tuple(self._made)

    def get(self, key: K, make: Callable[[], R]) -> R:
        with self._lock:
            future = self._made.get(key)
            if is_mine := future is None:
                future = self._made[key] = Future()
                if self._most and len(self._made) > self._most:
                    del self._made[next(iter(self._made))]
        assert future is not None  # noqa: S101 - for mypy, which does not see through the line above
        if is_mine:
            try:
                future.set_result(make())
            except BaseException as error:
                if not self._keeps_errors:
                    with self._lock:
                        self._made.pop(key, None)
                future.set_exception(error)
                raise
        return future.result()
