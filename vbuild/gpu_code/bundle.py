"""AMD's bundles of clang's offload bundler: the code objects of one translation unit, with a table of who each is for.

Plain, in `.hip_fatbin` at multiples of 4096, without a size of its own:

    off  size  field
    0    24    magic     __CLANG_OFFLOAD_BUNDLE__
    24   8     count     of entries; for each, one after the other:
      0  8       offset    from the bundle's start, a multiple of 4096
      8  8       size      the host's is 0
      16 8       idSize
      24 idSize  id        kind-triple-target: hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+

The table is in the first 4096 bytes. Compressed as a whole, with numbers of 8 bytes in version 3:

    0    4     magic             CCOB
    4    2     version           2, 3
    6    2     method            0: zlib, 1: zstd
    8    4 (8) totalSize         this header included
    12   4 (8) uncompressedSize
    16   8     hash              first 8 bytes of the MD5 of what was compressed

Such a bundle is compressed again with the same version and method.

https://clang.llvm.org/docs/ClangOffloadBundler.html ; which code object is taken: ROCm/clr, hipamd/src/hip_fatbin.cpp
rocm-kpack moves the code of libraries whose wrapper says HIPK to other files; they stay as they are.
"""

import hashlib
import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from vbuild.errors import BinaryError
from vbuild.files import zstd
from vbuild.files.edited import Part
from vbuild.files.records import U16, U32, U64, Buffer, Packed
from vbuild.gpu_code.model import Compression, ContainerForm, GpuEntry, Reading, Vendor, Writing, verbatim
from vbuild.hardware.architectures import SPIRV, GpuTarget
from vbuild.hardware.gpu import GpuCodeKind

MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED_MAGIC = b"CCOB"
ALIGNMENT = 4096
# the most that is inflated at once, in bytes and times the size; published bundles come to 120 times
_WINDOW_LOG = 30
_LARGEST, _PLENTY, _RATIO = 1 << _WINDOW_LOG, 1 << 24, 512
_ZSTD_LEVEL, _ZLIB_LEVEL = 9, 9
# the part of a compressed bundle that its code objects have in common: of published ones, with 15 to 27 processors, one
# alone takes 13 to 18 % of them all
_IN_COMMON = 8
_TABLE = 4096  # bytes in which the runtime looks for the table
_PARTS_BEFORE_TARGET = 5
_HOST = GpuTarget("host")


class BundleMethod(IntEnum):
    ZLIB = 0
    ZSTD = 1


_COMPRESSIONS = {BundleMethod.ZLIB: Compression.ZLIB, BundleMethod.ZSTD: Compression.ZSTD}


class Count(Packed, frozen=True):
    entries: U64


class BundleRow(Packed, frozen=True):
    offset: U64
    size: U64
    id_size: U64


class CompressedStart(Packed, frozen=True):
    magic: U32
    version: U16
    method: U16


class Sizes2(Packed, frozen=True):
    total: U32
    uncompressed: U32
    hash: U64


class Sizes3(Packed, frozen=True):
    total: U64
    uncompressed: U64
    hash: U64


Sizes = Sizes2 | Sizes3
_SIZES: Mapping[int, type[Sizes]] = {2: Sizes2, 3: Sizes3}


class _Compressed(NamedTuple):
    """The header, and the file offsets of payload and end."""

    version: int
    method: BundleMethod
    uncompressed: int
    hash: int
    payload: int
    stop: int


def extent(data: memoryview, room: range) -> range:
    """The bundle at the start of *room*; `BinaryError` if none is there."""
    start = room.start
    if bytes(data[start : min(start + len(COMPRESSED_MAGIC), room.stop)]) == COMPRESSED_MAGIC:
        stop = _compressed(data[: room.stop], start).stop
    else:
        head = data[start : min(start + _TABLE, room.stop)]
        rows = list(_rows(head, start))
        # the host's entry has no bytes
        stop = start + max([_table_size(rows), *(row.offset + row.size for row, _ in rows if row.size)])
    if stop > room.stop:
        raise BinaryError(f"bundle at {start:#x} ends at {stop:#x}, past the end of its section, {room.stop:#x}")
    return range(start, stop)


def read(data: memoryview, span: range) -> Reading:
    """The entries of the bundle at *span*; `BinaryError` if it is damaged or of an unknown version."""
    start = span.start
    if bytes(data[start : start + len(COMPRESSED_MAGIC)]) == COMPRESSED_MAGIC:
        return _compressed_reading(data, span)
    rows = list(_rows(data[start : min(start + _TABLE, span.stop)], start))
    _check_places(rows, start)
    return Reading(tuple(_entry(row, ident, start) for row, ident in rows))


