"""Every input that `open_wheel` refuses, with the message."""

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories.wheels import everything, hashed, poked, record_of, renamed, wheel, with_entries
from vbuild.errors import WheelError
from vbuild.wheel.archive import open_wheel

NAME = "demo-1.0-py3-none-any.whl"
INFO = "demo-1.0.dist-info"
PAYLOAD = b"x = 1\n" * 100

Make = Callable[[Path], Path]
CASES: dict[str, tuple[Make, str]] = {}


def refused(message: str) -> Callable[[Make], Make]:
    """Enter a bad wheel into the table, with the message."""

    def enter(make: Make) -> Make:
        CASES[make.__name__] = (make, message)
        return make

    return enter


def cut(folder: Path, size: int) -> Path:
    path = wheel(folder, files={"demo/a.py": PAYLOAD})
    path.write_bytes(path.read_bytes()[:size])
    return path


def with_path(folder: Path, path: str) -> Path:
    return wheel(folder, files={path: b""})


def tampered(folder: Path, **attributes: int | str) -> Path:
    """A wheel whose central directory says otherwise of its first member."""

    def tamper(archive: zipfile.ZipFile) -> None:
        for attribute, value in attributes.items():
            setattr(archive.infolist()[0], attribute, value)

    return wheel(folder, tamper=tamper, files={"demo/a.py": PAYLOAD, "demo/b.py": PAYLOAD})


@refused("not a zip archive, or truncated: no end record")
def empty(folder: Path) -> Path:
    return cut(folder, 0)


@refused("not a zip archive, or truncated: no end record")
def truncated(folder: Path) -> Path:
    return cut(folder, 200)


@refused("not a zip archive, or truncated: no end record")
def not_a_zip(folder: Path) -> Path:
    (folder / NAME).write_bytes(b"PK\x03\x04 but then <html>")
    return folder / NAME


@refused("the central directory ends at 0x2b2, its end record begins at 0x2b8")
def bytes_in_front(folder: Path) -> Path:
    path = wheel(folder, compression=zipfile.ZIP_STORED)
    path.write_bytes(b"#!exec" + path.read_bytes())
    return path


@refused("expected one .dist-info folder, found none")
def no_dist_info(folder: Path) -> Path:
    return with_entries(folder / NAME, {"demo/a.py": PAYLOAD})


@refused("expected one .dist-info folder, found demo-1.0.dist-info, other-1.0.dist-info")
def two_dist_infos(folder: Path) -> Path:
    return wheel(folder, files={"other-1.0.dist-info/METADATA": ""})


@refused("other-1.0.dist-info is not of demo 1.0, which the file name says")
def dist_info_of_another_project(folder: Path) -> Path:
    return wheel(folder, "other-1.0-py3-none-any.whl").rename(folder / NAME)


@refused("demo-2.0.dist-info is not of demo 1.0, which the file name says")
def dist_info_of_another_version(folder: Path) -> Path:
    return wheel(folder, "demo-2.0-py3-none-any.whl").rename(folder / NAME)


@refused("no RECORD in demo-1.0.dist-info")
def no_record(folder: Path) -> Path:
    return with_entries(folder / NAME, everything(NAME))


@refused("demo-1.0.dist-info/RECORD: two members of this name")
def two_records(folder: Path) -> Path:
    return renamed(wheel(folder, files={f"{INFO}/RECORX": ""}), b"RECORX", b"RECORD")


@refused("demo/a.py: two members of this name")
def two_members_of_a_name(folder: Path) -> Path:
    return renamed(wheel(folder, files={"demo/a.py": "1", "demo/x.py": "2"}), b"demo/x.py", b"demo/a.py")


@refused("demo-1.0.dist-info/RECORD: not UTF-8")
def record_in_latin_1(folder: Path) -> Path:
    files = everything(NAME)
    return with_entries(folder / NAME, files | {f"{INFO}/RECORD": "é.py,,\n".encode("latin-1")})


