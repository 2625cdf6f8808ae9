"""Fresh environments with a wheel and all it requires in them, made by pip and by uv.

    a wheel for this Python and this machine     a virtual environment; each of the two installers makes one
    one for another Python or Linux machine      its files alone, in a folder: uv, or pip where uv has no word for it;
                                                 without what has no wheels for it, and no libraries for the loader

Both read the configured package indexes, and keep what they download in the caches that they have anyway.

Which requirements of a wheel matter to the loader: those that bring the libraries that its files are linked to.

demo-libs==0.5              kept: made beside the wheel
nvidia-cufft-cu12==11.2.*   kept: an official package of libraries
cuda-toolkit[cufft]==12.4.* kept: what brings such packages
numpy>=2                    left out
pytest; extra == "test"     not required
"""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Self

import uv
from msgspec import Struct
from packaging.markers import UndefinedComparison
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, sys_tags
from packaging.utils import canonicalize_name

from vbuild.elf.catalogue import TOOLKIT, is_official
from vbuild.errors import SplitError
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.variables import for_installers, passed
from vbuild.verification.target import LoadTarget
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.name import WheelName


class PythonChoice(Struct, frozen=True):
    """What of a wheel's requirements is *kept*, and what is *left_out*; both as an installer takes them."""

    kept: tuple[str, ...]
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, lines: Iterable[str], *, beside: Collection[str], markers: Mapping[str, str]) -> Self:
        """The choice among Requires-Dist *lines*, *beside* being projects made with the wheel.

        *markers* are the values of environment markers that are others than here.
        """
        kept: dict[str, None] = {}
        left_out: dict[str, None] = {}
        for requirement in _applying(lines, markers):
            project = canonicalize_name(requirement.name)
            brings = project in beside or project == TOOLKIT or is_official(project)
            (kept if brings else left_out)[str(requirement)] = None
        return cls(tuple(kept), tuple(left_out))

    @property
    def projects(self) -> tuple[str, ...]:
        """The projects that are left out."""
        return tuple(dict.fromkeys(canonicalize_name(Requirement(line).name) for line in self.left_out))


def _applying(lines: Iterable[str], markers: Mapping[str, str]) -> Iterator[Requirement]:
    """The *lines* that count where *markers* are so, without theirs; one that cannot be read is none of ours."""
    for line in lines:
        with suppress(InvalidRequirement, UndefinedComparison):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({**markers, "extra": ""}):
                requirement.marker = None
                yield requirement


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


class Installer(StrEnum):
    """A program that installs wheels."""

    PIP = "pip"
    UV = "uv"


class TestEnvironment(Struct, frozen=True):
    """Where a wheel is installed: *packages* is site-packages, in *folder*; no *python* where none here can run it.

    *left_out* are projects that it requires, and that are not there for the *reason* that the installer gave.
    """

    folder: Path
    packages: Path
    python: Path | None = None
    left_out: tuple[str, ...] = ()
    reason: str = ""


def is_native(name: WheelName) -> bool:
    """Whether this Python, on this machine, takes the wheel called *name*."""
    return not name.tags.isdisjoint(_own_tags())


def installers(name: WheelName) -> tuple[Installer, ...]:
    """The installers that can put the wheel called *name* somewhere; none where it is for another system."""
    if is_native(name):
        return (Installer.PIP, Installer.UV)
    target = LoadTarget.of(name)
    return () if target is None else (Installer.UV if target.uv_platform else Installer.PIP,)


def installed(
    wheel: Path,
    installer: Installer,
    *,
    links: Sequence[Path],
    indexes: Indexes,
    folder: Path,
    beside: Collection[str] = (),
) -> TestEnvironment:
    """A new environment in *folder* with the *wheel*, under its plain name, and what it requires, also from *links*.

    For another Python or machine, what the loader does not need is left out where even alone it cannot be installed;
    the projects made *beside* the wheel are what it needs. `SplitError`, with the line in which the installer says why,
    where the wheel cannot be installed.
    """
    name = WheelName.parse(wheel.name)
    plain = _plainly_named(wheel, name, folder)
    client = _Client(installer, name, tuple(links), indexes)
    if is_native(name):
        environment = _native(folder, installer)
        client.run(_venv(installer, environment))
        client.install(environment, str(plain))
        return environment
    environment = TestEnvironment(folder, folder / "packages")
    try:
        client.install(environment, str(plain))
    except SplitError:
        choice = _choice(wheel, name, beside)
        if not (reason := client.refusal(choice.left_out, folder)):
            raise
        environment = TestEnvironment(folder, folder / "linked", left_out=choice.projects, reason=reason)
        if choice.kept:
            client.install(environment, *choice.kept)
        client.install(environment, "--no-deps", str(plain))
    return environment


