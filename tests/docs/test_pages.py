"""README and the other pages of docs/: every command runs as it is written, and prints what the page shows."""

import os
from pathlib import Path

import pytest

from tests.docs.pages import QUICK, ROOT, differences, examples, pages

pytestmark = [
    pytest.mark.network,
    pytest.mark.nightly,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the pages build for x86-64"),
]
PAGES = [page for page in pages() if page not in QUICK and examples(page.read_text(encoding="utf-8"))]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of what prepares examples, for all pages."""
    return tmp_path_factory.mktemp("prepared")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_prints_what_the_page_shows(page: Path, tmp_path: Path, prepared: Path) -> None:
    assert differences(page, tmp_path, prepared) == []
