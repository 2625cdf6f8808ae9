"""Fresh environments with a wheel and all its requirements, made by pip and by uv.

    a wheel for this Python and this machine     a virtual environment; each of the two installers makes one
    one for another Python or Linux machine      a folder with its files, made by uv, or by pip if uv has no name for
                                                 the target; without requirements that have no wheels for it and
                                                 bring no libraries

Only requirements with libraries matter to the loader:

    demo-libs==0.5              kept: a companion wheel of the same split
    nvidia-cufft-cu12==11.2.*   kept: an official package of libraries
    cuda-toolkit[cufft]==12.4.* kept: requires such packages
    numpy>=2                    left out
    pytest; extra == "test"     not required
"""

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Self

from msgspec import Struct
from msgspec.structs import replace
from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name

from vbuild.config.requirements import read_requirement, required_project
from vbuild.elf.catalogue import TOOLKIT, PlatformPolicy, is_official, platforms_in
from vbuild.errors import RepackageError
from vbuild.index_client.configuration import UNBUILT, Indexes, install_command, managed_command, unbuilt, venv_command
from vbuild.process.python import isolated, with_own_packages
from vbuild.recipe.variables import for_installers, passed, undisturbed
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.metadata import LIBS
from vbuild.wheel.name import WheelName

# the minor version of glibc that most machines have, and those that uv has a platform name for
_USUAL_GLIBC, _NAMED_GLIBC = 28, (28, *range(31, 41))
_OLDEST_GLIBC, _MUSL = 5, ("musllinux_1_2", "musllinux_1_1")
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_CPYTHON = re.compile(r"cp(?P<major>\d)(?P<minor>\d+)")
_PYTHON = re.compile(r"python3\.\d+t?")
# pip builds requirements by URL although it is to take wheels only: so it may start no Python
_WITHOUT_BUILDS = """
import runpy, sys
def refuse(event, arguments):
    if event == "subprocess.Popen" and sys.executable in (arguments[0], arguments[1][0]):
        raise OSError("Building source distributions is disabled")
sys.addaudithook(refuse)
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
_NOT_FOUND = "No matching distribution found"
_OTHER = re.compile(r"(?P<implementation>[a-z]+)(?P<major>\d)(?P<minor>\d+)")


class TargetPython(Struct, frozen=True):
    implementation: str
    version: str
    abi: str
    platform: PlatformPolicy

    @classmethod
    def of(cls, name: WheelName) -> Self | None:
        """The Python that the wheel *name* is for; None if it is for another system than Linux."""
        if not (platforms := platforms_in(name.platform)):
            return None
        platform = max(platforms, key=lambda platform: platform.glibc or (0, 0))
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
        """What uv calls the platform; None without a name for it, or for the interpreter."""
        machine = self.platform.machine
        if machine not in {"x86_64", "aarch64"} or self.abi != f"cp{self.version.replace('.', '')}":
            return None
        if self._is_musl:
            return f"{machine}-unknown-linux-musl"
        return f"{machine}-manylinux_2_{next((minor for minor in _NAMED_GLIBC if minor >= self._glibc), 40)}"

    @property
    def markers(self) -> Mapping[str, str]:
        return {
            "python_version": self.version,
            "python_full_version": f"{self.version}.0",
            "platform_machine": self.platform.machine,
        }

    def options(self, installer: "Installer") -> list[str]:
        if installer is Installer.UV:
            return ["--python-version", self.version, "--python-platform", str(self.uv_platform)]
        # pip takes environment markers from its own Python, whatever these options say
        words = ["--python-version", self.version, "--implementation", self.implementation, "--abi", self.abi]
        return words + [f"--platform={tag}_{self.platform.machine}" for tag in self._platform_tags()]

    def _platform_tags(self) -> list[str]:
        """Every tag, newest first: pip does not know that a newer glibc runs wheels for an older one."""
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


class RequirementChoice(Struct, frozen=True):
    kept: tuple[str, ...]
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, lines: Iterable[str], *, companions: Collection[str], markers: Mapping[str, str]) -> Self:
        """Choose among Requires-Dist *lines*; *companions* are projects, *markers* those that differ from here."""
        required: dict[str, None] = {}
        left_out: dict[str, None] = {}
        for line in lines:
            # a line that cannot be read is ignored, as installers do with old metadata
            if (requirement := read_requirement(line)) is None:
                continue
            with suppress(UndefinedComparison, UndefinedEnvironmentName):
                if requirement.marker and not requirement.marker.evaluate({**markers, "extra": ""}):
                    continue
                requirement.marker = None
                project = canonicalize_name(requirement.name)
                is_libs = project in companions or project.endswith(LIBS)
                brings_libraries = is_libs or project == TOOLKIT or is_official(project)
                (required if brings_libraries else left_out)[str(requirement)] = None
        return cls(tuple(required), tuple(left_out))

    @property
    def projects(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(project for line in self.left_out if (project := required_project(line))))


class Installer(StrEnum):
    PIP = "pip"
    UV = "uv"


class WheelEnvironment(Struct, frozen=True):
    """Where a wheel is installed: *packages* is site-packages; *python* is None if none here runs it.

    *left_out* are required projects not installed, for the installer's *reason*; with a reason alone, none is.
    *machine* is the Python's if it is not this one.
    """

    folder: Path
    packages: Path
    python: Path | None = None
    left_out: tuple[str, ...] = ()
    reason: str = ""
    machine: str = ""


class WheelSources(Struct, frozen=True):
    """Where installers find packages: folders of wheels, and indexes; *builds* runs code of packages without a wheel.

    *companions* are projects of companion wheels there.
    """

    links: tuple[Path, ...]
    indexes: Indexes
    companions: frozenset[str] = frozenset()
    builds: bool = False


@cache
def is_native(name: WheelName) -> bool:
    return not name.tags.isdisjoint(sys_tags())


def is_foreign(name: WheelName) -> bool:
    return bool(name.machines) and os.uname().machine not in name.machines


def foreign_pythons(machine: str) -> tuple[Path, ...]:
    """The CPythons of *machine* on this one: uv's, and those in the folder QEMU_LD_PREFIX."""
    ran = subprocess.run(managed_command(), capture_output=True, text=True, check=False)
    prefix = os.environ.get("QEMU_LD_PREFIX")
    folders = [Path(ran.stdout.strip()).glob(f"cpython-*-linux-{machine}-gnu/bin/python3.*")] if ran.stdout else []
    folders += [Path(prefix).glob(f"{folder}/bin/python3.*") for folder in ("usr/local", "usr")] if prefix else []
    return tuple(path for paths in folders for path in sorted(paths) if _PYTHON.fullmatch(path.name))


