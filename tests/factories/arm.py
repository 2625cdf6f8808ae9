"""An aarch64 Python for qemu-user, from Debian's packages of this machine's own mirror."""

import re
import subprocess
import sys
from pathlib import Path

_PACKAGES = ("libpython{0}-minimal", "libpython{0}-stdlib", "python{0}-minimal")
_LIBRARIES = ("libc6", "libgcc-s1", "libstdc++6", "libexpat1", "libssl3", "zlib1g")

_CONFIGURATION = """
Dir::State "{0}";
Dir::State::lists "{0}/lists";
Dir::State::status "{0}/status";
Dir::Cache "{0}/cache";
APT::Architecture "arm64";
APT::Architectures "arm64";
APT::Sandbox::User "root";
"""


def arm_python(folder: Path) -> tuple[str, ...] | None:
    """The command of an aarch64 CPython of this Python's version, laid out in *folder*; or None if there is none."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for name in ("lists/partial", "cache/archives/partial", "root"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "apt.conf").write_text(_CONFIGURATION.format(folder), encoding="utf-8")
    apt = ["apt-get", "-qq", "-c", str(folder / "apt.conf")]
    names = [name.format(version) for name in _PACKAGES] + list(_LIBRARIES)
    for command in ([*apt, "update"], [*apt, "download", *names]):
        if subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode:
            return None
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, folder / "root"], check=True)
    python = ("qemu-aarch64", "-L", str(folder / "root"), str(folder / "root" / "usr" / "bin" / f"python{version}"))
    printed = subprocess.run([*python, "-VV"], capture_output=True, text=True, check=False)
    return python if re.match(rf"Python {re.escape(version)}\.", printed.stdout) else None
