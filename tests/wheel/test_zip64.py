"""Archives with more members, larger members or higher offsets than a plain zip header can say."""

import base64
import hashlib
import os
import struct
import zipfile
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from msgspec.structs import replace

from tests.factories.wheels import contents, entry, everything, piped, record_of, wheel
from vbuild.files.edited import EditedFile
from vbuild.wheel.archive import open_wheel, peek
from vbuild.wheel.deflate import Deflater
from vbuild.wheel.write import edit_wheel
from vbuild.wheel.zip_read import (
    END,
    FULL32,
    LOCATOR,
    ZIP64_END,
    End,
    Member,
    Zip64End,
    Zip64Locator,
    ZipMethod,
    ZipReader,
)
from vbuild.wheel.zip_write import ZipWriter, new_header

NAME = "demo-1.0-py3-none-any.whl"
INFO = "demo-1.0.dist-info"
MANY = 70_000
LARGE = 0x1_0000_0000 + 12_345


@pytest.mark.nightly
def test_more_members_than_sixteen_bits_can_count(tmp_path: Path) -> None:
    path = wheel(tmp_path, compression=zipfile.ZIP_STORED, files={f"demo/{number}": b"" for number in range(MANY)})
    with open_wheel(path) as source:
        assert len(source.members) == MANY + 3
        out = edit_wheel(source, tmp_path / "out", source.name, edits={f"{INFO}/variant.json": b"{}"})
    with zipfile.ZipFile(out) as archive:
        assert len(archive.infolist()) == MANY + 4
    assert peek(out, "variant.json") == b"{}"


@pytest.mark.parametrize("is_seekable", [True, False])
def test_zip64_headers_become_plain_where_they_are_not_needed(tmp_path: Path, *, is_seekable: bool) -> None:
    files = everything(NAME, {"demo/a.py": b"1" * 100})
    files[f"{INFO}/RECORD"] = record_of(files, INFO).encode()
    with (tmp_path / NAME).open("wb") as file, zipfile.ZipFile(file if is_seekable else piped(file), "w") as archive:
        for member, data in files.items():
            with archive.open(entry(member), "w", force_zip64=True) as stream:
                stream.write(data)
    with open_wheel(tmp_path / NAME, check=True) as source:
        out = edit_wheel(source, tmp_path / "out", source.name, edits={})
    assert contents(out) == files
    with zipfile.ZipFile(out) as archive:
        assert [(info.extra, info.extract_version) for info in archive.infolist()] == [(b"", 20)] * 4


@pytest.mark.parametrize(("start", "is_wide"), [((1 << 32) - 2, False), ((1 << 32) - 1, True), (5 << 30, True)])
def test_members_far_into_a_file_have_wide_offsets(tmp_path: Path, start: int, *, is_wide: bool) -> None:
    """Behind a hole, which takes no room on the disk; the directory is beyond 4 GiB either way."""
    names = ["demo/a.py", "demo/é.py"]
    with (tmp_path / "a.zip").open("w+b") as file, Deflater(remembers=False) as deflater:
        file.seek(start)
        writer = ZipWriter(file)
        for name in names:
            writer.write(name, EditedFile.whole(b"text " * 20), new_header(), deflater)
        writer.finish(b"a note")
        read = ZipReader(file)
        assert [(member.path, b"".join(read.inflated(member))) for member in read.members] == [
            (name, b"text " * 20) for name in names
        ]
        # local headers have no offset, so nothing wide
        assert read.data_offset(read.members[0]) == start + 30 + len(names[0])
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert (archive.testzip(), archive.comment) == (None, b"a note")
        first, second = archive.infolist()
        assert (first.header_offset, first.extract_version) == (start, 45 if is_wide else 20)
        assert [len(info.extra) for info in (first, second)] == [12 if is_wide else 0, 12]
        assert [(info.create_system, info.create_version, info.flag_bits) for info in (first, second)] == [
            (3, 20, 0),
            (3, 20, 0x800),
        ]
        directory = archive.start_dir
    size = (tmp_path / "a.zip").stat().st_size
    with (tmp_path / "a.zip").open("rb") as file:
        file.seek(directory)
        behind = file.read()
    entries = size - directory - len("a note") - 22 - 20 - 56
    end64 = Zip64End(ZIP64_END, 44, 3 << 8 | 45, 45, 0, 0, 2, 2, entries, directory)
    end = End(END, 0, 0, 2, 2, entries, FULL32, 6)
    assert behind[entries:] == (
        end64.pack() + Zip64Locator(LOCATOR, 0, directory + entries, 1).pack() + end.pack() + b"a note"
    )


