"""Published builds of cudart, of several versions and machines, are known by the code that gives their version."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from vbuild.elf.image import ElfImage
from vbuild.gpu_code.toolkit_marks import cudart_driver
from vbuild.hardware.driver import Dotted
from vbuild.pe.image import PeImage

pytestmark = [pytest.mark.nightly, pytest.mark.network]

LINUX, ARM, WINDOWS = "manylinux2014_x86_64", "manylinux2014_aarch64", "win_amd64"


@pytest.mark.parametrize(
    ("requirement", "platform", "driver"),
    [
        ("nvidia-cuda-runtime-cu11==11.8.89", LINUX, "11.0"),
        ("nvidia-cuda-runtime-cu12==12.0.107", "manylinux1_x86_64", "12.0"),
        ("nvidia-cuda-runtime-cu12==12.4.99", LINUX, "12.0"),
        ("nvidia-cuda-runtime==13.2.86", LINUX, "13.0"),
        ("nvidia-cuda-runtime-cu12==12.9.79", ARM, "12.0"),
        ("nvidia-cuda-runtime==13.0.96", ARM, "13.0"),
        ("nvidia-cuda-runtime-cu12==12.9.79", WINDOWS, "12.0"),
    ],
)
def test_a_published_cudart_tells_its_version(requirement: str, platform: str, driver: str, tmp_path: Path) -> None:
    """The library itself needs no other cudart, so it is looked at as one that a library has in it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--platform", platform, "-d", str(tmp_path), requirement], check=True, timeout=60)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if re.search(r"cudart(64_12\.dll|\.so\.[\d.]+)$", name))
        data = memoryview(archive.read(name))
    image = PeImage.parse(data) if name.endswith(".dll") else ElfImage.parse(data)
    assert cudart_driver(image) == Dotted.parse(driver)
