"""What indexes have of a project, and the hashes that they state."""

from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from unearth import Link

from tests.factories.sources import served
from vbuild.errors import FetchError
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.located import ListedFile
from vbuild.index_client.packages import files_of, stated_sha256

NEW = "demo-2.0-py3-none-any.whl"
OLD = "demo-1.0.tar.gz"


def _index(folder: Path, *links: str) -> Path:
    (folder / "demo").mkdir(parents=True)
    (folder / "demo" / "index.html").write_text("".join(links))
    return folder


@pytest.mark.nightly
def test_the_files_of_all_places_come_newest_first_with_the_hashes_that_are_stated(tmp_path: Path) -> None:
    one = _index(
        tmp_path / "one",
        f'<a href="{OLD}#sha256={"a" * 64}" data-yanked="broken">{OLD}</a>',
        f'<a href="{NEW}">{NEW}</a>',
        '<a href="notes.txt">notes.txt</a>',
        '<a href="demo-first.tar.gz">demo-first.tar.gz</a>',
    )
    two = _index(tmp_path / "two", f'<a href="{NEW}#sha256={"b" * 64}">{NEW}</a>')
    with served(one) as first, served(two) as second:
        found = files_of("Demo", indexes=Indexes(index_url=first, extra_index_urls=(second,)))
    assert found == (
        ListedFile(NEW, Version("2.0"), "b" * 64),
        ListedFile(OLD, Version("1.0"), "a" * 64, is_yanked=True),
    )
    assert [listed.is_wheel for listed in found] == [True, False]


@pytest.mark.parametrize("stated", ["../../elsewhere", "a" * 63, "é" * 64, ""], ids=["path", "short", "word", "none"])
def test_a_hash_that_is_none_is_not_stated(stated: str, tmp_path: Path) -> None:
    """Hashes become file names in caches."""
    url = _index(tmp_path, f'<a href="{NEW}#sha256={stated}">{NEW}</a>').as_uri()
    assert [listed.sha256 for listed in files_of("demo", indexes=Indexes(index_url=url))] == [None]


@pytest.mark.parametrize(
    ("hashes", "sha256"),
    [({"sha256": "A" * 64}, "a" * 64), ({"sha256": 1}, None), (["sha256"], None), ("sha256", None), ({}, None)],
    ids=["capitals", "number", "list", "text", "no hash"],
)
def test_hashes_of_a_page_in_json_are_texts_in_an_object(hashes: Any, sha256: str | None) -> None:
    link = Link(f"https://files.example/{NEW}", hashes=hashes)
    assert stated_sha256(link) == sha256


def test_a_project_that_nobody_knows_has_no_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with served(tmp_path) as url:
        assert files_of("demo", indexes=Indexes(index_url=url)) == ()
    assert capfd.readouterr().err == ""


def test_a_page_that_is_no_text_is_a_place_that_cannot_be_asked(tmp_path: Path) -> None:
    page = _index(tmp_path / "one", "") / "demo" / "index.html"
    page.write_bytes(b'<a href="\x94.whl">')
    url = (tmp_path / "one").as_uri()
    with pytest.raises(FetchError) as refused:
        files_of("demo", indexes=Indexes(index_url=url))
    said = "'utf-8' codec can't decode byte 0x94 in position 9: invalid start byte"
    assert str(refused.value) == f"demo: {url}: its page of demo is not an index page: {said}"


@pytest.mark.nightly
def test_a_place_that_cannot_be_asked_matters_only_where_no_other_has_a_file(tmp_path: Path) -> None:
    broken = "http://127.0.0.1:9/simple"
    with served(_index(tmp_path / "one", f'<a href="{NEW}">{NEW}</a>')) as url, served(tmp_path, broken=True) as ill:
        assert len(files_of("demo", indexes=Indexes(index_url=broken, extra_index_urls=(url, ill)))) == 1
        # an empty folder is no answer to what the others may have
        places = Indexes(index_url=broken, extra_index_urls=(ill,), find_links=(tmp_path.as_uri(),))
        with pytest.raises(FetchError) as refused:
            files_of("demo", indexes=places)
    assert str(refused.value).startswith(f"demo: {broken}: ")
    assert str(refused.value).endswith(f"{ill}/demo/: 503 Service Unavailable")
