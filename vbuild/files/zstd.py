"""Zstandard: in the standard library from Python 3.14 on, before that in a package.

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
"""The error for damaged data; data that ends too early raises `EOFError`."""

_LEVEL, _WORKERS = zstd.CompressionParameter.compression_level, zstd.CompressionParameter.nb_workers
_FAR = zstd.CompressionParameter.enable_long_distance_matching
# frames with windows of more than 128 MiB are refused
_WINDOW, _WINDOW_LOG = zstd.DecompressionParameter.window_log_max, 27


def compressed(data: "Buffer", *, level: int, far: bool = False) -> bytes:
    """One frame that states its size; *far* finds repeats many megabytes apart."""
    return zstd.compress(data, options={_LEVEL: level, _FAR: int(far)})


def compressor(level: int, *, threads: int) -> zstd.ZstdCompressor:
    return zstd.ZstdCompressor(options={_LEVEL: level, _WORKERS: _workers(threads)})


def most(size: int) -> int:
    """A header for each block of 1 KiB or more, and one for all."""
    return size + size // 256 + 1024


def writing(file: BinaryIO, *, level: int, threads: int) -> BinaryIO:
    return cast(BinaryIO, zstd.ZstdFile(file, "w", options={_LEVEL: level, _WORKERS: _workers(threads)}))


def reading(file: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, zstd.ZstdFile(file, options={_WINDOW: _WINDOW_LOG}))


def first_bytes(frame: "Buffer", size: int, *, window_log: int) -> bytes:
    return zstd.ZstdDecompressor(options={_WINDOW: window_log}).decompress(frame, size)


def inflated(pieces: "Iterable[bytes]", size: int) -> "Iterator[bytes]":
    """The content of the one frame in *pieces*, at most *size* bytes at a time; `ZstdError` unless it ends there."""
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
    """The *size* bytes in *frame*; `ZstdError` if there are more or less."""
    stated = zstd.get_frame_info(frame).decompressed_size
    decompressor = zstd.ZstdDecompressor(options={_WINDOW: window_log})
    data = decompressor.decompress(frame, size + 1) if stated in {size, None} else b""
    if len(data) != size:
        raise ZstdError(f"a frame of {stated or len(data):#x} bytes, expected {size:#x}")
    if not decompressor.eof:
        raise ZstdError("a frame that ends too early")
    return data


def _workers(threads: int) -> int:
    return min(threads, _WORKERS.bounds()[1])
