"""Layers: tar archives of gzip members, some of them copied out of wheels."""

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories.wheels import everything, hashed, record_of, wheel
from vbuild.errors import RepackageError, WheelError
from vbuild.publishing.oci.model import File, Layer, MemberFile, NewFile, WrittenBlob, write_layer
from vbuild.wheel.archive import SharedWheels

MOMENT = 1_700_000_000
LARGE = "\n".join(str(number**3) for number in range(30_000)).encode()

paths = st.lists(
    st.text("abcdé._-", min_size=1, max_size=40).filter(lambda part: set(part) - {"."}), min_size=1, max_size=6
).map("/".join)


def taken(path: Path, member: str, data: bytes, *, to: str = "", mode: int = 0o644) -> MemberFile:
    return MemberFile(to or member, mode, len(data), hashed(data), path, member)


def wheel_of(folder: Path, files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    return wheel(folder, files=dict(files), compression=compression)


def layer(folder: Path, *files: File) -> tuple[WrittenBlob, bytes]:
    folder.mkdir(exist_ok=True)
    with SharedWheels(keeps=False) as wheels:
        written = write_layer(Layer(files, "test"), folder, moment=MOMENT, wheels=wheels)
    return written, (folder / written.descriptor.digest.removeprefix("sha256:")).read_bytes()


def members(data: bytes) -> list[tuple[str, bytes | None, int]]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(data))) as archive:
        return [
            (info.name, found.read() if (found := archive.extractfile(info)) else None, info.mode) for info in archive
        ]


def test_a_copied_member_may_come_where_one_has_just_ended(tmp_path: Path) -> None:
    path = wheel_of(tmp_path, {"demo/x": LARGE})
    before = bytes((1 << 20) - 1024)
    _, blob = layer(tmp_path / "blobs", NewFile("a", 0o644, before), taken(path, "demo/x", LARGE, to="b"))
    assert members(blob) == [("a", before, 0o644), ("b", LARGE, 0o644)]


def test_a_member_that_does_not_match_its_record_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path, files={"demo/x": LARGE}, record=record(b"other" + LARGE[5:]))
    with pytest.raises(WheelError) as refusal:
        layer(tmp_path / "blobs", taken(path, "demo/x", LARGE))
    assert str(refusal.value) == ("demo-1.0-py3-none-any.whl: demo/x: does not match its hash in RECORD")


def test_a_wheel_that_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    path = wheel_of(tmp_path, {"demo/x": b"new"})
    for gone in (taken(path, "demo/x", b"older"), taken(path, "demo/y", b"new")):
        with pytest.raises(RepackageError) as refusal:
            layer(tmp_path / "blobs", gone)
        assert str(refusal.value) == (
            f"demo-1.0-py3-none-any.whl: {gone.member}: is not what it was when this was planned; "
            f"leave wheels alone while they are published"
        )


def record(data: bytes) -> str:
    return record_of({**everything("demo-1.0-py3-none-any.whl"), "demo/x": data}, "demo-1.0.dist-info")


@settings(max_examples=40)
@given(st.dictionaries(paths, st.binary(max_size=2000), max_size=8))
def test_what_is_put_in_comes_out(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    folders = {path.rsplit("/", end)[0] for path in files for end in range(1, path.count("/") + 1)}
    kept = {path: data for path, data in files.items() if path not in folders}
    _, blob = layer(tmp_path_factory.mktemp("layer"), *(NewFile(path, 0o644, data) for path, data in kept.items()))
    assert {name: data for name, data, _ in members(blob) if data is not None} == kept
