"""What a worker runs for vbuild: one function, which finds another by its name where both sides are one vbuild.

    called("vbuild.slimming.slim:slim_on_worker", fingerprint, arguments) -> what it returns

Dask imports what it is sent before anything of it runs, on the scheduler too. So what is sent is this function, which
imports next to nothing, and values of Python's own types; all else is imported, and unpickled, behind the check.
"""

import functools
import hashlib
import pickle
import pkgutil
import platform
from pathlib import Path
from typing import Any

import vbuild
from vbuild.errors import BuildError


def called(function: str, expected: str, *arguments: Any) -> Any:  # noqa: ANN401 - what functions take and give
    """What *function*, ``module:name``, gives of *arguments*; `BuildError` if vbuild is not as *expected*."""
    if fingerprint() != expected:
        raise BuildError(another(platform.node()))
    return pkgutil.resolve_name(function)(*arguments)


def packed(value: object) -> bytes:
    """*value* as bytes, to be `opened` behind the check."""
    return pickle.dumps(value)


def opened(data: bytes) -> Any:  # noqa: ANN401 - whatever was packed
    """What was `packed` by the same vbuild."""
    return pickle.loads(data)  # noqa: S301 - a cluster runs what its clients send it in any case


def another(where: str) -> str:
    """That the vbuild on the machine *where* is not the one that asks."""
    return f"{where}: has another vbuild ({vbuild.__version__} with other files); expected the same one everywhere"


@functools.cache
def fingerprint() -> str:
    """What this vbuild is: its version and its own files, which change between releases too."""
    package = Path(vbuild.__file__).parent
    total = hashlib.sha256(vbuild.__version__.encode())
    for path in sorted(package.rglob("*.py")):
        data = path.read_bytes()
        total.update(b"\0%s\0%d\0" % (str(path.relative_to(package)).encode(), len(data)))
        total.update(data)
    return total.hexdigest()
