"""`vbuild lock`: what a recipe is built of, resolved once and written down with its hashes.

recipe -> source, native sources, toolkits fetched -> the build's hooks asked what it requires, for each Python
       -> uv pip compile --generate-hashes -> demo.lock next to demo.toml

With --machine, a pylock.toml (PEP 751) of each machine's variant of a project, and what that requires:

    NAME, places -> `vbuild.variants.select` for the machine -> its wheel's requirements, and what else is asked for
                 -> uv pip compile for its Python and platform -> pylock.h100.toml
                                                                  h100/demo-1.0-….whl

The wheel is beside the lock under its plain name: pip takes no label. https://peps.python.org/pep-0751/
"""

import dataclasses
import hashlib
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from packaging.pylock import Pylock
from packaging.utils import canonicalize_name
from packaging.version import Version

import vbuild
from vbuild.build.environment import lock_for, resolved_lines
from vbuild.build.frontend import required_packages
from vbuild.build.job import Job
from vbuild.build.source import source_digest
from vbuild.config.requirements import asked_project, read_requirement, requirement_lines
from vbuild.config.table import toml
from vbuild.errors import BuildError, FetchError, RecipeError, VariantError, VbuildError, WheelError, at
from vbuild.files.atomic import duplicate, replacing
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import read_text
from vbuild.hardware.machine import Machine, python_of
from vbuild.index_client.located import files_at
from vbuild.index_client.pages import fetched
from vbuild.process.run import supervised
from vbuild.recipe.hidden import hiding_secrets
from vbuild.recipe.lock import Hashes, Lock, LockedRequirement
from vbuild.recipe.model import Recipe, lock_file
from vbuild.recipe.source import Folder, NativeSource
from vbuild.recipe.variables import for_installers
from vbuild.release.builder import Builder
from vbuild.release.model import ReleaseContext, slug
from vbuild.toolchain.interpreter import Interpreter
from vbuild.variants.select import Selection, select
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.name import WheelName

_OVER = """\
# Where another variant of the same version is installed, this file with
#   {}
#   {}
"""
_HEADER = 'lock-version = "1.0"\ncreated-by = "vbuild"\nrequires-python = {python}\n'


class WrittenLock(Struct, frozen=True):
    file: Path
    lock: Lock

    def lines(self) -> Iterator[str]:
        yield f"source: {self.lock.source}"
        yield from (f"native {name}: {text}" for name, text in self.lock.natives)
        yield from (f"CUDA {name}: {len(hashes)} wheels" for name, hashes in self.lock.toolkits)
        for requirement in self.lock.requirements:
            packages = ", ".join(line.split()[0] for line in requirement.packages)
            yield f"{requirement.python}: {packages or 'nothing required'}"
        yield f"written to {self.file}"


def lock(source: Path, *, on_progress: Callable[[str], None] = lambda _step: None) -> WrittenLock:
    """Write the lock of the recipe or project at *source* next to it.

    `VbuildError`, with nothing written, if something that the lock names cannot be found.
    """
    recipe = Recipe.load(source)
    file = lock_file(recipe.file)
    targets = recipe.targets
    with (
        tempfile.TemporaryDirectory(prefix="vbuild-lock-") as folder,
        hiding_secrets(recipe, targets),
        supervised(),
    ):
        stage = Path(folder)
        on_progress(f"fetching {recipe.source}")
        context = ReleaseContext(
            recipe=recipe,
            targets=targets,
            folder=stage,
            stage=stage,
            on_progress=lambda _target, step: on_progress(step),
        )
        builder = Builder.opened(context)
        jobs = [builder.job_of(target) for target in targets]
        requirements = _requirements(builder, jobs, on_progress)
        written = Lock(
            vbuild=vbuild.__version__,
            recipe=recipe_hash(recipe),
            source=pinned(recipe.source),
            natives=natives(recipe),
            toolkits=tuple((spec.name, toolkit.wheels) for spec, toolkit in builder.toolkits.items()),
            requirements=tuple(requirements),
        )
    try:
        with replacing(file) as part:
            part.write_text(written.pack(), encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"{file}: cannot be written: {error.strerror}") from error
    return WrittenLock(file, written)