def packed(kept: Sequence[GpuEntry], written: Writing) -> tuple[Part, ...]:
    codes = [written(entry) for entry in kept]
    idents = [entry.ident.encode() for entry in kept]
    end = len(MAGIC) + Count.layout.size + sum(BundleRow.layout.size + len(ident) for ident in idents)
    table = [MAGIC, Count(len(kept)).pack()]
    parts: list[Part] = []
    for ident, code in zip(idents, codes, strict=True):
        gap = -end % ALIGNMENT
        table += [BundleRow(end + gap, len(code), len(ident)).pack(), ident]
        if len(code):
            parts += [bytes(gap), code]
            end += gap + len(code)
    return (b"".join(table), *parts)


BUNDLES = ContainerForm(
    vendor=Vendor.AMD,
    name="bundle",
    sections=(".hip_fatbin",),
    wrapper_section=".hipFatBinSegment",
    wrapper_magic=0x48495046,
    wrapper_versions=frozenset({1}),
    extent=extent,
    read=read,
    packing=packed,
    foreign={0x4B504948: "its code was moved to .kpack files and is left alone"},
)


def _rows(head: memoryview, start: int) -> Iterator[tuple[BundleRow, str]]:
    if (magic := bytes(head[: len(MAGIC)])) != MAGIC:
        raise BinaryError(f"no bundle at {start:#x}: begins with {magic!r}, expected {MAGIC.decode()} or CCOB")
    at = len(MAGIC)
    if len(head) < at + Count.layout.size:
        raise BinaryError(f"bundle at {start:#x} is cut short")
    count = Count.parse(head, at).entries
    at += Count.layout.size
    for index in range(count):
        if len(head) < at + BundleRow.layout.size:
            raise BinaryError(f"bundle at {start:#x} has no room for {count} entries in its first {len(head):#x} bytes")
        row = BundleRow.parse(head, at)
        at += BundleRow.layout.size
        if row.id_size > len(head) - at:
            raise BinaryError(f"bundle at {start:#x} has an id of {row.id_size:#x} bytes for entry {index}")
        ident = bytes(head[at : at + row.id_size])
        if not ident.isascii():
            raise BinaryError(f"bundle at {start:#x} has an id that is not ASCII: {ident!r}")
        yield row, ident.decode("ascii")
        at += row.id_size


def _table_size(rows: Sequence[tuple[BundleRow, str]]) -> int:
    return len(MAGIC) + Count.layout.size + sum(BundleRow.layout.size + len(ident) for _, ident in rows)


def _entry(row: BundleRow, ident: str, start: int) -> GpuEntry:
    kind, code, target = _who(ident)
    begin = start + row.offset if row.size else start  # one of no bytes may have any offset
    span = range(begin, begin + row.size)
    return GpuEntry(Vendor.AMD, kind, code, target, span, span, uncompressed_size=row.size, ident=ident)


def _who(ident: str) -> tuple[str, GpuCodeKind, GpuTarget]:
    parts = ident.split("-", _PARTS_BEFORE_TARGET)
    if parts[0] == "host":
        return "host", GpuCodeKind.OTHER, _HOST
    target = parts[-1] if len(parts) > _PARTS_BEFORE_TARGET else ""
    if any(part.startswith("spirv") for part in parts[1:]):
        return "spirv", GpuCodeKind.PTX, GpuTarget(SPIRV)
    if parts[0] in {"hip", "hipv4"} and target:
        processor, *features = target.split(":")
        return "code-object", GpuCodeKind.MACHINE, GpuTarget(processor, tuple(features))
    return "unknown", GpuCodeKind.OTHER, GpuTarget(target or ident)


def _check_places(rows: Sequence[tuple[BundleRow, str]], start: int) -> None:
    """`BinaryError` if two code objects of the bundle at *start* overlap, or one lies in the table."""
    first = _table_size(rows)
    taken = sorted((row.offset, row.offset + row.size) for row, _ in rows if row.size)
    if taken and taken[0][0] < first:
        raise BinaryError(f"bundle at {start:#x} has code at {taken[0][0]:#x}, inside its table of {first:#x} bytes")
    if any(stop > after for (_, stop), (after, _) in itertools.pairwise(taken)):
        raise BinaryError(f"bundle at {start:#x} has code objects that overlap")


