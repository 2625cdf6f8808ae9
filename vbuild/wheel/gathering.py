"""The wheels that a command is given: files, and folders of them."""

from collections.abc import Sequence
from pathlib import Path

from vbuild.errors import WheelError


def gathered(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The wheels at *paths* and in the folders there; `WheelError` for an empty folder, or a file name given twice."""
    wheels: dict[str, Path] = {}
    for path in paths:
        found = sorted(path.glob("*.whl")) if path.is_dir() else [path]
        if not found:
            raise WheelError(f"{path}: no wheels in this folder; expected files that end in .whl")
        for wheel in found:
            if (other := wheels.setdefault(wheel.name, wheel)) != wheel:
                raise WheelError(f"{wheel}: called as {other}, and both would become one file; give them apart")
    return tuple(wheels.values())
