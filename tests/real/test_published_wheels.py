"""Published wheels of many tools and ages open as they are; broken ones are refused, or told of, for what they are.

The tools: bdist_wheel from 2014 on, flit, poetry, hatch, pdm, whey, maturin, setuptools-rust, meson-python, both
scikit-builds, enscons, bazel, uv, PyQt's own, and those that repair: auditwheel, delocate, delvewheel.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from vbuild.errors import WheelError
from vbuild.wheel.archive import open_wheel

pytestmark = [pytest.mark.network, pytest.mark.slow]

LARGEST = 5_000_000


@dataclass(frozen=True, slots=True)
class Release:
    """A wheel of the index, and the tag of the Python and machine it is for, where it is not for any."""

    requirement: str
    python: str = "311"
    platform: str = "manylinux_2_17_x86_64"
    abi: str | None = None

    def __str__(self) -> str:
        return f"{self.requirement}-{self.platform}"

    def fetched(self, folder: Path) -> Path:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command += ["--dest", str(folder), "--python-version", self.python, "--platform", self.platform]
        command += ["--abi", self.abi, "--abi", "none", "--abi", "abi3"] if self.abi else []
        subprocess.run([*command, self.requirement], check=True, capture_output=True, timeout=60)
        (wheel,) = folder.glob("*.whl")
        assert wheel.stat().st_size < LARGEST
        return wheel


def _pure(*requirements: str) -> list[Release]:
    return [Release(requirement) for requirement in requirements]


OLD, MANYLINUX1 = "37", "manylinux1_x86_64"
SOUND = [
    *_pure("six==1.6.1", "certifi==2015.4.28", "pytz==2014.10", "wheel==0.24.0", "pip==1.5.6", "chardet==2.3.0"),
    *_pure("requests==2.2.1", "setuptools==5.4", "idna==2.0", "colorama==0.3.7", "urllib3==1.16"),
    *_pure("entrypoints==0.2.2", "testpath==0.3.1", "tomli==2.0.1", "packaging==24.0", "wheel==0.43.0"),
    *_pure("tomlkit==0.11.8", "rich==13.7.1", "cleo==0.8.1", "pdm-backend==2.1.8", "whey==0.0.24"),
    *_pure("hatchling==1.21.1", "attrs==23.2.0", "platformdirs==4.2.0", "enscons==0.24.2", "meson-python==0.15.0"),
    *_pure("rpds-py==0.18.0", "bcrypt==4.1.2", "contourpy==1.2.0", "iminuit==2.25.2", "click-extra==7.4.0"),
    *_pure("protobuf==4.25.3", "dm-tree==0.1.8", "nvidia-ml-py==12.535.133"),
    Release("ninja==1.11.1.1", platform=MANYLINUX1),  # whose WHEEL has no Tag
    Release("MarkupSafe==1.1.1", OLD, MANYLINUX1, "cp37m"),
    Release("psutil==5.8.0", OLD, "manylinux2010_x86_64", "cp37m"),
    Release("PyYAML==5.3.1", OLD, "win_amd64", "cp37m"),
    Release("wrapt==1.15.0", platform="macosx_11_0_arm64"),
    Release("contourpy==1.2.0", platform="win_amd64"),
    Release("PyQtNetworkAuth-Qt5==5.15.2", platform="manylinux2014_x86_64"),
]
# pip and uv install these
QUIRKS = {
    "furo==2022.12.7": "RECORD: has hashes that are not unpadded base64url, of furo/__init__.py",
    "astatine==0.2.0": "RECORD: does not list astatine-0.2.0.dist-info/RECORD",
}
BROKEN = {
    "selenium==4.1.0": "RECORD lists '/selenium/__init__.py': an absolute path",
    "testpath==0.4.3": (
        "RECORD lists 'testpath-0.4.3.dist-info//tmp/tmpsad01phf/testpath-0.4.3/LICENSE': "
        "a path with an empty part or '.' in it"
    ),
}


@pytest.mark.parametrize("release", SOUND, ids=str)
def test_a_published_wheel_opens(tmp_path: Path, release: Release) -> None:
    with open_wheel(release.fetched(tmp_path), check=True) as source:
        assert source.metadata().name


@pytest.mark.parametrize("requirement", BROKEN)
def test_a_published_wheel_whose_record_is_wrong_is_refused(tmp_path: Path, requirement: str) -> None:
    path = Release(requirement).fetched(tmp_path)
    with pytest.raises(WheelError) as refusal, open_wheel(path, check=True):
        pass
    assert str(refusal.value) == f"{path.name}: {BROKEN[requirement]}"


@pytest.mark.parametrize("requirement", QUIRKS)
def test_a_published_wheel_whose_record_has_a_quirk_opens(tmp_path: Path, requirement: str) -> None:
    with open_wheel(Release(requirement).fetched(tmp_path), check=True) as source:
        [(path, what)] = source.warnings()
    assert f"{path}: {what}".partition("/")[2].startswith(QUIRKS[requirement])
