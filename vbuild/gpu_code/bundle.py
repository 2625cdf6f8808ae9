"""AMD's bundles of clang's offload bundler: the code objects of one translation unit, with a table of who each is for.

Plain, in `.hip_fatbin` at multiples of 4096, without a size of its own:

    off  size  field
    0    24    magic     __CLANG_OFFLOAD_BUNDLE__
    24   8     count     of entries; for each, one after the other:
      0  8       offset    from the bundle's start, a multiple of 4096
      8  8       size      the host's is 0
      16 8       idSize
      24 idSize  id        kind-triple-target: hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+

The runtime looks for the table in the first 4096 bytes. Compressed as a whole, version 2 and (3):

    0    4     magic             CCOB
    4    2     version           2, 3; version 1 does not say how long it is, and is refused
    6    2     method            0: zlib, 1: zstd
    8    4 (8) totalSize         this header included
    12   4 (8) uncompressedSize
    16   8     hash              first 8 bytes of the MD5 of what was compressed

https://clang.llvm.org/docs/ClangOffloadBundler.html ; which code object is taken: ROCm/clr, hipamd/src/hip_fatbin.cpp
A library whose wrapper says HIPK had its code moved out by rocm-kpack; nothing is done to it.
"""

import itertools
import zlib
from collections.abc import Iterator, Sequence
from enum import IntEnum

from msgspec.structs import replace

from vbuild.errors import BinaryError
from vbuild.files import zstd
from vbuild.files.edited import Part
from vbuild.files.records import U16, U32, U64
from vbuild.gpu_code.model import Compression, ContainerForm, GpuEntry, GpuRecord, Reading, Vendor, Writing
from vbuild.hardware.architectures import SPIRV, GpuTarget
from vbuild.hardware.gpu import GpuCodeKind

MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED_MAGIC = b"CCOB"
ALIGNMENT = 4096
# the most that looking into a compressed bundle may take, in bytes
_WINDOW_LOG = 30
# what the runtime reads to find the table in
_TABLE = 4096
_VERSIONS = (2, 3)
_PARTS_BEFORE_TARGET = 5
_HOST = GpuTarget("host")


class BundleMethod(IntEnum):
    """How a bundle is compressed."""

    ZLIB = 0
    ZSTD = 1


_COMPRESSIONS = {BundleMethod.ZLIB: Compression.ZLIB, BundleMethod.ZSTD: Compression.ZSTD}


class Count(GpuRecord, frozen=True):
    """How many entries a plain bundle has."""

    entries: U64


class BundleRow(GpuRecord, frozen=True):
    """Where an entry is; its id follows."""

    offset: U64
    size: U64
    id_size: U64


class CompressedStart(GpuRecord, frozen=True):
    """What every version of a compressed bundle begins with."""

    magic: U32
    version: U16
    method: U16


class Sizes2(GpuRecord, frozen=True):
    """Version 2."""

    total: U32
    uncompressed: U32
    hash: U64


class Sizes3(GpuRecord, frozen=True):
    """Version 3."""

    total: U64
    uncompressed: U64
    hash: U64


Sizes = Sizes2 | Sizes3


def extent(data: memoryview, room: range) -> range:
    """The bundle that begins where *room* does; `BinaryError` if none does, or if it does not fit in."""
    start = room.start
    if bytes(data[start : min(start + len(COMPRESSED_MAGIC), room.stop)]) == COMPRESSED_MAGIC:
        _, sizes, header = _compressed(data[: room.stop], start)
        stop = start + sizes.total
        if sizes.total < header:
            raise BinaryError(f"compressed bundle at {start:#x} is {sizes.total:#x} bytes long, less than its header")
    else:
        head = data[start : min(start + _TABLE, room.stop)]
        rows = list(_rows(head, start))
        # an entry of no bytes, the host's, is nowhere
        stop = start + max([_table_size(rows), *(row.offset + row.size for row, _ in rows if row.size)])
    if stop > room.stop:
        raise BinaryError(f"bundle at {start:#x} ends at {stop:#x}, past the end of its section, {room.stop:#x}")
    return range(start, stop)


def read(data: memoryview, span: range) -> Reading:
    """The entries of the bundle at *span*; `BinaryError` if it is damaged, or of a version that is not known."""
    start = span.start
    if bytes(data[start : start + len(COMPRESSED_MAGIC)]) == COMPRESSED_MAGIC:
        return Reading(_inside(data, span), "is compressed as a whole")
    rows = list(_rows(data[start : min(start + _TABLE, span.stop)], start))
    first = _table_size(rows)
    taken = sorted((row.offset, row.offset + row.size) for row, _ in rows if row.size)
    if taken and taken[0][0] < first:
        raise BinaryError(f"bundle at {start:#x} has code at {taken[0][0]:#x}, inside its table of {first:#x} bytes")
    if any(stop > after for (_, stop), (after, _) in itertools.pairwise(taken)):
        raise BinaryError(f"bundle at {start:#x} has code objects that overlap")
    return Reading(tuple(_entry(row, ident, start) for row, ident in rows))


