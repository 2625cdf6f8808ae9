"""A small extension of torch, built without a recipe by one line: five gigabytes of torch come along."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.factories.gpu_projects import PROJECTS
from vbuild.index_client.configuration import Indexes, install_command, venv_command
from vbuild.wheel.archive import open_wheel

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="what is expected is of x86-64"),
]


def test_an_extension_of_torch_builds_at_the_first_try(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vbuild", "matrix", str(PROJECTS / "torch-extension"), "--cuda", "80,90"]
    ran = subprocess.run([*command, "-o", str(tmp_path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # the toolkit is that of torch, whichever is the newest
    assert re.search(r"CUDA \d+\.\d+, which cuda-toolkit \S+ of the build requirements is made for", ran.stderr)
    wheels = {path.name.partition("x86_64")[2]: path for path in tmp_path.glob("*.whl")}
    assert set(wheels) == {".whl", "-sm80.whl", "-sm90.whl"}
    for path in wheels.values():
        with open_wheel(path) as wheel:
            [line] = wheel.metadata().requires_dist
            assert re.fullmatch(r"torch==\d+\.\d+\.\*", line)
        with zipfile.ZipFile(path) as archive:
            assert [name for name in archive.namelist() if ".so" in name and not name.startswith("twice/_C.")] == []
    variables = {**os.environ, **Indexes.configured().environment()}
    subprocess.run(venv_command(sys.executable, tmp_path / "venv"), env=variables, check=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run(
        install_command(python, "--link-mode=hardlink", str(wheels[".whl"]), builds=False), env=variables, check=True
    )
    asked = "import torch, twice; print(twice.twice(torch.arange(3.0)).tolist())"
    said = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout
    assert said == "[0.0, 2.0, 4.0]\n"
