"""`vbuild lock`: what a recipe is built of, resolved once and written down with its hashes.

recipe -> source, native sources, toolkits fetched -> the build's hooks asked what it requires, for each Python
       -> uv pip compile --generate-hashes -> demo.lock beside demo.toml
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

import vbuild
from vbuild.build.frontend import Job, required
from vbuild.build.source import unpacked
from vbuild.errors import RecipeError, at
from vbuild.files.atomic import replacing
from vbuild.index_client.uv import compile_command
from vbuild.process.run import run, supervised
from vbuild.recipe.lock import Lock, LockedRequirement, hashed, lock_file
from vbuild.recipe.model import Recipe
from vbuild.recipe.variables import for_installers
from vbuild.release.builder import Builder, slug
from vbuild.release.cache import BuildCache
from vbuild.release.lock_check import name_of, natives, pinned, recipe_hash, wheels
from vbuild.toolchain.interpreter import Interpreter


class WrittenLock(Struct, frozen=True):
    """A *lock* and the *file* that it was written to."""

    file: Path
    lock: Lock

    def data(self) -> dict[str, Any]:
        """The result as JSON holds it."""
        return {
            "file": str(self.file),
            "source": self.lock.source,
            "natives": dict(self.lock.natives),
            "toolkits": {name: dict(found) for name, found in self.lock.toolkits},
            "requirements": [
                {"python": one.python, "packages": [line.split()[0] for line in one.packages]}
                for one in self.lock.requirements
            ],
        }

    def lines(self) -> Iterator[str]:
        """The result for people."""
        yield f"source: {self.lock.source}"
        yield from (f"native {name}: {text}" for name, text in self.lock.natives)
        yield from (f"CUDA {name}: {len(found)} wheels" for name, found in self.lock.toolkits)
        for one in self.lock.requirements:
            yield f"{one.python}: {', '.join(line.split()[0] for line in one.packages) or 'nothing required'}"
        yield f"written to {self.file}"


def lock(source: Path, *, on_progress: Callable[[str], None] = lambda _step: None) -> WrittenLock:
    """Write the lock of the recipe or project at *source* beside it, whole or not at all; *on_progress* hears of each
    step.

    A `VbuildError`, and nothing written, where something of it is not to be had.
    """
    recipe = Recipe.load(source)
    file = lock_file(recipe.file)
    with tempfile.TemporaryDirectory(prefix="vbuild-lock-") as folder, supervised():
        stage = Path(folder)
        on_progress(f"fetching {recipe.source}")
        shop = Builder.opened(
            recipe, stage, stage, store=BuildCache.of_user(), on_progress=lambda _target, step: on_progress(step)
        )
        jobs = [shop.prepared(target) for target in recipe.targets()]
        requirements = _requirements(shop, jobs, on_progress)
        found = Lock(
            vbuild=vbuild.__version__,
            recipe=recipe_hash(recipe),
            source=pinned(recipe.source),
            natives=natives(recipe),
            toolkits=tuple((name_of(spec), wheels(toolkit)) for spec, toolkit in shop.toolkits.items()),
            requirements=tuple(requirements),
        )
    _write(file, found.pack())
    return WrittenLock(file, found)


def _requirements(shop: Builder, jobs: Iterable[Job], on_progress: Callable[[str], None]) -> list[LockedRequirement]:
    """What the builds of *jobs* and the native steps require, each list for each kind of Python once."""
    wanted: dict[tuple[str, tuple[str, ...]], Interpreter] = {}
    of_kind = {job.interpreter.kind: job for job in reversed(list(jobs))}
    for kind, job in sorted(of_kind.items()):
        on_progress(f"asking what {shop.recipe.name} requires for {kind}")
        wanted[kind, tuple(sorted(_asked(shop, job)))] = job.interpreter
    own = Interpreter.at(Path(sys.executable), os.environ)
    for native in shop.recipe.natives:
        wanted.setdefault((own.kind, tuple(sorted(native.requires))), own)
    return [_resolved(shop, requires, interpreter) for (_, requires), interpreter in wanted.items() if requires]


def _asked(shop: Builder, job: Job) -> frozenset[str]:
    """What the build of *job* requires, by its project and by its hooks, which may need the first to answer."""
    folder = shop.stage / "asking" / slug(job.target)
    source, patches = shop.recipe.source, shop.recipe.build.patches
    project = unpacked(shop.archive, folder / "tree", subdirectory=source.subdirectory, patches=patches)
    with at(shop.recipe.name):
        return required(job, project, folder, log=folder / "log", environments=shop.environments)


def _resolved(shop: Builder, requires: tuple[str, ...], interpreter: Interpreter) -> LockedRequirement:
    """What uv makes of *requires* for *interpreter*; `BuildError` where there is no such thing."""
    folder = Path(tempfile.mkdtemp(dir=shop.stage, prefix="resolving-"))
    wanted, found = folder / "wanted.txt", folder / "found.txt"
    wanted.write_text("".join(f"{line}\n" for line in requires), encoding="utf-8")
    options = ("--quiet", "--no-header", "--no-annotate", "--generate-hashes", "--no-python-downloads")
    command = compile_command(interpreter.path, wanted, found, *options)
    variables = {**for_installers(os.environ, shop.recipe.build.pass_env), **shop.configuration()}
    with at(interpreter.kind):
        run(command, log=folder / "log", environment=variables, name="uv pip compile")
    lines = found.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    with at(interpreter.kind):
        packages = tuple(hashed(" ".join(line.split())) for line in lines if line.strip())
    return LockedRequirement(interpreter.kind, requires, packages)


def _write(file: Path, text: str) -> None:
    """Put *text* into *file*, all of it or nothing."""
    try:
        with replacing(file) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"{file}: cannot be written: {error.strerror}") from error
