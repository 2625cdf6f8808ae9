"""Zstandard: the standard library has it from Python 3.14 on, and before that a package has the same.

https://docs.python.org/3.14/library/compression.zstd.html
"""

import sys
from typing import TYPE_CHECKING, BinaryIO, cast

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vbuild.files.records import Buffer

ZstdError = zstd.ZstdError
"""What is raised for data that is damaged; `EOFError` for data that ends too early."""

_LEVEL, _WORKERS = zstd.CompressionParameter.compression_level, zstd.CompressionParameter.nb_workers
_FAR = zstd.CompressionParameter.enable_long_distance_matching
_WINDOW, _WINDOW_LOG = zstd.DecompressionParameter.window_log_max, 27


def compressed(data: "Buffer", *, level: int, far: bool = False) -> bytes:
    """*data* as one frame that says its size; with *far*, what repeats after many megabytes is stored once."""
    return zstd.compress(data, options={_LEVEL: level, _FAR: int(far)})


def frame_size(data: "Buffer") -> int:
    """How many bytes of *data* the frame takes that it begins with; `ZstdError` if none does."""
    return zstd.get_frame_size(data)


def compressor(level: int, *, threads: int, size: int | None = None) -> zstd.ZstdCompressor:
    """What compresses on so many *threads*, if it can; a frame of so many bytes, where *size* is known, says so."""
    made = zstd.ZstdCompressor(options={_LEVEL: level, _WORKERS: _workers(threads)})
    if size is not None:
        made.set_pledged_input_size(size)
    return made


def most(size: int) -> int:
    """More bytes than a frame of *size* ones ever takes: a header for each block of 1 KiB or more, and for all."""
    return size + size // 256 + 1024


def writing(file: BinaryIO, *, level: int, threads: int) -> BinaryIO:
    """What compresses into *file* what is written to it, until it is closed."""
    return cast(BinaryIO, zstd.ZstdFile(file, "w", options={_LEVEL: level, _WORKERS: _workers(threads)}))


def reading(file: BinaryIO) -> BinaryIO:
    """What reads the frames in *file*, one after the other, whose windows are of 128 MiB at most."""
    return cast(BinaryIO, zstd.ZstdFile(file, options={_WINDOW: _WINDOW_LOG}))


def first_bytes(frame: "Buffer", size: int, *, window_log: int) -> bytes:
    """The first *size* bytes of what is in *frame*, or all of it."""
    return zstd.ZstdDecompressor(options={_WINDOW: window_log}).decompress(frame, size)


def inflated(pieces: "Iterable[bytes]", size: int) -> "Iterator[bytes]":
    """What the one frame in *pieces* holds, at most *size* bytes at a time; `ZstdError` unless it ends with them."""
    decompressor = zstd.ZstdDecompressor(options={_WINDOW: _WINDOW_LOG})
    for piece in pieces:
        if decompressor.eof:
            raise ZstdError("bytes after the end of its frame")
        yield decompressor.decompress(piece, size)
        while not decompressor.needs_input and not decompressor.eof:
            yield decompressor.decompress(b"", size)
    if not decompressor.eof:
        raise ZstdError("a frame that ends too early")
    if decompressor.unused_data:
        raise ZstdError("bytes after the end of its frame")


def decompressed(frame: "Buffer", size: int, *, window_log: int = _WINDOW_LOG) -> bytes:
    """What is in *frame*, *size* bytes; `ZstdError` if it is more or less."""
    stated = zstd.get_frame_info(frame).decompressed_size
    decompressor = zstd.ZstdDecompressor(options={_WINDOW: window_log})
    found = decompressor.decompress(frame, size + 1) if stated in {size, None} else b""
    if len(found) != size:
        raise ZstdError(f"a frame of {stated or len(found):#x} bytes, expected {size:#x}")
    if not decompressor.eof:
        raise ZstdError("a frame that ends too early")
    return found


def _workers(threads: int) -> int:
    return min(threads, _WORKERS.bounds()[1])
