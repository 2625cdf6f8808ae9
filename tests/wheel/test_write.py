"""What the writer makes, and that nothing half-made is ever seen."""

import random
import re
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.factories.wheels import DAY, contents, entry, everything, hashed, piped, record_of, wheel
from vbuild.errors import VbuildError, WheelError
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.metadata import Record
from vbuild.wheel.name import WheelName
from vbuild.wheel.write import edit_wheel, write_wheel

NAME = "demo-1.0-py3-none-any.whl"
INFO = "demo-1.0.dist-info"
LABELLED = WheelName.parse(NAME).labelled("x86_64_v3")


def stamped(path: Path, folder: Path) -> Path:
    with open_wheel(path) as source:
        return edit_wheel(source, folder, LABELLED, edits={f"{INFO}/variant.json": b"{}"})


def copied(path: Path, folder: Path) -> Path:
    with open_wheel(path) as source:
        return edit_wheel(source, folder, source.name, edits={})


def compressed(path: Path) -> dict[str, bytes]:
    """The bytes of every member as they lie in the archive."""
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        spans = {}
        for info in archive.infolist():
            name, extra = struct.unpack_from("<HH", data, info.header_offset + 26)
            start = info.header_offset + 30 + name + extra
            spans[info.filename] = data[start : start + info.compress_size]
    return spans


def infos(path: Path) -> dict[str, zipfile.ZipInfo]:
    with zipfile.ZipFile(path) as archive:
        return {info.filename: info for info in archive.infolist()}


@contextmanager
def nothing_left_in(folder: Path) -> Iterator[None]:
    yield
    assert not folder.exists() or list(folder.iterdir()) == []


def test_a_damaged_member_that_nobody_reads_is_passed_on_as_it_is(tmp_path: Path) -> None:
    path = wheel(tmp_path, compression=zipfile.ZIP_STORED, files={"demo/_C.so": b"original" * 10_000})
    path.write_bytes(path.read_bytes().replace(b"original", b"orIginal", 1))
    assert compressed(copied(path, tmp_path / "out"))["demo/_C.so"] == compressed(path)["demo/_C.so"]


def test_modes_and_times_are_kept(tmp_path: Path) -> None:
    path = wheel(
        tmp_path,
        modes={"demo-1.0.data/scripts/run": 0o755, "demo/secret": 0o600},
        files={
            "demo-1.0.data/scripts/run": "#!python\n",
            "demo/secret": "",
            "demo/a.py": "",
        },
    )
    before, after = infos(path), infos(copied(path, tmp_path / "out"))
    for file, info in before.items():
        assert (after[file].external_attr, after[file].date_time) == (info.external_attr, info.date_time)
    with open_wheel(path) as source:
        executable = [member.path for member in source.members if member.is_executable]
    assert executable == ["demo-1.0.data/scripts/run"]


def test_an_edited_member_keeps_its_place_mode_time_and_compression(tmp_path: Path) -> None:
    files = {"demo/a.py": "1", "demo/_C.so": "22", "demo/b.py": "333"}
    stored = {"demo/_C.so": zipfile.ZIP_STORED}
    path = wheel(tmp_path, modes={"demo/_C.so": 0o755}, compressions=stored, files=files)
    with open_wheel(path) as source:
        out = edit_wheel(source, tmp_path / "out", source.name, edits={"demo/_C.so": b"new" * 9, "demo/a.py": b"one"})
    before, after = infos(path), infos(out)
    assert list(after) == list(before)
    assert after["demo/_C.so"].external_attr == before["demo/_C.so"].external_attr
    assert after["demo/_C.so"].date_time == before["demo/_C.so"].date_time
    assert after["demo/_C.so"].compress_type == zipfile.ZIP_STORED
    assert after["demo/a.py"].compress_type == zipfile.ZIP_DEFLATED
    assert contents(out)["demo/_C.so"] == b"new" * 9
    assert f"demo/_C.so,{hashed(b'new' * 9)},27\n" in contents(out)[f"{INFO}/RECORD"].decode()


@pytest.mark.parametrize(
    ("epoch", "expected"),
    {
        None: DAY,
        "1700000000": (2023, 11, 14, 22, 13, 20),
        "0": (1980, 1, 1, 0, 0, 0),
        "99999999999": (2107, 12, 31, 23, 59, 58),
    }.items(),
)
def test_a_new_member_takes_no_time_from_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: str | None, expected: tuple[int, ...]
) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    if epoch is not None:
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    info = infos(stamped(wheel(tmp_path), tmp_path / "out"))[f"{INFO}/variant.json"]
    assert info.date_time == expected
    assert info.external_attr >> 16 == 0o100644
    assert info.compress_type == zipfile.ZIP_DEFLATED


@pytest.mark.parametrize("epoch", ["yesterday", "-1", "1.5", "٣", "9" * 5000])
def test_an_epoch_that_is_no_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: str) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    message = f"SOURCE_DATE_EPOCH is {epoch!r}; expected seconds since 1970"
    with nothing_left_in(tmp_path / "out"), pytest.raises(VbuildError, match=re.escape(message)):
        stamped(wheel(tmp_path), tmp_path / "out")


def test_new_members_are_stored_where_their_neighbours_are(tmp_path: Path) -> None:
    out = stamped(wheel(tmp_path, compression=zipfile.ZIP_STORED), tmp_path / "out")
    assert {info.compress_type for info in infos(out).values()} == {zipfile.ZIP_STORED}


