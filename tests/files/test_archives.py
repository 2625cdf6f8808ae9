"""What a tar archive may have its readers keep in memory."""

import io
import tarfile

import pytest

from vbuild.files.reading import BoundedInfo

LARGEST = 1 << 20


def read(*kinds: bytes, size: int, mode: str = "r:") -> list[str]:
    """The names of the members of an archive with a header of each of *kinds*, of *size* bytes, in front of a file."""
    blocks = bytearray()
    for kind in kinds:
        info = tarfile.TarInfo("././@LongLink")
        info.type, info.size = kind, size
        blocks += info.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(-(-size // 512) * 512, b"\0")
    blocks += tarfile.TarInfo("demo.py").tobuf() + bytes(1024)
    with tarfile.open(fileobj=io.BytesIO(blocks), mode=mode, tarinfo=BoundedInfo) as archive:  # type: ignore[call-overload]
        return [member.name for member in archive]


def test_a_long_name_is_read() -> None:
    assert read(tarfile.GNUTYPE_LONGNAME, size=LARGEST) == ["a"]


@pytest.mark.parametrize("mode", ["r:", "r|"])
@pytest.mark.parametrize(
    "kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE], ids=bytes.decode
)
def test_a_header_that_would_fill_the_memory_is_refused(kind: bytes, mode: str) -> None:
    with pytest.raises(tarfile.ReadError, match=r"^header of 1048577 bytes, expected 1048576 at most$"):
        read(kind, size=LARGEST + 1, mode=mode)


def test_a_file_with_holes_is_refused() -> None:
    with pytest.raises(tarfile.ReadError, match=r"^sparse file, whose holes are kept in memory; expected a plain one$"):
        read(tarfile.GNUTYPE_SPARSE, size=0)
