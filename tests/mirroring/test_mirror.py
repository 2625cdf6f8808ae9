"""A mirror of small wheels: what is cut for which machines, what stays, and what pip and uv install from it."""

import os
import re
import signal
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import vbuild
from tests.factories.browser import Tags
from tests.factories.clients import PIP, UV
from tests.factories.mirrors import FAT, OWNED, PLAIN, fat_library, fleet, lock_of
from tests.factories.ranges import Serving, serving
from tests.factories.release_folders import sdist
from tests.factories.sources import sha256
from tests.factories.workdir import file_digests
from vbuild.errors import FetchError
from vbuild.hardware.driver import FORCED_CAPABILITY, FORCED_DRIVER
from vbuild.mirroring.check import checked_mirror
from vbuild.mirroring.mirror import Mirrored, mirror
from vbuild.mirroring.model import MirrorRequest


def made(site: Path, *gpus: str, sources: tuple[str, ...] = ("fat",), **asked: object) -> Mirrored:
    return mirror(sources, site, fleet(*gpus), MirrorRequest(**asked))  # type: ignore[arg-type]


def names(site: Path) -> list[str]:
    return sorted(path.name for path in site.rglob("*.whl"))


def lock(site: Path, machine: str) -> dict[str, str]:
    """The file and hash that the lock of *machine* has for each project."""
    packages = tomllib.loads((site / f"pylock.{machine}.toml").read_text())["packages"]
    files = {one["name"]: one["wheels"][0] for one in packages}
    return {name: f"{file.get('path') or file['url']} {file['hashes']['sha256']}" for name, file in files.items()}


