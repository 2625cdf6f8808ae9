"""What a worker does for `vbuild matrix`: builds, finishes and tests wheels, with its own compilers and its own cache.

    built(message, task, source) -> RemoteBuild, wheel
    finished(message, task, build, baseline) -> RemoteWheels, wheels
    tested(message, task, names, wheels) -> TrialResult, or RemoteFailure

Arguments and results are bytes; Dask hands a build's from worker to worker. What builds of one run share, environments
and the unpacked source, is on one `WorkerState` in the worker's folder, until other runs have come. Each job has a
folder of its own, as it may be done twice. What is kept is kept in the worker's own cache, under keys that it makes
itself: they say which compilers, packages and variables a wheel was made with, and those are the worker's.
"""

import hashlib
import os
import platform
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from vbuild.build.source import TREE_SUFFIX, unpacked
from vbuild.build.trial import TrialResult
from vbuild.errors import BuildError, VbuildError
from vbuild.files.cache import sweep_daily
from vbuild.files.reading import read_file
from vbuild.files.staging import LOGS
from vbuild.process.run import keep_watch, stoppable
from vbuild.recipe.hidden import hiding_secrets
from vbuild.recipe.target import Target
from vbuild.release import finishing, pipeline
from vbuild.release.builder import Builder, interpreter_of
from vbuild.release.builds import PlannedWheel
from vbuild.release.cache import BuildCache
from vbuild.release.messages import (
    LOGS_HERE,
    RemoteBuild,
    RemoteFailure,
    RemoteWheels,
    RunMessage,
    Task,
    written,
)
from vbuild.release.model import Failure, OnProgress, Product, ReleaseContext, slug
from vbuild.workers.executor import opened, packed, scratch, tell, while_wanted

Result = tuple[bytes, ...]  # what was packed, then the bytes of wheels

_KEPT = 2  # states that stay when no job uses them


def built(message: bytes, task: bytes, source: bytes) -> Result:
    """The build of the one target of *task* from *source*, a packed tree, with the bytes of its portable wheel."""
    with _working(message, task) as work:
        try:
            made = work.built(source)
        except (VbuildError, OSError) as error:
            return (packed(work.failure(error)),)
        if isinstance(made, Failure):
            return (packed(work.failure(made)),)
        return (packed(made), read_file(made.repaired.wheel))


def finished(message: bytes, task: bytes, build: Result, baseline: Result | None) -> Result:
    """The wheels of all targets of *task*, of their one *build*, compared with that for the *baseline* and tested."""
    made = opened(build[0])
    count = len(opened(task).targets)
    if isinstance(made, RemoteFailure):
        return (packed(RemoteWheels((made,) * count)),)
    with _working(message, task) as work:
        try:
            outcomes = work.finished(made, build[1], baseline)
        except (VbuildError, OSError) as error:
            return (packed(RemoteWheels((work.failure(error),) * count, made.notes)),)
        outcomes_sent = tuple(
            work.failure(outcome) if isinstance(outcome, Failure) else outcome for outcome in outcomes
        )
        wheels = (read_file(outcome.wheel) for outcome in outcomes if isinstance(outcome, Product))
        return (packed(RemoteWheels(outcomes_sent, (*made.notes, *work.builder.notes))), *wheels)


def tested(message: bytes, task: bytes, names: tuple[str, ...], *wheels: bytes) -> bytes:
    """What becomes of the test of the first of *wheels*, called by *names*; it may require the others."""
    with _working(message, task) as work:
        try:
            return packed(work.tested(dict(zip(names, wheels, strict=True))))
        except (VbuildError, OSError) as error:
            return packed(work.failure(error))


class WorkerState:
    """What the jobs of one run share on this worker."""

    def __init__(self, message: RunMessage) -> None:
        self.message = message
        self.folder = Path(tempfile.mkdtemp(prefix="vbuild-", dir=scratch())).resolve()
        self.users = 0
        self._lock = threading.Lock()
        self._project: Path | None = None
        context = ReleaseContext(
            recipe=message.recipe,
            targets=(),
            folder=self.folder,
            stage=self.folder,
            family=message.family,
            cache=BuildCache(fresh=message.fresh),
            is_part=message.is_part,
        )
        archive = self.folder / f"source{TREE_SUFFIX}"
        builder = Builder.sharing(context, archive, self.folder, lambda: message.source)
        self._builder = replace(builder, patches=message.patches)

    def builder(self, folder: Path, on_progress: OnProgress) -> Builder:
        """The builder for a job in *folder*, without a source."""
        context = replace(self._builder.context, stage=folder, folder=folder, on_progress=on_progress)
        return replace(self._builder, context=context, notes=[])

    def with_source(self, builder: Builder, source: bytes) -> Builder:
        """*builder* with *source* to build from, a packed tree."""
        with self._lock:
            if self._project is None:
                builder.archive.write_bytes(source)
                where = self.message.recipe.source.subdirectory
                self._project = unpacked(builder.archive, self.folder / "look", subdirectory=where)
            return replace(builder, project=self._project)

    def close(self) -> None:
        """Remove its folder, and sweep the caches."""
        shutil.rmtree(self.folder, ignore_errors=True)
        sweep_daily()


