"""Which wheels a command is given, files or folders, and how large members are inflated.

Members of hundreds of megabytes are hashed while they are inflated, and mapped instead of kept in memory.
"""

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from vbuild.errors import WheelError
from vbuild.files.records import Buffer


def gathered(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The wheels at *paths* and in the folders there; `WheelError` for an empty folder, or a file name given twice."""
    wheels: dict[str, Path] = {}
    for path in paths:
        found = wheels_in(path) if path.is_dir() else (path,)
        if not found:
            raise WheelError(f"{path}: no wheels in this folder; expected files that end in .whl")
        for wheel in found:
            if (other := wheels.setdefault(wheel.name, wheel)) != wheel:
                raise WheelError(f"{wheel}: called as {other}, and both would become one file; give them apart")
    return tuple(wheels.values())


def wheels_in(folder: Path) -> tuple[Path, ...]:
    """The wheels in *folder*, sorted; `WheelError` if nobody may look, which a glob takes for there being none."""
    try:
        return tuple(sorted(path for path in folder.iterdir() if path.name.endswith(".whl")))
    except OSError as error:
        raise WheelError(f"{folder}: cannot be read: {error.strerror}") from error


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

    `WheelError` if there is no room for it.
    """
    try:
        with TemporaryFile(dir=folder) as file:
            for _ in fed_beside(file.write, chunks):
                pass
            file.flush()
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
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
