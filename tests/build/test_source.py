"""Sources: found on an index, pinned by hash, cached, unpacked, patched."""

import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from packaging.version import Version

from tests.factories.sources import PROJECT, index, member, pinned, sdist, served
from tests.factories.tools import needs
from vbuild.build.source import fetched_source, unpacked
from vbuild.errors import BuildError, FetchError
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.source import Folder, Git, Sdist

GIT = needs("git")

ANNOY = Sdist("annoy", Version("1.17.3"), "9cbfebefe0a5f843eba29c6be4c84d601f4f41ad4ded0486f1b88c3b07739c15")


def _only(url: str) -> Indexes:
    return Indexes(index_url=url)


def _cached(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*") if path.is_file() and path.parent.name != ".locks")


@pytest.mark.parametrize("stated", [None, ""])
def test_another_hash_is_refused_and_nothing_is_cached(tmp_path: Path, stated: str | None) -> None:
    archive = sdist(tmp_path)
    wanted = replace(pinned(archive), sha256="0" * 64)
    indexes = _only(index(tmp_path / "simple", archive, stated=stated).as_uri())
    with pytest.raises(FetchError) as refused:
        fetched_source(wanted, tmp_path / "cache", indexes=indexes)
    assert str(refused.value) == (
        f"demo==1.0: found demo-1.0.tar.gz with sha256 {pinned(archive).sha256}; the recipe expects sha256 {'0' * 64}"
    )
    assert _cached(tmp_path / "cache") == []


def test_a_password_comes_from_the_url_or_netrc_and_is_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = sdist(tmp_path)
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    with served(index(tmp_path / "simple", archive), login="me:secret") as url:
        inside = _only(url.replace("//", "//me:secret@"))
        assert fetched_source(pinned(archive), tmp_path / "one", indexes=inside).is_file()
        with pytest.raises(FetchError, match="401 Unauthorized") as refused:
            fetched_source(pinned(archive), tmp_path / "two", indexes=_only(url.replace("//", "//me:wrong-secret@")))
        assert "secret" not in str(refused.value)
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        assert fetched_source(pinned(archive), tmp_path / "three", indexes=_only(url)).is_file()


@pytest.mark.network
def test_a_real_sdist_is_fetched_through_the_configuration_of_pip(tmp_path: Path) -> None:
    tree = unpacked(fetched_source(ANNOY, tmp_path / "cache"), tmp_path / "tree")
    assert tree.name == "annoy-1.17.3"
    assert "-march=native" in (tree / "setup.py").read_text()
    with pytest.raises(FetchError, match=r"found annoy-1\.17\.3\.tar\.gz with sha256 9cbfebef"):
        fetched_source(replace(ANNOY, sha256="f" * 64), tmp_path / "cache")
    assert _cached(tmp_path / "cache") == [ANNOY.sha256]


def test_executable_bits_times_and_inner_links_are_kept(tmp_path: Path) -> None:
    archive = tmp_path / "demo-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member(tar, "demo-1.0/link", type=tarfile.SYMTYPE, linkname="sub/configure")
        member(tar, "demo-1.0/setup.py", "", mode=0o400)
        member(tar, "demo-1.0/sub/configure", "#!/bin/sh", mode=0o700, mtime=1_000_000)
        member(tar, "demo-1.0/hard", type=tarfile.LNKTYPE, linkname="demo-1.0/sub/configure")
    tree = unpacked(archive, tmp_path / "tree")
    configure = (tree / "sub/configure").stat()
    assert (stat.S_IMODE(configure.st_mode), configure.st_mtime) == (0o755, 1_000_000)
    assert stat.S_IMODE((tree / "setup.py").stat().st_mode) == 0o644
    assert (tree / "link").read_text() == (tree / "hard").read_text() == "#!/bin/sh"


Members = Callable[[tarfile.TarFile], None]


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda tar: member(tar, "/etc/x"), "/etc/x: reaches outside the archive; expected a relative path without .."),
        (
            lambda tar: member(tar, "demo-1.0/../../x"),
            "demo-1.0/../../x: reaches outside the archive; expected a relative path without ..",
        ),
        (
            lambda tar: member(tar, "other/x"),
            "other/x: found beside demo-1.0; expected one top folder with everything in it",
        ),
        (
            lambda tar: member(tar, "demo-1.0/l", type=tarfile.SYMTYPE, linkname="../../x"),
            "demo-1.0/l: links outside the archive, to '../../x'",
        ),
        (
            lambda tar: member(tar, "demo-1.0/l", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
            "demo-1.0/l: links outside the archive, to '/etc/passwd'",
        ),
        (
            lambda tar: member(tar, "demo-1.0/p", type=tarfile.FIFOTYPE),
            "demo-1.0/p: is neither a file, a folder nor a link",
        ),
    ],
)
def test_what_reaches_outside_the_top_folder_is_refused(tmp_path: Path, add: Members, message: str) -> None:
    archive = tmp_path / "demo.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member(tar, "demo-1.0/setup.py")
        add(tar)
    with pytest.raises(BuildError) as refused:
        unpacked(archive, tmp_path / "tree")
    assert str(refused.value) == f"demo.tar.gz: {message}"