@refused("demo-1.0.dist-info/RECORD: line 1: 2 columns, expected path, hash and size")
def record_of_two_columns(folder: Path) -> Path:
    return wheel(folder, record="demo/a.py,\n")


@refused("demo-1.0.dist-info/METADATA: not listed in RECORD")
def member_without_a_row(folder: Path) -> Path:
    files = everything(NAME)
    del files[f"{INFO}/METADATA"]
    return wheel(folder, record=record_of(files, INFO))


@refused("RECORD lists 'demo/gone.py', which is not in the archive")
def row_without_a_member(folder: Path) -> Path:
    return wheel(folder, record=record_of(everything(NAME) | {"demo/gone.py": b""}, INFO))


@refused(
    "demo/a.py: its hash in RECORD is 'md5=1B2M2Y8AsgTpgAmY7PhCfg', expected sha256, sha384, sha512",
)
def row_with_a_broken_hash(folder: Path) -> Path:
    row = f"demo/a.py,{hashed(b'', 'md5')},0\n"
    return wheel(folder, record=row + record_of(everything(NAME), INFO), files={"demo/a.py": ""})


@refused("demo/a.py: 600 bytes, but 7 according to RECORD")
def row_with_another_size(folder: Path) -> Path:
    record = record_of(everything(NAME, files={"demo/a.py": PAYLOAD}), INFO).replace(",600", ",7")
    return wheel(folder, record=record, files={"demo/a.py": PAYLOAD})


@refused("/etc/passwd: an absolute path")
def absolute_path(folder: Path) -> Path:
    return with_path(folder, "/etc/passwd")


@refused("C:/a.py: an absolute path")
def drive_letter(folder: Path) -> Path:
    return with_path(folder, "C:/a.py")


@refused("demo/../../a.py: a path that leaves its folder")
def path_upwards(folder: Path) -> Path:
    return with_path(folder, "demo/../../a.py")


@refused("demo//a.py: a path with an empty part or '.' in it")
def path_with_an_empty_part(folder: Path) -> Path:
    return with_path(folder, "demo//a.py")


@refused("demo\\a.py: a path with a backslash, NUL or line break in it")
def backslash(folder: Path) -> Path:
    return with_path(folder, "demo\\a.py")


@refused("'demo/a\\x00.py': a path with a backslash, NUL or line break in it")
def nul(folder: Path) -> Path:
    return renamed(with_path(folder, "demo/aX.py"), b"demo/aX.py", b"demo/a\0.py")


@refused("'demo/a\\n.py': a path with a backslash, NUL or line break in it")
def line_break(folder: Path) -> Path:
    return with_path(folder, "demo/a\n.py")


@refused("'': a path with an empty part or '.' in it")
def no_path(folder: Path) -> Path:
    return with_path(folder, "")


@refused("b'demo/\\xff\\xbf.py': a name that is not UTF-8")
def path_not_utf_8(folder: Path) -> Path:
    return renamed(with_path(folder, "demo/ÿ.py"), "demo/ÿ.py".encode(), b"demo/\xff\xbf.py")


@refused("demo/a.py: encrypted")
def encrypted(folder: Path) -> Path:
    return tampered(folder, flag_bits=1)


@refused("demo/a.py: general purpose flags 0x0020 are not known")
def patch_data(folder: Path) -> Path:
    return tampered(folder, flag_bits=0x20)


@refused("demo/a.py: needs version 14.8 of the zip format; 6.3 is the last one known")
def from_a_later_version(folder: Path) -> Path:
    path = wheel(folder, files={"demo/a.py": PAYLOAD})
    return poked(path, path.read_bytes().index(b"PK\x01\x02") + 6, bytes([148]))


@refused("demo/a.py: not a regular file: mode 0o120777")
def symbolic_link(folder: Path) -> Path:
    return tampered(folder, external_attr=0o120777 << 16)


