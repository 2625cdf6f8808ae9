"""Fresh environments with a wheel and all it requires in them, made by pip and by uv.

    a wheel for this Python and this machine     a virtual environment; each of the two installers makes one
    one for another Python or Linux machine      its files alone, in a folder: uv, or pip where uv has no word for it

Both read the configured package indexes, and keep what they download in the caches that they have anyway.
"""

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Self

import uv
from packaging.tags import Tag, sys_tags

from vbuild.binary.policy import Platform
from vbuild.errors import SplitError
from vbuild.fetching.indexes import Indexes
from vbuild.wheel.name import WheelName

# variables that lead an installer, or what it runs, to other packages or to another place
_LEAD_ELSEWHERE = frozenset(
    {
        "PYTHONPATH",
        "PYTHONHOME",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "UV_SYSTEM_PYTHON",
        "UV_BREAK_SYSTEM_PACKAGES",
        "UV_PYTHON",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_ROOT",
        "PIP_USER",
        "PIP_PYTHON",
        "PIP_DRY_RUN",
        "PIP_NO_DEPS",
        "PIP_QUIET",
        "PIP_LOG",
    }
)
# the glibc of machines that people have, and the minor versions that uv has a name for
_USUAL_GLIBC, _NAMED_GLIBC = 28, (28, *range(31, 41))
_OLDEST_GLIBC, _MUSL = 5, ("musllinux_1_2", "musllinux_1_1")
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_CPYTHON = re.compile(r"cp(?P<major>\d)(?P<minor>\d+)")
_OTHER = re.compile(r"(?P<implementation>[a-z]+)(?P<major>\d)(?P<minor>\d+)")


