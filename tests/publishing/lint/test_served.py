"""A site that is served, checked by its URL: a real server on this machine, whose pages `vbuild index` wrote."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories.ranges import serving
from tests.factories.release_folders import PLAIN, V2, V3, release_folder
from vbuild.errors import FetchError
from vbuild.publishing.check import check
from vbuild.variants.index import index

OTHER = "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\nRequires-Dist: x\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A static index of a sound release, as it lies on a server."""
    index(release_folder(tmp_path / "dist"), simple=tmp_path / "site" / "simple")
    return tmp_path / "site"


def problems_at(site: Path, page: str = "simple/") -> list[str]:
    with serving(site) as server:
        return [f"{found.place}: {found.what}" for found in check(f"{server.url}/{page}").problems]


@pytest.mark.parametrize("page", ["simple/", "simple", "simple/demo/", "simple/demo/index.json"])
def test_a_sound_site_has_no_problem(site: Path, page: str) -> None:
    with serving(site) as server:
        found = check(f"{server.url}/{page}")
    assert (found.releases, found.files, found.problems) == (("demo-1.0",), 5, ())
    assert found.place == f"{server.url}/{page}"


def _without_document(page: Path) -> None:
    _edit(page, lambda files: [file for file in files if not str(file["filename"]).endswith("-variants.json")])


def _edit(page: Path, edit: Callable[[list[dict[str, object]]], list[dict[str, object]]]) -> None:
    data = json.loads(page.read_bytes())
    data["files"] = edit(data["files"])
    page.write_text(json.dumps(data))


def _asking_too_much(files: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{**file, "requires-python": ">=3.13"} if file["filename"] == PLAIN else file for file in files]


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda folder: (folder / V3).unlink(), f"{V3}: 404"),
        (
            lambda folder: (folder / f"{V2}.metadata").write_text(OTHER),
            f"{V2}: has other METADATA beside it on the server: Requires-Dist: has 'x'",
        ),
        (
            lambda folder: (folder / f"{V2}.metadata").unlink(),
            f"{V2}: has METADATA beside it on the server, which cannot be read: ",
        ),
        (
            lambda folder: _edit(folder / "index.json", _asking_too_much),
            f"{PLAIN}: is listed with Requires-Python >=3.13, which its METADATA does not say",
        ),
        (
            lambda folder: _without_document(folder / "index.json"),
            "demo-1.0-variants.json: there are variant wheels but no demo-1.0-variants.json, and",
        ),
        (lambda folder: (folder / PLAIN).write_bytes(b"PK"), f"{PLAIN}: "),
    ],
    ids=["missing wheel", "other metadata", "missing metadata", "requires-python", "dropped document", "damaged wheel"],
)
def test_what_a_server_has_wrong_is_found(site: Path, damage: Callable[[Path], None], expected: str) -> None:
    folder = site / "simple" / "demo"
    for path in list(folder.iterdir()):  # they are links to those of the folder
        copy = path.with_name("copy")
        shutil.copyfile(path, copy)
        copy.replace(path)
    damage(folder)
    found = problems_at(site, "simple/demo/index.json")
    assert [line for line in found if line.startswith(expected)], found


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("nothing/", "404"),
        ("simple/demo/demo-1.0.tar.gz", "Content-Type"),
        ("empty/", "lists no wheel and no sdist; expected a page of links, or a simple index"),
    ],
)
def test_a_page_that_is_none_is_refused(site: Path, page: str, expected: str) -> None:
    (site / "empty").mkdir()
    with serving(site) as server, pytest.raises(FetchError) as refused:
        check(f"{server.url}/{page}")
    assert str(refused.value).startswith(f"{server.url}/{page}: ")
    assert expected in str(refused.value)


def test_an_index_of_too_many_projects_is_refused(tmp_path: Path) -> None:
    links = "".join(f'<a href="p{number}/">p{number}</a>' for number in range(1001))
    (tmp_path / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    with serving(tmp_path) as server, pytest.raises(FetchError) as refused:
        check(f"{server.url}/")
    expected = f"1001 projects, expected 1000 at most; name one's page, as {server.url}/p0/"
    assert str(refused.value) == f"{server.url}/: {expected}"


def test_a_password_is_not_shown(site: Path) -> None:
    with serving(site) as server:
        found = check(server.url.replace("//", "//me:secret@") + "/simple/")
    assert "secret" not in found.place