class _States:
    """The states of this worker by their runs, the one that was used last at the end.

    Their folders are in the worker's own, which Dask removes with the worker, or after it where it was killed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: OrderedDict[str, WorkerState] = OrderedDict()

    @contextmanager
    def of(self, message: bytes) -> Iterator[WorkerState]:
        """The state of the run that *message* is of, which stays for the block at least."""
        key = hashlib.sha256(message).hexdigest()
        with self._lock:
            if key not in self._states:
                keep_watch()
                self._states[key] = WorkerState(opened(message))
            state = self._states[key]
            self._states.move_to_end(key)
            state.users += 1
            idle = [key for key, other in self._states.items() if not other.users]
            old = [self._states.pop(key) for key in idle[: max(len(self._states) - _KEPT, 0)]]
        for other in old:
            other.close()
        try:
            yield state
        finally:
            with self._lock:
                state.users -= 1


_states = _States()


class _Work(Struct, frozen=True):
    """One job of the run of *state*, with its *builder*; its targets as they are here, and as they were sent."""

    state: WorkerState
    builder: Builder
    targets: tuple[Target, ...]
    sent: tuple[Target, ...]

    def built(self, source: bytes) -> RemoteBuild | Failure:
        """The build of the one target."""
        builder = self.state.with_source(self.builder, source)
        [target] = self.targets
        try:
            job = builder.prepared(target)
        except VbuildError as error:
            # other targets miss the same here, and get one message together
            why = str(error).removeprefix(f"{builder.context.recipe.name}: {target}: ")
            raise BuildError(f"{platform.node()}: {why}") from error
        [item] = pipeline.planned(builder, [job])
        outcome = builder.built(item, builder.ccache())
        if isinstance(outcome, Failure):
            return outcome
        return RemoteBuild(job, item.build, outcome, tuple(dict.fromkeys([*job.notes, *builder.notes])))

    def finished(self, made: RemoteBuild, wheel: bytes, baseline: Result | None) -> list[Product | Failure]:
        """What comes of each target of the build *made*, whose portable wheel is *wheel*."""
        builder, stage = self.builder, self.builder.context.stage
        repaired = replace(made.repaired, wheel=written(stage / "build", made.repaired.wheel.name, wheel))
        other = opened(baseline[0]) if baseline else None
        compared = None
        if baseline and isinstance(other, RemoteBuild):
            compared = written(stage / "baseline", other.repaired.wheel.name, baseline[1])
        items = [self._planned(target, made, other) for target in self.targets]
        found: dict[PlannedWheel, Product | Failure] = {
            item: kept for item in items if (kept := pipeline.kept(builder, item))
        }
        missing = [item for item in items if item not in found]
        cut = finishing.slimmed(builder, missing[0], missing, repaired.wheel) if missing else {}
        for item in missing:
            found[item] = (
                replace(cut, target=item.target)
                if isinstance(cut, Failure)
                else finishing.finished(builder, item, repaired, cut.get(item.target), baseline=compared)
            )
        return [found[item] for item in items]

    def tested(self, wheels: Mapping[str, bytes]) -> TrialResult:
        """What becomes of the test of the first of *wheels*."""
        [target] = self.targets
        folder = self.builder.context.stage / "required"
        file, *_ = [written(folder, name, data) for name, data in wheels.items()]
        python = interpreter_of(target)
        return finishing.result_of_test(self.builder, target, file, interpreter=python, find_links=folder)

    def failure(self, error: Failure | Exception) -> RemoteFailure:
        """The *error* for which there is no wheel, with the logs that it names, under names that the sender knows."""
        if isinstance(error, OSError):
            error = BuildError(f"{platform.node()}: {error.strerror or error}")
        if not isinstance(error, Failure):
            own = self.builder.context.log(self.targets[0])
            error = Failure(self.targets[0], str(error), own if own.exists() else None)
        text, logs = error.error, {error.log} if error.log else set[Path]()
        for folder in (self.builder.context.folder / LOGS, self.state.folder / LOGS):
            if folder.is_dir():
                logs |= {path for path in folder.iterdir() if str(path) in text}
            text = text.replace(f"{folder}{os.sep}", LOGS_HERE)
        names = {path: self._as_sent(path.name) for path in sorted(logs)}
        contents = tuple((name, read_file(path)) for path, name in names.items())
        return RemoteFailure(self._as_sent(text), names[error.log] if error.log else None, contents)

    def _planned(self, target: Target, made: RemoteBuild, other: RemoteBuild | RemoteFailure | None) -> PlannedWheel:
        """The wheel of *target* from the build *made*: its keys are those of the workers that built it and *other*."""
        # a wheel that was compared with nothing, as that build failed, is another than one that was
        baseline = other.key if isinstance(other, RemoteBuild) else "failed" if other else None
        test = self.builder.context.recipe.test
        is_tested = test.command or test.is_emulated
        interpreter = interpreter_of(target) if is_tested else made.job.interpreter
        job = replace(made.job, target=target, interpreter=interpreter)
        return pipeline.planned_wheel(self.builder, job, made.key, baseline)

    def _as_sent(self, text: str) -> str:
        for here, there in zip(self.targets, self.sent, strict=True):
            text = text.replace(slug(here), slug(there))
        return text


@contextmanager
def _working(message: bytes, task: bytes) -> Iterator[_Work]:
    """What the job on *task* needs; if its run is over, its commands are stopped, with a `BuildError`."""
    with (
        _states.of(message) as state,
        tempfile.TemporaryDirectory(dir=state.folder, prefix="job-", ignore_cleanup_errors=True) as folder,
        stoppable() as stop,
    ):
        about: Task = opened(task)
        targets = tuple(map(state.message.home.local, about.targets))
        places = dict(zip(targets, about.places, strict=True))
        unwanted = threading.Event()

        def on_progress(target: Target, step: str) -> None:
            tell({"run": state.message.name, "place": places[target], "step": step})

        def abandon() -> None:
            unwanted.set()
            stop()

        with hiding_secrets(state.message.recipe, targets), while_wanted(abandon):
            yield _Work(state, state.builder(Path(folder), on_progress), targets, about.targets)
        if unwanted.is_set():
            raise BuildError(f"{platform.node()}: stopped, as nobody wanted it any more")
