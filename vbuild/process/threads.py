"""Work on many files in threads without holding them all: a bound on the bytes that are looked at together."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_BESIDE = 1 << 27


def in_threads(
    work: Callable[[T], R], things: Sequence[T], *, size: Callable[[T], int], threads: int, beside: int = _BESIDE
) -> list[R]:
    """What *work* makes of *things*, in their order; one that begins earlier is earlier among them if it fits.

    Those at work together have *beside* bytes by *size* at most, not counting the largest of them. After an error
    nothing is begun any more; of several, that of the first thing is raised.
    """
    left = dict(enumerate(things))
    begun: dict[int, Future[R]] = {}
    running: dict[Future[R], int] = {}

    def fits(thing: T) -> bool:
        sizes = [*running.values(), size(thing)]
        return sum(sizes) - max(sizes) <= beside

    def following() -> int | None:
        return next((place for place, thing in left.items() if fits(thing)), None) if len(running) < threads else None

    with ThreadPoolExecutor(threads) as pool:
        while left or running:
            while (place := following()) is not None:
                thing = left.pop(place)
                begun[place] = pool.submit(work, thing)
                running[begun[place]] = size(thing)
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                del running[future]
            if any(future.exception() for future in done):
                left.clear()
    return [future.result() for _, future in sorted(begun.items())]
