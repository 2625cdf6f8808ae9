"""What is read of a fatbin, and what becomes of it when some of its entries are kept."""

import pytest

from tests.factories.fatbins import PTX, cubin, entry, fatbin
from vbuild.errors import BinaryError
from vbuild.files.edited import EditedFile
from vbuild.gpu_code.fatbin import HEADER_SIZE, FatbinFlag, FatbinKind, extent, packed, read
from vbuild.gpu_code.model import Compression, Vendor, verbatim
from vbuild.hardware.architectures import Arch
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import GpuCodeKind, GpuOffer


def entries_of(data: bytes) -> tuple[str, ...]:
    view = memoryview(data)
    return tuple(f"{one.kind} {one.arch}" for one in read(view, extent(view, range(len(data)))).entries)


def test_an_entry_says_what_it_holds_for_which_gpu_and_where() -> None:
    data = fatbin(entry(arch=80), entry(FatbinKind.PTX, 90, flags=FatbinFlag.ZSTD))
    raw, compressed = read(memoryview(data), range(len(data))).entries
    assert (raw.vendor, raw.kind, raw.arch, raw.offer) == (
        Vendor.NVIDIA,
        "cubin",
        Arch(80),
        GpuOffer(GpuCodeKind.MACHINE, Arch(80)),
    )
    assert (raw.span, raw.payload, raw.size) == (range(16, 208), range(80, 208), 192)
    assert (raw.compression, raw.uncompressed_size) == (Compression.RAW, 128)
    assert data[raw.payload.start : raw.payload.stop] == cubin(80)
    assert (compressed.kind, compressed.code, compressed.compression) == ("ptx", GpuCodeKind.PTX, Compression.ZSTD)
    assert compressed.uncompressed_size == len(PTX)
    assert compressed.span.start == raw.span.stop
    assert len(compressed.span) - 64 - len(compressed.payload) in range(8)


@pytest.mark.parametrize(
    ("kind", "flags", "shown"),
    [
        (FatbinKind.CUBIN, FatbinFlag.ARCH_SPECIFIC, "cubin sm_90a machine"),
        (FatbinKind.CUBIN, FatbinFlag.ARCH_FAMILY | FatbinFlag.SECOND_CHOICE, "cubin sm_90f machine"),
        (FatbinKind.PTX, FatbinFlag.ARCH_SPECIFIC, "ptx sm_90a ptx"),
        (FatbinKind.LTO_IR, FatbinFlag.OBFUSCATED, "lto-ir sm_90 other"),
        (FatbinKind.OLD_CUBIN, 0, "old-cubin sm_90 other"),
        (FatbinKind.MERCURY, 0, "mercury sm_90 other"),
        (FatbinKind.TILE_IR, FatbinFlag.DEBUG, "tile-ir sm_90 other"),
    ],
)
def test_the_kind_and_the_letter_of_the_architecture_are_named(kind: int, flags: int, shown: str) -> None:
    data = fatbin(entry(kind, flags=flags))
    (found,) = read(memoryview(data), range(len(data))).entries
    assert f"{found.kind} {found.arch} {found.code.value}" == shown


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (entry(3), "holds an entry of kind 0x3, which is not known"),
        (entry(flags=1 << 22), "holds an entry with flags 0x400000, which are not known"),
        (
            entry(flags=FatbinFlag.ARCH_SPECIFIC | FatbinFlag.ARCH_FAMILY),
            "holds an entry both for one architecture only and for its family",
        ),
    ],
)
def test_an_entry_that_is_not_known_pins_the_fatbin_and_is_needed_by_everyone(bad: bytes, why: str) -> None:
    data = fatbin(entry(arch=80), bad)
    reading = read(memoryview(data), range(len(data)))
    assert reading.why_pinned == why
    assert [one.code for one in reading.entries] == [GpuCodeKind.MACHINE, GpuCodeKind.OTHER]


