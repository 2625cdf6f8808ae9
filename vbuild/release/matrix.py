"""`vbuild matrix`: one recipe in, one release of variant wheels out.

    recipe, with its lock -> targets -> the steps of `vbuild.release.pipeline`, here or on workers

A target that fails leaves the others running: they are finished and written, and the release says what is missing.
"""

import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from vbuild.build.given import AskedAxes, given
from vbuild.build.job import Job
from vbuild.files.staging import staging
from vbuild.process.masking import masked_in
from vbuild.recipe.hidden import hiding_secrets, too_short
from vbuild.recipe.model import Recipe, lock_file
from vbuild.recipe.target import Target
from vbuild.release.builder import Builder
from vbuild.release.cache import BuildCache
from vbuild.release.model import OnProgress, ReleaseContext, ReleaseFamily, ReleaseResult
from vbuild.release.pipeline import check_request, released, wheels_made
from vbuild.toolchain.toolkit_provision import FORESEEN
from vbuild.workers.executor import LOCAL, Executor


class MatrixRequest(Struct, frozen=True, kw_only=True):
    """What a run of `vbuild matrix` is asked for; nothing, which is the default, builds every target here.

    *only* names targets of the recipe, empty for all. *jobs* builds run at a time here, or as many as the machine bears
    for None; another *executor* has workers, with caches of their own. If the run *is_locked*, it uses nothing that the
    recipe's lock does not name. What is *fresh* takes no build from the cache. A run that *is_part* of a release leaves
    out what needs all of it: `vbuild.release.collect` verifies across parts, splits, and joins them. *axes* are used
    instead of the same of its ``[matrix]``. *on_note* is called, before anything is built, with each line on what was
    chosen for the user.
    """

    jobs: int | None = 1
    only: Collection[str] = ()
    executor: Executor = LOCAL
    is_part: bool = False
    is_locked: bool = False
    fresh: bool = False
    axes: AskedAxes = AskedAxes()
    on_note: Callable[[str], None] = lambda _note: None


_DEFAULT = MatrixRequest()


def matrix(
    source: str | Path,
    folder: Path,
    options: MatrixRequest = _DEFAULT,
    *,
    store: BuildCache | None = None,
    on_progress: OnProgress = lambda _target, _step: None,
) -> ReleaseResult:
    """Build *source*, as in `vbuild.build.given`, into *folder*, as *options* say, with *store*, by default the user's.

    *on_progress* is called with each target and each step of it. The folder gets the finished wheels, the release's
    variants.json, ``report.json``, ``report.html``, and the logs of what failed. A `VbuildError` is raised, and no
    wheel written, if no build can start or if the wheels would contradict others in the folder.
    """
    recipe, targets, stale = asked_for(source, options)
    store = store or BuildCache(fresh=options.fresh)
    context = ReleaseContext(
        recipe=recipe,
        targets=targets,
        folder=folder,
        stage=folder,
        on_progress=on_progress,
        split=None if options.is_part else check_request(recipe, targets),
        family=ReleaseFamily.of(recipe, targets),
        cache=store,
        is_part=options.is_part,
        source=str(recipe.source),
        inputs=(
            *((recipe.file,) if recipe.file.is_file() else ()),
            *((lock_file(recipe.file),) if recipe.build.lock else ()),
        ),
    )
    for target in targets:
        context.on_progress(target, "waiting")
    with hiding_secrets(recipe, targets), staging(folder) as stage:
        context = replace(context, stage=stage)
        notes = (*stale, *too_short(recipe, targets))
        if options.executor.is_local:
            return released(context, wheels_made(context, jobs=options.jobs), notes=notes)
        from vbuild.release.remote import wheels_of_workers

        with wheels_of_workers(context, options.executor) as wheels:
            return released(context, wheels, notes=notes)


def asked_for(source: str | Path, options: MatrixRequest) -> tuple[Recipe, tuple[Target, ...], tuple[str, ...]]:
    """The recipe for *source* as *options* use it, with its lock if that is not stale; its targets that are asked for.

    Also a line that says why a lock is not used.
    """
    found = given(source, options.axes)
    for note in found.notes:
        options.on_note(note)
    recipe = found.recipe
    stale: tuple[str, ...] = ()
    # a name on an index is no file that a lock could stand beside
    if options.is_locked or (recipe.file.is_file() and lock_file(recipe.file).exists()):
        from vbuild.release.lock import held

        recipe, stale = held(recipe, is_locked=options.is_locked)
    return recipe, recipe.chosen(only=options.only, pythons=found.pythons), stale


def planned(source: str | Path, options: MatrixRequest = _DEFAULT) -> tuple[Job, ...]:
    """What `matrix` would build, with every flag, setting and rule of the wrappers; nothing is built or written.

    Secrets in it are hidden as in logs.
    """
    recipe, targets, _ = asked_for(source, options)
    if not options.is_part:
        check_request(recipe, targets)
    with hiding_secrets(recipe, targets), tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        context = ReleaseContext(recipe=recipe, targets=targets, folder=folder, stage=folder, supply=FORESEEN)
        builder = Builder.opened(context)
        return masked_in(tuple(builder.prepared(target) for target in targets))
