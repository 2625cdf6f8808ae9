"""Spread the decoding of code over processes: it keeps a core busy and holds Python's lock.

The processes are made by a fork server, never by a fork of the caller, which may have threads. A pool that breaks -
a worker killed for memory, a calling script that cannot be imported again - costs time only: the work is done here.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain
from multiprocessing import get_context
from typing import TypeVar

from vbuild.hardware.cpu import available_cores

R = TypeVar("R")

# bytes of code: what one process gets at a time, and what a file must have before a second process pays
_BATCH = 1 << 18
_WORTH_SPREADING = 1 << 22


@contextmanager
def processes(jobs: int | None = None) -> Iterator[Executor | None]:
    """An executor of *jobs* processes, as many as there are cores for None; nothing for a single one.

    The processes start with the first work, and leaving the block ends them.
    """
    count = jobs or available_cores()
    if count == 1:
        yield None
        return
    executor = ProcessPoolExecutor(count, mp_context=get_context("forkserver"))
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def spread(
    work: Callable[[list[tuple[int, bytes]]], list[R]], pieces: Iterable[tuple[int, bytes]], executor: Executor | None
) -> Iterator[R]:
    """What *work* makes of the *pieces* of code, each an address and bytes, in their order."""
    batches = list(_batches(pieces))
    size = sum(len(data) for batch in batches for _, data in batch)
    if executor is None or size < _WORTH_SPREADING:
        yield from chain.from_iterable(map(work, batches))
        return
    done = 0
    try:
        for results in executor.map(work, batches):
            done += 1
            yield from results
    except BrokenProcessPool:
        yield from chain.from_iterable(map(work, batches[done:]))


def _batches(pieces: Iterable[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    batch: list[tuple[int, bytes]] = []
    size = 0
    for address, data in pieces:
        batch.append((address, data))
        size += len(data)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