def packed(kept: Sequence[GpuEntry], written: Writing) -> tuple[Part, ...]:
    """The plain bundle of the *kept* entries, each as *written* gives it, at multiples of 4096."""
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


def _rows(head: memoryview, place: int) -> Iterator[tuple[BundleRow, str]]:
    """The rows of the table in *head*, found at *place*, with their ids."""
    if bytes(head[: len(MAGIC)]) != MAGIC:
        found = bytes(head[: len(MAGIC)])
        raise BinaryError(f"no bundle at {place:#x}: begins with {found!r}, expected {MAGIC.decode()} or CCOB")
    where = len(MAGIC)
    if len(head) < where + Count.layout.size:
        raise BinaryError(f"bundle at {place:#x} is cut short")
    count = Count.parse(head, where).entries
    where += Count.layout.size
    for index in range(count):
        if len(head) < where + BundleRow.layout.size:
            raise BinaryError(f"bundle at {place:#x} has no room for {count} entries in its first {len(head):#x} bytes")
        row = BundleRow.parse(head, where)
        where += BundleRow.layout.size
        if row.id_size > len(head) - where:
            raise BinaryError(f"bundle at {place:#x} has an id of {row.id_size:#x} bytes for entry {index}")
        yield row, _text(head[where : where + row.id_size], place)
        where += row.id_size


def _text(ident: memoryview, place: int) -> str:
    try:
        return bytes(ident).decode("ascii")
    except UnicodeDecodeError:
        raise BinaryError(f"bundle at {place:#x} has an id that is not ASCII: {bytes(ident)!r}") from None


def _table_size(rows: Sequence[tuple[BundleRow, str]]) -> int:
    return len(MAGIC) + Count.layout.size + sum(BundleRow.layout.size + len(ident) for _, ident in rows)


def _entry(row: BundleRow, ident: str, start: int) -> GpuEntry:
    kind, code, target = _who(ident)
    begin = start + row.offset if row.size else start  # an entry of no bytes may say any place
    span = range(begin, begin + row.size)
    return GpuEntry(Vendor.AMD, kind, code, target, span, span, uncompressed_size=row.size, ident=ident)


def _who(ident: str) -> tuple[str, GpuCodeKind, GpuTarget]:
    """What *ident* says of the entry: kind, code and target."""
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


def _compressed(data: memoryview, start: int) -> tuple[BundleMethod, Sizes, int]:
    """Method, sizes, and size of the header of the compressed bundle at *start*."""
    head = CompressedStart.parse(data, start)
    if head.version not in _VERSIONS:
        raise BinaryError(f"compressed bundle at {start:#x} has version {head.version}; only 2 and 3 are known")
    if head.method not in tuple(BundleMethod):
        raise BinaryError(
            f"compressed bundle at {start:#x} has method {head.method}; only 0 (zlib) and 1 (zstd) are known"
        )
    form = Sizes2 if head.version == _VERSIONS[0] else Sizes3
    where = start + CompressedStart.layout.size
    return BundleMethod(head.method), form.parse(data, where), CompressedStart.layout.size + form.layout.size


def _inside(data: memoryview, span: range) -> tuple[GpuEntry, ...]:
    """The entries of the compressed bundle at *span*, which have no place of their own in the file."""
    method, sizes, header = _compressed(data, span.start)
    payload = range(span.start + header, span.stop)
    head = memoryview(_first_bytes(data[payload.start : payload.stop], method, span.start))
    rows = list(_rows(head, span.start))
    if any(row.offset + row.size > sizes.uncompressed for row, _ in rows):
        raise BinaryError(f"compressed bundle at {span.start:#x} has code behind its end, {sizes.uncompressed:#x}")
    total = sum(row.size for row, _ in rows)
    return tuple(
        replace(
            _entry(row, ident, 0),
            span=range(span.start, span.start),
            payload=range(span.start, span.start),
            compression=_COMPRESSIONS[method],
            share=len(payload) * row.size // max(total, 1),
        )
        for row, ident in rows
    )


def _first_bytes(payload: memoryview, method: BundleMethod, place: int) -> bytes:
    """Enough of what is compressed in *payload* to hold the table."""
    try:
        if method is BundleMethod.ZLIB:
            return zlib.decompressobj().decompress(payload, _TABLE)
        return zstd.first_bytes(payload, _TABLE, window_log=_WINDOW_LOG)
    except (zlib.error, zstd.ZstdError) as error:
        raise BinaryError(f"compressed bundle at {place:#x} is damaged: {error}") from error