def _requirements(builder: Builder, jobs: Iterable[Job], on_progress: Callable[[str], None]) -> list[LockedRequirement]:
    wanted: dict[tuple[str, tuple[str, ...]], Interpreter] = {}
    of_kind = {job.interpreter.kind: job for job in reversed(list(jobs))}
    for kind, job in sorted(of_kind.items()):
        on_progress(f"asking what {builder.context.recipe.name} requires for {kind}")
        folder = builder.context.stage / "asking" / slug(job.target)
        project = builder.tree(folder / "tree")
        with at(builder.context.recipe.name):
            requires = required_packages(job, project, folder, log=folder / "log", environments=builder.environments)
        wanted[kind, tuple(sorted(requires))] = job.interpreter
    own = Interpreter.at(Path(sys.executable), os.environ)
    for native in builder.context.recipe.natives:
        wanted.setdefault((own.kind, tuple(sorted(native.requires))), own)
    return [_resolved(builder, requires, interpreter) for (_, requires), interpreter in wanted.items() if requires]


def _resolved(builder: Builder, requires: tuple[str, ...], interpreter: Interpreter) -> LockedRequirement:
    variables = {**for_installers(os.environ, builder.context.recipe.build.pass_env), **builder.configuration()}
    log = Path(tempfile.mkdtemp(dir=builder.context.stage, prefix="resolving-"), "log")
    with at(interpreter.kind):
        packages = resolved_lines(requires, interpreter, log=log, environment=variables)
    return LockedRequirement(interpreter.kind, requires, packages)


def locked(recipe: Recipe, *, is_binding: bool = False) -> tuple[Recipe, tuple[str, ...]]:
    """*recipe* with its lock, or a line on why that is stale.

    `RecipeError` if the lock cannot be read, or *is_binding* and missing or stale.
    """
    file = lock_file(recipe.file)
    if not file.exists():
        if is_binding:
            raise RecipeError(f"{file}: no such lock; expected one for --locked: vbuild lock {recipe.file}")
        return recipe, ()
    try:
        lock = Lock.load(file)
    except RecipeError as error:
        raise RecipeError(f"{error}; write it again: vbuild lock {recipe.file}") from error
    if stale := staleness(lock, recipe):
        reason = f"{file}: {stale}; write it again: vbuild lock {recipe.file}"
        if is_binding:
            raise RecipeError(reason)
        return recipe, (f"{reason}; it was not used",)
    return dataclasses.replace(recipe, build=replace(recipe.build, lock=replace(lock, is_binding=is_binding))), ()


def staleness(lock: Lock, recipe: Recipe) -> str | None:
    if lock.recipe != recipe_hash(recipe):
        return "the recipe, or a patch of it, has changed since"
    if lock.source != pinned(recipe.source):
        return f"is of the source {lock.source!r}, the recipe has {pinned(recipe.source)!r}"
    if dict(lock.natives) != dict(natives(recipe)):
        return "is of other native dependencies"
    if lock.vbuild != vbuild.__version__:
        return f"written by vbuild {lock.vbuild}, this is {vbuild.__version__}"
    return None


def recipe_hash(recipe: Recipe) -> str:
    patches = (*recipe.build.patches, *(patch for native in recipe.natives for patch in native.patches))
    hashes = [sha256_of(file) for file in (recipe.file, *patches)]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def pinned(source: NativeSource) -> str:
    """The hash of *source*; a folder has none, as nothing of it is fetched."""
    return "folder" if isinstance(source, Folder) else source_digest(source).strip()


def natives(recipe: Recipe) -> Hashes:
    return tuple((native.name, pinned(native.source)) for native in recipe.natives)


class MachineLock(Struct, frozen=True):
    machine: str
    file: Path
    project: str
    wheel: str
    packages: int

    def lines(self) -> Iterator[str]:
        yield f"{self.file}: {self.wheel}"
        yield f"  and {self.packages} packages that it requires"
        yield "  where another variant of this version is installed:"
        yield from (f"    {command} {self.file}" for command in _reinstalling(self.project))


