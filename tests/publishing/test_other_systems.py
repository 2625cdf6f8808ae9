"""Releases that have wheels for Windows and macOS, too: what each layout makes of them, and what pip and uv take there.

A layout that has no use for such a wheel leaves it as it is, or out, and says so.
"""

import subprocess
from pathlib import Path

import pytest

from tests.factories.clients import PIP, taken_by_uv
from tests.factories.variants import variant
from tests.factories.wheels import wheel
from vbuild.publishing.hwcaps.plan import Hwcaps
from vbuild.publishing.local import Local
from vbuild.publishing.model import PublishLayout
from vbuild.publishing.publish import publish
from vbuild.publishing.redirect.plan import Redirect
from vbuild.publishing.variants import Variants
from vbuild.variants.stamp import stamped

PYTHON = "py3-none"
LINUX, WINDOWS, MACOS = (
    f"demo-1.0-{PYTHON}-{tag}.whl" for tag in ("manylinux_2_28_x86_64", "win_amd64", "macosx_11_0_arm64")
)
LABEL = "x86_64_v3"
WINDOWS_V3 = WINDOWS.replace(".whl", f"-{LABEL}.whl")
PLATFORMS = {
    LINUX: ("manylinux_2_28_x86_64", "x86_64-manylinux_2_28"),
    WINDOWS: ("win_amd64", "x86_64-pc-windows-msvc"),
    MACOS: ("macosx_11_0_arm64", "aarch64-apple-darwin"),
}


def release(folder: Path, label: str, *properties: str, more: str = "") -> Path:
    """Release 1.0 for Linux, Windows and macOS, and as a variant of *properties* on the first two, which has *more*."""
    for name in PLATFORMS:
        files = {"demo/__init__.py": "x = 1\n", "demo/where.py": f"where = {name!r}\n"}
        wheel(folder, name, files)
        if name != MACOS:
            other = wheel(folder.with_name("unstamped"), name, {**files, **({"demo/more.py": more} if more else {})})
            stamped(other, folder, variant=variant(label, *properties))
    return folder


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release whose variants are for x86-64-v3."""
    return release(tmp_path_factory.mktemp("levels") / "dist", LABEL, "x86_64 :: level :: v3")


def taken_by_pip(place: Path, name: str, target: Path, *, project: str = "demo") -> str:
    """What pip installs of the wheels at *place* for the system of the wheel *name*: what its where.py says."""
    words = ["--no-index", "--find-links", str(place), "--target", str(target), "--only-binary", ":all:", "--no-deps"]
    subprocess.run(
        [*PIP, "install", "--platform", PLATFORMS[name][0], *words, project], check=True, capture_output=True
    )
    return (target / "demo" / "where.py").read_text().split("'")[1]


def by_uv(place: Path, name: str, target: Path, gpu: str | None = None) -> str:
    """The wheel that uv installs of those at *place* for the system of the wheel *name*, with *gpu* in it."""
    asked = ("--python-platform", PLATFORMS[name][1])
    return taken_by_uv("demo", place, target, *asked, driver="13.0" if gpu else None, gpu=gpu)


def laid(dist: Path, folder: Path, layout: PublishLayout) -> tuple[Path, str]:
    [made] = publish([dist], folder, layouts=[layout])
    assert made.folder
    return made.folder, "\n".join(made.plan.notes)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PLATFORMS)
def test_each_system_gets_its_plain_wheel(dist: Path, tmp_path: Path, name: str) -> None:
    site, notes = laid(dist, tmp_path / "site", Local())
    assert f"there is no {LABEL} for {PYTHON}-macosx_11_0_arm64" in notes
    assert taken_by_pip(site / "plain", name, tmp_path / "pip") == name
    assert by_uv(site / "plain", name, tmp_path / "uv") == name


@pytest.mark.parametrize("name", PLATFORMS)
def test_uv_takes_a_variant_of_the_system_that_it_asks_for(tmp_path: Path, name: str) -> None:
    # of GPUs: for another system than its own uv asks nobody for the level of the CPU
    made = release(tmp_path / "dist", "sm90", "nvidia :: sm_arch :: 90_real")
    site, _ = laid(made, tmp_path / "site", Variants())
    best = name if name == MACOS else name.replace(".whl", "-sm90.whl")
    assert by_uv(site, name, tmp_path / "h100", gpu="9.0") == best
    assert by_uv(site, name, tmp_path / "other", gpu="7.5") == name


def test_the_sdist_of_redirect_leaves_what_its_backend_does_not_know_beside_it_or_out(
    dist: Path, tmp_path: Path
) -> None:
    site, notes = laid(dist, tmp_path / "site", Redirect("https://example.org/site"))
    assert f"{WINDOWS_V3} is in no sdist: a variant for a system that the backend does not know" in notes
    assert sorted(path.name for path in site.glob("*.whl")) == sorted([WINDOWS, MACOS])
    assert sorted(path.name.count(LABEL) for path in (site / "wheels").iterdir()) == [0, 1]
    assert taken_by_pip(site, WINDOWS, tmp_path / "pip") == WINDOWS


@pytest.mark.nightly
def test_folders_of_levels_leave_other_systems_as_they_are(dist: Path, tmp_path: Path) -> None:
    site, notes = laid(dist, tmp_path / "site", Hwcaps())
    assert f"{WINDOWS} stays as it is: Windows and macOS know no CPU levels" in notes
    assert all((site / name).samefile(dist / name) for name in (WINDOWS, MACOS))