def equipped(
    wheel: Path, python: Path, *, requires: Sequence[str], links: Sequence[Path], indexes: Indexes, folder: Path
) -> TestEnvironment:
    """A new environment of *python* in *folder*, by uv: the *wheel* and what that needs, and what a test *requires*.

    `SplitError`, with the line in which uv says why, where it cannot be made.
    """
    name = WheelName.parse(wheel.name)
    plain = _plainly_named(wheel, name, folder)
    client = _Client(Installer.UV, name, tuple(links), indexes)
    root = folder / "environment"
    client.run([*_uv_venv(python), str(root)])
    (packages,) = root.glob("lib/*/site-packages")
    environment = TestEnvironment(root, packages, root / "bin" / "python")
    client.install(environment, str(plain), *requires)
    return environment


def _choice(wheel: Path, name: WheelName, beside: Collection[str]) -> PythonChoice:
    """What of the requirements of *wheel*, which is for another Python or machine, the loader needs."""
    target = LoadTarget.of(name)
    with open_wheel(wheel) as source:
        lines = source.metadata().requires_dist
    return PythonChoice.of(lines, beside=beside, markers=target.markers() if target else {})


def _plainly_named(wheel: Path, name: WheelName, folder: Path) -> Path:
    """The *wheel* as installers understand its name: one with a variant label is linked into *folder* without it."""
    if name.variant is None:
        return wheel.absolute()
    link = folder / "plain" / str(name.plain())
    link.parent.mkdir()
    link.symlink_to(wheel.absolute())
    return link


def variables() -> dict[str, str]:
    """The environment variables of a process in an environment: what a build sees of ours, no way to other packages."""
    return _undisturbed(passed(os.environ))


def _undisturbed(before: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in before.items() if name not in _LEAD_ELSEWHERE}


def _native(folder: Path, installer: Installer) -> TestEnvironment:
    root = folder / f"with-{installer}"
    paths = sysconfig.get_paths("venv", vars={"base": str(root), "platbase": str(root)})
    return TestEnvironment(root, Path(paths["purelib"]), Path(paths["scripts"]) / "python")


def _venv(installer: Installer, environment: TestEnvironment) -> list[str]:
    if installer is Installer.PIP:
        return [sys.executable, "-m", "venv", str(environment.folder)]
    return [*_uv_venv(Path(sys.executable)), str(environment.folder)]


def _uv_venv(python: Path) -> list[str]:
    """The command that makes an environment of *python*, its folder not named yet."""
    quiet = ["--no-config", "--no-progress", "--no-project", "--no-python-downloads"]
    return [uv.find_uv_bin(), "venv", *quiet, "--python", str(python)]


class _Client(Struct, frozen=True):
    """An *installer* for the Python of the wheel called *name*, and where it finds packages."""

    installer: Installer
    name: WheelName
    links: tuple[Path, ...]
    indexes: Indexes

    def install(self, environment: TestEnvironment, *packages: str) -> None:
        """Put *packages* into *environment*; `SplitError` where they cannot be."""
        places = (*self.indexes.find_links, *(link.absolute().as_uri() for link in self.links))
        links = (f"--find-links={place}" for place in dict.fromkeys(places))
        self.run([*self._command(environment), *links, *packages])

    def refusal(self, packages: Sequence[str], folder: Path) -> str | None:
        """Why *packages* cannot be installed even by themselves; None where they can, or are none."""
        try:
            if packages:
                self.install(TestEnvironment(folder, folder / "nothing"), "--dry-run", *packages)
        except SplitError as error:
            return str(error)
        return None

    def run(self, command: Sequence[str]) -> None:
        _run(self.installer, command, {**_variables(self.indexes), **self.indexes.environment()})

    def _command(self, environment: TestEnvironment) -> list[str]:
        """The command, its packages not named yet."""
        python = str(environment.python or sys.executable)
        if self.installer is Installer.PIP:
            # the pip that a new environment has is the one that users have
            command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
            command += ["--progress-bar=off"]
        else:
            # a file that is a link into uv's cache would be loaded from there
            command = [uv.find_uv_bin(), "pip", "install", "--no-config", "--no-progress", "--link-mode=hardlink"]
            command += ["--python", python]
        # uv has no variable for it
        command += ["--no-index"] if self.indexes.no_index else []
        if not environment.python and (target := LoadTarget.of(self.name)):
            command += ["--target", str(environment.packages), "--only-binary=:all:"]
            command += target.for_uv() if self.installer is Installer.UV else target.for_pip()
        return command


def _variables(indexes: Indexes) -> dict[str, str]:
    """The environment of an installer: what it may see of ours, no way elsewhere, and *indexes* as pip reads them."""
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
    return _undisturbed(for_installers(os.environ)) | {name: text for name, text in pip.items() if text}


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


@cache
def _own_tags() -> frozenset[Tag]:
    return frozenset(sys_tags())