@pytest.mark.usefixtures("server")
def test_wheels_are_cut_for_the_gpus_of_all_machines_and_installers_take_them(wheels: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    result = made(site, "9.0", "8.0")
    path = site / "simple/fat" / FAT
    assert names(site) == [FAT, PLAIN]
    assert (site / "simple/plain" / PLAIN).read_bytes() == (wheels / PLAIN).read_bytes()
    with zipfile.ZipFile(path) as archive:
        assert len(archive.read("fat/_C.so")) < len(fat_library())
    assert lock(site, "sm90") == {
        "fat": f"simple/fat/{FAT} {sha256(path)}",
        "plain": f"simple/plain/{PLAIN} {sha256(wheels / PLAIN)}",
    }
    assert lock(site, "sm80") == lock(site, "sm90")
    assert (site / "constraints.sm80.txt").read_text() == "fat==1.0\nplain==1.0\n"
    assert [file.original.file for file in result.files if file.is_changed] == [FAT]
    assert checked_mirror(site).problems == ()
    page = (site / "index.html").read_text()
    links = [attributes["href"] for tag, attributes in Tags(page).found if tag == "a"]
    assert {f"simple/fat/{FAT}", f"simple/plain/{PLAIN}"} < {*links}
    assert all((site / str(link)).exists() for link in links)
    (command,) = re.findall(r"uv pip sync (\S+sm90\S+)</code>", page)
    subprocess.run([UV, "pip", "install", "-q", "--dry-run", "--target", "x", "-r", command], cwd=site, check=True)
    target = tmp_path / "by-lock"
    subprocess.run([UV, "pip", "install", "-q", "--target", target, "-r", site / "pylock.sm90.toml"], check=True)
    assert (target / "fat/__init__.py").exists()
    # the published wheel is of the same version: installers leave it, unless they are asked as the lock says
    subprocess.run([UV, "pip", "install", "-q", "--reinstall", "--target", target, wheels / FAT], check=True)
    assert "\n#   uv pip sync --reinstall\n" in (site / "pylock.sm90.toml").read_text()
    for words, is_cut in (([], False), (["--reinstall"], True)):
        subprocess.run([UV, "pip", "sync", "-q", *words, "--target", target, site / "pylock.sm90.toml"], check=True)
        assert ((target / "fat/_C.so").stat().st_size < len(fat_library())) is is_cut
    with serving(site) as served:
        target = tmp_path / "by-index"
        index = ("--index-url", f"{served.url}/simple/", "--target", target)
        subprocess.run([*PIP, "install", *index, "fat"], check=True)
        assert (target / "plain.py").exists()


@pytest.mark.nightly
@pytest.mark.usefixtures("server")
def test_uv_takes_the_variant_of_the_gpus_that_a_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    result = made(site, "9.0", "8.0", "", variants=True)
    variants = [FAT.replace(".whl", f"-{label}.whl") for label in ("sm80", "sm90")]
    assert names(site) == sorted((FAT, *variants, PLAIN))
    assert [file.machines for file in result.files if file.cut.label] == [("sm80",), ("sm90",)]
    assert lock(site, "sm90")["fat"].startswith(f"simple/fat/{FAT} ")
    assert checked_mirror(site).problems == ()
    assert made(site, "9.0", "8.0", "", variants=True).fetched == 0
    monkeypatch.setenv(FORCED_DRIVER, "13.0")
    with serving(site) as served:
        for capability, taken in (("9.0", variants[1]), ("8.0", variants[0]), ("12.0", FAT)):
            monkeypatch.setenv(FORCED_CAPABILITY, capability)
            command = [UV, "pip", "install", "-v", "--preview-features", "wheel-variants", "--dry-run", "--no-deps"]
            place = ["--target", str(tmp_path / "target"), "--default-index", f"{served.url}/simple/"]
            said = subprocess.run([*command, *place, "fat"], check=True, capture_output=True, text=True).stderr
            assert f"({taken})" in said
    page = site / "simple/fat/index.json"
    text = page.read_text()
    page.write_text(text.replace("fat-1.0-variants.json", "fat-2.0-variants.json"))
    problems = checked_mirror(site).problems
    assert "fat/fat-1.0-variants.json: is not what its variants come to" in problems
    assert "fat/fat-2.0-variants.json: is of no variant that mirror.json has" in problems
    page.write_text(text)
    # one kind of GPUs alone has no variant of its own: the plain wheel is for it
    assert made(site, "9.0", variants=True, prune=True).plain == made(site, "9.0", variants=True).files
    assert names(site) == [FAT, PLAIN]
    assert checked_mirror(site).problems == ()


@pytest.mark.usefixtures("server")
def test_a_licence_that_forbids_changes_is_kept_unless_it_is_accepted(wheels: Path, tmp_path: Path) -> None:
    (file,) = made(tmp_path / "site", "9.0", sources=("owned",)).files
    assert not file.is_changed
    assert "the licence forbids to modify what is in this wheel" in file.why_left
    (file,) = made(tmp_path / "site", "9.0", sources=("owned",), accept_license=True).files
    assert file.is_changed
    assert file.original.sha256 == sha256(wheels / OWNED)


@pytest.mark.usefixtures("server")
def test_a_gpu_that_a_wheel_has_no_code_for_leaves_it_whole(tmp_path: Path) -> None:
    (fat, _) = made(tmp_path / "site", "9.0", "7.5").files
    assert not fat.is_changed
    assert "sm_75" in fat.why_left


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(("driver", "is_recompressed"), [("12.4", True), ("12.3", False), (None, False)])
def test_code_is_compressed_anew_where_every_driver_reads_it(
    tmp_path: Path, driver: str | None, *, is_recompressed: bool
) -> None:
    (fat, _) = mirror(["fat"], tmp_path / "site", fleet("9.0", "", driver=driver), MirrorRequest()).files
    assert fat.cut.recompressed is is_recompressed


def test_a_second_run_fetches_nothing_and_leaves_the_site_alone(server: Serving, tmp_path: Path) -> None:
    site = tmp_path / "site"
    made(site, "9.0")
    state, place = file_digests(site), site.stat().st_ino
    server.asked.clear()
    again = made(site, "9.0")
    assert (again.fetched, again.kept) == (0, 2)
    assert not [path for path, _ in server.asked if path.endswith(".whl")]
    assert file_digests(site) == state
    assert site.stat().st_ino == place


def test_another_machine_changes_only_what_has_gpu_code(server: Serving, tmp_path: Path) -> None:
    site = tmp_path / "site"
    made(site, "9.0")
    server.asked.clear()
    more = made(site, "9.0", "8.0")
    assert (more.fetched, more.kept) == (1, 1)
    assert more.replaced == (f"simple/fat/{FAT}",)
    assert {path.rpartition("/")[2] for path, _ in server.asked if path.endswith(".whl")} == {FAT}
    fewer = made(site, "8.0")
    assert fewer.dropped == ("sm90",)
    assert not (site / "pylock.sm90.toml").exists()
    assert checked_mirror(site).problems == ()


@pytest.mark.usefixtures("server")
def test_what_no_machine_installs_any_more_stays_until_it_is_pruned(tmp_path: Path) -> None:
    site = tmp_path / "site"
    made(site, "9.0")
    assert made(site, "9.0", sources=("plain",)).removed == 0
    assert names(site) == [FAT, PLAIN]
    assert checked_mirror(site).problems == ()
    assert made(site, "9.0", sources=("plain",), prune=True).removed == 1
    assert names(site) == [PLAIN]
    assert checked_mirror(site).problems == ()


@pytest.mark.usefixtures("server")
def test_a_dry_run_says_the_same_and_writes_nothing(tmp_path: Path) -> None:
    would = mirror(["fat"], None, fleet("9.0"), MirrorRequest())
    before = set(tmp_path.iterdir())
    result = made(tmp_path / "site", "9.0")
    assert would.files == result.files
    assert before == set(tmp_path.iterdir()) - {tmp_path / "site"}


@pytest.mark.usefixtures("server")
def test_the_lock_of_a_project_is_mirrored_without_the_project(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    about = 'name = "app"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["fat"]\n'
    (project / "pyproject.toml").write_text(f"[project]\n{about}")
    index = os.environ["PIP_INDEX_URL"]
    subprocess.run([UV, "lock", "--quiet", "--project", project, "--default-index", index], check=True)
    result = mirror([str(project / "uv.lock")], tmp_path / "site", fleet("9.0"), MirrorRequest())
    assert [file.original.file for file in result.files] == [FAT, PLAIN]


def test_an_sdist_is_passed_on_with_a_word(tmp_path: Path) -> None:
    source = lock_of(tmp_path / "pylock.toml", sdist(tmp_path))
    (found,) = mirror([str(source)], tmp_path / "site", fleet("9.0"), MirrorRequest()).files
    assert found.why_left == "an sdist: each installation builds it, with what its pyproject.toml requires"
    assert checked_mirror(tmp_path / "site").problems == ()


def test_what_has_come_of_a_file_is_kept_and_the_rest_is_asked_for(
    server: Serving, wheels: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    source = str(lock_of(tmp_path / "pylock.toml", wheels / FAT, path=None, url=f"{server.url}/fat/{FAT}"))
    server.mood = "cut short"
    with pytest.raises(FetchError) as refused:
        made(site, "9.0", sources=(source,))
    part = tmp_path / ".site.mirror/originals" / f"{sha256(wheels / FAT)}.part"
    size = part.stat().st_size
    assert f"; {size} bytes of it are kept, and the next run asks for the rest" in str(refused.value)
    assert not site.exists()
    server.mood = "sound"
    server.asked.clear()
    made(site, "9.0", sources=(source,))
    assert server.ranges == [f"bytes={size}-"]
    assert not (tmp_path / ".site.mirror").exists()
    assert checked_mirror(site).problems == ()


@pytest.mark.nightly
@pytest.mark.usefixtures("server")
def test_a_killed_run_leaves_no_site_and_the_next_one_goes_on(tmp_path: Path) -> None:
    site = tmp_path / "site"
    script = (
        "import os, signal, sys, vbuild.mirroring.mirror as mirror\n"
        "mirror.write_site = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from vbuild.cli.main import main\n"
        "main(['mirror', 'fat', '-o', sys.argv[1], '--gpu', '90'])\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(site)], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not site.exists() or not any(site.iterdir())
    result = made(site, "9.0")
    assert [file.original.file for file in result.files] == [FAT, PLAIN]
    assert checked_mirror(site).problems == ()
    assert sorted(path.name for path in tmp_path.glob(".site*")) == []


def test_machines_are_named_after_their_gpus_or_their_file(wheels: Path, tmp_path: Path) -> None:
    source = lock_of(tmp_path / "pylock.toml", wheels / FAT)
    options: dict[str, Any] = {"driver": "580", "pythons": ["3.11", "3.12"]}
    result = vbuild.mirror(source, tmp_path / "gpus", gpus=["H100", "A100,L4", "MI300X"], **options)
    assert [machine.name for machine in result.site.machines] == [
        f"{name}-py{python}" for name in ("H100", "A100-L4", "MI300X") for python in ("311", "312")
    ]
    assert [machine.gpus for machine in result.site.machines][::2] == [("9.0",), ("8.9", "8.0"), ("gfx942",)]
    described = tmp_path / "my machine.toml"
    described.write_text('python = "3.12"\ncpu = "x86-64-v3"\nglibc = "2.28"\n')
    (machine,) = vbuild.mirror(source, tmp_path / "file", machines=described).site.machines
    assert (machine.name, machine.python) == ("my-machine", "3.12")
    with pytest.raises(vbuild.VbuildError, match="ftp"):
        vbuild.mirror(source, tmp_path / "file", gpus="90", url="ftp://example.org/")
