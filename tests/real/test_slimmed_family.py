"""A family of variant wheels, slimmed from a published one: uv takes the one whose claims fit the GPU at hand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.published_wheels import Published, PublishedWheels
from vbuild.hardware.driver import FORCED_CAPABILITY, FORCED_DRIVER
from vbuild.hardware.machine import Machine
from vbuild.slimming.request import Share
from vbuild.slimming.slim import slim
from vbuild.variants.select import select
from vbuild.verification.model import Severity
from vbuild.verification.verify import verify

pytestmark = pytest.mark.network

UV = Path(sys.executable).with_name("uv")
SHARES = ("sm75=75", "sm80=80", "sm86=86", "sm90=90", "sm120=120")
RELEASES = [
    Published("nvidia-nvjpeg-cu12==12.4.0.76"),
    pytest.param(Published("bitsandbytes==0.50.2"), marks=pytest.mark.slow),
]
CHOICE = re.compile(r"Selecting: \S+ .*\((?P<wheel>\S+\.whl)\)")


@pytest.fixture(scope="module")
def published_wheels(tmp_path_factory: pytest.TempPathFactory) -> PublishedWheels:
    return PublishedWheels(tmp_path_factory)


@pytest.fixture(scope="module", params=RELEASES, ids=str)
def family(request: pytest.FixtureRequest, published_wheels: PublishedWheels) -> Path:
    """A folder with a variant for each of `SHARES`, and the plain wheel that they come from."""
    published: Published = request.param
    fat = published_wheels.wheel(published)
    folder = published_wheels.folder / f"family of {published}"
    slim([fat], folder, shares=[Share.parse(share) for share in SHARES], accept_license=True)
    os.link(fat, folder / fat.name)
    return folder


def installed_by_uv(family: Path, target: Path, *, driver: str, gpu: str) -> str:
    """The wheel that uv installs from *family* into *target* on a machine with this driver and GPU."""
    project = next(family.glob("*.json")).name.split("-")[0]
    command: list[str | Path] = [UV, "pip", "install", "--verbose", "--preview-features", "wheel-variants", "--no-deps"]
    command += ["--offline", "--no-config", "--no-index", "--find-links", family, "--target", target]
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "NV_"))}
    given = {FORCED_DRIVER: driver, FORCED_CAPABILITY: gpu, "UV_CACHE_DIR": str(target.with_name("cache"))}
    command += ["--python", sys.executable, project]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env={**clean, **given})
    assert not run.returncode, run.stderr
    return str(CHOICE.findall(run.stderr)[-1])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("machine", "label"),
    [
        (("7.5", "12.8"), "sm75"),
        (("8.0", "12.8"), "sm80"),
        (("8.6", "12.8"), "sm86"),
        (("8.9", "12.8"), "sm86"),
        (("9.0", "12.8"), "sm90"),
        (("12.0", "12.8"), "sm120"),
        (("12.1", "13.0"), "sm120"),
        (("10.0", "12.8"), None),
        (("6.1", "12.8"), None),
    ],
)
def test_uv_installs_the_variant_for_the_gpu_or_else_the_plain_wheel(
    family: Path, machine: tuple[str, str], label: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, driver = machine
    chosen = installed_by_uv(family, tmp_path / "target", driver=driver, gpu=gpu)
    assert chosen.endswith(f"-{label}.whl" if label else "x86_64.whl")
    monkeypatch.setenv(FORCED_DRIVER, driver)
    monkeypatch.setenv(FORCED_CAPABILITY, gpu)
    project = chosen.split("-")[0]
    assert select(project, [family], machine=Machine.here()).wheel.name == chosen


@pytest.mark.nightly
def test_every_member_keeps_what_it_promises(family: Path) -> None:
    plain, *members = sorted(family.glob("*.whl"), key=lambda path: len(path.stem))
    assert len(members) == len(SHARES)
    # bitsandbytes itself links CUDA without saying where it comes from
    before = set(verify(plain).findings)
    for member in members:
        assert {finding for finding in verify(member).findings if finding.severity is Severity.ERROR} <= before
