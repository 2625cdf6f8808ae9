"""What a machine installs: the files that uv resolves requirements to, or that a lock names.

    requirements.txt, NAME==VERSION -> uv pip compile for its Python and platform -> pylock
    uv.lock                         -> uv export, of the project beside it        -> pylock
    pylock.toml                                                                   -> pylock
    pylock -> what its markers and the machine's tags select, a wheel or else the sdist

https://packaging.python.org/en/latest/specifications/pylock-toml/ (PEP 751)
"""

import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from packaging.markers import Environment, UndefinedComparison, UndefinedEnvironmentName
from packaging.pylock import (
    PackageSdist,
    PackageWheel,
    Pylock,
    PylockSelectError,
    PylockUnsupportedVersionError,
    PylockValidationError,
    is_valid_pylock_path,
)
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, parse_tag

from vbuild.errors import BuildError, RecipeError, RepackageError, at, reason_of
from vbuild.hardware.machine import Machine
from vbuild.hardware.uv_platform import python_of, uv_platform
from vbuild.index_client.configuration import Indexes, compile_command, export_command
from vbuild.mirroring.local_places import check_local, local_places
from vbuild.mirroring.model import FleetMachine, Original, check_name
from vbuild.process.run import run
from vbuild.recipe.variables import for_installers

