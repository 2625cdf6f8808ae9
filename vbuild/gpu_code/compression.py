"""What is inside a compressed entry, and entries compressed anew.

    LZ4    a block without a frame, CUDA 11 and 12
    zstd   one frame that says its size, CUDA 12.4 and later; drivers before 550.54.14 cannot load it
    zlib   AMD only

Sizes are believed only as far as the bytes bear them out: what claims to be larger than its form allows, or than
`LIMIT`, is refused before any of it is inflated.
"""

import zlib

import lz4.block
import zstandard
from msgspec.structs import replace

from vbuild.errors import BinaryError
from vbuild.files.edited import Part
from vbuild.files.records import Buffer
from vbuild.gpu_code.fatbin import ALIGNMENT, COMPRESSED, EntryHeader, FatbinFlag
from vbuild.gpu_code.model import Compression, GpuEntry, Vendor

# the most that is inflated at once, in bytes; no published entry comes near
LIMIT = 1 << 30
# GPU code gets smaller by a few times; this much is never more than a fatbin of a few kilobytes may ask for
_PLENTY, _RATIO = 1 << 24, 32
# what a driver takes: nvcc's own frames have windows of 8 MiB or less
_WINDOW_LOG = 23
# a byte of an LZ4 block stands for 255 at the most
_LZ4_RATIO = 255
_RECOMPRESSED = frozenset({"cubin", "ptx"})


def decompressed(data: Buffer, entry: GpuEntry) -> bytes:
    """What *entry* of the file *data* holds; `BinaryError` if its compression is damaged or not known."""
    if entry.vendor is Vendor.NVIDIA and entry.flags & FatbinFlag.OBFUSCATED:
        raise BinaryError(f"{entry.kind} at {entry.span.start:#x} is obfuscated: only NVIDIA's linker can read it")
    if entry.share:
        raise BinaryError(f"{entry.kind} at {entry.span.start:#x} cannot be read alone: its container is compressed")
    payload = memoryview(data)[entry.payload.start : entry.payload.stop]
    return inflated(payload, entry.compression, size=entry.uncompressed_size, place=entry.span.start)


def inflated(payload: memoryview, compression: Compression, *, size: int, place: int) -> bytes:
    """The *size* bytes that *payload*, found at *place* of a file, was made of; `BinaryError` if it was not."""
    if size > LIMIT:
        raise BinaryError(f"code at {place:#x} claims to inflate to {size:#x} bytes; more than {LIMIT:#x} is refused")
    if size > max(_PLENTY, _RATIO * len(payload)):
        found = f"{len(payload):#x} bytes at {place:#x} claim to inflate to {size:#x}"
        raise BinaryError(f"{found}; more than {_RATIO} times as many is refused")
    try:
        result = _inflated(payload, compression, size)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, zlib.error, MemoryError) as error:
        raise BinaryError(f"code at {place:#x} is damaged: {compression}: {error}") from error
    if result is None:
        raise BinaryError(f"code at {place:#x} is compressed in a way that is not known")
    if len(result) != size:
        raise BinaryError(f"code at {place:#x} inflates to {len(result):#x} bytes, but claims {size:#x}")
    return result


def recompressed(data: Buffer, entry: GpuEntry, *, level: int = 9) -> Part:
    """*entry* of the file *data* with its code in a zstd frame, or as it is where that would not be smaller.

    Only cubins and PTX are taken; a driver before 550.54.14 cannot load the result.
    """
    if (
        entry.vendor is not Vendor.NVIDIA
        or entry.kind not in _RECOMPRESSED
        or entry.compression not in {Compression.RAW, Compression.LZ4}
    ):
        return entry.span
    code = decompressed(data, entry)
    parameters = zstandard.ZstdCompressionParameters.from_level(level, source_size=len(code))
    if parameters.window_log > _WINDOW_LOG:
        parameters = zstandard.ZstdCompressionParameters.from_level(
            level, source_size=len(code), window_log=_WINDOW_LOG
        )
    frame = zstandard.ZstdCompressor(compression_params=parameters).compress(code)
    start, end = entry.span.start, entry.payload.start
    padding = bytes(-len(frame) % ALIGNMENT)
    if end - start + len(frame) + len(padding) >= entry.size:
        return entry.span
    header = EntryHeader.parse(data, start)
    head = replace(
        header,
        flags=header.flags & ~COMPRESSED | FatbinFlag.ZSTD,
        payload_size=len(frame) + len(padding),
        compressed_size=len(frame),
        uncompressed_size=len(code),
    ).pack()
    return head + bytes(memoryview(data)[start + len(head) : end]) + frame + padding


def _inflated(payload: memoryview, compression: Compression, size: int) -> bytes | None:
    match compression:
        case Compression.RAW:
            return bytes(payload)
        case Compression.LZ4 if size > _LZ4_RATIO * len(payload):
            raise lz4.block.LZ4BlockError(f"{len(payload):#x} bytes cannot become {size:#x}")
        case Compression.LZ4:
            block: bytes = lz4.block.decompress(payload, uncompressed_size=size)
            return block
        case Compression.ZSTD:
            return _from_zstd(payload, size)
        case Compression.ZLIB:
            # one byte more shows that there is more
            return zlib.decompressobj().decompress(payload, size + 1)
        case _:
            return None


def _from_zstd(payload: memoryview, size: int) -> bytes:
    found = zstandard.get_frame_parameters(payload).content_size
    if found not in {size, zstandard.CONTENTSIZE_UNKNOWN}:
        raise zstandard.ZstdError(f"a frame of {found:#x} bytes, expected {size:#x}")
    return zstandard.ZstdDecompressor(max_window_size=1 << 27).decompress(payload, max_output_size=size)
