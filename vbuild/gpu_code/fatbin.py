"""NVIDIA's fatbins: the cubins and the PTX of one translation unit, each behind a header that says for which GPU.

    container | entry | entry | ...      16 + fatSize bytes; little-endian, 8-byte aligned, no checksum anywhere

Container header:

    off   size  field
    0     4     magic              0xBA55ED50
    4     2     version            1
    6     2     headerSize         16
    8     8     fatSize            bytes of all entries; the driver reads it as a signed 32-bit number

Entry header, `headerSize` bytes, at least 64; `payloadSize` bytes follow, and then the next entry:

    off   size  field
    0x00  2     kind               see `FatbinKind`
    0x02  2     version            0x0101
    0x04  4     headerSize         a multiple of 8
    0x08  8     payloadSize        padded to 8
    0x10  4     compressedSize     of the payload without padding; 0: stored raw
    0x14  4     optionsOffset      from the entry's start; there the offset and the size (4 bytes each) of ptxas options
    0x18  2     minor              of the PTX ISA; cubin: 7, and 8 from CUDA 13 on, and for 100 and newer
    0x1A  2     major              of the PTX ISA; cubin: 1
    0x1C  4     arch               75, 90, 120 ...; what follows the number (90a, 103f) is in the flags
    0x20  4     identOffset        from the entry's start; 0: no name
    0x24  4     identSize
    0x28  8     flags              see `FatbinFlag`
    0x30  8     key                of obfuscated code
    0x38  8     uncompressedSize   0: stored raw

An entry can be copied to any multiple of 8. The driver takes a fatbin with fatSize 0 as one where no entry fits.

A compressed payload:

    LZ4    a block without a frame, CUDA 11 and 12
    zstd   one frame that says its size, CUDA 12.4 and later; drivers before 550.54.14 cannot load it
    zlib   AMD only

Sources: `fatbinary_section.h` of the CUDA toolkit, n-eiling/cuda-fatbin-decompression, jiegec/fatbinary,
bechirBOUALI/cuda-fatbin-precedence; checked against cuobjdump on published wheels.
"""

import zlib
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from functools import lru_cache
from typing import NamedTuple

import cramjam
from msgspec.structs import replace

from vbuild.errors import BinaryError
from vbuild.files import zstd
from vbuild.files.edited import Part
from vbuild.files.records import U16, U32, U64, Buffer, Packed
from vbuild.gpu_code.model import Compression, ContainerForm, GpuEntry, Reading, Vendor, Writing
from vbuild.gpu_code.toolkit_marks import cubin_toolkit
from vbuild.hardware.architectures import Arch
from vbuild.hardware.driver import ANY_DRIVER, Dotted, compiles_since
from vbuild.hardware.gpu import GpuCodeKind

MAGIC = 0xBA55ED50
MAGIC_BYTES = MAGIC.to_bytes(4, "little")
VERSION = 1
ENTRY_VERSION = 0x0101
ALIGNMENT = 8
_LARGEST = (1 << 31) - 1  # of fatSize, which the driver reads as a signed number
_MOST_ENTRIES = 1 << 10  # fifty times as many as any compiler writes for one translation unit
_ELF_7, _ELF_7_UNTIL = 7, 12  # the minor version of a cubin's header up to CUDA 12, but for architectures from 100 on
_ARCHS = 1000  # compute capabilities have three digits


class FatbinKind(IntEnum):
    PTX = 1
    CUBIN = 2
    OLD_CUBIN = 4
    LTO_IR = 8
    MERCURY = 0x10
    INDEX = 0x20
    RELOCATABLE_PTX = 0x40
    TILE_IR = 0x80
    CONCATENATED = 0x100

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")


class FatbinFlag(IntFlag):
    """The ARCH bits are the letter behind the architecture's number."""

    ADDRESS_64 = 1 << 0
    DEBUG = 1 << 1
    CUDA = 1 << 2
    OPENCL = 1 << 3
    LINUX = 1 << 4
    MAC = 1 << 5
    WINDOWS = 1 << 6
    OLD_COMPRESSION = 1 << 12
    LZ4 = 1 << 13
    LZ4_SECOND = 1 << 14
    ZSTD = 1 << 15
    OBFUSCATED = 1 << 16
    ARCH_SPECIFIC = 1 << 20
    ARCH_FAMILY = 1 << 21
    SECOND_CHOICE = 1 << 24


COMPRESSED = FatbinFlag.OLD_COMPRESSION | FatbinFlag.LZ4 | FatbinFlag.LZ4_SECOND | FatbinFlag.ZSTD
_KINDS = frozenset(FatbinKind)
_KNOWN = sum(FatbinFlag)
_COMPRESSIONS = {0: Compression.RAW, FatbinFlag.LZ4: Compression.LZ4, FatbinFlag.ZSTD: Compression.ZSTD}
_SUFFIXES = {0: "", FatbinFlag.ARCH_SPECIFIC: "a", FatbinFlag.ARCH_FAMILY: "f"}
# how the driver chooses is known of these only; other kinds are kept
_CODES = {FatbinKind.PTX: GpuCodeKind.PTX, FatbinKind.CUBIN: GpuCodeKind.MACHINE}


