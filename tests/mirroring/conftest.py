import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.factories.mirrors import three_wheels
from tests.factories.ranges import Serving, serving, simple_index


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    return three_wheels(tmp_path / "wheels")


@pytest.fixture
def server(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """An index of these, the only one that pip and uv know of."""
    with serving(simple_index(tmp_path / "index", *sorted(wheels.iterdir()))) as found:
        for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", found.url)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
        yield found
