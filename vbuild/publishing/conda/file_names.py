"""The file names of packages for conda, and where packages are."""

from pathlib import Path

from vbuild.errors import RepackageError

CONDA, TAR_BZ2 = ".conda", ".tar.bz2"


def stem_of(path: Path) -> str:
    """Name, version and build in the file name of a package; `RepackageError` if it has not its ending."""
    for ending in (CONDA, TAR_BZ2):
        if path.name.endswith(ending):
            return path.name.removesuffix(ending)
    raise RepackageError(f"{path.name}: expected a package for conda, {CONDA} or {TAR_BZ2}")


def is_package(path: Path) -> bool:
    """Whether the file at *path* is called like a package for conda."""
    return path.name.endswith((CONDA, TAR_BZ2))


def packages_in(folder: Path) -> tuple[Path, ...]:
    """The packages in *folder*, and in its folders as a channel has them, sorted; not those in the works of a run.

    `RepackageError` if one of them cannot be read.
    """
    try:
        shown = [path for path in folder.iterdir() if not path.name.startswith(".")]
        below = [path for one in shown if one.is_dir() for path in one.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        raise RepackageError(f"{error.filename or folder}: cannot be read: {error.strerror}") from error
    return tuple(sorted(path for path in (*shown, *below) if is_package(path)))
