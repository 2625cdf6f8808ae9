"""`vbuild matrix`: one recipe in, one release of variant wheels out.

    recipe -> targets -> jobs -> built, repaired -> stamped, verified, tested -> split -> joined -> report.json

A target that fails leaves the others running: they are finished and written, and the release says what is missing.
"""

import os
import tempfile
from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path

from vbuild.build.frontend import Job
from vbuild.files.staging import LOGS, staging
from vbuild.recipe.lock import lock_file
from vbuild.recipe.model import Recipe
from vbuild.recipe.target import Target
from vbuild.release.builder import Builder, OnProgress
from vbuild.release.cache import BuildCache
from vbuild.release.family import ReleaseFamily
from vbuild.release.hwcaps_merge import Joiner, check_chosen
from vbuild.release.lock_check import held
from vbuild.release.making import here
from vbuild.release.outcome import ReleaseResult
from vbuild.release.publication import published, without_twins
from vbuild.release.remote import there
from vbuild.release.report import Report
from vbuild.release.run import Run
from vbuild.release.split_step import request_of, thinned
from vbuild.toolchain.interpreter import Interpreter
from vbuild.toolchain.toolkit.provision import FORESEEN
from vbuild.variants.document import Schema
from vbuild.workers.executor import LOCAL, Executor


def matrix(
    source: Path,
    folder: Path,
    *,
    jobs: int = 1,
    only: Collection[str] = (),
    pythons: Collection[str] = (),
    is_part: bool = False,
    schema: Schema = Schema.PEP_850,
    store: BuildCache | None = None,
    compare: Path | None = None,
    executor: Executor = LOCAL,
    pass_env: Collection[str] = (),
    is_locked: bool = False,
    on_progress: OnProgress = lambda _target, _step: None,
) -> ReleaseResult:
    """Build the recipe or project at *source* into *folder*: every target, or those called as in *only*.

    *pythons* are those of the recipe's to build for, all where there are none. *jobs* builds run at a time on this
    machine; the workers of another *executor* have their own stores. Of the user's variables, builds see those called
    as in *pass_env* besides those of `passed`. What the recipe's lock says counts, where it is not stale; where the run
    *is_locked*, nothing else does. *on_progress* hears of each step of each target. Builds and wheels that
    *store*, the user's where None, has from before are taken from there. Of a release that is made in parts, each
    *is_part*: `vbuild.release.collect` verifies, splits and joins all of it. The folder gets the finished wheels, the
    release's variants.json, ``report.json``, ``report.html``, and the logs of what failed; the page tells what is not
    as in the report at *compare*. A `VbuildError` is raised, and no wheel written, where no build can start or where
    the wheels would contradict others in the folder.
    """
    recipe, stale = held(Recipe.load(source).passing(pass_env), is_locked=is_locked)
    request = None if is_part else request_of(recipe)
    before = Report.previous(compare, recipe.name)
    targets = recipe.chosen(only=only, pythons=pythons)
    if not is_part:
        check_chosen(recipe, targets)
    family = ReleaseFamily.of(recipe, targets, schema=schema)
    store = store or BuildCache.of_user()
    with staging(folder) as stage:
        run = Run(recipe, targets, family, folder, stage, store, is_part=is_part, on_progress=on_progress)
        with there(run, executor) if executor.address else nullcontext(here(run, jobs=jobs)) as made:
            thinning = thinned(without_twins(made.outcomes), request, stage / "thin", tried=made.tried)
            joiner = Joiner(
                recipe=recipe,
                targets=lambda plain: [target for target in targets if target.python == plain.python],
                folder=stage / "joined",
                beside=stage / "thin",
                logs=folder.absolute() / LOGS,
                pythons=_python,
                tried=made.tried,
                on_progress=on_progress,
                store=None if executor.address else store,
            )
            if not is_part:
                thinning = joiner.joined(thinning)
        notes = tuple(dict.fromkeys([*stale, *made.notes, *joiner.notes]))
        return published(
            recipe.name,
            str(recipe.source),
            thinning,
            stage,
            folder,
            notes=notes,
            before=before,
            inputs=[recipe.file, *([lock_file(recipe.file)] if recipe.build.lock else [])],
        )


def planned(
    source: Path,
    *,
    only: Collection[str] = (),
    pythons: Collection[str] = (),
    is_part: bool = False,
    pass_env: Collection[str] = (),
    is_locked: bool = False,
) -> tuple[Job, ...]:
    """What `matrix` would build, with every flag, setting and launcher rule; nothing is built or written."""
    recipe, _ = held(Recipe.load(source).passing(pass_env), is_locked=is_locked)
    targets = recipe.chosen(only=only, pythons=pythons)
    if not is_part:
        request_of(recipe)
        check_chosen(recipe, targets)
    with tempfile.TemporaryDirectory() as folder:
        shop = Builder.opened(recipe, Path(folder), Path(folder), store=BuildCache.of_user(), supply=FORESEEN)
        return tuple(shop.prepared(target) for target in targets)


def _python(target: Target) -> Interpreter:
    return Interpreter.found(target.python, {**os.environ, **dict(target.env)})
