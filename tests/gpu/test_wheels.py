"""Published wheels give on the GPU at hand what they gave before they were slimmed to it.

Needs what the wheels need besides (numpy, scipy, fastrlock, torch for bitsandbytes) in the Python that runs the tests.
Without a network, PIP_NO_INDEX and PIP_FIND_LINKS may name a folder of the wheels.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.published_wheels import PIP, Published, PublishedWheels
from vbuild.hardware.driver import Dotted, Nvidia
from vbuild.hardware.gpu import GpuList
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.slim import slim

pytestmark = [pytest.mark.gpu, pytest.mark.network, pytest.mark.slow]

XGBOOST = """
import numpy, xgboost
rng = numpy.random.default_rng(7)
data, labels = rng.standard_normal((4000, 20)), rng.integers(0, 2, 4000)
for booster in ("gbtree", "dart"):
    model = xgboost.XGBClassifier(n_estimators=20, device="cuda", booster=booster, random_state=0).fit(data, labels)
    print(booster, numpy.asarray(model.predict_proba(data)).round(5).sum(axis=0).tolist())
"""
BITSANDBYTES = """
import torch, bitsandbytes.functional as F
torch.manual_seed(0)
values = torch.randn(1024, 1024, device="cuda", dtype=torch.float16)
for quantize, restore in ((F.quantize_4bit, F.dequantize_4bit), (F.quantize_blockwise, F.dequantize_blockwise)):
    packed, state = quantize(values)
    print(packed.to(torch.int64).sum().item(), restore(packed, state).double().sum().item())
"""
CUPY = """
import cupy
values = cupy.random.default_rng(3).standard_normal(100_000)
print(float(cupy.sort(values)[::1000].sum()), float(values.sum()), int(cupy.argsort(values)[17]))
print(float(cupy.cumsum(values)[-1]), cupy.lexsort(cupy.stack([values, -values]))[:5].tolist())
"""
CASES = {
    "xgboost": (("xgboost==3.2.0",), XGBOOST, {}),
    "bitsandbytes": (("bitsandbytes==0.50.2",), BITSANDBYTES, {}),
    "cupy": (("cupy-cuda12x==14.2.0", "cupy-cuda13x==14.2.0"), CUPY, {"CUPY_ACCELERATORS": "cub"}),
}


def said(folder: Path, script: str, environment: dict[str, str]) -> str:
    """What *script* prints with the wheel that is installed in *folder*."""
    environment = {**os.environ, **environment, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def installed(wheel: Path, folder: Path) -> Path:
    subprocess.run([*PIP, "install", "--no-deps", "--target", str(folder), str(wheel)], check=True)
    return folder


@pytest.mark.parametrize("loading", ["LAZY", "EAGER"])
@pytest.mark.parametrize("cuts", [Cuts(), Cuts(zstd=True)], ids=["plain", "zstd"])
@pytest.mark.parametrize("project", CASES)
def test_a_slimmed_wheel_computes_what_the_fat_one_did(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, project: str, cuts: Cuts, loading: str
) -> None:
    machine = Nvidia.here()
    if not machine.capabilities or machine.driver is None:
        pytest.skip("no NVIDIA GPU on this machine")
    requirements, script, environment = CASES[project]
    if project == "bitsandbytes" and importlib.util.find_spec("torch") is None:
        pytest.skip("bitsandbytes needs torch")
    requirement = requirements[-1] if machine.driver >= Dotted(13, 0) else requirements[0]
    fat = PublishedWheels(tmp_path_factory).wheel(Published(requirement))
    gpus = GpuList.parse(str(machine.capabilities[0]))
    (slimmed,) = slim([fat], tmp_path / "slim", shares=[Share(gpus)], cuts=cuts)
    assert slimmed.path
    assert slimmed.unpacked < slimmed.unpacked_before
    environment = {**environment, "CUDA_MODULE_LOADING": loading}
    before = said(installed(fat, tmp_path / "fat"), script, environment)
    assert said(installed(slimmed.path, tmp_path / "after"), script, environment) == before