def _reinstalling(project: str) -> tuple[str, str]:
    """What replaces an installed variant by another of the same version, which installers else take for the same."""
    return f"uv pip sync --reinstall-package {project}", "pip install --force-reinstall -r"


class _MachineLock(Struct, frozen=True):
    """A machine's wheel at *path*, its plain *name*, and the lock of the rest as *text*."""

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

    *requires* are installed as well; a variant may be for a release that they pin. If *allow_builds*, requirements
    without a wheel are built to ask what they require. `VariantError`, and nothing written, if nothing fits a machine;
    `BuildError` if a requirement cannot be had.
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
                pinned_machine = replace(machine, installed=(*machine.installed, *_releases(requires)))
                locks.append(_locked_for(project, places, pinned_machine, stage, tuple(requires), builds=allow_builds))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return tuple(_written_lock(lock, folder) for lock in locks)
        except OSError as error:
            raise BuildError(f"{folder}: cannot be written: {error.strerror}") from error


def _releases(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The projects that *lines* pin, with their releases: variants may be for one of them."""
    for requirement in filter(None, map(read_requirement, lines)):
        for clause in requirement.specifier:
            if clause.operator == "==":
                yield canonicalize_name(requirement.name), clause.version.removesuffix(".*")


def _locked_for(
    project: str,
    places: Sequence[str | Path],
    machine: Machine,
    stage: Path,
    requires: Sequence[str],
    *,
    builds: bool,
) -> _MachineLock:
    """The newest release of *project* that fits *machine*, with requirements that can be met along with *requires*."""
    refused: list[VbuildError] = []
    for version in _versions_of(project, places):
        try:
            selection = select(project, places, machine=machine, version=version)
        except VariantError as error:
            refused.append(error)
            continue
        path = fetched(selection.url, stage) if selection.url else selection.wheel
        with open_wheel(path) as wheel:
            lines = [*wheel.metadata().requires_dist, *requires]
        try:
            text = _resolved_for(lines, machine, stage, builds=builds)
        except BuildError as error:
            refused.append(BuildError(f"{selection.name}: {error}"))
            continue
        return _MachineLock(stage.name, selection, path, selection.name.plain(), text)
    if not refused:
        raise VariantError(f"{project}: no wheel of it in {', '.join(map(str, places))}")
    raise refused[0]


def _versions_of(project: str, places: Sequence[str | Path]) -> list[Version]:
    """The versions of *project* in *places*, the newest first, pre-releases last."""
    versions = set()
    for file in (file for source in places for file in files_at(source, project) if file.name.endswith(".whl")):
        try:
            name = WheelName.parse(file.name)
        except WheelError:  # installers pass such files over
            continue
        if name.project == canonicalize_name(project):
            versions.add(Version(name.version))
    return sorted(versions, key=lambda version: (not version.is_prerelease, version), reverse=True)


def _resolved_for(lines: Sequence[str], machine: Machine, stage: Path, *, builds: bool) -> str:
    if not lines:
        return _HEADER.format(python=toml(f">={python_of(machine)}"))
    wanted = stage / "wanted.txt"
    wanted.write_text(requirement_lines(lines, BuildError), encoding="utf-8")
    lock = lock_for(machine, [wanted], stage, builds=builds)
    # an empty list, of requirements that are for other machines, cannot be added to
    return read_text(lock).replace('created-by = "uv"', 'created-by = "vbuild"', 1).replace("packages = []\n", "", 1)


def _written_lock(lock: _MachineLock, folder: Path) -> MachineLock:
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
    text = f"{_OVER.format(*_reinstalling(name))}{lock.text.rstrip()}\n{own}"
    packages = Pylock.from_dict(tomllib.loads(text)).packages
    with replacing(file) as part:
        part.write_text(text, encoding="utf-8")
    return MachineLock(lock.called, file, name, lock.selection.wheel.name, len(packages) - 1)