def test_an_entry_tells_its_name_and_the_options_for_ptxas() -> None:
    plain = bytearray(fatbin(entry(FatbinKind.PTX, header_size=96, options_offset=64, ident_offset=80, ident_size=5)))
    plain[16 + 64 : 16 + 96] = b"\x48\0\0\0\x06\0\0\0" + b"-O1  \0".ljust(8, b"\0") + b"k.cu\0".ljust(16, b"\0")
    (found,) = read(memoryview(plain), range(len(plain))).entries
    assert (found.options, found.ident) == ("-O1", "k.cu")
    plain[16 + 80 : 16 + 85] = b"\xff.cX\0"
    assert read(memoryview(plain), range(len(plain))).entries[0].ident == "\\xff.cX"


def test_texts_may_end_where_the_header_does() -> None:
    data = bytearray(fatbin(entry(FatbinKind.PTX, header_size=96, options_offset=88, ident_offset=80, ident_size=16)))
    data[16 + 80 : 16 + 96] = b"12345678" + b"\x50\0\0\0\x10\0\0\0"
    (found,) = read(memoryview(data), range(len(data))).entries
    assert found.ident == found.options == "12345678P\0\0\0\x10"
    for offset, size in ((0, 5), (80, 0)):
        data[16 + 0x20 : 16 + 0x28] = offset.to_bytes(4, "little") + size.to_bytes(4, "little")
        assert read(memoryview(data), range(len(data))).entries[0].ident == ""


def test_a_thousand_entries_are_read_and_not_one_more() -> None:
    data = fatbin(*(entry(code=b"") for _ in range(1024)))
    assert len(read(memoryview(data), range(len(data))).entries) == 1024
    data = fatbin(*(entry(code=b"") for _ in range(1025)))
    with pytest.raises(BinaryError, match=r"^fatbin at 0x0 has more than 1024 entries, as none ever had$"):
        read(memoryview(data), range(len(data)))


def test_the_oddest_entry_is_the_one_that_is_named() -> None:
    data = fatbin(entry(3), entry(arch=1000), entry())
    assert read(memoryview(data), range(len(data))).why_pinned == "holds an entry of kind 0x3, which is not known"
    data = fatbin(entry(arch=1000))
    assert read(memoryview(data), range(len(data))).why_pinned == (
        "holds an entry for architecture 1000, which no GPU has"
    )


def test_ptx_has_a_version_of_its_language_and_a_cubin_beside_it_the_toolkit_that_wrote_both() -> None:
    data = fatbin(entry(FatbinKind.PTX, major=8, minor=7), entry(major=8, minor=7))
    assert [one.version for one in read(memoryview(data), range(len(data))).entries] == [Dotted(8, 7), Dotted(12, 8)]


def test_the_description_behind_a_cubin_is_no_options() -> None:
    cubin_, ptx = (entry(kind, header_size=96, options_offset=64) for kind in (FatbinKind.CUBIN, FatbinKind.PTX))
    data = bytearray(fatbin(cubin_, ptx, entry(FatbinKind.PTX)))
    data[16 + 64 : 16 + 75] = b"\x48\0\0\0\x03\0\0\0-O1"
    assert [one.options for one in read(memoryview(data), range(len(data))).entries] == ["", "", ""]


def test_keeping_entries_gives_a_header_that_counts_them_and_their_bytes_as_they_were() -> None:
    whole = [
        entry(arch=80),
        entry(FatbinKind.PTX, 90, flags=FatbinFlag.LZ4),
        entry(arch=90, flags=FatbinFlag.ARCH_SPECIFIC),
    ]
    data = fatbin(*whole)
    found = read(memoryview(data), range(len(data))).entries
    kept = bytes(EditedFile.of(data, packed(found[1:], verbatim)))
    assert kept == fatbin(*whole[1:])
    assert entries_of(kept) == ("ptx sm_90", "cubin sm_90a")


def test_keeping_nothing_gives_an_empty_fatbin() -> None:
    (header,) = packed((), verbatim)
    assert header == fatbin()
    assert len(header) == HEADER_SIZE
    assert entries_of(fatbin()) == ()


