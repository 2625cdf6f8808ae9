"""Projects installed fat and slim, one after the other, in an environment of their own: they do the same work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.published_wheels import PIP, Published, PublishedWheels
from vbuild.binary.edits import Strip
from vbuild.slimming.request import Cuts

pytestmark = [pytest.mark.network, pytest.mark.slow]

STRIPPED = Cuts(strip=Strip.UNNEEDED)
TRAIN = """
import hashlib, numpy, xgboost
chance = numpy.random.default_rng(7)
rows = chance.random((4000, 12))
data = xgboost.DMatrix(rows, (rows ** 2).sum(axis=1) + chance.random(4000))
model = xgboost.train({"device": "cpu", "nthread": 1, "seed": 3}, data, 40)
for done in (model.predict(data), model.predict(data, pred_contribs=True)):
    print(hashlib.sha256(done.tobytes()).hexdigest(), done.sum())
print(hashlib.sha256(model.save_raw()).hexdigest())
for wrong in ({"objective": "none such"}, {"max_depth": "deep"}):
    try:
        xgboost.train(wrong, data, 1)
    except xgboost.core.XGBoostError as error:
        print(type(error).__name__, len(str(error)) > 20)
"""
KERNEL = """
import hashlib, sys, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
@triton.jit
def add(x, y, out, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)
signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "SIZE": "constexpr"}
for target in GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64):
    compiled = compile(ASTSource(add, signature=signature, constexprs={"SIZE": 256}), target=target)
    for kind in "ttir", "ptx", "cubin", "amdgcn", "hsaco":
        if made := compiled.asm.get(kind):
            made = made if isinstance(made, bytes) else str(made).encode()
            print(kind, hashlib.sha256(made).hexdigest(), len(made))
"""


@pytest.fixture(scope="module")
def published_wheels(tmp_path_factory: pytest.TempPathFactory) -> PublishedWheels:
    return PublishedWheels(tmp_path_factory)


class Environment:
    """A virtual environment with *requirements*, where wheels are installed and programs run."""

    def __init__(self, folder: Path, *requirements: str) -> None:
        self.folder = folder
        self.python = folder / "environment" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.python.parents[1]], check=True)
        if requirements:
            self.install(*requirements)

    def install(self, *requirements: str) -> None:
        subprocess.run(
            [*PIP, "--python", str(self.python), "install", "--only-binary", ":all:", *requirements], check=True
        )

    def printed(self, wheel: Path, program: str) -> list[str]:
        """What *program* prints with *wheel* installed in place of any other of its project."""
        self.install("--no-deps", "--force-reinstall", str(wheel))
        script = self.folder / "program.py"
        script.write_text(program)
        # what triton compiled before is not to be found again
        environment = {
            "TRITON_CACHE_DIR": str(self.folder / wheel.parent.name),
            "PYTHONWARNINGS": "ignore",
            "PATH": os.defpath,
        }
        command = [self.python, script]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
        assert not run.returncode, run.stderr
        return run.stdout.splitlines()


def test_xgboost_trains_and_predicts_bit_for_bit_as_before(published_wheels: PublishedWheels, tmp_path: Path) -> None:
    published = Published("xgboost==3.2.0")
    environment = Environment(tmp_path, "numpy", "scipy")
    before = environment.printed(published_wheels.wheel(published), TRAIN)
    assert before[-2:] == ["XGBoostError True"] * 2
    for cuts in (Cuts(), Cuts(strip=Strip.UNNEEDED, zstd=True)):
        assert environment.printed(published_wheels.cutting(published, "90", cuts).wheel, TRAIN) == before


def test_ctranslate2_without_symbols_is_small_and_works(published_wheels: PublishedWheels, tmp_path: Path) -> None:
    small = published_wheels.cutting(Published("ctranslate2==4.8.5", python="3.11"), "", STRIPPED)
    assert small.wheel.stat().st_size <= 24.6e6
    program = "import ctranslate2; print(sorted(ctranslate2.get_supported_compute_types('cpu')))"
    environment = Environment(tmp_path, "numpy", "pyyaml", "setuptools")
    published = Published("ctranslate2==4.8.5")
    before = environment.printed(published_wheels.wheel(published), program)
    assert "float32" in before[0]
    for gpus in ("", "90"):
        assert environment.printed(published_wheels.cutting(published, gpus, STRIPPED).wheel, program) == before


def test_triton_without_symbols_is_small_and_compiles_the_same_kernels(
    published_wheels: PublishedWheels, tmp_path: Path
) -> None:
    small = published_wheels.cutting(Published("triton==3.9.0", python="3.11"), "", STRIPPED)
    assert small.wheel.stat().st_size <= 192e6
    environment = Environment(tmp_path)
    published = Published("triton==3.9.0")
    before = environment.printed(published_wheels.wheel(published), KERNEL)
    assert [line.split()[0] for line in before] == ["ttir", "ptx", "cubin", "ttir", "amdgcn", "hsaco"]
    assert environment.printed(published_wheels.cutting(published, "", STRIPPED).wheel, KERNEL) == before