class FatbinHeader(Packed, frozen=True):
    magic: U32
    version: U16
    header_size: U16
    fat_size: U64


class EntryHeader(Packed, frozen=True):
    kind: U16
    version: U16
    header_size: U32
    payload_size: U64
    compressed_size: U32
    options_offset: U32
    minor: U16
    major: U16
    arch: U32
    ident_offset: U32
    ident_size: U32
    flags: U64
    key: U64
    uncompressed_size: U64


class TextPlace(Packed, frozen=True):
    offset: U32
    size: U32


HEADER_SIZE = FatbinHeader.layout.size


def extent(data: memoryview, room: range) -> range:
    """The fatbin at the start of *room*; `BinaryError` if none is there."""
    start = room.start
    header = FatbinHeader.parse(data[: room.stop], start)
    if header.magic != MAGIC:
        raise BinaryError(f"no fatbin at {start:#x}: magic is {header.magic:#x}, expected {MAGIC:#x}")
    if (header.version, header.header_size) != (VERSION, HEADER_SIZE):
        raise BinaryError(
            f"fatbin at {start:#x} has version {header.version} and a header of {header.header_size} bytes; "
            f"only version {VERSION} with {HEADER_SIZE} is known"
        )
    stop = start + HEADER_SIZE + header.fat_size
    if stop > room.stop:
        raise BinaryError(f"fatbin at {start:#x} ends at {stop:#x}, past the end of its section, {room.stop:#x}")
    if header.fat_size > _LARGEST or header.fat_size % ALIGNMENT:
        raise BinaryError(
            f"fatbin at {start:#x} is {header.fat_size:#x} bytes long; expected a multiple of 8 below 2 GiB"
        )
    return range(start, stop)


def has_header(data: memoryview, start: int) -> bool:
    """Whether there is room at *start* for a fatbin, of this or another version: the lengths of all are multiples."""
    header = bytes(data[start : start + HEADER_SIZE])
    if len(header) < HEADER_SIZE:
        return False
    fields = FatbinHeader.parse(memoryview(header))
    return bool(fields.header_size) and not (fields.header_size % ALIGNMENT or fields.fat_size % ALIGNMENT)


def read(data: memoryview, span: range) -> Reading:
    """The entries of the fatbin at *span*; `BinaryError` if one is damaged.

    One of unknown kind or flags pins it: nobody can say which GPU needs it.
    """
    entries: list[GpuEntry] = []
    oddity = None
    start = span.start + HEADER_SIZE
    room = data[: span.stop]
    while start < span.stop:
        if len(entries) == _MOST_ENTRIES:
            raise BinaryError(f"fatbin at {span.start:#x} has more than {_MOST_ENTRIES} entries, as none ever had")
        header = EntryHeader.parse(room, start)
        traits = _traits(header.kind, header.arch, header.flags)
        entry = _entry(room, start, header, traits)
        entries.append(entry)
        oddity = oddity or traits.oddity
        start = entry.span.stop
    return Reading(tuple(_with_toolkits(room, entries)), f"holds {oddity}" if oddity else None)


def _with_toolkits(data: memoryview, entries: Sequence[GpuEntry]) -> Sequence[GpuEntry]:
    """The *entries* of one fatbin, each cubin with the toolkit that made it: one run of nvcc writes them all.

    The PTX or a header tells it, else the smallest cubin with a kernel; cubins without any need no driver.
    """
    cubins = sorted((entry for entry in entries if entry.code is GpuCodeKind.MACHINE), key=lambda cubin: cubin.size)
    ptx = (compiles_since(entry.version) for entry in entries if entry.code is GpuCodeKind.PTX and entry.version)
    toolkit = max(filter(None, (*ptx, *(cubin.version for cubin in cubins))), default=None)
    try:
        for cubin in cubins:
            toolkit = toolkit or cubin_toolkit(decompressed(data, cubin))
    except BinaryError:
        return entries
    return [replace(entry, version=toolkit or ANY_DRIVER) if entry in cubins else entry for entry in entries]


def packed(kept: Sequence[GpuEntry], written: Writing) -> tuple[Part, ...]:
    parts = [written(entry) for entry in kept]
    size = sum(map(len, parts))
    return (FatbinHeader(MAGIC, VERSION, HEADER_SIZE, size).pack(), *parts)


