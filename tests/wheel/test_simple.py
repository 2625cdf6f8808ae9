import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.factories.simple_indexes import write_simple
from tests.factories.wheels import contents, wheel
from tests.factories.workdir import file_digests
from vbuild.errors import WheelError
from vbuild.files.atomic import stage_in

VARIANT = {"demo_pkg-1.0+cu12.dist-info/variant.json": b"{}"}
NAMES = ("demo_pkg-1.0+cu12-py3-none-any.whl", "demo_pkg-1.0+cu12-py3-none-any-v3.whl", "demo_pkg-0.9-py3-none-any.whl")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class Links(HTMLParser):
    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.append(dict(attrs))


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A folder of two releases, one of them with a variant."""
    folder = tmp_path / "dist"
    asks = 'Requires-Python: >=3.8,<"5"\n'.replace('"', "")
    wheel(folder, NAMES[0], {"demo.py": "VALUE = 1\n"}, metadata=asks)
    wheel(folder, NAMES[1], {"demo.py": "VALUE = 3\n", **VARIANT}, metadata=asks)
    wheel(folder, NAMES[2], {"demo.py": "VALUE = 0\n"})
    (folder / "demo_pkg-1.0+cu12-variants.json").write_bytes(b'{"variants": {}}')
    (folder / "report.json").write_bytes(b"{}")
    return folder


@pytest.fixture
def url(dist: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a plain file server over the written index."""
    write_simple(dist, tmp_path / "simple")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "simple"))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_every_file_is_listed_with_what_installers_ask_for(dist: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "simple"
    write_simple(dist, out)
    page = json.loads((out / "demo-pkg" / "index.json").read_text())
    assert page["meta"] == {"api-version": "1.1"}
    assert page["name"] == "demo-pkg"
    assert page["versions"] == ["0.9", "1.0+cu12"]
    files: dict[str, dict[str, Any]] = {file["filename"]: file for file in page["files"]}
    assert list(files) == sorted([*NAMES, "demo_pkg-1.0+cu12-variants.json"])
    for name, file in files.items():
        data = (out / "demo-pkg" / name).read_bytes()
        assert data == (dist / name).read_bytes()
        assert file["hashes"] == {"sha256": hashlib.sha256(data).hexdigest()}
        assert file["size"] == len(data)
        assert file["url"] == name.replace("+", "%2B")
    for name in NAMES:
        metadata = (out / "demo-pkg" / f"{name}.metadata").read_bytes()
        assert metadata in contents(dist / name).values()
        assert files[name]["core-metadata"] == {"sha256": hashlib.sha256(metadata).hexdigest()}
    assert files[NAMES[0]]["requires-python"] == ">=3.8,<5"
    assert "requires-python" not in files[NAMES[2]]


def test_the_two_spellings_of_a_page_agree(dist: Path, tmp_path: Path) -> None:
    write_simple(dist, tmp_path / "simple")
    folder = tmp_path / "simple" / "demo-pkg"
    listed = [
        (
            f"{file['url']}#sha256={file['hashes']['sha256']}",
            file.get("requires-python"),
            "core-metadata" in file and f"sha256={file['core-metadata']['sha256']}",
        )
        for file in json.loads((folder / "index.json").read_text())["files"]
    ]
    linked = [
        (link["href"], link.get("data-requires-python"), link.get("data-core-metadata", False))
        for link in Links(folder / "index.html").found
    ]
    assert linked == listed
    assert [link["href"] for link in Links(tmp_path / "simple" / "index.html").found] == ["demo-pkg/"]
    root = json.loads((tmp_path / "simple" / "index.json").read_text())
    assert root == {"meta": {"api-version": "1.1"}, "projects": [{"name": "demo-pkg"}]}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_installers_install_from_it(url: str, tmp_path: Path, tool: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    command = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--isolated"]
    if tool == "uv":
        command = [str(uv), "pip", "install", "--no-cache", "--no-config"]
    target = tmp_path / "target"
    done = subprocess.run(
        [*command, "--no-deps", "--index-url", url, "--target", str(target), "demo-pkg"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (target / "demo.py").read_text() == "VALUE = 1\n"


def test_an_empty_folder_is_taken(dist: Path, tmp_path: Path) -> None:
    (tmp_path / "simple").mkdir()
    write_simple(dist, tmp_path / "simple")
    assert (tmp_path / "simple" / "index.html").exists()


def test_a_folder_in_use_is_refused(dist: Path, tmp_path: Path) -> None:
    before = sorted(dist.iterdir())
    for out in (dist, dist / "report.json"):
        message = f"{out}: exists and is not an empty folder; choose another one"
        with pytest.raises(WheelError, match=f"^{re.escape(message)}$"):
            write_simple(dist, out)
    assert sorted(dist.iterdir()) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dist"]


def listed(index: Path, project: str = "demo-pkg") -> list[str]:
    """The files that the pages of *project* list, all of which are there with the hash and METADATA that they have."""
    folder = index / project
    files = json.loads((folder / "index.json").read_text())["files"]
    for file in files:
        assert hashlib.sha256((folder / file["filename"]).read_bytes()).hexdigest() == file["hashes"]["sha256"]
    there = {path.name for path in folder.iterdir()} - {"index.html", "index.json"}
    assert there == {name for file in files for name in names_of(file)}
    assert [link["href"] for link in Links(folder / "index.html").found] == [
        f"{file['url']}#sha256={file['hashes']['sha256']}" for file in files
    ]
    return [file["filename"] for file in files]


def names_of(file: dict[str, Any]) -> list[str]:
    return [file["filename"], *([f"{file['filename']}.metadata"] if "core-metadata" in file else [])]


def test_a_release_becomes_what_the_folder_has_of_it(dist: Path, tmp_path: Path) -> None:
    """A wheel that is gone from the folder is gone from the index, and one that was built again is replaced."""
    write_simple(dist, tmp_path / "site")
    (dist / NAMES[1]).unlink()
    (dist / NAMES[0]).unlink()  # it is one file with that in the index
    wheel(dist, NAMES[0], {"demo.py": "VALUE = 7\n"})
    write_simple(dist, tmp_path / "site")
    assert listed(tmp_path / "site") == sorted([NAMES[0], NAMES[2], "demo_pkg-1.0+cu12-variants.json"])
    assert (tmp_path / "site" / "demo-pkg" / NAMES[0]).read_bytes() == (dist / NAMES[0]).read_bytes()


@pytest.mark.parametrize(("removed", "left"), [("Demo.pkg==0.9", 3), ("demo_pkg == 1.0+cu12", 1), ("demo-pkg", 0)])
def test_a_release_can_be_removed(dist: Path, tmp_path: Path, removed: str, left: int) -> None:
    write_simple(dist, tmp_path / "site")
    (tmp_path / "empty").mkdir()
    write_simple(tmp_path / "empty", tmp_path / "site", remove=[removed])
    projects = json.loads((tmp_path / "site" / "index.json").read_text())["projects"]
    assert projects == ([{"name": "demo-pkg"}] if left else [])
    assert (len(listed(tmp_path / "site")) if left else 0) == left
    assert (tmp_path / "site" / "demo-pkg").exists() is bool(left)


@pytest.mark.parametrize(
    ("removed", "said"),
    [
        ("demo-pkg==3", "has no demo-pkg==3 to remove; it has demo-pkg==0.9, demo-pkg==1.0+cu12"),
        ("nothing", "has no nothing to remove"),
        ("demo-pkg==one", "no version 'one'"),
    ],
)
def test_what_is_not_there_is_not_removed(dist: Path, tmp_path: Path, removed: str, said: str) -> None:
    write_simple(dist, tmp_path / "site")
    before = file_digests(tmp_path / "site")
    with pytest.raises(WheelError, match=re.escape(said)):
        write_simple(dist, tmp_path / "site", remove=[removed])
    assert file_digests(tmp_path / "site") == before


@pytest.mark.parametrize("text", ["[]", "{", '{"projects": [{"name": "../dist"}]}', '{"projects": [{"name": "x"}]}'])
def test_an_index_of_others_is_refused(dist: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.json").write_text(text)
    with pytest.raises(WheelError, match="exists and is not an index that vbuild wrote"):
        write_simple(dist, tmp_path / "site")
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["index.json"]


def test_an_sdist_is_listed_with_the_pythons_it_is_for(dist: Path, tmp_path: Path) -> None:
    info = b"Metadata-Version: 2.1\nName: demo-pkg\nVersion: 2.0\nRequires-Python: >=3.9\n"
    with tarfile.open(dist / "demo_pkg-2.0.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("demo_pkg-2.0/PKG-INFO")
        member.size = len(info)
        archive.addfile(member, io.BytesIO(info))
    (dist / "logs.tar.gz").write_bytes(b"")
    write_simple(dist, tmp_path / "site")
    page = json.loads((tmp_path / "site" / "demo-pkg" / "index.json").read_text())
    (sdist,) = [file for file in page["files"] if file["filename"].endswith(".tar.gz")]
    assert (sdist["filename"], sdist["requires-python"]) == ("demo_pkg-2.0.tar.gz", ">=3.9")
    (dist / "demo_pkg-2.0.tar.gz").write_bytes(b"no archive")
    with pytest.raises(WheelError, match=r"demo_pkg-2\.0\.tar\.gz: not a gzipped tar archive, or damaged"):
        write_simple(dist, tmp_path / "other")


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.factories.simple_indexes import write_simple
dist, site, last = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
seen = 0
def count(event, _):
    global seen
    if event in {"open", "os.rename", "os.remove", "os.mkdir", "os.link", "os.rmdir", "ctypes.dlsym", "os.scandir"}:
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
write_simple(dist, site)
print(seen)
"""


@pytest.mark.nightly
def test_an_update_that_is_killed_leaves_the_old_index_or_the_new_one(dist: Path, tmp_path: Path) -> None:
    wheel(tmp_path / "new", "demo_pkg-2.0-py3-none-any.whl", {"demo.py": "VALUE = 9\n"})

    def updated(name: str, last: int) -> tuple[subprocess.CompletedProcess[str], Path]:
        site = tmp_path / name / "site"
        write_simple(dist, site)
        command = [sys.executable, "-c", KILLED, str(tmp_path / "new"), str(site), str(last)]
        return subprocess.run(command, capture_output=True, text=True, check=False), site

    ran, site = updated("whole", 0)
    new, count = file_digests(site), int(ran.stdout)
    write_simple(dist, tmp_path / "before")
    old = file_digests(tmp_path / "before")
    found = set()
    for last in sorted({*range(1, count, max(count // 8, 1)), count - 2}):
        ran, site = updated(str(last), last)
        assert ran.returncode == -9
        there = file_digests(site)
        assert there in (old, new), last
        found.add(there == new)
        # the next run removes what this one left
        write_simple(tmp_path / "new", site)
        left = [path for path in site.parent.iterdir() if path != site]
        assert [path for path in left if (path / "alive").exists()] == [], last
        assert file_digests(site) == new
    assert found == {True, False}


def test_the_work_of_a_run_that_lives_is_left_alone(dist: Path, tmp_path: Path) -> None:
    dead = tmp_path / ".vbuild-0123"
    with stage_in(tmp_path) as living:
        (dead / "site").mkdir(parents=True)
        (dead / "alive").touch()
        write_simple(dist, tmp_path / "site")
        assert sorted(path.name for path in tmp_path.glob(".*")) == [living.name]


def test_an_index_that_cannot_be_made_is_refused(dist: Path) -> None:
    with pytest.raises(WheelError, match=r"report\.json/simple: cannot be written: Not a directory$"):
        write_simple(dist, dist / "report.json" / "simple")


def test_an_index_on_another_file_system_holds_copies(dist: Path, other_file_system: Path) -> None:
    write_simple(dist, other_file_system / "simple")
    for name in NAMES:
        copy = other_file_system / "simple" / "demo-pkg" / name
        assert copy.read_bytes() == (dist / name).read_bytes()
        assert not copy.samefile(dist / name)


def test_nothing_is_left_of_an_index_with_a_damaged_wheel(dist: Path, tmp_path: Path) -> None:
    (dist / "zzz-1.0-py3-none-any.whl").write_bytes(b"")
    with pytest.raises(WheelError, match=r"^zzz-1\.0-py3-none-any\.whl: not a zip archive, or truncated"):
        write_simple(dist, tmp_path / "simple")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dist"]


def test_a_document_called_otherwise_is_refused(dist: Path, tmp_path: Path) -> None:
    path = dist / "demo-variants.json"
    path.write_bytes(b"{}")
    message = f"{path}: expected a file name like {{name}}-{{version}}-variants.json"
    with pytest.raises(WheelError, match=f"^{re.escape(message)}$"):
        write_simple(dist, tmp_path / "simple")