def _compressed(data: memoryview, start: int) -> _Compressed:
    head = CompressedStart.parse(data, start)
    bundle = f"compressed bundle at {start:#x}"
    if (form := _SIZES.get(head.version)) is None:
        raise BinaryError(f"{bundle} has version {head.version}; only 2 and 3 are known")
    if head.method not in tuple(BundleMethod):
        raise BinaryError(f"{bundle} has method {head.method}; only 0 (zlib) and 1 (zstd) are known")
    sizes = form.parse(data, start + CompressedStart.layout.size)
    header = CompressedStart.layout.size + form.layout.size
    if sizes.total < header:
        raise BinaryError(f"{bundle} is {sizes.total:#x} bytes long, less than its header")
    method = BundleMethod(head.method)
    return _Compressed(head.version, method, sizes.uncompressed, sizes.hash, start + header, start + sizes.total)


def _is_too_much(uncompressed: int, size: int) -> bool:
    return uncompressed > min(_LARGEST, max(_PLENTY, _RATIO * size))


def _compressed_reading(data: memoryview, span: range) -> Reading:
    head = _compressed(data[: span.stop], span.start)
    size = head.stop - head.payload
    rows = list(_rows(memoryview(_inflated(data, head, span.start, most=_TABLE)), span.start))
    _check_places(rows, span.start)
    if any(row.offset + row.size > head.uncompressed for row, _ in rows):
        raise BinaryError(f"compressed bundle at {span.start:#x} has code behind its end, {head.uncompressed:#x}")
    total = sum(row.size for row, _ in rows)
    entries = tuple(
        replace(
            _entry(row, ident, 0),
            # they have no bytes of their own in the file
            span=range(span.start, span.start),
            payload=range(span.start, span.start),
            compression=_COMPRESSIONS[head.method],
            share=(size - size // _IN_COMMON) * row.size // max(total, 1),
        )
        for row, ident in rows
    )
    why = None
    if _is_too_much(head.uncompressed, size):
        why = f"claims that its {size:#x} bytes inflate to {head.uncompressed:#x}, which is not tried"
    return Reading(entries, why, partial(_packed_again, data, span))


def _packed_again(data: memoryview, span: range, kept: Sequence[GpuEntry], _: Writing) -> tuple[Part, ...]:
    """The compressed bundle with the *kept* entries, unless no smaller; `BinaryError` if its hash is wrong."""
    head = _compressed(data[: span.stop], span.start)
    plain = memoryview(_inflated(data, head, span.start))
    if _hash(plain) != head.hash:
        raise BinaryError(f"compressed bundle at {span.start:#x} is damaged: its hash is {head.hash:#x}")
    wanted = {(entry.ident, entry.uncompressed_size) for entry in kept}
    inside = read(plain, range(len(plain))).entries
    parts = packed([entry for entry in inside if (entry.ident, entry.uncompressed_size) in wanted], verbatim)
    bundle = b"".join(part if isinstance(part, bytes) else plain[part.start : part.stop] for part in parts)
    if head.method is BundleMethod.ZLIB:
        payload = zlib.compress(bundle, _ZLIB_LEVEL)
    else:
        payload = zstd.compressed(bundle, level=_ZSTD_LEVEL, far=True)
    start = bytes(data[span.start : span.start + CompressedStart.layout.size])
    total = head.payload - span.start + len(payload)
    if total >= len(span):
        return (span,)
    return (start + _SIZES[head.version](total, len(bundle), _hash(bundle)).pack() + payload,)


def _hash(plain: Buffer) -> int:
    return int.from_bytes(hashlib.md5(plain, usedforsecurity=False).digest()[:8], "little")


def _inflated(data: memoryview, head: _Compressed, start: int, *, most: int | None = None) -> bytes:
    """The plain bundle, or its first *most* bytes; `BinaryError` if it is damaged."""
    payload = data[head.payload : head.stop]
    try:
        if head.method is BundleMethod.ZLIB:
            plain = zlib.decompressobj().decompress(payload, most) if most else _whole(payload, head.uncompressed)
        elif most:
            plain = zstd.first_bytes(payload, most, window_log=_WINDOW_LOG)
        else:
            plain = zstd.decompressed(payload, head.uncompressed, window_log=_WINDOW_LOG)
    except (zlib.error, zstd.ZstdError, MemoryError, OverflowError) as error:
        raise BinaryError(f"compressed bundle at {start:#x} is damaged: {error}") from error
    if not most and len(plain) != head.uncompressed:
        sizes = f"inflates to {len(plain):#x} bytes, but claims {head.uncompressed:#x}"
        raise BinaryError(f"compressed bundle at {start:#x} {sizes}")
    return plain


def _whole(stream: memoryview, size: int) -> bytes:
    """`zlib.error` if the *stream* does not end within *size* bytes."""
    inflater = zlib.decompressobj()
    # one byte more shows that there is more
    plain = inflater.decompress(stream, size + 1)
    if len(plain) <= size and not inflater.eof:
        raise zlib.error("cut short")
    return plain
