"""SHA-256 of files and data, in 64 hex digits."""

import functools
import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from vbuild.files.reading import open_file
from vbuild.process.threads import OncePerKey

# one thread hashes as fast as a disk reads, two or three as fast as memory is read
_THREADS = 4

_Key = tuple[int, int, int, int]


def sha256_of(file: Path) -> str:
    with open_file(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def key_of(data: object) -> str:
    """Equal *data* has one key, in any process."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def program_digest(program: Path) -> str:
    try:
        status = program.stat()
        return _digest(program, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    except OSError:
        return ""


@functools.lru_cache(maxsize=1 << 16)
def _digest(program: Path, *_state: int) -> str:
    """The SHA-256 of *program*, which is read again if its *state* changes."""
    return sha256_of(program) if program.is_file() else ""


def program_digests(names: Iterable[str], path: str) -> dict[str, tuple[str, ...]]:
    """The SHA-256 of all files called one of *names*: the first may only lead to the next, as ccache's gcc does."""
    folders = [folder for folder in dict.fromkeys(path.split(os.pathsep)) if folder]
    digests = {name: dict.fromkeys(program_digest(Path(folder, name)) for folder in folders) for name in names}
    return {name: tuple(filter(None, of_name)) for name, of_name in digests.items()}


def seal(payload: str) -> str:
    return json.dumps({"sha256": hashlib.sha256(payload.encode()).hexdigest(), "payload": payload})


def unseal(data: bytes) -> str:
    """What was sealed as *data*; `ValueError` if a bit is wrong."""
    try:
        values = json.loads(data)
        payload, stated = values["payload"], values["sha256"]
        is_whole = hashlib.sha256(payload.encode()).hexdigest() == stated
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("not sealed") from error
    if not is_whole:
        raise ValueError("damaged")
    return str(payload)


class Digests:
    """The SHA-256 of files, each read once, by who asks first or on threads that begin before."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(_THREADS)
        self._known = OncePerKey[_Key, str]()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(cancel_futures=True)

    def begin(self, file: Path) -> None:
        self._executor.submit(self.of, file)

    def know(self, file: Path, sha256: str) -> None:
        self._known.get(_state(file), lambda: sha256)

    def of(self, file: Path) -> str:
        return self._known.get(_state(file), lambda: sha256_of(file))


def _state(file: Path) -> _Key:
    status = file.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
