"""Installers as judges of a release: which wheel of a folder uv takes on a machine, and pip on any.

NVIDIA's part of the machine is what the variables of its variant provider say, and the CPU's level what stands in a
/proc/cpuinfo of our own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vbuild.hardware.driver import FORCED_CAPABILITY, FORCED_DRIVER

UV = str(Path(sys.executable).with_name("uv"))
PIP = (sys.executable, "-m", "pip", "--quiet")

_CHOICE = re.compile(r"Selecting: \S+ .*\((?P<wheel>\S+\.whl)\)")
_MOUNT = 'mount --bind "$0" /proc/cpuinfo && exec "$@"'
_BASELINE = "fpu cx8 cmov mmx fxsr sse sse2 syscall lm"
_FLAGS = {
    "x86-64": _BASELINE,
    "x86-64-v3": f"{_BASELINE} cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 abm avx avx2 bmi1 bmi2 f16c fma movbe xsave",
}


def masked(level: str, folder: Path) -> tuple[str, ...]:
    """What makes a command run as on a CPU of *level*; skips the test where that is not permitted."""
    cpuinfo = folder / f"cpuinfo-{level}"
    about = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\n"
    cpuinfo.write_text(f"{about}flags\t\t: {_FLAGS[level]}\n\n")
    inside = ("unshare", "-m", "sh", "-c", _MOUNT, str(cpuinfo))
    try:
        failed = subprocess.run([*inside, "true"], capture_output=True, check=False).returncode
    except OSError:
        failed = 1
    if failed:
        pytest.skip("mounts are not permitted here")
    return inside


def taken_by_uv(
    project: str,
    folder: Path,
    target: Path,
    *more: str,
    prefix: tuple[str, ...] = (),
    driver: str | None = None,
    gpu: str | None = None,
    alone: bool = True,
) -> str:
    """The wheel of *project* in *folder* that uv installs into *target*, or with ``--dry-run`` would.

    *driver* and *gpu* are forced where given; *prefix* stands before the command. What it requires comes too, unless
    it is wanted *alone*.
    """
    command = [*prefix, UV, "pip", "install", "--verbose", "--preview-features", "wheel-variants"]
    command += ["--no-deps"] if alone else []
    command += ["--offline", "--no-config", "--no-index", "--find-links", str(folder), "--target", str(target)]
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "NV_"))}
    forced = {FORCED_DRIVER: driver, FORCED_CAPABILITY: gpu, "UV_CACHE_DIR": str(target.with_name("uv-cache"))}
    environment = {**clean, **{key: value for key, value in forced.items() if value}}
    run = subprocess.run(
        [*command, *more, "--python", sys.executable, project],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert not run.returncode, run.stderr
    named = re.compile(rf"{re.escape(project)}-", re.IGNORECASE)
    return str([found for found in _CHOICE.findall(run.stderr) if named.match(found)][-1])


def installed_by_pip(project: str, folder: Path, target: Path) -> None:
    """Install *project* from *folder* into *target* with pip, which knows no variants."""
    command = [*PIP, "install", "--no-deps", "--no-index", "--find-links", str(folder), "--target", str(target)]
    subprocess.run([*command, project], check=True, capture_output=True)
