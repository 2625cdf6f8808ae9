"""What `ZipReader` reads of members, in archives put together byte by byte."""

import io
import os
import random
import zlib
from pathlib import Path

import pytest

from tests.factories.deflate_streams import TEXT
from tests.factories.hostile_zips import (
    DEFLATED,
    DESCRIPTOR,
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
from vbuild.wheel.zip_read import _STRICT, FULL32, CentralHeader, Member, ZipReader, descriptors

ZSTD, BZIP2 = 93, 12
DATA = random.Random(1).randbytes(400_000)
PACKED = {STORED: DATA, DEFLATED: deflated(DATA), ZSTD: zstd.compressed(DATA, level=3)}


def opened(*entries: Entry) -> tuple[ZipReader, tuple[Member, ...]]:
    reader = ZipReader(io.BytesIO(archive(entries)))
    return reader, reader.members


def damaged(method: int) -> Entry:
    return Entry("demo/a", b"x" * 64, method, raw=deflated(b"x" * 64) if method == BZIP2 else b"\xff" * 64)


@pytest.mark.parametrize("method", PACKED)
def test_the_head_of_a_member_is_its_first_bytes(method: int) -> None:
    reader, (_, member, _) = opened(
        Entry("demo/before", b"before"), Entry("demo/a", DATA, method, PACKED[method]), Entry("demo/behind", b"behind")
    )
    for size in (1, 400, 5000):
        assert reader.head(member, size) == DATA[:size]
    reader, (small,) = opened(Entry("demo/a", b"few", method, {DEFLATED: deflated(b"few")}.get(method, b"few")))
    assert reader.head(small, 400) == (b"" if method == ZSTD else b"few")


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


@pytest.mark.parametrize("method", PACKED)
def test_a_member_is_read_whole_in_chunks(method: int) -> None:
    zeros = bytes(3_000_000)
    raw = {STORED: zeros, DEFLATED: deflated(zeros), ZSTD: zstd.compressed(zeros, level=3)}[method]
    reader, members = opened(Entry("demo/a", zeros, method, raw), Entry("demo/b", DATA, method, PACKED[method]))
    for member, data in zip(members, (zeros, DATA), strict=True):
        chunks = list(reader.inflated(member))
        assert b"".join(chunks) == data
        assert max(map(len, chunks)) <= 1 << 20


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


@pytest.mark.parametrize(
    ("data", "told", "message"),
    [
        (b"x" * 64, b"x" * 63, "inflates to more than the 63 bytes it declares"),
        (b"x" * 64, b"x" * 65, "inflates to 64 bytes, but declares 65"),
        (b"x" * 64, b"y" * 64, f"damaged: CRC-32 is {zlib.crc32(b'x' * 64):#x}, expected {zlib.crc32(b'y' * 64):#x}"),
    ],
)
def test_size_and_crc_are_as_declared(data: bytes, told: bytes, message: str) -> None:
    reader, (member,) = opened(Entry("demo/a", told, raw=deflated(data)))
    with pytest.raises(WheelError) as refusal:
        list(reader.inflated(member))
    assert str(refusal.value) == f"demo/a: {message}"


def test_bytes_of_a_member_as_they_are_packed_end_with_it() -> None:
    reader, (_, member, _) = opened(Entry("demo/before"), Entry("demo/a", DATA), Entry("demo/behind"))
    packed = PACKED[DEFLATED]
    for place, size in ((0, 10), (7, 1000), (len(packed) - 5, 100)):
        assert reader.packed(member, place, size) == packed[place : place + size]
    reader.file.close()
    with pytest.raises(ValueError, match=r"^demo/a$"):
        reader.packed(member, 0, 1)


def described(data: bytes, descriptor: bytes) -> Entry:
    return Entry("demo/a", data, local={"flags": DESCRIPTOR}, central={"flags": DESCRIPTOR}, behind=descriptor)


def test_the_largest_crc_is_no_size_that_does_not_fit() -> None:
    data = b"\xff" * 4
    values = (zlib.crc32(data), len(deflated(data)), len(data))
    assert values[0] == FULL32
    for descriptor in descriptors(values, is_wide=False):
        opened(described(data, descriptor))[0].check_layout()
    assert len(descriptors(values, is_wide=False)) == 2


def test_sizes_of_64_bits_stand_in_wide_descriptors_alone() -> None:
    large = (1, 1 << 33, 1 << 33)
    assert [len(each) for each in descriptors(large, is_wide=True)] == [24, 20]
    assert descriptors(large, is_wide=False) == ()


ZEROS = bytes(600)


@pytest.mark.parametrize(
    ("flags", "wide", "is_right"),
    [
        (0, (len(ZEROS), len(deflated(ZEROS))), True),
        (0, (FULL32, FULL32), True),
        (0, (0, 0), False),
        (DESCRIPTOR, (len(ZEROS), len(deflated(ZEROS))), True),
        (DESCRIPTOR, (0, 0), True),
        (DESCRIPTOR, (0, 1), False),
        (DESCRIPTOR, (1, 0), False),
    ],
)
def test_sizes_that_a_local_header_has_twice_are_the_same(flags: int, wide: tuple[int, int], *, is_right: bool) -> None:
    """Zeros in the extra field are those of Python until 3.11.4, whose descriptor says the truth."""
    entry = Entry("demo/a", ZEROS, local={"flags": flags, "extra": wide_extra(*wide)}, central={"flags": flags})
    reader, (member,) = opened(entry)
    if is_right:
        assert reader.data_offset(member) == 30 + len("demo/a") + 20
        return
    with pytest.raises(WheelError, match=rf"^demo/a: sizes \({wide[0]}, {wide[1]}\) in the zip64 extra field of its"):
        reader.data_offset(member)


def test_a_descriptor_behind_the_last_member_may_end_where_the_directory_begins() -> None:
    for descriptor in descriptors((zlib.crc32(b"x"), len(deflated(b"x")), 1), is_wide=False):
        opened(described(b"x", descriptor))[0].check_layout()
    with pytest.raises(WheelError, match=r"^demo/a: its data descriptor is missing, or disagrees with the"):
        opened(described(b"x", b""))[0].check_layout()


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


@pytest.mark.skipif(not hasattr(os, "pread"), reason="needs pread")
def test_threads_do_not_share_a_place_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(archive([Entry("demo/a", DATA)]))
    with (tmp_path / "a.zip").open("rb") as file:
        reader = ZipReader(file)
        place = file.tell()
        assert b"".join(reader.inflated(reader.members[0])) == DATA
        assert file.tell() == place


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


def test_a_path_in_a_message_is_cut_where_it_is_too_long() -> None:
    for length, shown in ((160, "x" * 159 + "\\"), (161, "x" * 160 + "…")):
        with pytest.raises(WheelError) as refusal:
            opened(Entry("x" * (length - 1) + "\\"))
        assert str(refusal.value) == f"{shown}: a path with a backslash, NUL or line break in it"


def test_a_directory_ends_with_its_last_entry_even_where_that_has_no_name() -> None:
    with pytest.raises(WheelError, match=r"^'': a path with an empty part or '\.' in it$"):
        opened(Entry(""))


@pytest.mark.parametrize("more", [1, 2])
def test_a_wide_field_has_no_value_more_than_it_needs(more: int) -> None:
    """Which of them is which, readers do not agree on."""
    needed: dict[str, int | bytes] = {"size": FULL32, "extra": wide_extra(600)}
    assert [member.size for member in opened(Entry("demo/a", ZEROS, central=needed))[1]] == [600]
    with pytest.raises(WheelError, match=r"^demo/a: the zip64 extra field has more than the values that do not fit"):
        opened(Entry("demo/a", ZEROS, central={**needed, "extra": wide_extra(600, *(0,) * more)}))


def test_a_local_header_begins_with_its_signature() -> None:
    data = archive([Entry("demo/a", b"x")])
    reader = ZipReader(io.BytesIO(data.replace(b"PK\x03\x04", b"PK\x03\x05")))
    with pytest.raises(WheelError, match=r"^demo/a: no local header where one should be: it starts with b'PK.x03.x05'"):
        reader.data_offset(reader.members[0])


def test_a_local_header_has_zeros_for_what_only_the_directory_has() -> None:
    header = CentralHeader.parse_local(Entry("demo/a", b"x").local_header()[:30])
    only_there = (header.version_made_by, header.comment_length, header.disk, header.internal_attributes)
    assert (*only_there, header.external_attributes, header.header_offset) == (0,) * 6
    assert (header.size, header.name_length) == (1, len("demo/a"))


def test_a_directory_may_be_as_large_as_is_allowed() -> None:
    data = archive([Entry("demo/a")])
    size = len(Entry("demo/a").central_header(0))
    assert ZipReader(io.BytesIO(data), largest=size).members
    with pytest.raises(WheelError, match=rf"^a central directory of {size} bytes, expected {size - 1} at most$"):
        ZipReader(io.BytesIO(data), largest=size - 1)


def test_a_wide_end_of_another_disk_is_refused() -> None:
    assert ZipReader(io.BytesIO(archive([Entry("demo/a")], wide={}))).members
    with pytest.raises(WheelError, match=r"^one part of an archive of several; expected a whole one$"):
        ZipReader(io.BytesIO(archive([Entry("demo/a")], wide={"start_disk": 1})))


def test_a_file_that_begins_with_a_locator_has_no_wide_end() -> None:
    locator = archive([], wide={})[-22 - 20 : -22]
    with pytest.raises(WheelError, match=r"^truncated: 56 bytes at 0x0 run past the end, 0x2a$"):
        ZipReader(io.BytesIO(locator + archive([])))
