"""What a mirror refuses, each in one line that names the place; the site stays as it was."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.factories.mirrors import FAT, PLAIN, fleet, lock_of
from tests.factories.sources import sha256
from tests.factories.workdir import file_digests
from vbuild.errors import VbuildError
from vbuild.mirroring.check import checked_mirror
from vbuild.mirroring.mirror import mirror
from vbuild.mirroring.model import MirrorRequest
from vbuild.mirroring.site import write_artifacts


def run(source: Path | str, site: Path, *gpus: str) -> None:
    mirror([str(source)], site, fleet(*(gpus or ("9.0",))), MirrorRequest())


def refusal(source: Path | str, site: Path, *gpus: str) -> str:
    """What a mirror of *source* is refused with; *site* is then as it was."""
    before = file_digests(site) if site.exists() else None
    with pytest.raises(VbuildError) as refused:
        run(source, site, *gpus)
    assert (file_digests(site) if site.exists() else None) == before
    return " ".join(str(refused.value).split())


@pytest.fixture
def lock(wheels: Path, tmp_path: Path) -> Path:
    return lock_of(tmp_path / "pylock.toml", wheels / FAT, wheels / PLAIN)


@pytest.fixture
def site(lock: Path, tmp_path: Path) -> Path:
    run(lock, tmp_path / "site")
    return tmp_path / "site"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hashes": {"sha256": "0" * 64}}, "has sha256 "),
        ({"size": 5}, " bytes, expected 5, which the lock has"),
        ({"size": -5}, " bytes, expected -5, which the lock has"),
        ({"size": 10**30}, f" bytes, expected {10**30}, which the lock has"),
        ({"hashes": {"md5": "0" * 32}}, "no SHA-256 is stated; expected one to hold it to"),
        (
            {"path": "nowhere/fat-1.0-py3-none-any.whl"},
            "nowhere/fat-1.0-py3-none-any.whl: cannot be read: No such file",
        ),
        (
            {"path": "other-1.0-py3-none-any.whl"},
            "Name in 'other-1.0-py3-none-any.whl' is not consistent with package name",
        ),
        ({"name": "fat-1.0-cp27-cp27m-win32.whl"}, "No wheel found matching the provided tags for package 'fat'"),
        ({"path": None, "url": "ftp://example.org/fat-1.0-py3-none-any.whl"}, "expected a URL of http or https"),
        ({"path": None, "url": "http://127.0.0.1:9/fat-1.0-py3-none-any.whl"}, "Connection refused"),
    ],
    ids=[
        "other bytes",
        "other size",
        "size below 0",
        "size of no file",
        "weak hash",
        "no file",
        "another project",
        "another platform",
        "scheme",
        "no server",
    ],
)
def test_a_lock_that_cannot_be_followed(
    wheels: Path, site: Path, tmp_path: Path, changed: dict[str, object], said: str
) -> None:
    source = lock_of(tmp_path / "pylock.other.toml", wheels / FAT, **changed)
    assert said in refusal(source, site)


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_is_none_in_utc_is_left_out(lock: Path, tmp_path: Path, time: str) -> None:
    lock.write_text(lock.read_text().replace("hashes", f"upload-time = {time}, hashes"))
    run(lock, tmp_path / "site")
    assert "upload-time" not in (tmp_path / "site/pylock.sm90.toml").read_text()


def test_a_lock_that_is_none(site: Path, tmp_path: Path) -> None:
    source = tmp_path / "pylock.toml"
    source.write_text("lock-version = ")
    assert refusal(source, site).startswith(f"{source}: no lock as PEP 751 has it: ")
    source.write_text('lock-version = "9.0"\ncreated-by = "demo"\npackages = []\n')
    assert "9.0" in refusal(source, site)
    assert refusal(tmp_path / "pylock.none.toml", site) == (
        f"{tmp_path / 'pylock.none.toml'}: cannot be read: No such file or directory"
    )


def test_what_comes_from_elsewhere_than_an_index(site: Path, tmp_path: Path) -> None:
    source = tmp_path / "pylock.toml"
    vcs = 'vcs = { type = "git", url = "https://example.org/fat", commit-id = "0" }'
    source.write_text(
        f'lock-version = "1.0"\ncreated-by = "demo"\n[[packages]]\nname = "fat"\nversion = "1.0"\n{vcs}\n'
    )
    said = "sm90: fat: comes from elsewhere than an index; expected a wheel or an sdist there"
    assert refusal(source, site) == f"{source}: {said}"


def test_what_is_no_source(site: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    assert refusal(tmp_path / "pyproject.toml", site).endswith(": run `uv lock` there, and name its uv.lock")
    (tmp_path / "demo.lock").write_text("")
    assert "expected requirements.txt, pylock.toml, uv.lock, or a requirement" in refusal(tmp_path / "demo.lock", site)
    assert refusal("no such thing", site).startswith("no such thing: no such file, and no requirement; expected ")
    assert (
        refusal(tmp_path / "gone/uv.lock", site)
        == f"{tmp_path / 'gone/uv.lock'}: cannot be read: No such file or directory"
    )


def test_two_versions_of_a_project(wheels: Path, lock: Path, tmp_path: Path) -> None:
    newer = shutil.copy(wheels / FAT, wheels / FAT.replace("1.0", "1.1"))
    other = lock_of(tmp_path / "pylock.other.toml", Path(newer))
    with pytest.raises(VbuildError, match="expected one of them, as an environment has"):
        mirror([str(lock), str(other)], tmp_path / "site", fleet("9.0"), MirrorRequest())


def test_a_damaged_wheel_is_not_passed_on(wheels: Path, tmp_path: Path) -> None:
    for name in (FAT, PLAIN):
        data = bytearray((wheels / name).read_bytes())
        data[len(data) // 3] ^= 1
        (wheels / name).write_bytes(data)
        said = refusal(lock_of(tmp_path / "pylock.toml", wheels / name), tmp_path / "site")
        assert said.startswith(f"{name}: ")
        assert not (tmp_path / "site").exists()


def test_a_folder_that_is_no_mirror(lock: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "mine.txt").write_text("")
    assert refusal(lock, site) == f"{site}: has no mirror.json; expected a mirror, or a new folder"
    (site / "mirror.json").write_text('{"files": [{"path": 1}]}')
    assert refusal(lock, site).startswith(f"{site / 'mirror.json'}: is not what vbuild wrote: ")


@pytest.mark.parametrize(
    ("place", "value"),
    [("project", "../../etc"), ("file", "../fat-1.0-py3-none-any.whl"), ("file", "fat.txt"), ("project", "plain")],
)
def test_a_mirror_json_with_another_place_is_not_followed(lock: Path, site: Path, place: str, value: str) -> None:
    path = site / "mirror.json"
    data = json.loads(path.read_text())
    data["files"][0]["original"][place] = value
    path.write_text(json.dumps(data))
    assert refusal(lock, site).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda site: site["machines"][0].update(name="../x"), "'../x' is not a name of a machine"),
        (lambda site: site["machines"][0].update(name="a\0b"), "'a\\x00b' is not a name of a machine"),
        (lambda site: site["machines"][0].update(python='3"\nx = "'), "is not a version of Python"),
        (lambda site: site["files"][0].update(sha256="../../x"), "'../../x' is not a SHA-256"),
        (lambda site: site["files"][0]["original"].update(sha256='"'), "is not a SHA-256"),
        (lambda site: site["files"][0]["original"].update(version="1\n--index-url x"), "is not a version"),
        (lambda site: site["files"][0]["original"].update(uploaded='2026"'), "is not a time"),
    ],
)
def test_a_mirror_json_of_somebody_else_puts_nothing_into_locks_and_paths(
    site: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    path = site / "mirror.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    for use in (checked_mirror, lambda folder: write_artifacts(folder, tmp_path / "layout")):
        with pytest.raises(VbuildError) as refused:
            use(site)
        assert str(refused.value).startswith(f"{path}: is not what vbuild wrote: ")
        assert str(refused.value).endswith(said)
    assert not (tmp_path / "layout").exists()


def test_machines_with_one_name_and_none(lock: Path, tmp_path: Path) -> None:
    with pytest.raises(VbuildError, match="two machines are called 'sm90'"):
        mirror([str(lock)], tmp_path / "site", (*fleet("9.0"), *fleet("9.0")), MirrorRequest())
    with pytest.raises(VbuildError, match="no machine; expected a description of one"):
        mirror([str(lock)], tmp_path / "site", (), MirrorRequest())


def _json(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def changed(path: Path) -> None:
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))

    return changed


def _more(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


@pytest.mark.parametrize(
    ("file", "tamper", "said"),
    [
        (f"simple/fat/{FAT}", _more, "has other bytes; delete it"),
        (f"simple/fat/{FAT}", Path.unlink, "cannot be read: No such file or directory; run vbuild mirror again"),
        (f"simple/fat/{FAT}.metadata", _more, "METADATA beside it is not its own"),
        (f"simple/plain/{PLAIN}.metadata", _more, "METADATA beside it is not its own"),
        ("simple/more/evil-1.0-py3-none-any.whl", lambda path: (path.parent.mkdir(), path.touch()), "nobody knows"),
        ("simple/fat/index.html", lambda path: path.write_text("<a href=x>"), "does not have the hash of"),
        ("simple/fat/index.json", _json(lambda data: data["files"].clear()), "is not listed"),  # type: ignore[attr-defined]
        ("simple/index.json", _json(lambda data: data["projects"].clear()), "is not listed"),  # type: ignore[attr-defined]
        ("pylock.sm90.toml", _more, "is not what the files of sm90 come to"),
        ("pylock.sm80.toml", Path.touch, "is of no machine that mirror.json has"),
        ("constraints.sm90.txt", Path.unlink, "is not what the files of sm90 come to"),
        ("provenance.json", _json(lambda data: data["subject"].clear()), "does not say of"),  # type: ignore[attr-defined]
        ("provenance.json", Path.unlink, "cannot be read; expected a statement on each changed wheel"),
    ],
)
def test_a_changed_site_is_noticed(site: Path, file: str, tamper: Callable[[Path], object], said: str) -> None:
    assert checked_mirror(site).problems == ()
    tamper(site / file)
    assert any(said in problem for problem in checked_mirror(site).problems)


def test_a_wheel_that_was_deleted_comes_again(lock: Path, site: Path) -> None:
    before = file_digests(site)
    (site / "simple/fat" / FAT).unlink()
    run(lock, site)
    assert file_digests(site) == before
    assert sha256(site / "simple/fat" / FAT) in (site / "pylock.sm90.toml").read_text()