_UV_LOCK = "uv.lock"
_REQUIREMENTS = re.compile(r".*\.(txt|in)", re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PROJECT = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def resolved(sources: Sequence[str], machine: FleetMachine, stage: Path) -> tuple[Original, ...]:
    """The files that *sources*, files or requirements, come to on *machine*, by project; *stage* is an empty folder.

    `BuildError`, in uv's words, if they cannot be resolved; `RecipeError` for a file that cannot be read;
    `RepackageError` if something comes from elsewhere than an index, or in two versions.
    """
    found: dict[str, Original] = {}
    for place, pylock, check in _pylocks(sources, machine.machine, stage):
        with at(place):
            for original in _selected(pylock, Path(place), machine):
                with at(f"{machine.name}: {original.project}"):
                    check(original.url)
                if found.setdefault(original.project, original) != original:
                    two = f"{found[original.project].file} and {original.file}"
                    raise RepackageError(f"{machine.name}: {two}; expected one of them, as an environment has")
    return tuple(found[project] for project in sorted(found))


def _pylocks(
    sources: Sequence[str], machine: Machine, stage: Path
) -> Iterator[tuple[str, Pylock, Callable[[str], None]]]:
    """The locks that *sources* are or come to on *machine*, each with its path, and what refuses URLs in it."""
    locks = [source for source in sources if is_valid_pylock_path(Path(source))]
    projects = [source for source in sources if Path(source).name == _UV_LOCK]
    others = [source for source in sources if source not in {*locks, *projects}]
    for source in locks:
        yield source, _read(Path(source)), _taken
    for number, source in enumerate(projects):
        if not Path(source).is_file():
            raise RecipeError(f"{source}: cannot be read: no such file")
        exported = stage / f"pylock.exported-{number}.toml"
        _uv(export_command(Path(source).absolute().parent, exported), stage, name="uv export")
        # paths in it are relative to the project
        yield source, _read(exported), _taken
    if others:
        wanted, found = stage / "wanted.txt", stage / "pylock.toml"
        wanted.write_text("".join(f"{_line(source)}\n" for source in others), encoding="utf-8")
        options = ["--quiet", "--no-header", "--format=pylock.toml", "--no-python-downloads"]
        options += ["--python-version", python_of(machine), "--python-platform", uv_platform(machine)]
        # the machine's own Python need not be here, and uv would look for one in the current folder first
        command = compile_command(sys.executable, wanted, found, *options)
        _uv(command, stage, name="uv pip compile")
        yield str(found), _read(found), partial(check_local, places=local_places(others))


def _taken(_url: str) -> None:
    """A lock of the user's may name any file."""


def _line(source: str) -> str:
    """*source* as a line of a file of requirements."""
    path = Path(source)
    if path.is_file():
        if path.name == "pyproject.toml":
            raise RecipeError(f"{source}: run `uv lock` there, and name its uv.lock")
        if not _REQUIREMENTS.fullmatch(path.name):
            raise RecipeError(f"{source}: expected requirements.txt, pylock.toml, uv.lock, or a requirement")
        return f"-r {path.absolute()}"
    try:
        return str(Requirement(source))
    except InvalidRequirement as error:
        what = "no such file, and no requirement"
        raise RecipeError(
            f"{source}: {what}; expected requirements.txt, pylock.toml, uv.lock, or torch==2.9.1"
        ) from error


def _uv(command: Sequence[str], stage: Path, *, name: str) -> None:
    environment = {**for_installers(os.environ, ()), **Indexes.configured().environment()}
    run([*command], log=stage / "log", environment=environment, name=name, is_kept=False)


def _read(path: Path) -> Pylock:
    try:
        with path.open("rb") as file:
            return Pylock.from_dict(tomllib.load(file))
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read: {reason_of(error)}") from error
    except (ValueError, RecursionError, PylockValidationError, PylockUnsupportedVersionError) as error:
        raise RecipeError(f"{path}: no lock as PEP 751 has it: {error or type(error).__name__}") from error


def _selected(pylock: Pylock, place: Path, machine: FleetMachine) -> Iterator[Original]:
    """The files of *pylock*, which is at *place*, that *machine* installs."""
    try:
        for package, file in pylock.select(environment=_environment(machine.machine), tags=_tags(machine.machine)):
            what = f"{machine.name}: {package.name}"
            if package.version is None or not isinstance(file, PackageWheel | PackageSdist):
                raise RepackageError(f"{what}: comes from elsewhere than an index; expected a wheel or an sdist there")
            sha256 = file.hashes.get("sha256", "").lower()
            if not _SHA256.fullmatch(sha256) or not _PROJECT.fullmatch(package.name):
                raise RepackageError(f"{what}: {file.filename}: no SHA-256 is stated; expected one to hold it to")
            url = file.url or ""
            if not url:
                url = (place.absolute().parent / (file.path or "")).as_uri()
            elif urlsplit(url).scheme not in {"https", "http", "file"}:
                raise RepackageError(f"{what}: {url}: expected a URL of http or https")
            with at(what):
                check_name(package.name, file.filename)
            yield Original(
                project=package.name,
                version=str(package.version),
                file=file.filename,
                url=url,
                sha256=sha256,
                size=file.size or 0,
                uploaded=_time(file.upload_time),
            )
    except (PylockSelectError, PylockValidationError) as error:
        raise BuildError(f"{machine.name}: {error}") from error
    except (UndefinedComparison, UndefinedEnvironmentName) as error:
        raise RecipeError(f"a marker that cannot be evaluated: {error}; expected one as PEP 508 has it") from error


def _time(uploaded: datetime | None) -> str | None:
    """When a file was uploaded, as PEP 700 writes it."""
    # a time near the first or the last one that there is has no equal in UTC
    with suppress(OverflowError):
        return uploaded.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if uploaded else None
    return None


def _tags(machine: Machine) -> list[Tag]:
    return [tag for text in machine.tags for tag in parse_tag(text)]


def _environment(machine: Machine) -> Environment:
    """What markers are asked on *machine*, a Linux with CPython."""
    return Environment(
        implementation_name="cpython",
        implementation_version=machine.python,
        os_name="posix",
        platform_machine=uv_platform(machine).partition("-")[0],
        platform_python_implementation="CPython",
        platform_release="",
        platform_system="Linux",
        platform_version="",
        python_full_version=machine.python,
        python_version=python_of(machine),
        sys_platform="linux",
    )