@pytest.mark.parametrize("directory", [FULL32 - 1, FULL32])
def test_a_directory_has_a_wide_record_where_its_offset_needs_one(tmp_path: Path, directory: int) -> None:
    with (tmp_path / "a.zip").open("w+b") as file, Deflater(remembers=False) as deflater:
        file.seek(directory - len("PK\3\4") - 26 - len("a") - len("x"))
        writer = ZipWriter(file)
        writer.write("a", EditedFile.whole(b"x"), new_header(method=ZipMethod.STORED), deflater)
        assert file.tell() == directory
        writer.finish(b"")
        file.seek(directory)
        assert (Zip64Locator(LOCATOR, 0, directory + 46 + 1, 1).pack() in file.read()) == (directory == FULL32)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.read("a") == b"x"


# the first size that deflated might need more than 32 bits
WIDE = 4_290_777_020


@pytest.mark.parametrize(
    ("size", "packed", "is_wide"),
    [(WIDE - 1, WIDE - 1, False), (WIDE, 5_000_000, True), (1000, FULL32, True), (5 << 30, 5 << 30, True)],
)
def test_sizes_are_wide_in_both_headers_where_one_of_them_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, packed: int, *, is_wide: bool
) -> None:
    """What the members hold is a hole, so that they take no room on the disk."""

    def skip(_source: ZipReader, member: Member, output: IO[bytes]) -> None:
        output.seek(member.compressed_size, os.SEEK_CUR)

    monkeypatch.setattr("vbuild.wheel.zip_write._send", skip)
    with open_wheel(wheel(tmp_path, files={"a": "1"})) as source, (tmp_path / "a.zip").open("w+b") as file:
        member = source.members[0]
        source.source.data_offset(member)
        writer = ZipWriter(file)
        writer.copy(source.source, replace(member, size=size, compressed_size=packed), "large")
        writer.copy(source.source, member, "behind")
        writer.finish(b"")
        file.seek(0)
        local = file.read(30)
        read = ZipReader(file)
        starts = [read.data_offset(member) for member in read.members]
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        large, behind = archive.infolist()
    extra = 20 if is_wide else 0
    assert (large.file_size, large.compress_size, large.extract_version) == (size, packed, 45 if is_wide else 20)
    assert starts == [30 + 5 + extra, behind.header_offset + 30 + 6]
    assert behind.header_offset == 30 + 5 + extra + packed
    wide = (FULL32, FULL32) if is_wide else (packed, size)
    assert struct.unpack_from("<HIIHH", local, 4)[:1] + struct.unpack_from("<IIHH", local, 18) == (
        45 if is_wide else 20,
        *wide,
        5,
        extra,
    )


@pytest.mark.slow
def test_a_member_of_more_than_four_gib(tmp_path: Path) -> None:
    """5 GiB of disk for some seconds: the input is sparse, its copy is not."""
    path = large_wheel(tmp_path / NAME)
    with open_wheel(path) as source:
        large = source.members[0]
        assert large.size == LARGE
        out = edit_wheel(source, tmp_path / "out", source.name, edits={f"{INFO}/variant.json": b"{}"})
    path.unlink()
    assert out.stat().st_size > LARGE
    assert peek(out, "variant.json") == b"{}"
    with zipfile.ZipFile(out) as archive:
        info = archive.infolist()[0]
        assert (info.filename, info.file_size) == ("demo/_C.so", LARGE)
        assert archive.infolist()[1].header_offset > LARGE
        with archive.open(info) as stream:
            assert sum(iter(lambda: len(stream.read(1 << 24)), 0)) == LARGE
    with open_wheel(out) as copy:
        again = edit_wheel(copy, tmp_path / "again", copy.name, edits={"demo/_C.so": None})
    out.unlink()
    assert again.stat().st_size < 2000


def large_wheel(path: Path) -> Path:
    """A wheel of one member of more than 4 GiB, and the others behind it."""
    hashing = hashlib.sha256()
    for piece in zeros():
        hashing.update(piece)
    digest = base64.urlsafe_b64encode(hashing.digest()).rstrip(b"=").decode()
    files = everything(NAME)
    record = f"demo/_C.so,sha256={digest},{LARGE}\n{record_of(files, INFO)}"
    with path.open("wb") as file, zipfile.ZipFile(sparse(file), "w") as archive:
        with archive.open(entry("demo/_C.so", compression=zipfile.ZIP_STORED), "w", force_zip64=True) as stream:
            for piece in zeros():
                stream.write(piece)
        for member, data in {**files, f"{INFO}/RECORD": record.encode()}.items():
            archive.writestr(entry(member), data)
    return path


def zeros() -> Iterator[bytes]:
    piece = bytes(1 << 24)
    whole, rest = divmod(LARGE, len(piece))
    yield from repeat(piece, whole)
    yield bytes(rest)


def sparse(file: IO[bytes]) -> Any:
    """*file* with a hole where a megabyte of zeros or more is written."""

    def write(data: bytes) -> int:
        if len(data) < 1 << 20:
            return file.write(data)
        file.seek(len(data), os.SEEK_CUR)
        return len(data)

    return SimpleNamespace(write=write, flush=file.flush, seek=file.seek, tell=file.tell)