FATBINS = ContainerForm(
    vendor=Vendor.NVIDIA,
    name="fatbin",
    sections=(".nv_fatbin", "__nv_relfatbin"),
    wrapper_section=".nvFatBinSegment",
    wrapper_magic=0x466243B1,
    # 2: linked from relocatable device code; its extra field is not the container's business
    wrapper_versions=frozenset({1, 2}),
    extent=extent,
    read=read,
    packing=packed,
)


class _Traits(NamedTuple):
    kind: str
    code: GpuCodeKind
    arch: Arch
    compression: Compression
    oddity: str | None


@lru_cache(maxsize=1024)
def _traits(kind: int, arch: int, flags: int) -> _Traits:
    label = FatbinKind(kind).label if kind in _KINDS else f"kind {kind:#x}"
    suffix = _SUFFIXES.get(flags & (FatbinFlag.ARCH_SPECIFIC | FatbinFlag.ARCH_FAMILY))
    oddity = None
    if kind not in _KINDS:
        oddity = f"an entry of {label}, which is not known"
    elif flags & ~_KNOWN:
        oddity = f"an entry with flags {flags & ~_KNOWN:#x}, which are not known"
    elif arch >= _ARCHS:
        oddity = f"an entry for architecture {arch}, which no GPU has"
    elif suffix is None:
        oddity = "an entry both for one architecture only and for its family"
    code = _CODES.get(FatbinKind(kind), GpuCodeKind.OTHER) if oddity is None else GpuCodeKind.OTHER
    compression = _COMPRESSIONS.get(flags & COMPRESSED, Compression.UNKNOWN)
    return _Traits(label, code, Arch(arch, suffix or ""), compression, oddity)


def _entry(data: memoryview, start: int, header: EntryHeader, traits: _Traits) -> GpuEntry:
    if header.version != ENTRY_VERSION:
        raise BinaryError(
            f"fatbin entry at {start:#x} has version {header.version:#x}; only {ENTRY_VERSION:#x} is known"
        )
    if header.header_size < EntryHeader.layout.size or header.header_size % ALIGNMENT:
        raise BinaryError(
            f"fatbin entry at {start:#x} has a header of {header.header_size:#x} bytes; "
            f"expected {EntryHeader.layout.size:#x} or more, a multiple of 8"
        )
    payload = start + header.header_size
    stop = payload + header.payload_size
    if stop > len(data):
        raise BinaryError(f"fatbin entry at {start:#x} ends at {stop:#x}, past the end of its fatbin, {len(data):#x}")
    if header.payload_size % ALIGNMENT or header.compressed_size > header.payload_size:
        raise BinaryError(
            f"fatbin entry at {start:#x} has {header.payload_size:#x} bytes of payload, {header.compressed_size:#x} "
            "of them compressed; expected a multiple of 8 that the compressed ones fit into"
        )
    if (traits.compression is Compression.RAW) != (header.compressed_size == 0):
        raise BinaryError(
            f"fatbin entry at {start:#x} has flags {header.flags:#x} ({traits.compression}), "
            f"but {header.compressed_size:#x} compressed bytes"
        )
    is_raw = traits.compression is Compression.RAW
    return GpuEntry(
        Vendor.NVIDIA,
        traits.kind,
        traits.code,
        traits.arch,
        range(start, stop),
        range(payload, stop if is_raw else payload + header.compressed_size),
        traits.compression,
        header.payload_size if is_raw else header.uncompressed_size,
        header.flags,
        _text(data, start, header, TextPlace(header.ident_offset, header.ident_size)),
        # behind a cubin's offset of options stands a binary description
        _options(data, start, header) if header.kind == FatbinKind.PTX else "",
        version=Dotted(header.major, header.minor)
        if header.kind == FatbinKind.PTX
        else _stated_toolkit(header, traits),
    )


def _stated_toolkit(header: EntryHeader, traits: _Traits) -> Dotted | None:
    """CUDA 12's toolkits alone write such a cubin for what CUDA 11 does not know: reading it would take long."""
    since = traits.arch.toolkits[0] if traits.arch.toolkits else None
    return since if since and since.major == _ELF_7_UNTIL and header.minor == _ELF_7 else None


def _options(data: memoryview, start: int, header: EntryHeader) -> str:
    if not header.options_offset:
        return ""
    if header.options_offset > header.header_size - TextPlace.layout.size:
        raise BinaryError(f"fatbin entry at {start:#x} has its options at {header.options_offset:#x}, past its header")
    return _text(data, start, header, TextPlace.parse(data, start + header.options_offset)).strip()


def _text(data: memoryview, start: int, header: EntryHeader, place: TextPlace) -> str:
    if not place.offset or not place.size:
        return ""
    if place.offset + place.size > header.header_size:
        raise BinaryError(
            f"fatbin entry at {start:#x} has a text of {place.size:#x} bytes at {place.offset:#x}, past its header"
        )
    text = bytes(data[start + place.offset : start + place.offset + place.size])
    return text.rstrip(b"\0").decode(errors="backslashreplace")