def installers(name: WheelName) -> tuple[Installer, ...]:
    """The installers that can install the wheel *name*; none if it is for another system."""
    if is_native(name):
        return (Installer.PIP, Installer.UV)
    target = TargetPython.of(name)
    return () if target is None else (Installer.UV if target.uv_platform else Installer.PIP,)


def install(wheel: Path, installer: Installer, sources: WheelSources, *, folder: Path) -> WheelEnvironment:
    """Install *wheel*, under its plain name, and its requirements into a new environment in *folder*.

    For another Python or machine, requirements that the loader does not need are left out if they cannot be installed.
    `RepackageError`, with the installer's reason, if the wheel cannot be.
    """
    name = WheelName.parse(wheel.name)
    plain = _plainly_named(wheel, name, folder)
    client = _Client(installer, TargetPython.of(name), sources)
    if is_native(name):
        root = folder / f"with-{installer}"
        paths = sysconfig.get_paths("venv", vars={"base": str(root), "platbase": str(root)})
        environment = WheelEnvironment(root, Path(paths["purelib"]), Path(paths["scripts"]) / "python")
        by_pip = isolated("-m", "venv", str(root))
        client.run(by_pip if installer is Installer.PIP else venv_command(sys.executable, root))
        client.install(environment, str(plain))
        return environment
    environment = WheelEnvironment(folder, folder / "packages")
    try:
        client.install(environment, str(plain))
    except RepackageError:
        with open_wheel(wheel) as source:
            lines = source.metadata().requires_dist
        markers = client.target.markers if client.target else {}
        choice = RequirementChoice.of(lines, companions=sources.companions, markers=markers)
        if not (reason := client.refusal(choice.left_out, folder)):
            raise
        environment = WheelEnvironment(folder, folder / "linked", left_out=choice.projects, reason=reason)
        if choice.kept:
            client.install(environment, *choice.kept)
        client.install(environment, "--no-deps", str(plain))
    return environment


def make_environment(
    wheel: Path,
    python: Path,
    *,
    requires: Sequence[str],
    sources: WheelSources,
    folder: Path,
    is_enough_alone: bool = False,
) -> WheelEnvironment:
    """A new environment of *python* in *folder*, made by uv: *wheel*, and what it and its test *requires*.

    Pythons of other machines get wheels only. A wheel that *is_enough_alone* is installed alone if requirements cannot
    be had. `RepackageError`, with uv's reason, if it cannot be made.
    """
    name = WheelName.parse(wheel.name)
    plain = _plainly_named(wheel, name, folder)
    client = _Client(Installer.UV, target := TargetPython.of(name), sources)
    root = folder / "environment"
    if target and is_foreign(name):
        # uv cannot run this Python, and needs not for wheels
        packages = root / "lib" / f"python{target.version}" / "site-packages"
        packages.mkdir(parents=True)
        (root / "bin").mkdir()
        (root / "bin" / "python").symlink_to(python)
        (root / "pyvenv.cfg").write_text(f"home = {python.parent}\nversion = {target.version}\n", encoding="utf-8")
        client.install(WheelEnvironment(root, packages), str(plain), *requires)
        return WheelEnvironment(root, packages, root / "bin" / "python", machine=target.platform.machine)
    client.run(venv_command(python, root))
    (packages,) = root.glob("lib/*/site-packages")
    environment = WheelEnvironment(root, packages, root / "bin" / "python")
    try:
        client.install(environment, str(plain), *requires)
    except RepackageError as error:
        if not is_enough_alone or UNBUILT in str(error):
            raise
        client.install(environment, "--no-deps", str(plain))
        return replace(environment, reason=str(error))
    return environment


