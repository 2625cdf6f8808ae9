"""The pages that are run with each change: every command runs as it is written, and prints what the page shows."""

import os
from pathlib import Path

import pytest

from tests.docs.pages import QUICK, ROOT, differences

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the pages build for x86-64"),
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of what prepares examples, for all pages."""
    return tmp_path_factory.mktemp("prepared")


@pytest.mark.parametrize("page", QUICK, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_prints_what_the_page_shows(page: Path, tmp_path: Path, prepared: Path) -> None:
    assert differences(page, tmp_path, prepared) == []