@refused("demo/a.py: not a regular file: mode 0o40755")
def folder_by_mode(folder: Path) -> Path:
    return tampered(folder, external_attr=0o40755 << 16)


@refused("demo/a/: a folder of 600 bytes")
def folder_with_contents(folder: Path) -> Path:
    def tamper(archive: zipfile.ZipFile) -> None:
        archive.infolist()[0].external_attr = 0o40755 << 16

    return wheel(folder, tamper=tamper, files={"demo/a/": PAYLOAD})


@refused("demo/a.py: on disk 1 of an archive of several; expected a whole one")
def member_on_another_disk(folder: Path) -> Path:
    path = wheel(folder, files={"demo/a.py": PAYLOAD})
    return poked(path, path.read_bytes().index(b"PK\x01\x02") + 34, b"\1\0")


@refused("one part of an archive of several; expected a whole one")
def archive_on_two_disks(folder: Path) -> Path:
    return poked(wheel(folder), -22 + 4, b"\1\0\1\0")


@refused("demo/b.py: overlaps demo/a.py")
def overlapping(folder: Path) -> Path:
    def tamper(archive: zipfile.ZipFile) -> None:
        first, second, *_ = archive.infolist()
        second.header_offset = first.header_offset

    return wheel(folder, tamper=tamper, files={"demo/a.py": PAYLOAD, "demo/b.py": PAYLOAD})


@refused("demo/a.py: CRC-32 0xc8e2bbde in its local header, but 0x00000001 in the central directory")
def another_crc_in_front(folder: Path) -> Path:
    return tampered(folder, CRC=1)


@refused("demo/c.py: the local header names it b'demo/a.py'")
def another_name_in_front(folder: Path) -> Path:
    return tampered(folder, filename="demo/c.py", orig_filename="demo/c.py")


@refused("demo/a.py: its Unicode path extra field names it b'demo/b.py', expected b'demo/a.py'")
def another_name_in_an_extra_field(folder: Path) -> Path:
    def tamper(archive: zipfile.ZipFile) -> None:
        archive.infolist()[0].extra = struct.pack("<HHBI9s", 0x7075, 14, 1, 0, b"demo/b.py")

    return wheel(folder, tamper=tamper, files={"demo/a.py": PAYLOAD})


@refused("demo/a.py: extra field 0xcafe runs past its header")
def broken_extra_field(folder: Path) -> Path:
    def tamper(archive: zipfile.ZipFile) -> None:
        archive.infolist()[0].extra = struct.pack("<HH", 0xCAFE, 4)

    return wheel(folder, tamper=tamper, files={"demo/a.py": PAYLOAD})


@refused("demo/a.py: declares 600000000 bytes, more than 2 can inflate to")
def bomb_by_declaration(folder: Path) -> Path:
    def tamper(archive: zipfile.ZipFile) -> None:
        archive.infolist()[0].file_size = 600_000_000

    return wheel(folder, tamper=tamper, files={"demo/a.py": b""})


@refused("demo/a.py: stored, but 600 bytes are to become 601")
def stored_of_another_size(folder: Path) -> Path:
    def tamper(archive: zipfile.ZipFile) -> None:
        archive.infolist()[0].file_size = 601

    return wheel(folder, tamper=tamper, compression=zipfile.ZIP_STORED, files={"demo/a.py": PAYLOAD})


@refused("the central directory has 71 bytes after its 3 entries")
def too_few_entries(folder: Path) -> Path:
    return poked(wheel(folder, files={"demo/a.py": PAYLOAD}), -22 + 8, b"\3\0\3\0")


@refused("the central directory ends after 3 entries, expected 4")
def too_many_entries(folder: Path) -> Path:
    return poked(wheel(folder), -22 + 8, b"\4\0\4\0")