class Installer(StrEnum):
    """A program that installs wheels."""

    PIP = "pip"
    UV = "uv"


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a wheel is installed: *packages* is site-packages, in *folder*; no *python* where none here can run it."""

    folder: Path
    packages: Path
    python: Path | None = None


def is_native(name: WheelName) -> bool:
    """Whether this Python, on this machine, takes the wheel called *name*."""
    return not name.tags.isdisjoint(_own_tags())


def platforms_of(name: WheelName) -> tuple[Platform, ...]:
    """The Linux platforms that the wheel called *name* is for."""
    return tuple(platform for tag in sorted(name.platform.split(".")) if (platform := Platform.parse(tag)))


def installers(name: WheelName) -> tuple[Installer, ...]:
    """The installers that can put the wheel called *name* somewhere; none where it is for another system."""
    if is_native(name):
        return (Installer.PIP, Installer.UV)
    target = _Target.of(name)
    return () if target is None else (Installer.UV if target.uv_platform else Installer.PIP,)


def installed(
    wheel: Path, installer: Installer, *, links: Sequence[Path], indexes: Indexes, folder: Path
) -> Environment:
    """A new environment in *folder* with the *wheel*, under its plain name, and what it requires, also from *links*.

    `SplitError`, with the line in which the installer says why, where it cannot be installed.
    """
    name = WheelName.parse(wheel.name)
    plain = _plainly_named(wheel, name, folder)
    environment = _native(folder, installer) if is_native(name) else Environment(folder, folder / "packages")
    commands: list[list[str]] = []
    if environment.python:
        commands.append(_venv(installer, environment))
    commands.append([*_install(installer, environment, name, indexes), *_links(links, indexes), str(plain)])
    for command in commands:
        _run(installer, command, {**_variables(indexes), **indexes.environment()})
    return environment


def _plainly_named(wheel: Path, name: WheelName, folder: Path) -> Path:
    """The *wheel* as installers understand its name: one with a variant label is linked into *folder* without it."""
    if name.variant is None:
        return wheel.absolute()
    link = folder / "plain" / str(name.plain())
    link.parent.mkdir()
    link.symlink_to(wheel.absolute())
    return link


def _native(folder: Path, installer: Installer) -> Environment:
    root = folder / f"with-{installer}"
    paths = sysconfig.get_paths("venv", vars={"base": str(root), "platbase": str(root)})
    return Environment(root, Path(paths["purelib"]), Path(paths["scripts"]) / "python")


def _venv(installer: Installer, environment: Environment) -> list[str]:
    if installer is Installer.PIP:
        return [sys.executable, "-m", "venv", str(environment.folder)]
    quiet = ["--no-config", "--no-progress", "--no-project", "--no-python-downloads"]
    return [uv.find_uv_bin(), "venv", *quiet, "--python", sys.executable, str(environment.folder)]


def _install(installer: Installer, environment: Environment, name: WheelName, indexes: Indexes) -> list[str]:
    """The command, its packages not named yet."""
    if installer is Installer.PIP:
        # the pip that a new environment has is the one that users have
        python = str(environment.python or sys.executable)
        command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    else:
        # a file that is a link into uv's cache would be loaded from there
        command = [uv.find_uv_bin(), "pip", "install", "--no-config", "--no-progress", "--link-mode=hardlink"]
        command += ["--python", str(environment.python or sys.executable)]
    # uv has no variable for it
    command += ["--no-index"] if indexes.no_index else []
    if not environment.python and (target := _Target.of(name)):
        command += ["--target", str(environment.packages), "--only-binary=:all:"]
        command += target.for_uv() if installer is Installer.UV else target.for_pip()
    return command


def _links(links: Sequence[Path], indexes: Indexes) -> list[str]:
    places = [*indexes.find_links, *(link.absolute().as_uri() for link in links)]
    return [f"--find-links={place}" for place in dict.fromkeys(places)]


def _variables(indexes: Indexes) -> dict[str, str]:
    """The environment of an installer: ours without what leads elsewhere, and *indexes* as pip reads them."""
    kept = {name: text for name, text in os.environ.items() if name not in _LEAD_ELSEWHERE}
    pip = {
        "PIP_INDEX_URL": indexes.index_url,
        "PIP_EXTRA_INDEX_URL": " ".join(indexes.extra_index_urls),
        "PIP_TRUSTED_HOST": " ".join(indexes.trusted_hosts),
        "PIP_CERT": indexes.cert,
        "PIP_CLIENT_CERT": indexes.client_cert,
        "PIP_PROXY": indexes.proxy,
        "PIP_KEYRING_PROVIDER": indexes.keyring,
        "PIP_DEFAULT_TIMEOUT": str(round(indexes.timeout)),
        "COLUMNS": "1000",  # or messages are broken where a terminal would end
    }
    return kept | {name: text for name, text in pip.items() if text}


def _run(installer: Installer, command: Sequence[str], environment: Mapping[str, str]) -> None:
    ran = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if ran.returncode:
        raise SplitError(f"{installer}: {_reason(f'{ran.stdout}{ran.stderr}') or f'exit status {ran.returncode}'}")


def _reason(output: str) -> str:
    """The line of *output* that says why: pip's last error, or uv's with its first cause."""
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    if errors := [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]:
        return errors[-1]
    said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")][:1]
    said += [line.removeprefix("cause: ") for line in lines if line.startswith("cause: ")][:1]
    return ": ".join(said or lines[-1:])


@dataclass(frozen=True, slots=True)
class _Target:
    """Another Python, on this or another kind of Linux machine, in the words that installers have for it."""

    implementation: str
    version: str
    abi: str
    platform: Platform

    @classmethod
    def of(cls, name: WheelName) -> Self | None:
        """The Python that the wheel called *name* is for; None where it is for another system than Linux."""
        if not (platforms := platforms_of(name)):
            return None
        platform = max(platforms, key=lambda found: found.glibc or (0, 0))
        tag = min(name.tags, key=str)
        this = sys.version_info[:2]
        if match := _CPYTHON.fullmatch(tag.interpreter):
            own = (int(match["major"]), int(match["minor"]))
            version = max(own, this) if tag.abi == "abi3" else own
            abi = tag.abi if tag.abi.startswith("cp") else "cp{}{}".format(*version)
            return cls("cp", "{}.{}".format(*version), abi, platform)
        if not tag.interpreter.startswith("py") and (match := _OTHER.fullmatch(tag.interpreter)):
            return cls(match["implementation"], f"{match['major']}.{match['minor']}", tag.abi, platform)
        return cls("cp", "{}.{}".format(*this), "cp{}{}".format(*this), platform)

    @property
    def uv_platform(self) -> str | None:
        """What uv calls the platform; None where it has no name for it, or for the interpreter."""
        machine = self.platform.machine
        if machine not in {"x86_64", "aarch64"} or self.abi != f"cp{self.version.replace('.', '')}":
            return None
        if self._is_musl:
            return f"{machine}-unknown-linux-musl"
        return f"{machine}-manylinux_2_{next((minor for minor in _NAMED_GLIBC if minor >= self._glibc), 40)}"

    def for_uv(self) -> list[str]:
        return ["--python-version", self.version, "--python-platform", str(self.uv_platform)]

    def for_pip(self) -> list[str]:
        # pip takes environment markers from the Python that runs it, whatever it is told here
        words = ["--python-version", self.version, "--implementation", self.implementation, "--abi", self.abi]
        return words + [f"--platform={tag}_{self.platform.machine}" for tag in self._platform_tags()]

    def _platform_tags(self) -> list[str]:
        """Every tag, newest first, for pip does not know that a newer glibc runs what is for an older one."""
        if self._is_musl:
            return [*_MUSL, "linux"]
        tags = [(f"manylinux_2_{minor}", _LEGACY.get(minor)) for minor in range(self._glibc, _OLDEST_GLIBC - 1, -1)]
        return [tag for pair in tags for tag in pair if tag] + ["linux"]

    @property
    def _is_musl(self) -> bool:
        return self.platform.tag.startswith("musllinux")

    @property
    def _glibc(self) -> int:
        return max((self.platform.glibc or (2, 0))[1], _USUAL_GLIBC)


@cache
def _own_tags() -> frozenset[Tag]:
    return frozenset(sys_tags())