def test_a_fatbin_ends_where_its_header_says() -> None:
    data = fatbin(entry()) + fatbin(entry(arch=80))
    first = extent(memoryview(data), range(len(data)))
    assert first == range(len(data) // 2)
    assert extent(memoryview(data), range(first.stop, len(data))) == range(first.stop, len(data))


REFUSED = {
    b"": "FatbinHeader at 0x0 runs past the end, 0x0",
    bytes(64): "no fatbin at 0x0: magic is 0x0, expected 0xba55ed50",
    fatbin(version=2): "fatbin at 0x0 has version 2 and a header of 16 bytes; only version 1 with 16 is known",
    fatbin(header_size=24): "fatbin at 0x0 has version 1 and a header of 24 bytes; only version 1 with 16 is known",
    fatbin(fat_size=64): "fatbin at 0x0 ends at 0x50, past the end of its section, 0x10",
    fatbin(fat_size=1 << 63): (
        "fatbin at 0x0 ends at 0x8000000000000010, past the end of its section, 0x10"  # and no overflow
    ),
    fatbin(bytes(4)): "fatbin at 0x0 is 0x4 bytes long; expected a multiple of 8 below 2 GiB",
    fatbin(bytes(32)): "EntryHeader at 0x10 runs past the end, 0x30",
    fatbin(entry(version=0x102)): "fatbin entry at 0x10 has version 0x102; only 0x101 is known",
    fatbin(entry(header_size=56)): (
        "fatbin entry at 0x10 has a header of 0x38 bytes; expected 0x40 or more, a multiple of 8"
    ),
    fatbin(entry(header_size=68), bytes(4)): (
        "fatbin entry at 0x10 has a header of 0x44 bytes; expected 0x40 or more, a multiple of 8"
    ),
    fatbin(entry(payload_size=1 << 40)): (
        "fatbin entry at 0x10 ends at 0x10000000050, past the end of its fatbin, 0xd0"
    ),
    fatbin(entry(payload_size=(1 << 64) - 64)): (
        "fatbin entry at 0x10 ends at 0x10000000000000010, past the end of its fatbin, 0xd0"
    ),
    fatbin(entry(payload_size=127)): (
        "fatbin entry at 0x10 has 0x7f bytes of payload, 0x0 of them compressed; "
        "expected a multiple of 8 that the compressed ones fit into"
    ),
    fatbin(entry(flags=FatbinFlag.LZ4, compressed_size=0x1000)): (
        "fatbin entry at 0x10 has 0x28 bytes of payload, 0x1000 of them compressed; "
        "expected a multiple of 8 that the compressed ones fit into"
    ),
    fatbin(entry(compressed_size=8)): "fatbin entry at 0x10 has flags 0x11 (raw), but 0x8 compressed bytes",
    fatbin(entry(flags=FatbinFlag.ZSTD, compressed_size=0)): (
        "fatbin entry at 0x10 has flags 0x8011 (zstd), but 0x0 compressed bytes"
    ),
    fatbin(entry(FatbinKind.PTX, options_offset=60)): (
        "fatbin entry at 0x10 has its options at 0x3c, past its header"
    ),
    fatbin(entry(ident_offset=64, ident_size=9)): (
        "fatbin entry at 0x10 has a text of 0x9 bytes at 0x40, past its header"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "message"), REFUSED.items(), ids=list(map(str, range(len(REFUSED)))))
def test_what_is_damaged_or_not_known_is_refused_with_its_place(data: bytes, message: str) -> None:
    with pytest.raises(BinaryError) as refusal:
        read(memoryview(data), extent(memoryview(data), range(len(data))))
    assert str(refusal.value) == message


def test_a_fatbin_that_the_driver_could_not_count_is_refused() -> None:
    data = fatbin(fat_size=1 << 31)
    with pytest.raises(BinaryError, match="is 0x80000000 bytes long; expected a multiple of 8 below 2 GiB"):
        extent(memoryview(data), range(1 << 40))
