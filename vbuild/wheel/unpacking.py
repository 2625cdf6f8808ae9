"""What members hold, chunk by chunk: worked on by another thread, or put into a file that nobody else sees.

chunks -> fed(hash)   -> the same chunks, while a thread hashes them
chunks -> mapped(...) -> a view of all of them, whose pages the system may take back
"""

import mmap
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeVar

from vbuild.errors import WheelError
from vbuild.files.records import Buffer
from vbuild.wheel.blocks import InflatedFile

T = TypeVar("T", bound=Buffer)

# lots of chunks that wait for a thread, and bytes of one: with one alone the two would wait for each other in turn, and
# to hand over each chunk by itself takes as long as to hash it
_AHEAD, _LOT = 4, 1 << 20


def fed(work: Callable[[T], object], chunks: Iterable[T], *, in_thread: bool = False) -> Iterator[T]:
    """The *chunks*, each after *work* is done on it; or *in_thread*, while another thread does the work in order."""
    if not in_thread:
        for chunk in chunks:
            work(chunk)
            yield chunk
        return
    with ThreadPoolExecutor(1) as executor:
        pending = deque[Future[object]]()
        lot: list[T] = []
        size = 0
        for chunk in chunks:
            lot.append(chunk)
            size += len(chunk)
            if size >= _LOT:
                if len(pending) == _AHEAD:
                    pending.popleft().result()
                pending.append(executor.submit(_each, work, lot))
                lot, size = [], 0
            yield chunk
        pending.append(executor.submit(_each, work, lot))
        for future in pending:
            future.result()


def _each(work: Callable[[T], object], lot: Iterable[T]) -> None:
    for chunk in lot:
        work(chunk)


@contextmanager
def mapped(chunks: Iterable[bytes], *, folder: Path | None) -> Iterator[memoryview]:
    """The *chunks*, together more than none, in a file in *folder* that nobody else sees and that goes with its views.

    `WheelError` if there is no room for it.
    """
    try:
        with TemporaryFile(dir=folder) as file:
            for _ in fed(file.write, chunks, in_thread=True):
                pass
            file.flush()
            mapping = InflatedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise WheelError(f"cannot be unpacked: {error.strerror}") from error
    try:
        yield memoryview(mapping)
    finally:
        # the last view left closes it
        with suppress(BufferError):
            mapping.close()


def forget(data: Buffer) -> None:
    """Let go of the pages of *data* that were read, if it is mapped: what waits or is done need not be in memory."""
    if isinstance(data, memoryview) and isinstance(data.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        data.obj.madvise(mmap.MADV_DONTNEED)


def room_for(folder: Path | None) -> Path | None:
    """Where to unpack what is to end up in *folder*: there or above, for the system's own folder may be in memory."""
    return next((parent for parent in (folder, *folder.parents) if parent.is_dir()), None) if folder else None
