"""How hard the files of a package are compressed: by the level that makes it smaller, in the time that is worth it."""

import os
import zipfile
from pathlib import Path

from tests.factories.wheels import wheel
from vbuild.files import zstd
from vbuild.publishing.conda.plan import Conda
from vbuild.publishing.publish import publish

NAME = "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
SIZE = 4_000_000


def sizes(folder: Path, data: bytes) -> tuple[int, dict[int, int]]:
    """How many bytes the files of a package with *data* take, and *data* alone by level."""
    wheel(folder / "dist", NAME, {"demo/_c.so": data})
    publish([folder / "dist"], folder / "site", layouts=[Conda()])
    with zipfile.ZipFile(folder / "site/conda/linux-64/demo-1.0-py311_0.conda") as archive:
        packed = archive.getinfo("pkg-demo-1.0-py311_0.tar.zst").file_size
    return packed, {level: len(zstd.compressed(data, level=level)) for level in (1, 3)}


def test_what_does_not_repeat_gets_the_fast_level(tmp_path: Path) -> None:
    # digits, as numbers in a table, for which searching longer finds no more
    packed, by_level = sizes(tmp_path, os.urandom(SIZE // 2).hex().encode())
    assert by_level[1] < 0.99 * by_level[3]
    assert packed < 0.99 * by_level[3]
