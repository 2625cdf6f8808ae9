"""Wheels that are written together, passed on as they are, or made without a trace of when and from what."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from tests.factories.hostile_zips import Entry, archive, wheel_of
from tests.factories.wheels import DAY, contents, everything, poked, record_of, wheel
from vbuild.errors import WheelError
from vbuild.files import zstd
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.metadata import RecordRow
from vbuild.wheel.name import WheelName
from vbuild.wheel.write import copy_wheel, edit_wheel, write_wheel, write_wheels
from vbuild.wheel.zip_read import ZipMethod

NAME = WheelName.parse("demo-1.0-py3-none-any.whl")
VARIANT = NAME.labelled("x86_64_v3")
INFO = "demo-1.0.dist-info"


def infos(path: Path) -> dict[str, zipfile.ZipInfo]:
    with zipfile.ZipFile(path) as archive:
        return {info.filename: info for info in archive.infolist()}


@contextmanager
def refused(folder: Path, message: str) -> Iterator[None]:
    """What is refused with *message* and leaves *folder* as it was."""
    before = sorted(folder.iterdir()) if folder.exists() else None
    with pytest.raises(WheelError) as refusal:
        yield
    assert str(refusal.value) == message
    assert (sorted(folder.iterdir()) if folder.exists() else None) == before


def test_a_wheel_is_passed_on_byte_for_byte(tmp_path: Path) -> None:
    with open_wheel(wheel(tmp_path, demo="1")) as source:
        copy = copy_wheel(source, tmp_path / "deep" / "out")
        assert copy == tmp_path / "deep" / "out" / str(NAME)
        assert copy.read_bytes() == source.path.read_bytes()
        with refused(tmp_path, f"{source.path}: would overwrite the wheel it is made from; choose another folder"):
            copy_wheel(source, tmp_path)


def test_a_damaged_wheel_is_not_passed_on(tmp_path: Path) -> None:
    record = record_of(everything(str(NAME), {"demo.py": "2"}), INFO)
    path = wheel(tmp_path, record=record, files={"demo.py": "1"})
    with open_wheel(path) as source:
        with pytest.raises(WheelError, match=r"demo\.py"):
            copy_wheel(source, tmp_path / "out")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_member_that_another_wheel_has_too_is_the_same_in_all_of_its_bytes(
    tmp_path: Path, *, is_damaged: bool
) -> None:
    files = {"demo.txt": "\n".join(map(str, range(9000)))}
    paths = [wheel(tmp_path, name, files=files) for name in (str(NAME), "other-2.0-py3-none-any.whl")]
    if is_damaged:  # what the archive and RECORD say of it stays
        poked(paths[1], infos(paths[1])["demo.txt"].header_offset + 9000, b"\0\0\0\0")
    outcome = pytest.raises(WheelError, match=r"^other-2\.0.*: demo\.txt: ") if is_damaged else nullcontext()
    with open_wheel(paths[0]) as first, open_wheel(paths[1]) as second:
        with outcome, write_wheels(tmp_path / "out", (), passing=paths, checked=[first, second]):
            pass
        assert (tmp_path / "out" / paths[0].name).exists() is not is_damaged


def test_wheels_are_there_when_all_of_them_are(tmp_path: Path) -> None:
    out = tmp_path / "out"
    other = wheel(tmp_path / "other", "other-2.0-py3-none-any.whl")
    with open_wheel(wheel(tmp_path, files={"demo.py": "1"})) as source:
        with write_wheels(out, [NAME, VARIANT], like=source, passing=[other]) as writers:
            assert [writer.path for writer in writers] == [out / str(NAME), out / str(VARIANT)]
            for writer in writers:
                for member in source.members:
                    writer.copy(source, member)
            assert not any(path.suffix == ".whl" for path in out.iterdir())
        assert contents(out / str(NAME)) == contents(out / str(VARIANT)) == contents(source.path)
        assert (out / other.name).read_bytes() == other.read_bytes()
        assert len(list(out.iterdir())) == 3
    twice = f"{out / str(NAME)}: two wheels of this name would be written; make them apart"
    with refused(out, twice), write_wheels(out, [VARIANT, NAME, NAME]):
        pass
    with refused(out, f"{NAME}: no member is in a .dist-info folder"), write_wheels(out, [NAME, VARIANT]):
        pass


def test_nothing_shows_when_members_without_names_were_made(tmp_path: Path) -> None:
    source_path = wheel(tmp_path, modes={"demo/run": 0o755}, files={"demo/run": "1"})
    with open_wheel(source_path) as source, write_wheel(tmp_path / "out", NAME) as writer:
        writer.anonymise(mode=0o600)
        for member in source.members:
            writer.copy(source, member)
        writer.write("demo/new", b"2")
    assert {(info.date_time, info.external_attr >> 16) for info in infos(writer.path).values()} == {
        ((1980, 1, 1, 0, 0, 0), 0o100600)
    }
    assert contents(writer.path)["demo/run"] == b"1"


def test_a_list_of_all_files_is_made_when_they_are_written(tmp_path: Path) -> None:
    def made(rows: tuple[RecordRow, ...]) -> bytes:
        return "\n".join(f"{row.path} {row.size}" for row in rows).encode()

    with open_wheel(wheel(tmp_path)) as source, write_wheel(tmp_path / "out", NAME) as writer:
        writer.write("demo/a.py", b"1")
        writer.write_after(f"{INFO}/files.txt", made)
        writer.write("demo/b.py", b"22")
        for member in source.members:
            writer.copy(source, member)
    assert contents(writer.path)[f"{INFO}/files.txt"] == b"demo/a.py 1\ndemo/b.py 2"


@pytest.mark.parametrize(("name", "method"), [(NAME, ZipMethod.DEFLATED), (VARIANT, ZipMethod.ZSTD)])
def test_members_in_zstd_are_copied_to_variants_alone_and_deflated_once_they_change(
    tmp_path: Path, name: WheelName, method: int
) -> None:
    text = b"text " * 100
    entries = [Entry(f"demo/{file}.py", text, ZipMethod.ZSTD, zstd.compressed(text, level=3)) for file in "ab"]
    (tmp_path / str(VARIANT)).write_bytes(archive(wheel_of(*entries)))
    with open_wheel(tmp_path / str(VARIANT)) as source, write_wheel(tmp_path / "out", name, like=source) as writer:
        for member in source.members:
            if member.path == "demo/b.py":
                writer.write(member, text)
            else:
                writer.copy(source, member)
    with open_wheel(writer.path, check=True) as written:
        methods = {member.path: member.header.method for member in written.members}
        assert methods.pop("demo/a.py") == method
        assert {*methods.values()} == {ZipMethod.DEFLATED}
        assert written.read("demo/a.py") == written.read("demo/b.py") == text


def test_new_members_are_compressed_as_metadata_are(tmp_path: Path) -> None:
    path = wheel(tmp_path, compressions={f"{INFO}/METADATA": zipfile.ZIP_STORED})
    with open_wheel(path) as source:
        out = edit_wheel(source, tmp_path / "out", NAME, edits={"demo/new": b"1"})
    assert infos(out)["demo/new"].compress_type == zipfile.ZIP_STORED


def test_what_is_said_of_the_level_stays_with_the_bytes_that_have_it(tmp_path: Path) -> None:
    """The two bits that say how hard a member was deflated."""

    def tamper(archive: zipfile.ZipFile) -> None:
        for info in archive.infolist():
            info.flag_bits |= 0b110

    path = wheel(tmp_path, tamper=tamper, files={"demo/a.py": "1", "demo/b.py": "2"})
    with open_wheel(path) as source:
        out = infos(edit_wheel(source, tmp_path / "out", NAME, edits={"demo/b.py": b"3"}))
    assert (out["demo/a.py"].flag_bits, out["demo/b.py"].flag_bits) == (0b110, 0)


def test_record_keeps_its_attributes(tmp_path: Path) -> None:
    record = f"{INFO}/RECORD"
    path = wheel(tmp_path, compressions={record: zipfile.ZIP_STORED}, modes={record: 0o600})
    with open_wheel(path) as source:
        new = infos(edit_wheel(source, tmp_path / "out", NAME, edits={"demo/new": b"1"}))[record]
    assert (new.compress_type, new.external_attr >> 16) == (zipfile.ZIP_STORED, 0o100600)


def test_a_damaged_wheel_is_edited_only_where_nobody_asks(tmp_path: Path) -> None:
    record = record_of(everything(str(NAME), {"demo.py": "2"}), INFO)
    with open_wheel(wheel(tmp_path, record=record, files={"demo.py": "1"})) as source:
        with pytest.raises(WheelError, match=r"demo\.py"):
            edit_wheel(source, tmp_path / "out", NAME, edits={"a": b"1"}, verify=True)
        assert not (tmp_path / "out").exists()
        assert contents(edit_wheel(source, tmp_path / "out", NAME, edits={"a": b"1"}))["demo.py"] == b"1"


def test_the_first_wheel_that_is_copied_from_says_time_and_comment(tmp_path: Path) -> None:
    def tamper(archive: zipfile.ZipFile) -> None:
        archive.comment = b"first"

    path = wheel(tmp_path, tamper=tamper, files={f"{INFO}/licenses/MIT": "1", "demo/a.py": "2"})
    with open_wheel(path) as source:
        with write_wheel(tmp_path / "out", NAME) as writer:
            for member in source.members:
                writer.copy(source, member)
            writer.write("demo/new", b"3")
        message = f"{path}: would overwrite the wheel it is made from; choose another folder"
        with refused(tmp_path, message), write_wheel(tmp_path, NAME) as own:
            own.copy(source, source.members[0])
    assert infos(writer.path)["demo/new"].date_time == DAY
    with zipfile.ZipFile(writer.path) as archive:
        assert archive.comment == b"first"
        assert archive.read(f"{INFO}/licenses/MIT") == b"1"
