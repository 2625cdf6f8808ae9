"""Members of hundreds of megabytes: hashed while they are inflated, and mapped instead of held."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import TemporaryFile

from vbuild.errors import WheelError


def fed(work: Callable[[bytes], object], chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The *chunks*, each after *work* is done on it."""
    for chunk in chunks:
        work(chunk)
        yield chunk


def fed_beside(work: Callable[[bytes], object], chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The *chunks*, while another thread does *work* on one after the other; it is done when they end."""
    with ThreadPoolExecutor(1) as executor:
        last: Future[object] | None = None
        for chunk in chunks:
            if last:
                last.result()
            last = executor.submit(work, chunk)
            yield chunk
        if last:
            last.result()


@contextmanager
def mapped(chunks: Iterable[bytes], *, folder: Path | None) -> Iterator[memoryview]:
    """The *chunks*, together more than none, in a file in *folder* that nobody else sees and that goes with its views.

    `WheelError` where there is no room for it.
    """
    try:
        with TemporaryFile(dir=folder) as file:
            for _ in fed_beside(file.write, chunks):
                pass
            file.flush()
            mapping = mmap(file.fileno(), 0, access=ACCESS_READ)
    except OSError as error:
        raise WheelError(f"cannot be unpacked: {error.strerror}") from error
    try:
        yield memoryview(mapping)
    finally:
        # the last view left closes it
        with suppress(BufferError):
            mapping.close()
