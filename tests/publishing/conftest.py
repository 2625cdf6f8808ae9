"""What the tests of layouts share."""

from pathlib import Path

import pytest

from tests.factories.virtual_environments import VirtualEnvironment


@pytest.fixture
def venv(tmp_path: Path) -> VirtualEnvironment:
    return VirtualEnvironment.at(tmp_path / "home")
