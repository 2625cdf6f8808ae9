import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def other_file_system(tmp_path: Path) -> Iterator[Path]:
    """A folder to which files can neither be linked nor copied by the kernel alone: in memory, on Linux."""
    memory = Path("/dev/shm")  # noqa: S108 - the second file system that every Linux has
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)
