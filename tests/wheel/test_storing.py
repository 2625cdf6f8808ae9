"""Archives of members that lie in them as they are."""

import zipfile
from pathlib import Path

import pytest

from tests.factories.wheels import contents, wheel
from vbuild.errors import WheelError
from vbuild.files.edited import EditedFile
from vbuild.wheel.zip_write import PassedStream, StoredStream, open_stored, write_stored


def test_members_are_stored_in_the_order_given(tmp_path: Path) -> None:
    write_stored(
        tmp_path / "a.conda", [("b", EditedFile.whole(b"x" * 1000)), ("a", EditedFile.of(b"0123", [range(1, 3), b"!"]))]
    )
    assert contents(tmp_path / "a.conda") == {"b": b"x" * 1000, "a": b"12!"}
    with zipfile.ZipFile(tmp_path / "a.conda") as archive:
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {info.external_attr >> 16 for info in archive.infolist()} == {0o100644}
        assert archive.comment == b""
        assert archive.testzip() is None


def test_a_member_of_another_archive_is_passed_on_as_it_is(tmp_path: Path) -> None:
    source = wheel(tmp_path, a="text " * 100)
    with open_stored(source) as reader:
        member = next(member for member in reader.members if member.path == "a")
        write_stored(tmp_path / "b.conda", [("c", PassedStream(reader, member))])
    assert contents(tmp_path / "b.conda") == {"c": b"text " * 100}
    with zipfile.ZipFile(tmp_path / "b.conda") as archive:
        assert archive.getinfo("c").compress_size == member.compressed_size


def test_an_archive_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(WheelError) as refusal:
        write_stored(tmp_path / "a.conda", [("a", EditedFile.whole(b"x")), ("../b", EditedFile.whole(b"x"))])
    assert str(refusal.value) == f"{tmp_path / 'a.conda'}: ../b: a path that leaves its folder"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(WheelError) as refusal:
        write_stored(tmp_path / "none" / "a.conda", [])
    assert str(refusal.value) == f"{tmp_path / 'none' / 'a.conda'}: cannot be written: No such file or directory"


def test_an_archive_is_read_by_name_and_refused_where_it_is_damaged(tmp_path: Path) -> None:
    write_stored(tmp_path / "a.conda", [("a", EditedFile.whole(b"abc"))])
    with open_stored(tmp_path / "a.conda") as reader:
        assert [(member.path, b"".join(reader.inflated(member))) for member in reader.members] == [("a", b"abc")]
    (tmp_path / "b.conda").write_bytes((tmp_path / "a.conda").read_bytes()[:-30])
    with (
        pytest.raises(WheelError, match=r"^b\.conda: not a zip archive, or truncated: no end record$"),
        open_stored(tmp_path / "b.conda"),
    ):
        pass
    with pytest.raises(WheelError) as refusal, open_stored(tmp_path / "c.conda"):
        pass
    assert str(refusal.value) == f"{tmp_path / 'c.conda'}: cannot be read: No such file or directory"


def test_a_stream_is_stored_as_the_same_bytes_at_once_are(tmp_path: Path) -> None:
    chunks: list[bytes | memoryview] = [b"some", b"", b"x" * 100_000, memoryview(b"more")]
    stream = StoredStream((chunk for chunk in chunks), 200_000)
    write_stored(tmp_path / "a.conda", [("a", stream), ("b", EditedFile.whole(b"after it"))])
    write_stored(
        tmp_path / "b.conda", [("a", EditedFile.whole(b"".join(chunks))), ("b", EditedFile.whole(b"after it"))]
    )
    assert (tmp_path / "a.conda").read_bytes() == (tmp_path / "b.conda").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.conda") as archive:
        assert archive.testzip() is None


def test_a_stream_that_may_need_wide_sizes_does_not_fit() -> None:
    most = 4_290_777_019  # deflated it may take a thousandth more, and 64 bytes: one less than what says "wide"
    sizes = (0, 1 << 31, most, most + 1, (1 << 32) - 1)
    assert [StoredStream.fits(size) for size in sizes] == [True, True, True, False, False]
