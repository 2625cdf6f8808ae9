"""What `ZipReader` reads of members, in archives put together byte by byte."""

import io
import random

import pytest

from tests.factories.deflate_streams import TEXT
from tests.factories.hostile_zips import (
    DEFLATED,
    STORED,
    Entry,
    archive,
    deflated,
    loosely_coded,
    wide_extra,
)
from vbuild.errors import WheelError
from vbuild.files import zstd
from vbuild.wheel.blocks import Stall
from vbuild.wheel.zip_read import _STRICT, FULL32, Member, ZipReader, descriptors

ZSTD, BZIP2 = 93, 12
DATA = random.Random(1).randbytes(400_000)
PACKED = {STORED: DATA, DEFLATED: deflated(DATA), ZSTD: zstd.compressed(DATA, level=3)}


def opened(*entries: Entry) -> tuple[ZipReader, tuple[Member, ...]]:
    reader = ZipReader(io.BytesIO(archive(entries)))
    return reader, reader.members


def damaged(method: int) -> Entry:
    return Entry("demo/a", b"x" * 64, method, raw=deflated(b"x" * 64) if method == BZIP2 else b"\xff" * 64)


def test_the_head_of_a_frame_needs_its_first_block() -> None:
    reader, (member,) = opened(Entry("demo/a", TEXT, ZSTD, zstd.compressed(TEXT, level=3)))
    assert reader.head(member, 16) == TEXT[:16]


def test_where_blocks_begin_is_seen_while_a_member_is_inflated() -> None:
    data = TEXT[: 5 << 19]
    reader, (member,) = opened(Entry("demo/a", data))
    stalls: list[Stall] = []
    assert b"".join(reader.inflated(member, stalls=stalls)) == data
    assert [stall.plain >> 20 for stall in stalls] == [1, 2]


@pytest.mark.parametrize("method", [DEFLATED, ZSTD, BZIP2])
def test_what_cannot_be_inflated_has_no_head(method: int) -> None:
    reader, (member,) = opened(damaged(method))
    assert reader.head(member, 16) == b""


def test_the_head_of_a_member_whose_local_header_lies_is_refused_with_its_name() -> None:
    reader, (member,) = opened(Entry("demo/a", b"x", local={"name": b"demo/b"}))
    with pytest.raises(WheelError, match=r"^demo/a: the local header names it b'demo/b'$"):
        reader.head(member, 1)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (DEFLATED, "damaged: its deflate stream is broken"),
        (ZSTD, "damaged: its zstd frame is broken: "),
        (BZIP2, "compressed with method 12, which can be copied but not read"),
    ],
)
def test_what_is_damaged_or_of_another_method_is_refused(method: int, message: str) -> None:
    reader, (member,) = opened(damaged(method))
    with pytest.raises(WheelError) as refusal:
        list(reader.inflated(member))
    assert str(refusal.value).startswith(f"demo/a: {message}")


def test_bytes_of_a_member_as_they_are_packed_end_with_it() -> None:
    reader, (_, member, _) = opened(Entry("demo/before"), Entry("demo/a", DATA), Entry("demo/behind"))
    packed = PACKED[DEFLATED]
    for place, size in ((0, 10), (7, 1000), (len(packed) - 5, 100)):
        assert reader.packed(member, place, size) == packed[place : place + size]
    reader.file.close()
    with pytest.raises(ValueError, match=r"^demo/a$"):
        reader.packed(member, 0, 1)


def test_sizes_of_64_bits_stand_in_wide_descriptors_alone() -> None:
    large = (1, 1 << 33, 1 << 33)
    assert [len(each) for each in descriptors(large, is_wide=True)] == [24, 20]
    assert descriptors(large, is_wide=False) == ()


ZEROS = bytes(600)


def test_what_small_members_or_a_strict_reader_inflate_is_what_zlib_takes() -> None:
    """A code that leaves room for others: isal takes it, zlib and so pip do not."""
    strict: dict[str, bool] = {"is_strict": True}
    for size, how, is_refused in ((_STRICT, {}, True), (_STRICT + 1, {}, False), (_STRICT + 1, strict, True)):
        data = bytes(size)
        reader = ZipReader(io.BytesIO(archive([Entry("demo/a", data, raw=loosely_coded(data))])), **how)
        if is_refused:
            with pytest.raises(WheelError, match=r"^demo/a: damaged: its deflate stream is broken$"):
                list(reader.inflated(reader.members[0]))
        else:
            assert b"".join(reader.inflated(reader.members[0])) == data


@pytest.mark.parametrize(
    ("method", "ratio", "message"),
    [
        (DEFLATED, 1032, "demo/a: declares {} bytes, more than 10 can inflate to"),
        (ZSTD, 1 << 15, "demo/a: declares {} bytes, more than 10 of zstd can inflate to"),
        (STORED, 1, "demo/a: stored, but 10 bytes are to become {}"),
    ],
)
def test_no_member_says_that_it_becomes_more_than_it_can(method: int, ratio: int, message: str) -> None:
    def entry(size: int, method: int) -> Entry:
        return Entry("demo/a", b"", method, raw=bytes(10), central={"size": size})

    assert [member.size for member in opened(entry(10 * ratio, method))[1]] == [10 * ratio]
    with pytest.raises(WheelError) as refusal:
        opened(entry(10 * ratio + 1, method))
    assert str(refusal.value) == message.format(10 * ratio + 1)
    assert [member.size for member in opened(entry(1 << 30, BZIP2))[1]] == [1 << 30]


@pytest.mark.parametrize("more", [1, 2])
def test_a_wide_field_has_no_value_more_than_it_needs(more: int) -> None:
    """Which of them is which, readers do not agree on."""
    needed: dict[str, int | bytes] = {"size": FULL32, "extra": wide_extra(600)}
    assert [member.size for member in opened(Entry("demo/a", ZEROS, central=needed))[1]] == [600]
    with pytest.raises(WheelError, match=r"^demo/a: the zip64 extra field has more than the values that do not fit"):
        opened(Entry("demo/a", ZEROS, central={**needed, "extra": wide_extra(600, *(0,) * more)}))


def test_a_directory_may_be_as_large_as_is_allowed() -> None:
    data = archive([Entry("demo/a")])
    size = len(Entry("demo/a").central_header(0))
    assert ZipReader(io.BytesIO(data), largest=size).members
    with pytest.raises(WheelError, match=rf"^a central directory of {size} bytes, expected {size - 1} at most$"):
        ZipReader(io.BytesIO(data), largest=size - 1)


def test_a_file_that_begins_with_a_locator_has_no_wide_end() -> None:
    locator = archive([], wide={})[-22 - 20 : -22]
    with pytest.raises(WheelError, match=r"^truncated: 56 bytes at 0x0 run past the end, 0x2a$"):
        ZipReader(io.BytesIO(locator + archive([])))
