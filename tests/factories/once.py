"""Bytes that are made once in a session, by whichever of its processes needs them first: xdist's workers share them."""

import hashlib
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec

from filelock import FileLock

# the folder of this session, which its first process makes and removes
FOLDER = "VBUILD_TESTS_MADE"
_Arguments = ParamSpec("_Arguments")


def once(make: Callable[_Arguments, bytes]) -> Callable[_Arguments, bytes]:
    """*make*, which gives the same bytes for the same arguments, called once in a session for each of them.

    The ``repr`` of an argument has to say all that it is.
    """
    known: dict[str, bytes] = {}

    @wraps(make)
    def made(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> bytes:
        said = repr((make.__module__, make.__qualname__, arguments, sorted(named.items())))
        assert " at 0x" not in said, f"an argument of {make.__qualname__} that another process does not know"
        key = hashlib.sha256(said.encode()).hexdigest()
        if key not in known:
            known[key] = _shared(key, lambda: make(*arguments, **named))
        return known[key]

    return made


def _shared(key: str, make: Callable[[], bytes]) -> bytes:
    folder = os.environ.get(FOLDER)
    if folder is None:  # another program than pytest uses the factories
        return make()
    path = Path(folder, key)
    with FileLock(path.with_suffix(".lock"), poll_interval=0.01):
        if not path.exists():
            path.write_bytes(make())
    return path.read_bytes()
