"""What a mirror does not do for others: pass on logins, trust files that somebody changed, follow links, leave http."""

import json
import shutil
from pathlib import Path

import pytest

from tests.factories.mirrors import FAT, PLAIN, fleet, lock_of
from tests.factories.ranges import Serving
from tests.factories.sources import sha256
from tests.factories.wheels import wheel
from vbuild.errors import VbuildError
from vbuild.mirroring.check import checked_mirror
from vbuild.mirroring.mirror import mirror
from vbuild.mirroring.model import MirrorRequest

WORD = "correct-horse-battery"


def locked(server: Serving, wheels: Path, folder: Path, name: str = FAT, *, login: str = "") -> str:
    """A lock of the wheel *name* at its URL on *server*."""
    url = f"{server.url}/{name.partition('-')[0]}/{name}".replace("://", f"://{login}")
    return str(lock_of(folder / "pylock.toml", wheels / name, path=None, url=url))


def test_a_login_in_a_lock_is_not_passed_on(server: Serving, wheels: Path, tmp_path: Path) -> None:
    source = locked(server, wheels, tmp_path, login=f"me:{WORD}@")
    mirror([source], tmp_path / "site", fleet("9.0"), MirrorRequest())
    assert [one for one in server.asked if "authorization" in {name.lower() for name in one[1]}]
    said = [path for path in (tmp_path / "site").rglob("*") if path.is_file() and WORD.encode() in path.read_bytes()]
    assert not said
    stated = json.loads((tmp_path / "site/mirror.json").read_text())["files"][0]["original"]["url"]
    assert stated == f"{server.url}/fat/{FAT}"


@pytest.mark.parametrize("name", [FAT, PLAIN])
def test_a_kept_original_that_somebody_changed_is_fetched_again(
    server: Serving, wheels: Path, tmp_path: Path, name: str
) -> None:
    originals, source = tmp_path / "originals", locked(server, wheels, tmp_path, name)
    originals.mkdir()
    other = wheel(tmp_path / "other", name, {"evil.py": "x = 1\n"})
    shutil.copy(other, originals / sha256(wheels / name))
    mirror([source], tmp_path / "site", fleet("9.0"), MirrorRequest(originals=originals))
    assert sha256(originals / sha256(wheels / name)) == sha256(wheels / name)
    assert checked_mirror(tmp_path / "site").problems == ()


def test_a_link_among_kept_originals_is_not_followed(server: Serving, wheels: Path, tmp_path: Path) -> None:
    originals, ours = tmp_path / "originals", tmp_path / "ours"
    originals.mkdir()
    ours.write_text("mine")
    (originals / f"{sha256(wheels / FAT)}.part").symlink_to(ours)
    with pytest.raises(VbuildError) as refused:
        mirror([locked(server, wheels, tmp_path)], tmp_path / "site", fleet("9.0"), MirrorRequest(originals=originals))
    assert str(refused.value) == f"{FAT}: {originals}: cannot be written: Too many levels of symbolic links"
    assert ours.read_text() == "mine"


def test_a_file_that_is_another_when_it_is_fetched_is_refused(server: Serving, wheels: Path, tmp_path: Path) -> None:
    source = locked(server, wheels, tmp_path, PLAIN)
    listed = next(path for path in (tmp_path / "index").rglob(PLAIN))
    listed.unlink()
    wheel(listed.parent, PLAIN, {"plain.py": "x = 3\n"})
    with pytest.raises(VbuildError, match=r"expected [0-9a-f]{64}, which the lock has"):
        mirror([source], tmp_path / "site", fleet("9.0"), MirrorRequest())
    assert not (tmp_path / "site").exists()


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("place", ["nowhere", "pip", "requirements"])
def test_a_page_of_a_server_leads_to_no_file_of_this_machine(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Unless it lies where the user has uv look anyway."""
    page = tmp_path / "index/plain/index.html"
    page.write_text(f'<a href="{(wheels / PLAIN).as_uri()}">{PLAIN}</a>')
    (page.parent / PLAIN).unlink()
    page.with_name("index.json").unlink(missing_ok=True)
    source = tmp_path / "requirements.txt"
    source.write_text("plain\n" + ("--find-links wheels\n" if place == "requirements" else ""))
    if place == "pip":
        monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    if place != "nowhere":
        assert mirror([str(source)], tmp_path / "site", fleet("9.0"), MirrorRequest()).fetched == 1
        return
    with pytest.raises(VbuildError, match=r"sm90: plain: /.*: a file of this machine, which the page of an index "):
        mirror([str(source)], tmp_path / "site", fleet("9.0"), MirrorRequest())
    assert not (tmp_path / "site").exists()
