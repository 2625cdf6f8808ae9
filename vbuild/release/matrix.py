"""`vbuild matrix`: one recipe in, one release of variant wheels out.

    recipe -> targets -> jobs -> built, repaired -> stamped, verified, tested -> split -> joined -> report.json

A target that fails leaves the others running: they are finished and written, and the release says what is missing.
"""

import os
import tempfile
from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path

from msgspec import Struct

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


class MatrixRequest(Struct, frozen=True, kw_only=True):
    """What a run of `vbuild matrix` is asked for; nothing, which is the default, builds every target here.

    *only* and *pythons* name targets and Pythons of the recipe, each empty for all. *jobs* builds run at a time on this
    machine; another *executor* has workers, with caches of their own. Builds see the user's variables of `passed`, and
    those whose names *pass_env* has. If the run *is_locked*, it uses nothing that the recipe's lock does not name. What
    is *fresh* takes no build from the cache. A run that *is_part* of a release leaves out what needs all of it:
    `vbuild.release.collect` verifies across parts, splits, and joins them. *schema* is that of each variant.json, and
    the report tells what differs from the one at *compare*.
    """

    jobs: int = 1
    only: Collection[str] = ()
    pythons: Collection[str] = ()
    executor: Executor = LOCAL
    is_part: bool = False
    is_locked: bool = False
    fresh: bool = False
    pass_env: Collection[str] = ()
    schema: Schema = Schema.PEP_850
    compare: Path | None = None


_DEFAULT = MatrixRequest()


def matrix(
    source: Path,
    folder: Path,
    options: MatrixRequest = _DEFAULT,
    *,
    store: BuildCache | None = None,
    on_progress: OnProgress = lambda _target, _step: None,
) -> ReleaseResult:
    """Build the recipe or project at *source* into *folder*, as *options* say, with *store*, by default the user's.

    *on_progress* is called with each target and each step of it. The folder gets the finished wheels, the release's
    variants.json, ``report.json``, ``report.html``, and the logs of what failed. A `VbuildError` is raised, and no
    wheel written, if no build can start or if the wheels would contradict others in the folder.
    """
    recipe, stale = held(Recipe.load(source).passing(options.pass_env), is_locked=options.is_locked)
    request = None if options.is_part else request_of(recipe)
    before = Report.previous(options.compare, recipe.name)
    targets = recipe.chosen(only=options.only, pythons=options.pythons)
    if not options.is_part:
        check_chosen(recipe, targets)
    family = ReleaseFamily.of(recipe, targets, schema=options.schema)
    store = store or BuildCache.of_user(fresh=options.fresh)
    with staging(folder) as stage:
        run = Run(recipe, targets, family, folder, stage, store, is_part=options.is_part, on_progress=on_progress)
        with (
            there(run, options.executor)
            if options.executor.address
            else nullcontext(here(run, jobs=options.jobs)) as made
        ):
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
                store=None if options.executor.address else store,
            )
            if not options.is_part:
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


def planned(source: Path, options: MatrixRequest = _DEFAULT) -> tuple[Job, ...]:
    """What `matrix` would build, with every flag, setting and wrapper rule; nothing is built or written."""
    recipe, _ = held(Recipe.load(source).passing(options.pass_env), is_locked=options.is_locked)
    targets = recipe.chosen(only=options.only, pythons=options.pythons)
    if not options.is_part:
        request_of(recipe)
        check_chosen(recipe, targets)
    with tempfile.TemporaryDirectory() as folder:
        shop = Builder.opened(recipe, Path(folder), Path(folder), store=BuildCache.of_user(), supply=FORESEEN)
        return tuple(shop.prepared(target) for target in targets)


def _python(target: Target) -> Interpreter:
    return Interpreter.found(target.python, {**os.environ, **dict(target.env)})
