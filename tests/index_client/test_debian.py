"""Upstream sources from Debian's mirrors: which those are, where a file is there, and that its hash is what counts."""

from pathlib import Path

import pytest

from tests.factories.sources import served, sha256
from vbuild.errors import FetchError
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.debian import VARIABLE, Mirror, fetch_debian, mirrors

HERE = Indexes(no_index=True)

ONE_LINE = """
# deb http://commented.example.org/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] http://one.example.org/debian/ bookworm main contrib  # a remark
deb-src http://one.example.org/debian bookworm main
deb cdrom:[Debian]/ bookworm main
deb http://flat.example.org/packages ./
"""
DEB822 = """# a remark
Types: deb deb-src
URIs: http://two.example.org/debian
  https://three.example.org/debian
Suites: sid
Components: main
 universe
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----

Types: deb
Enabled: no
URIs: http://off.example.org/debian
Suites: sid
Components: main
"""


def _apt(folder: Path, **files: str) -> Path:
    (folder / "sources.list.d").mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", "/sources.list.d/").replace("_", ".").lstrip("/")).write_text(text)
    return folder


def _pool(folder: Path, *files: str, component: str = "main") -> Path:
    for file in files:
        path = folder / "pool" / component / "g/gmp" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"what is in {file}")
    return folder


def test_mirrors_are_those_of_apt_in_either_form(tmp_path: Path) -> None:
    apt = _apt(tmp_path, sources_list=ONE_LINE, __debian_sources=DEB822)
    assert mirrors({}, apt=apt) == (
        Mirror("http://one.example.org/debian", ("main", "contrib")),
        Mirror("http://two.example.org/debian", ("main", "universe")),
        Mirror("https://three.example.org/debian", ("main", "universe")),
    )


def test_a_variable_takes_the_place_of_apts_mirrors(tmp_path: Path) -> None:
    apt = _apt(tmp_path, sources_list=ONE_LINE)
    assert mirrors({VARIABLE: "http://mine.example.org/debian/"}, apt=apt) == (
        Mirror("http://mine.example.org/debian"),
    )


def test_a_machine_without_apt_has_no_mirrors(tmp_path: Path) -> None:
    assert mirrors({}, apt=tmp_path / "gone") == ()


def test_libraries_have_folders_of_four_letters() -> None:
    places = [place.rpartition("/")[0] for place in Mirror("file:", ("main",)).places("libpng1.6", "1.6.50")]
    assert set(places) == {"file:/pool/main/libp/libpng1.6"}


@pytest.mark.nightly
def test_a_source_comes_from_the_first_mirror_that_has_it(tmp_path: Path) -> None:
    pool = _pool(tmp_path / "pool", "gmp_6.3.0+dfsg.orig.tar.gz", component="universe")
    (tmp_path / "empty").mkdir()
    wanted = sha256(pool / "pool/universe/g/gmp/gmp_6.3.0+dfsg.orig.tar.gz")
    with served(tmp_path / "empty") as empty, served(pool) as full:
        archives = [Mirror(empty), Mirror("http://127.0.0.1:9"), Mirror(full, ("main", "universe"))]
        fetch_debian("gmp", "6.3.0+dfsg", wanted, tmp_path / "got", indexes=HERE, archives=archives)
    assert sha256(tmp_path / "got") == wanted


def test_a_folder_can_be_a_mirror(tmp_path: Path) -> None:
    pool = _pool(tmp_path / "pool", "gmp_6.3.0.orig.tar.xz")
    wanted = sha256(pool / "pool/main/g/gmp/gmp_6.3.0.orig.tar.xz")
    fetch_debian("gmp", "6.3.0", wanted, tmp_path / "got", indexes=HERE, archives=[Mirror(pool.as_uri())])
    assert sha256(tmp_path / "got") == wanted


