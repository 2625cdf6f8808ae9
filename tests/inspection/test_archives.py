"""Static libraries as ar writes them."""

import subprocess
from pathlib import Path

import pytest

from tests.factories.tools import needs
from vbuild.errors import BinaryError
from vbuild.inspection.inspect import ARCHIVE_MAGIC, object_count

HEADER = b"a.o/".ljust(48) + b"3".ljust(10) + b"`\n"


def archived(folder: Path, *names: str) -> bytes:
    for name in names:
        (folder / name).write_bytes(b"odd")
    subprocess.run(["ar", "rcs", "demo.a", *names], cwd=folder, check=True)
    return (folder / "demo.a").read_bytes()


@needs("ar")
def test_objects_are_those_that_ar_put_in_whatever_their_names(tmp_path: Path) -> None:
    assert object_count(archived(tmp_path, "a.o", "b.o", f"{'long' * 20}.o")) == 3


@needs("ar")
def test_an_archive_without_objects_has_none(tmp_path: Path) -> None:
    assert object_count(archived(tmp_path)) == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ARCHIVE_MAGIC + b"?" * 60, "damaged static library: no header of a file at 0x8"),
        (ARCHIVE_MAGIC + HEADER[:59], "damaged static library: no header of a file at 0x8"),
        (ARCHIVE_MAGIC + HEADER.replace(b"3 ", b"x "), "damaged static library: no header of a file at 0x8"),
        (ARCHIVE_MAGIC + HEADER + b"o", "damaged static library: its last file ends at 0x48, past the end, 0x45"),
    ],
)
def test_damage_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(BinaryError) as refusal:
        object_count(data)
    assert str(refusal.value) == message