def _plainly_named(wheel: Path, name: WheelName, folder: Path) -> Path:
    if name.variant is None:
        return wheel.absolute()
    link = folder / "plain" / str(name.plain())
    link.parent.mkdir()
    link.symlink_to(wheel.absolute())
    return link


def variables() -> dict[str, str]:
    """For an environment's process: the variables a build sees, less those that lead elsewhere."""
    return undisturbed(passed(os.environ))


class _Client(Struct, frozen=True):
    installer: Installer
    target: TargetPython | None
    sources: WheelSources

    def install(self, environment: WheelEnvironment, *packages: str) -> None:
        places = (*self.sources.indexes.find_links, *(link.absolute().as_uri() for link in self.sources.links))
        links = (f"--find-links={source}" for source in dict.fromkeys(places))
        try:
            self.run([*self._command(environment), *links, *packages])
        except RepackageError as error:
            # pip does not say that there is an sdist
            if environment.python and not self.sources.builds and _NOT_FOUND in str(error):
                raise RepackageError(f"{error}, of wheels; --allow-builds takes sdists, too") from error
            raise

    def refusal(self, packages: Sequence[str], folder: Path) -> str | None:
        try:
            if packages:
                self.install(WheelEnvironment(folder, folder / "nothing"), "--dry-run", *packages)
        except RepackageError as error:
            return str(error)
        return None

    def run(self, command: Sequence[str]) -> None:
        ran = subprocess.run(
            command,
            env={**_installer_variables(self.sources.indexes), **self.sources.indexes.environment()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        if ran.returncode:
            output = f"{ran.stdout}{ran.stderr}"
            reason = _reason(output) or f"exit status {ran.returncode}"
            if project := unbuilt(output):
                reason = f"{project}: {UNBUILT}"
            raise RepackageError(f"{self.installer}: {reason}")

    def _command(self, environment: WheelEnvironment) -> list[str]:
        builds = self.sources.builds and environment.python is not None  # what is built here would be for this machine
        if self.installer is Installer.PIP:
            # users run the pip that a new environment has
            pip = [*(("-m", "pip") if builds else ("-c", _WITHOUT_BUILDS)), "install"]
            pip += ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
            pip += [] if builds else ["--only-binary=:all:"]
            own = environment.python
            command = isolated(*pip, python=own) if own else with_own_packages(*pip)
        else:
            # a link into uv's cache would make the loader find the library there
            command = install_command(environment.python or sys.executable, "--link-mode=hardlink", builds=builds)
        # there is no variable for it in uv
        command += ["--no-index"] if self.sources.indexes.no_index else []
        if not environment.python and self.target:
            command += ["--target", str(environment.packages), *self.target.options(self.installer)]
        return command


def _installer_variables(indexes: Indexes) -> dict[str, str]:
    """What an installer may see of our variables, and *indexes* as pip reads them."""
    pip = {
        "PIP_INDEX_URL": indexes.index_url,
        "PIP_EXTRA_INDEX_URL": " ".join(indexes.extra_index_urls),
        "PIP_TRUSTED_HOST": " ".join(indexes.trusted_hosts),
        "PIP_CERT": indexes.cert,
        "PIP_CLIENT_CERT": indexes.client_cert,
        "PIP_PROXY": indexes.proxy,
        "PIP_KEYRING_PROVIDER": indexes.keyring,
        "PIP_DEFAULT_TIMEOUT": str(round(indexes.timeout)),
        "COLUMNS": "1000",  # otherwise pip breaks messages at the terminal's width
    }
    return undisturbed(for_installers(os.environ)) | {name: text for name, text in pip.items() if text}


def _reason(output: str) -> str:
    """The line of *output* that says why: pip's last error, or uv's error with its first cause."""
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    if errors := [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]:
        return errors[-1]
    first = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")][:1]
    first += [line.removeprefix("cause: ") for line in lines if line.startswith("cause: ")][:1]
    return ": ".join(first or lines[-1:])