def test_a_version_that_is_gone_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    pool = _pool(tmp_path / "pool", "gmp_6.3.0.orig.tar.xz")
    with served(pool) as url, pytest.raises(FetchError) as refused:
        fetch_debian("gmp", "6.2.1", "0" * 64, tmp_path / "got", indexes=HERE, archives=[Mirror(url)])
    assert str(refused.value) == (
        f"Debian source gmp 6.2.1: no gmp_6.2.1.orig.tar.xz, .gz or .bz2 on {url}; expected an upstream version that "
        f"is there, without epoch and revision, or another mirror in VBUILD_DEBIAN_MIRROR"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pool"]


def test_another_hash_is_refused_with_what_was_found(tmp_path: Path) -> None:
    pool = _pool(tmp_path / "pool", "gmp_6.3.0.orig.tar.xz")
    found = sha256(pool / "pool/main/g/gmp/gmp_6.3.0.orig.tar.xz")
    with served(pool) as url, pytest.raises(FetchError) as refused:
        fetch_debian("gmp", "6.3.0", "0" * 64, tmp_path / "got", indexes=HERE, archives=[Mirror(url)])
    assert str(refused.value) == (
        f"Debian source gmp 6.3.0: found gmp_6.3.0.orig.tar.xz with sha256 {found}; "
        f"the recipe expects sha256 {'0' * 64}"
    )
    assert not (tmp_path / "got").exists()


def test_a_mirror_that_cannot_be_reached_is_asked_once_and_named_once(tmp_path: Path) -> None:
    pool = _pool(tmp_path / "pool", "gmp_6.3.0.orig.tar.xz")
    found = sha256(pool / "pool/main/g/gmp/gmp_6.3.0.orig.tar.xz")
    dead = Mirror("http://user:secret@127.0.0.1:9/debian", ("main", "contrib"))
    with served(pool) as url, pytest.raises(FetchError) as refused:
        fetch_debian("gmp", "6.3.0", "0" * 64, tmp_path / "got", indexes=HERE, archives=[dead, Mirror(url)])
    assert str(refused.value) == (
        f"Debian source gmp 6.3.0: found gmp_6.3.0.orig.tar.xz with sha256 {found}; "
        f"the recipe expects sha256 {'0' * 64}; http://***@127.0.0.1:9/debian: [Errno 111] Connection refused"
    )


def test_a_mirror_that_fails_is_named_once_and_its_password_is_not(tmp_path: Path) -> None:
    with served(tmp_path, login="somebody:else") as url:
        archives = [Mirror(url.replace("//", "//user:secret@"), ("main", "contrib"))]
        with pytest.raises(FetchError) as refused:
            fetch_debian("gmp", "6.3.0", "0" * 64, tmp_path / "got", indexes=HERE, archives=archives)
    where = url.replace("//", "//***@")
    assert str(refused.value) == (
        f"Debian source gmp 6.3.0: no gmp_6.3.0.orig.tar.xz, .gz or .bz2 on {where}; {where}: 401 Unauthorized; "
        f"expected an upstream version that is there, without epoch and revision, or another mirror in "
        f"VBUILD_DEBIAN_MIRROR"
    )


def test_a_transfer_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    pool = _pool(tmp_path / "pool", "gmp_6.3.0.orig.tar.xz")
    with served(pool, broken=True) as url, pytest.raises(FetchError) as refused:
        fetch_debian("gmp", "6.3.0", "0" * 64, tmp_path / "got", indexes=HERE, archives=[Mirror(url)])
    assert f"; {url}: " in str(refused.value)
    assert "\n" not in str(refused.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pool"]


def test_without_any_mirror_a_variable_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FetchError) as refused:
        fetch_debian("gmp", "6.3.0", "0" * 64, tmp_path / "got", indexes=HERE, archives=())
    assert str(refused.value) == (
        "Debian source gmp 6.3.0: no mirror, as apt has none here; expected the URL of one in VBUILD_DEBIAN_MIRROR"
    )
