"""What is read of a fatbin, and what becomes of it when some of its entries are kept."""

import pytest

from tests.factories.fatbins import entry, fatbin
from vbuild.errors import BinaryError
from vbuild.gpu_code.fatbin import FatbinFlag, FatbinKind, extent, read
from vbuild.hardware.gpu import GpuCodeKind


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
