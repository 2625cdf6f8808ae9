"""A source tree as one file, to be sent to another machine, and the same tree there again.

    tree -> tar, zstd -> file with the suffix of `SUFFIX` -> the tree: names, modes, times, contents, links, history

The rules that `archive.unpack` has for what anybody may have made do not hold for it: whoever sends it also says which
commands to run. Its owners are nobody's, and are the receiver's there.
"""

import os
import tarfile
from pathlib import Path

import zstandard

from vbuild.errors import BuildError

SUFFIX = ".vbuild-tree"

_LEVEL = 3  # at which reading and the network are slower than compressing


def pack(tree: Path, file: Path) -> None:
    """Write all that is in the folder *tree* to *file*, under the folder's name; `BuildError` if it cannot be."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, threads=-1)
    try:
        with (
            file.open("wb") as raw,
            compressor.stream_writer(raw) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            _add(tar, tree, tree.name)
    except (OSError, tarfile.TarError) as error:
        raise BuildError(f"{tree.name}: cannot be packed: {error}") from error


def unpack(file: Path, folder: Path) -> Path:
    """The tree that was packed into *file*, in *folder*; `BuildError` if it cannot be written there."""
    try:
        with (
            file.open("rb") as raw,
            zstandard.ZstdDecompressor().stream_reader(raw) as packed,
            tarfile.open(fileobj=packed, mode="r|") as tar,
        ):
            tar.extraction_filter = lambda member, _path: member
            tar.extractall(folder)  # noqa: S202 - see above
    except (OSError, tarfile.TarError, zstandard.ZstdError) as error:
        raise BuildError(f"cannot be unpacked: {error}") from error
    return next(path for path in folder.iterdir() if path.is_dir())


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    """Add *path* as *name*, and all that is in it, always in the same order; what is no file, folder or link is not."""
    if path.is_socket():  # which tarfile has no member for
        return
    info = tar.gettarinfo(path, name)
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    if info.islnk():  # a second name of a file is a file of its own where it is unpacked
        info.type, info.size, info.linkname = tarfile.REGTYPE, path.stat().st_size, ""
    if info.isreg():
        with path.open("rb") as file:
            tar.addfile(info, file)
    elif info.isdir() or info.issym():
        tar.addfile(info)
    if info.isdir():
        for child in sorted(os.listdir(path)):  # noqa: PTH208 - names, in an order of their bytes
            _add(tar, path / child, f"{name}/{child}")
