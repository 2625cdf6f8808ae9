"""The layers of images: read from the start to the end, and written again, hashed on the way.

https://github.com/opencontainers/image-spec/blob/main/layer.md
"""

import gzip
import hashlib
import posixpath
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from vbuild.errors import RepackageError
from vbuild.files import zstd
from vbuild.files.archives import BoundedInfo
from vbuild.files.reading import open_file
from vbuild.hardware.cpu import available_cores
from vbuild.publishing.oci.model import GZIP_TYPE, LAYER_TYPE, ZSTD_TYPE
from vbuild.publishing.oci.writing import GzipMembers

# an entry of this name hides one of a layer below; this one hides all that a folder had
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"

_TYPES = (LAYER_TYPE, GZIP_TYPE, ZSTD_TYPE)
_LEVEL = 3


@contextmanager
def opened_layer(blob: Path, media_type: str) -> Iterator[tarfile.TarFile]:
    """The layer *blob*, read from its start to its end; `RepackageError` if it is none that can be read."""
    if media_type not in _TYPES:
        raise RepackageError(f"a layer of type {media_type}; expected {', '.join(_TYPES)}")
    with ExitStack() as stack:
        file: Any = stack.enter_context(open_file(blob))
        if media_type == GZIP_TYPE:
            file = stack.enter_context(gzip.open(file, "rb"))
        elif media_type == ZSTD_TYPE:
            file = stack.enter_context(zstd.reading(file))
        try:
            yield stack.enter_context(tarfile.open(fileobj=file, mode="r|", tarinfo=BoundedInfo))
        except (tarfile.TarError, EOFError, gzip.BadGzipFile, zstd.ZstdError) as error:
            raise RepackageError(f"not a layer that can be read: {error}") from error


def entry_path(name: str) -> str:
    """Where in the image the entry *name* is; empty for a place outside of it."""
    path = posixpath.normpath(f"/{name}").lstrip("/")
    return "" if ".." in name.split("/") else path


class Packing:
    """A layer in the making: what is written is hashed as it is, and compressed into *file* as *media_type* says."""

    def __init__(self, file: BinaryIO, media_type: str) -> None:
        self.plain = hashlib.sha256()
        self._gzip = GzipMembers(file) if media_type == GZIP_TYPE else None
        self._zstd = zstd.writing(file, level=_LEVEL, threads=available_cores()) if media_type == ZSTD_TYPE else None
        self._file = file

    def write(self, data: bytes) -> int:
        self.plain.update(data)
        if self._gzip:
            self._gzip.add(data)
        else:
            (self._zstd or self._file).write(data)
        return len(data)

    def finish(self) -> None:
        if self._gzip:
            self._gzip.flush()
        if self._zstd:
            self._zstd.close()
