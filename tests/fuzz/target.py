"""A format that vbuild reads from strangers, as a fuzzer sees it: bytes go in, at best a `VbuildError` comes out."""

import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# bytes that the fuzzers stay below: all that is read is reached with few, and many are slow
LONGEST = 1 << 17
# the environment variable that says where a fuzzer has its files
ROOM = "VBUILD_FUZZ_ROOM"


@dataclass(frozen=True, slots=True)
class Target:
    """*run* reads an input as vbuild does; *seeds* are sound ones, made of real files, to begin with.

    *words* are what the format is made of, for fuzzers to put in. *changed* makes of an input another one that is still
    of the format, with other values in it; half of all mutants are its, where there is one. *rooms* are the packages
    whose branches lead a guided fuzzer: it counts in no other, for counting takes time.
    """

    name: str
    run: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    words: tuple[bytes, ...] = ()
    changed: Callable[[bytes, random.Random], bytes] | None = None
    rooms: tuple[str, ...] = ("vbuild",)


def short_lived() -> tempfile.TemporaryDirectory[str]:
    """A folder, in memory where the system has one for that: a file for each of a thousand inputs a second goes in.

    libFuzzer ends a process without a word, so a fuzzer's folder is in that of the process that started it: `ROOM`.
    """
    shared = Path(os.environ.get(ROOM, "/dev/shm"))  # noqa: S108 - what is made in it has a name nobody can guess
    return tempfile.TemporaryDirectory(prefix="vbuild-fuzz-", dir=shared if shared.is_dir() else None)


_kept = cache(short_lived)


def written(name: str, data: bytes) -> Path:
    """*data* in a file called *name*, for readers that want a path; the next one of that name takes its place."""
    path = Path(_kept().name) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that is empty, and gone afterwards."""
    with tempfile.TemporaryDirectory(dir=_kept().name) as name:
        yield Path(name)