LIMIT = 1 << 30  # bytes that are inflated at once; no published entry comes near
# more than this many bytes have to be borne out by the payload
_PLENTY, _RATIO = 1 << 24, 32
# its windows have 4 MiB; drivers take those of nvcc, up to 8 MiB
_ZSTD_LEVEL = 9
_LZ4_RATIO = 255  # the most bytes that one of an LZ4 block stands for
_RECOMPRESSED = frozenset({"cubin", "ptx"})


def decompressed(data: Buffer, entry: GpuEntry) -> bytes:
    """The code of *entry*; `BinaryError` if its compression is damaged or not known."""
    if entry.vendor is Vendor.NVIDIA and entry.flags & FatbinFlag.OBFUSCATED:
        raise BinaryError(f"{entry.kind} at {entry.span.start:#x} is obfuscated: only NVIDIA's linker can read it")
    if entry.share:
        raise BinaryError(f"{entry.kind} at {entry.span.start:#x} cannot be read alone: its container is compressed")
    payload = memoryview(data)[entry.payload.start : entry.payload.stop]
    return inflated(payload, entry.compression, size=entry.uncompressed_size, place=entry.span.start)


def is_without_kernels(data: Buffer, entry: GpuEntry) -> bool:
    """Whether *entry* is a raw cubin without a section of code, `.text.NAME`."""
    if (entry.vendor, entry.kind, entry.compression) != (Vendor.NVIDIA, FatbinKind.CUBIN.label, Compression.RAW):
        return False
    code = bytes(memoryview(data)[entry.payload.start : entry.payload.stop])
    return code.startswith(b"\x7fELF") and b".shstrtab" in code and b".text" not in code


def inflated(payload: memoryview, compression: Compression, *, size: int, place: int) -> bytes:
    """The *size* bytes that *payload*, from the file offset *place*, inflates to; `BinaryError` if it does not."""
    if size > LIMIT:
        raise BinaryError(f"code at {place:#x} claims to inflate to {size:#x} bytes; more than {LIMIT:#x} is refused")
    if size > max(_PLENTY, _RATIO * len(payload)):
        claim = f"{len(payload):#x} bytes at {place:#x} claim to inflate to {size:#x}"
        raise BinaryError(f"{claim}; more than {_RATIO} times as many is refused")
    try:
        result = _inflated(payload, compression, size)
    except (cramjam.DecompressionError, zstd.ZstdError, zlib.error, MemoryError) as error:
        raise BinaryError(f"code at {place:#x} is damaged: {compression}: {error}") from error
    if result is None:
        raise BinaryError(f"code at {place:#x} is compressed in a way that is not known")
    if len(result) != size:
        raise BinaryError(f"code at {place:#x} inflates to {len(result):#x} bytes, but claims {size:#x}")
    return result


def recompressed(data: Buffer, entry: GpuEntry) -> Part:
    """*entry*, if a cubin or PTX, in a zstd frame if that is smaller: drivers from 550.54.14 on read it."""
    if not _is_recompressed(entry):
        return entry.span
    code = decompressed(data, entry)
    frame = zstd.compressed(code, level=_ZSTD_LEVEL)
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


def recompressed_size(data: Buffer, entry: GpuEntry, *, sample: int) -> int:
    """Estimated by up to *sample* bytes in the middle of the code."""
    if not _is_recompressed(entry):
        return entry.size
    code = decompressed(data, entry)
    middle = code[max(len(code) - sample, 0) // 2 :][:sample]
    frame = len(zstd.compressed(middle, level=_ZSTD_LEVEL)) * len(code) // max(len(middle), 1)
    return min(entry.payload.start - entry.span.start + frame, entry.size)


def _is_recompressed(entry: GpuEntry) -> bool:
    return (
        entry.vendor is Vendor.NVIDIA
        and entry.kind in _RECOMPRESSED
        and entry.compression in {Compression.RAW, Compression.LZ4}
    )


def _inflated(payload: memoryview, compression: Compression, size: int) -> bytes | None:
    match compression:
        case Compression.RAW:
            return bytes(payload)
        case Compression.LZ4 if size > _LZ4_RATIO * len(payload):
            raise cramjam.DecompressionError(f"{len(payload):#x} bytes cannot become {size:#x}")
        case Compression.LZ4:
            code = bytearray(size)
            return bytes(memoryview(code)[: cramjam.lz4.decompress_block_into(payload, code)])
        case Compression.ZSTD:
            return zstd.decompressed(payload, size)
        case Compression.ZLIB:
            # one byte more shows that there is more
            return zlib.decompressobj().decompress(payload, size + 1)
        case _:
            return None