def zip64(path: Path, *, record_size: int = 44, entries: int = 0) -> Path:
    """The wheel at *path* with a zip64 end record that is not needed, and perhaps not true."""
    data = path.read_bytes()
    end = len(data) - 22
    count, size, offset = struct.unpack_from("<HII", data, end + 10)
    wide = struct.pack("<IQHHIIQQQQ", 0x06064B50, record_size, 45, 45, 0, 0, *[entries or count] * 2, size, offset)
    path.write_bytes(data[:end] + wide + struct.pack("<IIQI", 0x07064B50, 0, end, 1) + data[end:])
    return path


def test_a_zip64_end_record_that_is_not_needed_is_read(tmp_path: Path) -> None:
    with open_wheel(zip64(wheel(tmp_path)), check=True) as source:
        assert len(source.members) == 3


@refused("the end record and the zip64 end record disagree")
def two_counts_of_entries(folder: Path) -> Path:
    return zip64(wheel(folder), entries=2)


@refused("the zip64 end record is not in front of its locator")
def bytes_behind_the_zip64_end(folder: Path) -> Path:
    return zip64(wheel(folder), record_size=43)


@refused("demo/a.py: extra field 0x0001 comes twice")
def extra_field_twice(folder: Path) -> Path:
    def tamper(archive: zipfile.ZipFile) -> None:
        archive.infolist()[0].extra = struct.pack("<HHQ", 1, 8, 600) * 2

    return wheel(folder, files={"demo/a.py": PAYLOAD}, tamper=tamper)


@refused("demo/a.py: truncated: the zip64 extra field lacks a value")
def zip64_field_without_a_value(folder: Path) -> Path:
    def tamper(archive: zipfile.ZipFile) -> None:
        archive.infolist()[0].extra = struct.pack("<HH", 1, 0)

    path = wheel(folder, files={"demo/a.py": PAYLOAD}, tamper=tamper)
    return poked(path, path.read_bytes().index(b"PK\x01\x02") + 24, b"\xff" * 4)


@refused("truncated: an entry of the central directory runs past its end")
def name_longer_than_the_directory(folder: Path) -> Path:
    path = wheel(folder)
    return poked(path, path.read_bytes().rindex(b"PK\x01\x02") + 28, b"\xff")


@refused("demo-1.0.dist-info/RECORD: truncated: its data run into the central directory")
def data_longer_than_the_archive(folder: Path) -> Path:
    path = wheel(folder, compression=zipfile.ZIP_STORED)
    sizes = struct.pack("<II", 10_000, 10_000)
    poked(path, path.read_bytes().rindex(b"PK\x01\x02") + 20, sizes)
    return poked(path, path.read_bytes().rindex(b"PK\x03\x04") + 18, sizes)


@refused("demo/a.py: truncated: 39 bytes at 0x10000 run past the end, 0x365")
def member_behind_the_end(folder: Path) -> Path:
    def tamper(archive: zipfile.ZipFile) -> None:
        archive.infolist()[0].header_offset = 0x10000

    return wheel(folder, files={"demo/a.py": b""}, compression=zipfile.ZIP_STORED, tamper=tamper)


@refused("demo-x.dist-info is not of demo 1.0, which the file name says")
def dist_info_without_a_version(folder: Path) -> Path:
    return with_entries(folder / NAME, {"demo-x.dist-info/RECORD": b""})


@refused("demo-1.0.dist-info/RECORD: 67108865 bytes, expected 4306 at most")
def record_too_large(folder: Path) -> Path:
    return with_entries(folder / NAME, {f"{INFO}/RECORD": bytes((1 << 26) + 1)})


@pytest.mark.parametrize("case", CASES)
def test_what_is_no_sound_wheel_is_refused(tmp_path: Path, case: str) -> None:
    make, message = CASES[case]
    path = make(tmp_path)
    with pytest.raises(WheelError) as refusal, open_wheel(path):
        pass
    assert str(refusal.value) == f"{path.name}: {message}"
