"""CUDA in the matrix, on a small real project with the toolkit of the package index: what each wheel is, who gets it.

The project calls nvcc itself, for a list of its own, one file for sm_90a alone, and host code for the machine it is
built on. NVIDIA's cuobjdump says what is in the wheels, and uv and pip say who gets which.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.factories.clients import installed_by_pip, masked, taken_by_uv
from tests.factories.cuobjdump import listed_code
from tests.factories.gpu_projects import EMBEDDED, FRESH, LEVELS, TALLY, cuda, gpus_of, library
from tests.factories.published_wheels import PublishedWheels
from tests.factories.tools import needs
from vbuild.elf.image import ElfImage
from vbuild.gpu_code.fatbin import MAGIC_BYTES
from vbuild.gpu_code.survey import device_code
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted, Nvidia
from vbuild.hardware.machine import Machine
from vbuild.release.model import ReleaseResult
from vbuild.variants.select import machine_at, save_machine, select
from vbuild.verification.model import Severity, VerifyRule
from vbuild.verification.verify import verify

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="-march=native and its levels are those of x86-64"),
    needs("gcc", "g++"),
]

CLAIMS = {
    "sm75": ["75_real"],
    "sm80": ["80_real", "86_real", "89_real"],
    "sm90": ["90_real"],
    "sm120": ["120_real"],
}
BY_GPU = {"7.5": "sm75", "8.0": "sm80", "8.6": "sm80", "8.9": "sm80", "9.0": "sm90", "10.0": None, "12.0": "sm120"}
DRIVERS = ("12.4", "13.0", None)


@pytest.fixture(scope="module")
def cuobjdump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return PublishedWheels(tmp_path_factory).tool("cuobjdump", "nvidia-cuda-cuobjdump")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> ReleaseResult:
    """The release for two CPU levels and four groups of GPUs."""
    text = f"[matrix]\n{LEVELS}{cuda()}{FRESH}{TALLY.rules}"
    release = TALLY.released(tmp_path_factory.mktemp("cuda"), text)
    assert not release.failures
    return release


@pytest.fixture(scope="module")
def with_cpu_wheels(tmp_path_factory: pytest.TempPathFactory) -> ReleaseResult:
    """The release whose plain wheel is built without CUDA."""
    groups = {"sm80": "86"}  # each architecture takes a second of nvcc
    switch = 'env = { TALLY_CUDA = "1" }'
    text = f'[matrix]\n{LEVELS}plain = "cpu"\n{cuda(groups, switch)}{FRESH}env = {{ TALLY_CUDA = "0" }}\n{TALLY.rules}'
    release = TALLY.released(tmp_path_factory.mktemp("cpu"), text)
    assert not release.failures
    return release


def folder_of(release: ReleaseResult) -> Path:
    return release.products[0].wheel.parent


@pytest.mark.nightly
def test_each_wheel_holds_the_code_of_its_group_and_no_other(
    built: ReleaseResult, tmp_path: Path, cuobjdump: Path
) -> None:
    labels = [product.label for product in built.products]
    assert labels == [None, *CLAIMS, *(f"x86_64_v3_{label}" for label in CLAIMS)]
    for product in built.products:
        path = library(product.wheel, tmp_path)
        assert listed_code(cuobjdump, path) == (TALLY.codes(gpus_of(product)), True), product.label
        # and nothing is left of what was cut away
        data = path.read_bytes()
        assert data.count(MAGIC_BYTES) == len(device_code(ElfImage.parse(data)).containers) == 2


@pytest.mark.nightly
def test_each_wheel_says_what_it_is_for_and_keeps_it(built: ReleaseResult) -> None:
    for product in built.products:
        verdict = verify(product.wheel)
        # hopper.cu alone has nothing for the other groups, and that is no more than a note
        assert {(found.severity, found.rule) for found in verdict.findings} <= {(Severity.NOTE, VerifyRule.GPU_MISSING)}
        assert bool(verdict.findings) == (product.label is not None and not product.label.endswith("sm90"))
        with zipfile.ZipFile(product.wheel) as archive:
            documents = [json.loads(archive.read(name)) for name in archive.namelist() if name.endswith("variant.json")]
        if product.label is None:
            assert not documents
            continue
        [document] = documents
        group = product.label.removeprefix("x86_64_v3_")
        said = {"nvidia": {"cuda_version_lower_bound": ["13.0"], "sm_arch": sorted(CLAIMS[group])}}
        level = {"x86_64": {"level": ["v3"]}} if product.label != group else {}
        assert document["variants"] == {product.label: {**said, **level}}
        assert document["default-priorities"] == {"namespace": ["nvidia", "x86_64"]}
        assert set(verdict.claimed_gpus) == set(CLAIMS[group])


@pytest.mark.nightly
def test_host_code_of_cuda_files_is_for_the_level_and_not_for_the_building_machine(
    built: ReleaseResult, tmp_path: Path
) -> None:
    for product in built.products:
        path = library(product.wheel, tmp_path)
        text = subprocess.run(["objdump", "-d", path], capture_output=True, text=True, check=True).stdout
        functions = dict(re.findall(r"^\w+ <(tally_\w+)>:\n(.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL))
        assert TALLY.host in functions
        code = "\n".join(functions.values())
        assert "%zmm" not in code
        assert ("%ymm" in functions[TALLY.host]) == ("%ymm" in code) == ("v3" in (product.label or "")), product.label
    assert {flag for product in built.products for change in product.overrides for flag in change.removed} == {
        "-march=native"
    }


@pytest.mark.nightly
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("gpu", [*BY_GPU, None])
@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v3"])
def test_uv_and_select_take_the_wheel_for_the_gpu_if_the_driver_runs_it(
    built: ReleaseResult, cpu: str, gpu: str | None, driver: str | None, tmp_path: Path
) -> None:
    group = BY_GPU[gpu] if gpu and driver == "13.0" else None
    level = "x86_64_v3_" if cpu == "x86-64-v3" else ""
    check_choice(built, f"{level}{group}" if group else None, cpu=cpu, gpu=gpu, driver=driver, folder=tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("gpu", ["7.5", "8.6", "12.0", None])
@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v3"])
def test_without_a_gpu_that_it_has_code_for_a_machine_gets_the_cpu_wheel_of_its_level(
    with_cpu_wheels: ReleaseResult, cpu: str, gpu: str | None, driver: str | None, tmp_path: Path
) -> None:
    group = "sm80" if (gpu, driver) == ("8.6", "13.0") else None
    parts = ["x86_64_v3" if cpu == "x86-64-v3" else None, group]
    label = "_".join(filter(None, parts)) or None
    check_choice(with_cpu_wheels, label, cpu=cpu, gpu=gpu, driver=driver, folder=tmp_path)


def check_choice(
    release: ReleaseResult, label: str | None, *, cpu: str, gpu: str | None, driver: str | None, folder: Path
) -> None:
    """Assert that uv and ``vbuild select`` take the wheel of *label* on a machine as described."""
    [expected] = [product.wheel.name for product in release.products if product.label == label]
    nvidia = Nvidia(Dotted.parse(driver) if driver else None, (Dotted.parse(gpu),) if gpu else ())
    save_machine(replace(Machine.here(), cpu=Cpu.parse(cpu), nvidia=nvidia), folder / "machine.toml")
    machine = machine_at(folder / "machine.toml")
    assert select("tally", [folder_of(release)], machine=machine).wheel.name == expected
    inside = masked(cpu, folder)
    uv = partial(taken_by_uv, "tally", folder_of(release), folder / "target", "--dry-run", prefix=inside)
    assert uv(driver=driver, gpu=gpu) == expected


@pytest.mark.nightly
def test_the_plain_wheel_without_cuda_runs_where_there_is_no_gpu(
    with_cpu_wheels: ReleaseResult, tmp_path: Path
) -> None:
    installed_by_pip("tally", folder_of(with_cpu_wheels), tmp_path / "site")
    script = "import tally; print(tally.selftest(), tally.archs(), tally.devices())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "500500.0 {'sums': 0, 'hopper': 0} 0\n"
    plain, *variants = with_cpu_wheels.products
    assert plain.toolkit is None
    assert [product.label for product in variants if product.toolkit is None] == ["x86_64_v3"]
    assert not verify(plain.wheel).gpus


@pytest.mark.nightly
def test_a_fatbin_that_cannot_be_cut_is_compiled_for_each_group(tmp_path: Path, cuobjdump: Path) -> None:
    """A module hands its fatbin to the driver itself: each variant held the code of all, and none could be made."""
    groups = cuda({"sm80": "80", "sm90": "90"})
    release = EMBEDDED.released(tmp_path, f"{groups}{FRESH}{EMBEDDED.rules}")
    assert not release.failures
    found = {}
    for product in release.products:
        data = library(product.wheel, tmp_path).read_bytes()
        (tmp_path / "kernel.fatbin").write_bytes(data[data.index(MAGIC_BYTES) :])
        found[product.label] = listed_code(cuobjdump, tmp_path / "kernel.fatbin")[0]
    assert found == {None: EMBEDDED.codes("80,90"), "sm80": EMBEDDED.codes("80"), "sm90": EMBEDDED.codes("90")}
    assert [product.verdict.gpu_codes for product in release.products] == [("sm_80", "sm_90"), ("sm_80",), ("sm_90",)]
    assert release.notes == ("sm80, sm90: compiled separately: GPU code of their common build cannot be cut",)