def test_data_descriptors_become_plain_headers(tmp_path: Path) -> None:
    files = everything(NAME, files={"demo/a.py": b"1" * 100})
    files[f"{INFO}/RECORD"] = record_of(files, INFO).encode()
    with (tmp_path / NAME).open("wb") as file, zipfile.ZipFile(piped(file), "w") as archive:
        for member, data in files.items():
            archive.writestr(entry(member), data)
    assert all(info.flag_bits & 8 for info in infos(tmp_path / NAME).values())
    out = copied(tmp_path / NAME, tmp_path / "out")
    assert contents(out) == files
    assert not any(info.flag_bits for info in infos(out).values())
    assert (
        out.read_bytes()
        == copied(wheel(tmp_path / "plain", files={"demo/a.py": b"1" * 100}), tmp_path / "x").read_bytes()
    )


def test_extra_fields_and_member_comments_are_dropped_and_the_archive_comment_kept(tmp_path: Path) -> None:
    def tamper(archive: zipfile.ZipFile) -> None:
        archive.comment = b"made by hand"
        archive.infolist()[0].extra = struct.pack("<HHBI", 0x5455, 5, 1, 0)
        archive.infolist()[0].comment = b"hello"

    out = copied(wheel(tmp_path, tamper=tamper, files={"demo/a.py": "1"}), tmp_path / "out")
    assert [(info.extra, info.comment) for info in infos(out).values()] == [(b"", b"")] * 4
    with zipfile.ZipFile(out) as archive:
        assert archive.comment == b"made by hand"


def test_a_wheel_can_be_made_from_nothing(tmp_path: Path) -> None:
    name = WheelName.parse("demo_libs-1.0-py3-none-any.whl")
    info = "demo_libs-1.0.dist-info"
    with write_wheel(tmp_path, name) as writer:
        writer.write(f"{info}/METADATA", b"Metadata-Version: 2.1\nName: demo-libs\nVersion: 1.0\n")
        writer.write(f"{info}/WHEEL", b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n")
        writer.write("demo_libs/lib.so", memoryview(bytes(1000)), mode=0o755)
    files = contents(writer.path)
    assert list(files) == ["demo_libs/lib.so", f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD"]
    assert infos(writer.path)["demo_libs/lib.so"].external_attr >> 16 == 0o100755
    with zipfile.ZipFile(writer.path) as archive:
        assert archive.comment == b""
    assert Record.parse(files[f"{info}/RECORD"].decode()).rows[0].size == 1000


def test_output_in_the_place_of_the_input_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    before = path.read_bytes()
    (tmp_path / "link").symlink_to(tmp_path)
    for folder in (tmp_path, tmp_path / "link"):
        message = f"{folder / NAME}: would overwrite the wheel it is made from; choose another folder"
        with pytest.raises(WheelError, match=f"^{re.escape(message)}$"):
            copied(path, folder)
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == [NAME, "link"]


def test_a_wheel_is_copied_to_another_file_system(tmp_path: Path, other_file_system: Path) -> None:
    path = wheel(tmp_path, files={"demo/_C.so": random.Random(1).randbytes(1_000_000)})
    assert copied(path, other_file_system).read_bytes() == copied(path, tmp_path / "out").read_bytes()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, ValueError, WheelError])
def test_nothing_is_left_of_an_interrupted_wheel(tmp_path: Path, interruption: type[BaseException]) -> None:
    def interrupted(path: Path) -> None:
        with open_wheel(path) as source, write_wheel(tmp_path / "out", LABELLED) as writer:
            writer.copy(source, source.members[0])
            raise interruption

    with nothing_left_in(tmp_path / "out"), pytest.raises(interruption):
        interrupted(wheel(tmp_path, files={"demo/a.py": "1"}))


def test_a_finished_wheel_survives_an_interrupted_one(tmp_path: Path) -> None:
    out = stamped(wheel(tmp_path), tmp_path / "out")
    before = out.read_bytes()
    with pytest.raises(KeyboardInterrupt), write_wheel(tmp_path / "out", LABELLED):
        raise KeyboardInterrupt
    assert out.read_bytes() == before
    assert list((tmp_path / "out").iterdir()) == [out]


REFUSED = {
    "nothing": ([], "no member is in a .dist-info folder"),
    "twice": (["demo/a.py", "demo/a.py"], "demo/a.py: written twice"),
    "record": ([f"{INFO}/RECORD"], f"{INFO}/RECORD: made from what is written, never given"),
    "upwards": (["../a.py"], "../a.py: a path that leaves its folder"),
    "second": (
        [f"{INFO}/METADATA", "other-1.0.dist-info/METADATA"],
        f"other-1.0.dist-info/METADATA: a second .dist-info folder besides {INFO}",
    ),
    "other": (
        ["other-1.0.dist-info/METADATA"],
        "other-1.0.dist-info is not of demo 1.0, which the file name says",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_no_sound_wheel_is_not_written(tmp_path: Path, case: str) -> None:
    paths, message = REFUSED[case]

    def write() -> None:
        with write_wheel(tmp_path / "out", LABELLED) as writer:
            for path in paths:
                writer.write(path, b"")

    with nothing_left_in(tmp_path / "out"), pytest.raises(WheelError, match=f"{re.escape(message)}$"):
        write()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WheelError, match=r"^.*/file/out: cannot be written: Not a directory$"):
        stamped(wheel(tmp_path), tmp_path / "file" / "out")


def test_a_name_too_long_for_a_file_is_refused(tmp_path: Path) -> None:
    name = LABELLED.labelled("x" * 250)
    refusal = pytest.raises(WheelError, match=r"cannot be written: File name too long$")
    with open_wheel(wheel(tmp_path)) as source, nothing_left_in(tmp_path / "out"), refusal:
        edit_wheel(source, tmp_path / "out", name, edits={})
