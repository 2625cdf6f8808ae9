"""`vbuild lock`: what a recipe is built of, resolved once and written down with its hashes.

recipe -> source, native sources, toolkits fetched -> the build's hooks asked what it requires, for each Python
       -> uv pip compile --generate-hashes -> demo.lock next to demo.toml

It also reads a lock for other commands: whether it still belongs to the recipe, and what a run with --locked refuses.
"""

import dataclasses
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

import vbuild
from vbuild.build.environment import resolved
from vbuild.build.frontend import required
from vbuild.build.job import Job
from vbuild.build.source import digest
from vbuild.errors import RecipeError, at
from vbuild.files.atomic import replacing
from vbuild.files.hashing import sha256_of
from vbuild.process.run import supervised
from vbuild.recipe.hidden import hiding_secrets
from vbuild.recipe.lock import Hashes, Lock, LockedRequirement
from vbuild.recipe.model import Recipe, lock_file
from vbuild.recipe.source import Folder, NativeSource
from vbuild.recipe.variables import for_installers
from vbuild.release.builder import Builder
from vbuild.release.model import ReleaseContext, slug
from vbuild.toolchain.interpreter import Interpreter


class WrittenLock(Struct, frozen=True):
    file: Path
    lock: Lock

    def data(self) -> dict[str, Any]:
        return {
            "file": str(self.file),
            "source": self.lock.source,
            "natives": dict(self.lock.natives),
            "toolkits": {name: dict(hashes) for name, hashes in self.lock.toolkits},
            "requirements": [
                {"python": requirement.python, "packages": [line.split()[0] for line in requirement.packages]}
                for requirement in self.lock.requirements
            ],
        }

    def lines(self) -> Iterator[str]:
        yield f"source: {self.lock.source}"
        yield from (f"native {name}: {text}" for name, text in self.lock.natives)
        yield from (f"CUDA {name}: {len(hashes)} wheels" for name, hashes in self.lock.toolkits)
        for requirement in self.lock.requirements:
            packages = ", ".join(line.split()[0] for line in requirement.packages)
            yield f"{requirement.python}: {packages or 'nothing required'}"
        yield f"written to {self.file}"


def lock(source: Path, *, on_progress: Callable[[str], None] = lambda _step: None) -> WrittenLock:
    """Write the lock of the recipe or project at *source* next to it; *on_progress* gets each step.

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
        jobs = [builder.prepared(target) for target in targets]
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
    """What the builds of *jobs* and the native steps require, once for each kind of Python."""
    wanted: dict[tuple[str, tuple[str, ...]], Interpreter] = {}
    of_kind = {job.interpreter.kind: job for job in reversed(list(jobs))}
    for kind, job in sorted(of_kind.items()):
        on_progress(f"asking what {builder.context.recipe.name} requires for {kind}")
        folder = builder.context.stage / "asking" / slug(job.target)
        project = builder.tree(folder / "tree")
        with at(builder.context.recipe.name):
            requires = required(job, project, folder, log=folder / "log", environments=builder.environments)
        wanted[kind, tuple(sorted(requires))] = job.interpreter
    own = Interpreter.at(Path(sys.executable), os.environ)
    for native in builder.context.recipe.natives:
        wanted.setdefault((own.kind, tuple(sorted(native.requires))), own)
    return [_resolved(builder, requires, interpreter) for (_, requires), interpreter in wanted.items() if requires]


def _resolved(builder: Builder, requires: tuple[str, ...], interpreter: Interpreter) -> LockedRequirement:
    variables = {**for_installers(os.environ, builder.context.recipe.build.pass_env), **builder.configuration()}
    log = Path(tempfile.mkdtemp(dir=builder.context.stage, prefix="resolving-"), "log")
    with at(interpreter.kind):
        packages = resolved(requires, interpreter, log=log, environment=variables)
    return LockedRequirement(interpreter.kind, requires, packages)


def locked(recipe: Recipe, *, is_binding: bool = False) -> tuple[Recipe, tuple[str, ...]]:
    """*recipe* with its lock if that is not stale, and otherwise in one line why not.

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
    """Why *lock* is not of *recipe* any more, in a few words, or None if it is."""
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
    """The SHA-256 of the file of *recipe*, and of its patches."""
    patches = (*recipe.build.patches, *(patch for native in recipe.natives for patch in native.patches))
    hashes = [sha256_of(file) for file in (recipe.file, *patches)]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def pinned(source: NativeSource) -> str:
    """The hash of *source*; a folder has none, as nothing of it is fetched."""
    return "folder" if isinstance(source, Folder) else digest(source).strip()


def natives(recipe: Recipe) -> Hashes:
    return tuple((native.name, pinned(native.source)) for native in recipe.natives)