def test_a_member_without_a_name_in_a_zip_is_the_folder_itself(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "demo-1.0.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo(""), b"")
        archive.writestr("demo-1.0/setup.py", "x = 1\n")
    assert unpacked(tmp_path / "demo-1.0.zip", tmp_path / "tree").name == "demo-1.0"


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    archive = tmp_path / "demo.tar.gz"
    (tmp_path / "outside").mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        member(tar, "demo-1.0/l", type=tarfile.SYMTYPE, linkname="../../outside")
        member(tar, "demo-1.0/l/x", "written")
    with pytest.raises(BuildError, match="cannot be unpacked"):
        unpacked(archive, tmp_path / "tree")
    assert list((tmp_path / "outside").iterdir()) == []


def test_links_through_links_do_not_lead_outside(tmp_path: Path) -> None:
    archive = tmp_path / "demo.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member(tar, "demo-1.0/setup.py")
        member(tar, "demo-1.0/a/b/c/x")
        member(tar, "demo-1.0/here", type=tarfile.SYMTYPE, linkname="a/b/c")
        member(tar, "demo-1.0/out", type=tarfile.SYMTYPE, linkname="here/../../../../..")
    with pytest.raises(BuildError, match="out: links outside the archive"):
        unpacked(archive, tmp_path / "tree")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_archive_is_refused_or_unpacked(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    archive = sdist(folder)
    damaged = bytearray(archive.read_bytes())
    for position in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=4)):
        damaged[position] ^= data.draw(st.integers(1, 255))
    archive.write_bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    try:
        unpacked(archive, folder / "tree")
    except BuildError as error:
        assert str(error).startswith("demo-1.0.tar.gz: ")  # noqa: PT017 - the law is that nothing else is raised


def test_an_archive_of_nothing_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "demo.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member(tar, ".", type=tarfile.DIRTYPE)
    with pytest.raises(BuildError) as refused:
        unpacked(archive, tmp_path / "tree")
    assert str(refused.value) == "demo.tar.gz: found no top folder; expected one with everything in it"


def test_the_project_may_be_in_a_subdirectory(tmp_path: Path) -> None:
    archive = sdist(tmp_path, {"python/setup.py": "", "src/x.c": ""})
    tree = unpacked(archive, tmp_path / "tree", subdirectory="python")
    assert (tree / "../src/x.c").is_file()
    with pytest.raises(BuildError, match="no project in its subdirectory 'src'"):
        unpacked(archive, tmp_path / "again", subdirectory="src")


PATCH = """\
--- a/demo.py
+++ b/demo.py
@@ -1 +1 @@
-answer = 42
+answer = 43
--- /dev/null
+++ b/more.py
@@ -0,0 +1 @@
+more = True
"""


