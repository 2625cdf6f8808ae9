"""What entries hold, and entries compressed anew; lies about sizes cost nothing."""

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.bundles import GFX942, bundle, compressed
from tests.factories.fatbins import PTX, cubin, entry, fatbin
from vbuild.errors import BinaryError
from vbuild.gpu_code import bundle as bundles
from vbuild.gpu_code.fatbin import (
    LIMIT,
    FatbinFlag,
    FatbinKind,
    decompressed,
    inflated,
    read,
    recompressed,
    recompressed_size,
)
from vbuild.gpu_code.model import Compression, GpuEntry

LONG = cubin(90, 4096)


def first(data: bytes) -> GpuEntry:
    return read(memoryview(data), range(len(data))).entries[0]


REFUSED = {
    fatbin(entry(FatbinKind.LTO_IR, flags=FatbinFlag.LZ4 | FatbinFlag.OBFUSCATED)): (
        "lto-ir at 0x10 is obfuscated: only NVIDIA's linker can read it"
    ),
    fatbin(entry(flags=FatbinFlag.LZ4_SECOND, compressed_size=8)): (
        "code at 0x10 is compressed in a way that is not known"
    ),
    fatbin(entry(flags=FatbinFlag.ZSTD, uncompressed_size=1 << 32)): (
        "code at 0x10 claims to inflate to 0x100000000 bytes; more than 0x40000000 is refused"
    ),
    fatbin(entry(flags=FatbinFlag.LZ4, uncompressed_size=LIMIT)): (
        "0x26 bytes at 0x10 claim to inflate to 0x40000000; more than 32 times as many is refused"
    ),
    fatbin(entry(flags=FatbinFlag.LZ4, uncompressed_size=1 << 24)): (
        "code at 0x10 is damaged: lz4: 0x26 bytes cannot become 0x1000000"
    ),
    fatbin(entry(flags=FatbinFlag.LZ4, uncompressed_size=129)): (
        "code at 0x10 inflates to 0x80 bytes, but claims 0x81"
    ),
    fatbin(entry(flags=FatbinFlag.ZSTD, uncompressed_size=129)): (
        "code at 0x10 is damaged: zstd: a frame of 0x80 bytes, expected 0x81"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "message"), REFUSED.items(), ids=list(map(str, range(len(REFUSED)))))
def test_what_cannot_be_read_is_refused_with_its_place(data: bytes, message: str) -> None:
    with pytest.raises(BinaryError) as refusal:
        decompressed(data, first(data))
    assert str(refusal.value) == message


def test_a_block_that_holds_more_than_it_claims_is_damaged() -> None:
    data = fatbin(entry(flags=FatbinFlag.LZ4, uncompressed_size=127))
    with pytest.raises(BinaryError, match=r"^code at 0x10 is damaged: lz4: "):
        decompressed(data, first(data))


def test_a_claim_of_a_gibibyte_takes_no_memory() -> None:
    data = fatbin(entry(flags=FatbinFlag.LZ4, uncompressed_size=LIMIT))
    found = first(data)
    tracemalloc.start()
    try:
        with pytest.raises(BinaryError):
            decompressed(data, found)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_more_in_a_zlib_stream_than_it_claims_is_refused() -> None:
    plain = bundle({GFX942: b"code"})
    packed = memoryview(compressed(plain, method=bundles.BundleMethod.ZLIB))[32:]
    assert inflated(packed, Compression.ZLIB, size=len(plain), place=0) == plain
    with pytest.raises(BinaryError, match=r"^code at 0x20 inflates to 0x1000 bytes, but claims 0xfff$"):
        inflated(packed, Compression.ZLIB, size=0xFFF, place=0x20)


def test_code_in_a_bundle_that_is_compressed_as_a_whole_cannot_be_read_alone() -> None:
    data = compressed(bundle({GFX942: b"code"}))
    (found,) = bundles.read(memoryview(data), range(len(data))).entries
    with pytest.raises(BinaryError, match=r"^code-object at 0x0 cannot be read alone: its container is compressed$"):
        decompressed(data, found)


@given(noise=st.integers(0, 260), zeros=st.integers(0, 60))
def test_what_is_compressed_is_smaller_and_a_multiple_of_eight_bytes(noise: int, zeros: int) -> None:
    data = fatbin(entry(code=random.Random(1).randbytes(noise) + bytes(zeros)))
    part = recompressed(data, first(data))
    if isinstance(part, range):
        assert part == first(data).span
    else:
        assert len(part) % 8 == 0
        assert len(part) < first(data).size
        assert decompressed(fatbin(part), first(fatbin(part))) == decompressed(data, first(data))


@pytest.mark.parametrize(
    "packed",
    [
        entry(FatbinKind.PTX, code=PTX),
        entry(code=b"x"),
        entry(code=LONG, flags=FatbinFlag.ZSTD),
        entry(FatbinKind.LTO_IR, code=LONG),
        entry(FatbinKind.LTO_IR, code=LONG, flags=FatbinFlag.LZ4 | FatbinFlag.OBFUSCATED),
    ],
    ids=["not smaller", "one byte", "in zstd already", "not for the driver", "obfuscated"],
)
def test_an_entry_stays_where_zstd_does_not_help(packed: bytes) -> None:
    data = fatbin(packed)
    assert recompressed(data, first(data)) == first(data).span
    assert recompressed_size(data, first(data), sample=1 << 20) == first(data).size


@pytest.mark.parametrize("flags", [0, FatbinFlag.LZ4])
def test_a_sample_tells_about_how_small_an_entry_gets(flags: int) -> None:
    data = fatbin(entry(code=random.Random(1).randbytes(5000) + bytes(range(256)) * 800, flags=flags))
    truth = len(recompressed(data, first(data)))
    assert truth - 8 <= recompressed_size(data, first(data), sample=1 << 20) <= truth
    assert recompressed_size(data, first(data), sample=1 << 16) < first(data).size


def test_a_sample_is_from_the_middle() -> None:
    noise = random.Random(1).randbytes(20_000)
    data = fatbin(entry(code=bytes(100_000) + noise + bytes(100_000)))
    assert recompressed_size(data, first(data), sample=len(noise)) == first(data).size
    assert type(recompressed_size(data, first(data), sample=1 << 20)) is int
