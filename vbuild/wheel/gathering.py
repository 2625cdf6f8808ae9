"""The wheels that a command is given: files, and folders of them."""

from collections.abc import Sequence
from pathlib import Path

from vbuild.errors import WheelError


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
    """The wheels in *folder*, sorted; `WheelError` where nobody may look, which a glob takes for there being none."""
    try:
        return tuple(sorted(path for path in folder.iterdir() if path.name.endswith(".whl")))
    except OSError as error:
        raise WheelError(f"{folder}: cannot be read: {error.strerror}") from error
