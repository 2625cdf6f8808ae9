"""Deflate streams, a chunk at a time (RFC 1951)."""

import zlib
from collections.abc import Iterator

from isal import isal_zlib

from vbuild.errors import WheelError

CHUNK = 1 << 20


def inflated_stream(raw: Iterator[bytes]) -> Iterator[bytes]:
    """What the deflate stream in *raw* inflates to, a chunk at a time; `WheelError` unless it ends with *raw*."""
    inflater = isal_zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for piece in raw:
            if inflater.eof:
                raise WheelError("damaged: bytes after the end of its deflate stream")
            rest = piece
            while rest and not inflater.eof:
                yield inflater.decompress(rest, CHUNK)
                rest = inflater.unconsumed_tail
        yield inflater.flush()
    except isal_zlib.error as error:  # type: ignore[misc] # its stub says that this class is an exception
        raise WheelError("damaged: its deflate stream is broken") from error
    if not inflater.eof:
        raise WheelError("damaged: its deflate stream is cut short")
    if inflater.unused_data:
        raise WheelError("damaged: bytes after the end of its deflate stream")
