"""Fresh environments of a Python that is here, with a wheel and all its requirements, made by pip or by uv."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from functools import cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from packaging.tags import sys_tags

from vbuild.elf.catalogue import platforms_in
from vbuild.errors import RepackageError, WheelError
from vbuild.index_client.configuration import UNBUILT, Indexes, find_python, install_command, unbuilt, venv_command
from vbuild.process.python import isolated
from vbuild.recipe.variables import for_installers, passed, undisturbed
from vbuild.wheel.name import WheelName

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


class Installer(StrEnum):
    PIP = "pip"
    UV = "uv"


class WheelEnvironment(Struct, frozen=True):
    """Where a wheel is installed, *packages* being site-packages; alone, if the installer had a *reason*."""

    folder: Path
    packages: Path
    python: Path
    reason: str = ""


class WheelSources(Struct, frozen=True):
    """Where installers find packages; *builds* runs code of those without a wheel."""

    links: tuple[Path, ...]
    indexes: Indexes
    builds: bool = False


@cache
def is_native(name: WheelName) -> bool:
    return not name.tags.isdisjoint(sys_tags())


def why_not_here(name: WheelName) -> str | None:
    """Why no Python of this machine takes the wheel *name*, whatever its version; None if one may."""
    here, platforms = os.uname().machine, platforms_in(name.platform)
    machines = {platform.machine for platform in platforms}
    if machines and here not in machines:
        where = " or ".join(sorted(machines))
        return (
            f"for {where}, and this machine is {here}: nothing was run; expected a machine of {where}, with its Python"
        )
    if not platforms and name.platform != "any":
        return f"for {name.platform}, expected a Linux wheel: nothing was run"
    wanted = {"musl" if platform.tag.startswith("musllinux") else "glibc" for platform in platforms}
    libc = "musl"
    with suppress(ValueError, OSError):  # musl does not know the name
        libc = "glibc" if os.confstr("CS_GNU_LIBC_VERSION") else "musl"
    if wanted and libc not in wanted:
        return f"for {' or '.join(sorted(wanted))}, and the C library of this machine is another: nothing was run"
    return None


def python_for(name: WheelName) -> Path:
    """A Python here that takes the wheel *name*; `WheelError` if there is none."""
    if why := why_not_here(name):
        raise WheelError(why)
    tag = min(name.tags, key=str)
    if is_native(name) or tag.interpreter.startswith("py"):
        return Path(sys.executable)
    version = f"{tag.interpreter}{'t' if tag.abi.endswith('t') else ''}"
    ran = find_python(version, variables())
    if ran.returncode:
        raise WheelError(f"no Python on this machine takes {name.python}-{name.abi}; uv python install may bring one")
    return Path(ran.stdout.strip())


def make_environment(
    wheel: Path,
    python: Path,
    *,
    sources: WheelSources,
    folder: Path,
    requires: Sequence[str] = (),
    installer: Installer = Installer.UV,
    is_enough_alone: bool = False,
) -> WheelEnvironment:
    """A new environment of *python* in *folder*: *wheel*, under its plain name, and what it and its test *requires*.

    A wheel that *is_enough_alone* is installed alone if requirements cannot be had. `RepackageError`, with the
    installer's reason, if it cannot be made.
    """
    plain = _plainly_named(wheel, WheelName.parse(wheel.name), folder)
    client, root = _Client(installer, sources, folder), folder / "environment"
    client.run(isolated("-m", "venv", str(root)) if installer is Installer.PIP else venv_command(python, root))
    (packages,) = root.glob("lib/*/site-packages")
    environment = WheelEnvironment(root, packages, root / "bin" / "python")
    try:
        client.install(environment.python, str(plain), *requires)
    except RepackageError as error:
        if not is_enough_alone or UNBUILT in str(error):
            raise
        client.install(environment.python, "--no-deps", str(plain))
        return replace(environment, reason=str(error))
    return environment


def environment_in(folder: Path) -> WheelEnvironment | None:
    """The environment that `make_environment` made in *folder*, if it did."""
    root = folder / "environment"
    python = root / "bin" / "python"
    return WheelEnvironment(root, next(root.glob("lib/*/site-packages")), python) if python.is_symlink() else None


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
    sources: WheelSources
    folder: Path

    def install(self, python: Path, *packages: str) -> None:
        places = (*self.sources.indexes.find_links, *(link.absolute().as_uri() for link in self.sources.links))
        links = (f"--find-links={source}" for source in dict.fromkeys(places))
        try:
            self.run([*self._command(python), *links, *packages])
        except RepackageError as error:
            # pip does not say that there is an sdist
            if not self.sources.builds and _NOT_FOUND in str(error):
                raise RepackageError(f"{error}, of wheels; --allow-builds takes sdists, too") from error
            raise

    def run(self, command: Sequence[str]) -> None:
        ran = subprocess.run(
            command,
            env=_installer_variables(self.sources.indexes) | {"TMPDIR": str(self.folder)},  # killed pip leaves files
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

    def _command(self, python: Path) -> list[str]:
        builds = self.sources.builds
        if self.installer is Installer.PIP:
            # users run the pip that a new environment has
            pip = [*(("-m", "pip") if builds else ("-c", _WITHOUT_BUILDS)), "install"]
            pip += ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
            command = isolated(*pip, *([] if builds else ["--only-binary=:all:"]), python=python)
        else:
            # a link into uv's cache would make the loader find the library there
            command = install_command(python, "--link-mode=hardlink", builds=builds)
        # there is no variable for it in uv
        return [*command, *(["--no-index"] if self.sources.indexes.no_index else [])]


def _installer_variables(indexes: Indexes) -> dict[str, str]:
    """What an installer may see of our variables, and *indexes*."""
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
    own = {name: text for name, text in pip.items() if text}
    return undisturbed(for_installers(os.environ)) | own | indexes.environment()


def _reason(output: str) -> str:
    """The line of *output* that says why: pip's last error, or uv's error with its first cause."""
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    if errors := [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]:
        return errors[-1]
    first = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")][:1]
    first += [line.removeprefix("cause: ") for line in lines if line.startswith("cause: ")][:1]
    return ": ".join(first or lines[-1:])
