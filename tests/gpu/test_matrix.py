"""Releases of the CUDA projects of tests/projects on the GPU at hand: what uv takes runs there, and all that fits does.

Built with an installed toolkit of the version, or that of the package index. Without a network, PIP_NO_INDEX and
PIP_FIND_LINKS may name a folder of the wheels that the builds need.
"""

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.factories.clients import taken_by_uv
from tests.factories.gpu_projects import COLLATZ, FRESH, GROUPS, HISTO, LEVELS, TALLY, Project, cuda
from tests.factories.tools import needs
from vbuild.hardware.architectures import Arch
from vbuild.hardware.driver import Dotted, Nvidia
from vbuild.hardware.gpu import GpuList
from vbuild.hardware.machine import Machine
from vbuild.variants.select import select

pytestmark = [pytest.mark.gpu, pytest.mark.network, pytest.mark.slow, needs("gcc", "g++")]

TOOLKIT = Dotted(13, 0)
LOADINGS = ("LAZY", "EAGER")


def gpu() -> Arch:
    """The first GPU of this machine; skips the test where there is none, or it or its driver is too old."""
    machine = Nvidia.here()
    if not machine.capabilities:
        pytest.skip("no NVIDIA GPU on this machine")
    if machine.driver is None or machine.driver < TOOLKIT:
        pytest.skip(f"the driver is for CUDA {machine.driver}; expected {TOOLKIT} or newer")
    found = Arch(machine.capabilities[0].major * 10 + machine.capabilities[0].minor)
    if not found.toolkits or found.toolkits[0] > TOOLKIT or (found.toolkits[1] or TOOLKIT) < TOOLKIT:
        pytest.skip(f"CUDA {TOOLKIT} does not compile for {found}")
    return found


def groups(device: Arch) -> dict[str, str]:
    """The groups of GPUs that every release has, and one more where *device* is in none of them."""
    known = [request.arch for gpus in GROUPS.values() for request in GpuList.parse(gpus)]
    return GROUPS if any(arch.runs_on(device) for arch in known) else {**GROUPS, "here": str(device)}


@pytest.fixture(scope="module", params=[TALLY, COLLATZ, HISTO], ids=str)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, Path]:
    """A project, and the folder of its release."""
    project: Project = request.param
    text = f"[matrix]\n{LEVELS}{cuda(groups(gpu()))}{FRESH}{project.rules}"
    release = project.released(tmp_path_factory.mktemp("release"), text)
    assert not release.failures
    return project, release.products[0].wheel.parent


def check_runs(project: Project, site: Path, device: Arch, *, loading: str) -> None:
    """Assert that the kernels of *project*, installed in *site*, give what they should, by code for *device*."""
    script = f"import {project.name} as it; print((it.selftest(), it.archs(), it.devices()))"
    environment = {**os.environ, "PYTHONPATH": str(site), "CUDA_MODULE_LOADING": loading}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stderr
    answer, archs, devices = ast.literal_eval(ran.stdout)
    assert answer == project.answer
    assert devices >= 1
    assert any(archs.values())
    assert all(not arch or Arch(arch).runs_on(device) for arch in archs.values())


@pytest.mark.parametrize("loading", LOADINGS)
def test_the_variant_that_uv_installs_runs_its_kernels(
    built: tuple[Project, Path], loading: str, tmp_path: Path
) -> None:
    project, folder = built
    taken = taken_by_uv(project.name, folder, tmp_path / "site")
    assert taken == select(project.name, [folder], machine=Machine.here()).wheel.name
    assert list((tmp_path / "site").glob("*.dist-info/variant.json"))
    check_runs(project, tmp_path / "site", gpu(), loading=loading)


@pytest.mark.parametrize("loading", LOADINGS)
def test_every_wheel_that_fits_runs_its_kernels(built: tuple[Project, Path], loading: str, tmp_path: Path) -> None:
    project, folder = built
    fitting = [each for each in select(project.name, [folder], machine=Machine.here()).ranking if each.fits]
    # for the baseline's CPU at least, and the plain one
    assert len(fitting) >= 2
    assert fitting[-1].name.variant is None
    for candidate in fitting:
        site = tmp_path / str(candidate.name.variant)
        with zipfile.ZipFile(candidate.path) as archive:
            archive.extractall(site)
        check_runs(project, site, gpu(), loading=loading)
