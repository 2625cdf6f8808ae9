"""`vbuild lock --machine`: for each machine a pylock.toml (PEP 751) of its variant of a project, and what it requires.

    NAME, places -> `vbuild.variants.select` for the machine -> its wheel's requirements, and what else is asked for
                 -> uv pip compile for its Python and platform -> pylock.h100.toml
                                                                  h100/demo-1.0-….whl

The newest version counts whose requirements can be met. The wheel stands beside the lock under its plain name: pip
takes no file with a label, and no installer emits locks for variants. https://peps.python.org/pep-0751/
"""

import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.build.environment import lock_for
from vbuild.config.requirements import asked_project, requirement_lines
from vbuild.config.toml_text import toml
from vbuild.errors import BuildError, FetchError, VariantError, VbuildError, WheelError, at
from vbuild.files.atomic import duplicate, replacing
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import read_text
from vbuild.hardware.machine import Machine, python_of
from vbuild.index_client.located import files_at
from vbuild.index_client.pages import fetched
from vbuild.process.run import supervised
from vbuild.variants.select import Selection, select
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.name import WheelName

_HEADER = 'lock-version = "1.0"\ncreated-by = "vbuild"\nrequires-python = {python}\n'


class MachineLock(Struct, frozen=True):
    """The lock in *file* for *machine*: the *wheel* it gets, and how many *packages* come along."""

    machine: str
    file: Path
    wheel: str
    packages: int

    def data(self) -> dict[str, Any]:
        return {"machine": self.machine, "file": str(self.file), "wheel": self.wheel, "packages": self.packages}

    def lines(self) -> Iterator[str]:
        yield f"{self.file}: {self.wheel}"
        yield f"  and {self.packages} packages that it requires"


class _Found(Struct, frozen=True):
    """The wheel for a machine at *path*, its plain *name*, and the lock of the rest as *text*."""

    called: str
    selection: Selection
    path: Path
    name: WheelName
    text: str


def lock_machines(
    project: str,
    places: Sequence[str | Path],
    machines: Mapping[str, Machine],
    folder: Path,
    *,
    requires: Collection[str] = (),
    allow_builds: bool = False,
) -> tuple[MachineLock, ...]:
    """Write into *folder* a lock of *project*, out of *places*, for each of *machines*, by name.

    What *requires* names is installed as well, and decides which versions fit. Requirements without a wheel are built
    to ask what they require if *allow_builds* says so. `VariantError` for a machine for which nothing fits,
    `BuildError` if what is required cannot be had; nothing is written then.
    """
    asked_project(project, VariantError)
    names = {called: re.sub(r"[^A-Za-z0-9_-]+", "-", Path(called).stem) for called in machines}
    if len(set(names.values())) != len(names):
        raise VariantError(
            f"{', '.join(machines)}: two of them give the same name of a lock; expected other file names"
        )
    with tempfile.TemporaryDirectory(prefix="vbuild-lock-") as text, supervised():
        locks = []
        for called, machine in machines.items():
            with at(called):
                stage = Path(text, names[called])
                stage.mkdir()
                lines = tuple(requires)
                locks.append(_locked(project, places, machine, stage, lines, builds=allow_builds))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return tuple(_written(lock, folder) for lock in locks)
        except OSError as error:
            raise BuildError(f"{folder}: cannot be written: {error.strerror}") from error


def _locked(
    project: str,
    places: Sequence[str | Path],
    machine: Machine,
    stage: Path,
    requires: Sequence[str],
    *,
    builds: bool,
) -> _Found:
    """The newest release of *project* that fits *machine*, and whose requirements can be met along with *requires*."""
    refused: list[VbuildError] = []
    for version in _versions(project, places):
        try:
            selection = select(project, places, machine=machine, version=version)
        except VariantError as error:
            refused.append(error)
            continue
        path = fetched(selection.url, stage) if selection.url else selection.wheel
        with open_wheel(path) as wheel:
            lines = [*wheel.metadata().requires_dist, *requires]
        try:
            text = _resolved(lines, machine, stage, builds=builds)
        except BuildError as error:
            refused.append(BuildError(f"{selection.name}: {error}"))
            continue
        return _Found(stage.name, selection, path, selection.name.plain(), text)
    if not refused:
        raise VariantError(f"{project}: no wheel of it in {', '.join(map(str, places))}")
    raise refused[0]


def _versions(project: str, places: Sequence[str | Path]) -> list[Version]:
    """The versions of *project* in *places*, the newest first, pre-releases last."""
    versions = set()
    for file in (file for place in places for file in files_at(place, project) if file.name.endswith(".whl")):
        try:
            name = WheelName.parse(file.name)
        except WheelError:  # installers pass such files over
            continue
        if name.project == canonicalize_name(project):
            versions.add(Version(name.version))
    return sorted(versions, key=lambda version: (not version.is_prerelease, version), reverse=True)


def _resolved(lines: Sequence[str], machine: Machine, stage: Path, *, builds: bool) -> str:
    if not lines:
        return _HEADER.format(python=toml(f">={python_of(machine)}"))
    wanted = stage / "wanted.txt"
    wanted.write_text(requirement_lines(lines, BuildError), encoding="utf-8")
    lock = lock_for(machine, [wanted], stage, builds=builds)
    return read_text(lock).replace('created-by = "uv"', 'created-by = "vbuild"', 1)


def _written(lock: _Found, folder: Path) -> MachineLock:
    own_folder = folder / lock.called
    own_folder.mkdir(exist_ok=True)
    wheel = own_folder / str(lock.name)
    try:
        with replacing(wheel) as part:
            duplicate(lock.path, part)
    except OSError as error:
        raise FetchError(f"{lock.path}: cannot be copied: {error.strerror}") from error
    name, version = lock.name.project, str(Version(lock.name.version))
    entry = {"path": f"{lock.called}/{wheel.name}", "hashes": {"sha256": sha256_of(wheel)}}
    own = f"\n[[packages]]\nname = {toml(name)}\nversion = {toml(version)}\nwheels = {toml([entry])}\n"
    file = folder / f"pylock.{lock.called}.toml"
    with replacing(file) as part:
        part.write_text(f"{lock.text.rstrip()}\n{own}", encoding="utf-8")
    count = lock.text.count("[[packages]]")
    return MachineLock(lock.called, file, lock.selection.wheel.name, count)
