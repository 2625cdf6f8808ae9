"""The same bytes under a second name: a link where that can be, else a copy."""

from pathlib import Path

import pytest

from vbuild.files.atomic import duplicate, linked


def test_a_duplicate_has_the_same_bytes_and_is_a_file_of_its_own(tmp_path: Path) -> None:
    data = bytes(range(256)) * 20_000
    (tmp_path / "one").write_bytes(data)
    duplicate(tmp_path / "one", tmp_path / "other")
    (tmp_path / "one").write_bytes(b"changed")
    assert (tmp_path / "other").read_bytes() == data


def test_a_duplicate_is_a_new_file(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).write_text(name)
    with pytest.raises(FileExistsError):
        duplicate(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "other").read_text() == "other"


def test_what_cannot_be_linked_is_copied_with_its_time(tmp_path: Path) -> None:
    memory = Path("/dev/shm")  # noqa: S108 - another file system, to which no hard link leads
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system")
    source = memory / f"vbuild-{tmp_path.name}"
    try:
        source.write_bytes(bytes(3_000_000))
        target = linked(source, tmp_path / "copy")
        assert target.read_bytes() == source.read_bytes()
        assert (target.stat().st_nlink, target.stat().st_mtime_ns) == (1, source.stat().st_mtime_ns)
    finally:
        source.unlink(missing_ok=True)
