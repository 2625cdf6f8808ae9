import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.plugins import plugin
from tests.factories.wheels import wheel
from vbuild.errors import VariantError
from vbuild.files.hashing import sha256_of
from vbuild.index_client.configuration import Indexes
from vbuild.variants.model import InstalledPackage
from vbuild.variants.plugins import installed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "made").mkdir()
    return tmp_path / "made"


def links(folder: Path) -> Indexes:
    return Indexes(no_index=True, find_links=(folder.as_uri(),))


def index(folder: Path, file: Path, fragment: str) -> Indexes:
    """A simple index in *folder* with one *file*, linked with *fragment*."""
    page = folder / "toaster-provider" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<!DOCTYPE html><html><body><a href="{file.as_uri()}{fragment}">{file.name}</a></body></html>')
    return Indexes(index_url=folder.as_uri())


def test_the_plugin_comes_first_and_every_wheel_with_its_hash(tmp_path: Path, folder: Path) -> None:
    own = plugin(tmp_path, metadata="Requires-Dist: bread\n")
    bread = wheel(tmp_path, "bread-2.0-py3-none-any.whl", {"bread.py": ""})
    other = wheel(tmp_path, "bread-2.0-cp27-none-any.whl", {"bread.py": "old"})
    made = installed(("toaster-provider >=1",), folder=folder, indexes=links(tmp_path))
    assert made.packages == (
        InstalledPackage("toaster-provider", "1.5", own.name, sha256_of(own), own.as_uri()),
        InstalledPackage("bread", "2.0", bread.name, sha256_of(bread), bread.as_uri()),
    )
    assert sha256_of(bread) != sha256_of(other)
    ran = subprocess.run(
        [made.python, "-I", "-c", "import bread, toaster_provider, sys; print(sys.prefix)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == str(folder / "environment")


@pytest.mark.nightly
def test_an_environment_shares_no_file_with_another(tmp_path: Path, folder: Path) -> None:
    plugin(tmp_path)
    made = installed(("toaster-provider",), folder=folder, indexes=links(tmp_path))
    (file,) = folder.glob("environment/lib/*/site-packages/toaster_provider/plugin.py")
    file.write_text("raise SystemExit")
    (tmp_path / "again").mkdir()
    again = installed(("toaster-provider",), folder=tmp_path / "again", indexes=links(tmp_path))
    assert again.packages == made.packages
    assert subprocess.run([again.python, "-I", "-c", "import toaster_provider.plugin"], check=False).returncode == 0


def test_an_index_that_states_the_hash_is_enough(tmp_path: Path, folder: Path) -> None:
    own = plugin(tmp_path)
    indexes = index(tmp_path / "simple", own, f"#sha256={sha256_of(own)}")
    assert installed(("toaster-provider",), folder=folder, indexes=indexes).packages[0].sha256 == sha256_of(own)


def test_a_wheel_that_is_not_what_its_index_states_is_refused(tmp_path: Path, folder: Path) -> None:
    indexes = index(tmp_path / "simple", plugin(tmp_path), f"#sha256={'0' * 64}")
    with pytest.raises(VariantError) as refusal:
        installed(("toaster-provider",), folder=folder, indexes=indexes)
    assert str(refusal.value).startswith("cannot be installed: uv: ")
    assert "ash mismatch" in str(refusal.value)
    assert not list(folder.glob("environment/lib/*/site-packages/toaster_provider"))


def test_where_an_index_states_no_hash_the_one_of_what_came_pins_it(tmp_path: Path, folder: Path) -> None:
    own = plugin(tmp_path)
    made = installed(("toaster-provider",), folder=folder, indexes=index(tmp_path / "simple", own, ""))
    assert made.packages[0].sha256 == sha256_of(own)


def test_an_index_that_states_another_kind_of_hash_is_refused(tmp_path: Path, folder: Path) -> None:
    own = plugin(tmp_path)
    indexes = index(tmp_path / "simple", own, f"#sha512={hashlib.sha512(own.read_bytes()).hexdigest()}")
    with pytest.raises(VariantError) as refusal:
        installed(("toaster-provider",), folder=folder, indexes=indexes)
    assert str(refusal.value) == (
        "toaster-provider 1.5: the package index states no SHA-256 for toaster_provider-1.5-py3-none-any.whl; "
        "expected one that does, as nothing else pins it"
    )


URL = "toaster-provider @ https://toast.example/toaster_provider-1.5-py3-none-any.whl"
WINDOWS = "toaster-provider; sys_platform == 'win32'"


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        (URL, f"requires {URL}, a URL; expected a project of the configured package indexes"),
        (WINDOWS, f"requires {WINDOWS}, nothing of which is for this machine"),
    ],
    ids=["a URL", "for Windows"],
)
def test_what_a_release_may_not_ask_for_is_refused(tmp_path: Path, folder: Path, requires: str, message: str) -> None:
    plugin(tmp_path)
    with pytest.raises(VariantError) as refusal:
        installed((requires,), folder=folder, indexes=links(tmp_path))
    assert str(refusal.value) == message


def test_no_sdist_is_built(tmp_path: Path, folder: Path) -> None:
    source, marker = tmp_path / "toaster_provider-9.0", tmp_path / "ran"
    source.mkdir()
    (source / "setup.py").write_text(f"open({str(marker)!r}, 'w').close()")
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: toaster-provider\nVersion: 9.0\n")
    pack = "import shutil, sys; shutil.make_archive(sys.argv[1], 'gztar', sys.argv[2], sys.argv[3])"
    subprocess.run([sys.executable, "-c", pack, source, tmp_path, source.name], check=True)
    with pytest.raises(VariantError, match=r"^cannot be installed: uv: .*no usable wheels"):
        installed(("toaster-provider",), folder=folder, indexes=links(tmp_path))
    assert not marker.exists()


def test_no_dependency_comes_from_a_url(tmp_path: Path, folder: Path) -> None:
    bread = wheel(tmp_path / "elsewhere", "bread-2.0-py3-none-any.whl", {"bread.py": ""})
    plugin(tmp_path, metadata=f"Requires-Dist: bread @ {bread.as_uri()}\n")
    with pytest.raises(VariantError, match=r"^cannot be installed: uv: .*URL dependenc"):
        installed(("toaster-provider",), folder=folder, indexes=links(tmp_path))


def test_variables_do_not_lead_elsewhere(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = plugin(tmp_path)
    wheel(tmp_path / "elsewhere", "toaster_provider-2.0-py3-none-any.whl", {"toaster_provider/__init__.py": ""})
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("UV_OVERRIDE", str(tmp_path / "nothing"))
    assert installed(("toaster-provider",), folder=folder, indexes=links(tmp_path)).packages[0].file == own.name