@GIT
def test_patches_are_applied_to_the_copy(tmp_path: Path) -> None:
    archive, patch = sdist(tmp_path), tmp_path / "fix.patch"
    patch.write_text(PATCH)
    _git(tmp_path, "init", "--quiet")  # a checkout around the tree must not change what its paths mean
    tree = unpacked(archive, tmp_path / "tree", patches=[patch])
    assert (tree / "demo.py").read_text() == "answer = 43\n"
    assert (tree / "more.py").is_file()
    with pytest.raises(BuildError, match=r"fix\.patch: git apply: error: demo\.py: patch does not apply"):
        unpacked(sdist(tmp_path, {**PROJECT, "demo.py": "answer = 0\n"}), tmp_path / "again", patches=[patch])


def _git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def _repository(folder: Path) -> str:
    """The commit of a new repository in *folder* that has the demo project and a tag."""
    folder.mkdir()
    _git(folder, "init", "--quiet")
    for name, text in {**PROJECT, ".gitignore": "*.log\n"}.items():
        (folder / name).write_text(text)
    _git(folder, "add", ".")
    _git(folder, "commit", "--quiet", "-m", "first")
    _git(folder, "tag", "v1.0")
    return _git(folder, "rev-parse", "HEAD")


@GIT
def test_a_commit_is_fetched_once_and_copied_with_its_history(tmp_path: Path) -> None:
    commit = _repository(tmp_path / "repository")
    source = Git(str(tmp_path / "repository"), commit)
    cached = fetched_source(source, tmp_path / "cache")
    (tmp_path / "repository").rename(tmp_path / "gone")
    assert fetched_source(source, tmp_path / "cache") == cached
    tree = unpacked(cached, tmp_path / "tree")
    assert (tree / "demo.py").read_text() == PROJECT["demo.py"]
    assert _git(tree, "rev-parse", "HEAD") == commit
    assert _git(tree, "status", "--porcelain") == ""


@GIT
def test_a_changed_checkout_in_the_cache_is_fetched_again(tmp_path: Path) -> None:
    source = Git(str(tmp_path / "repository"), _repository(tmp_path / "repository"))
    cached = fetched_source(source, tmp_path / "cache")
    (cached / "demo.py").write_text("changed")
    assert (fetched_source(source, tmp_path / "cache") / "demo.py").read_text() == PROJECT["demo.py"]


@GIT
def test_a_submodule_that_names_a_folder_of_this_machine_is_refused(tmp_path: Path) -> None:
    _repository(tmp_path / "private")
    _repository(tmp_path / "repository")
    add = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", (tmp_path / "private").as_uri(), "more")
    _git(tmp_path / "repository", *add)
    _git(tmp_path / "repository", "commit", "--quiet", "-m", "second")
    source = Git(str(tmp_path / "repository"), _git(tmp_path / "repository", "rev-parse", "HEAD"))
    with pytest.raises(BuildError, match="git submodule: "):
        fetched_source(source, tmp_path / "cache")
    assert _cached(tmp_path / "cache") == []


@GIT
def test_a_commit_that_is_not_there_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    _repository(tmp_path / "repository")
    source = Git(str(tmp_path / "repository"), "0" * 40)
    with pytest.raises(BuildError, match="repository@000000000000: git checkout: "):
        fetched_source(source, tmp_path / "cache")
    assert _cached(tmp_path / "cache") == []


@GIT
def test_a_checkout_without_commits_is_copied_without_history(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    _git(tmp_path / "project", "init", "--quiet")
    (tmp_path / "project" / "setup.py").write_text("")
    tree = unpacked(fetched_source(Folder(tmp_path / "project")), tmp_path / "tree")
    assert [path.name for path in tree.iterdir()] == ["setup.py"]


def test_a_folder_is_copied_without_caches_and_environments(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    for name in ("setup.py", "src/x.c", "__pycache__/x.pyc", ".venv/pyvenv.cfg", ".hg/store", "dist/.vbuild-x/y"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    tree = unpacked(fetched_source(Folder(folder)), folder / "work")
    assert sorted(str(path.relative_to(tree)) for path in tree.rglob("*")) == [
        *("dist", "setup.py", "src", "src/x.c"),
    ]


def test_a_folder_that_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="gone: no such folder"):
        fetched_source(Folder(tmp_path / "gone"))
