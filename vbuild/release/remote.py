"""Make a release on the workers of a cluster: the source goes out once, and what comes back is wheels and records.

    recipe, source -> packed -> builds, each once -> finished, each build's wheels -> Product, or at any step a Failure

Values go both ways, pickled behind the check that both sides are one vbuild; their paths mean nothing elsewhere. A
worker uses its own compilers and cache:

    built(message, task, source) -> RemoteBuild, wheel
    finished(message, task, build, baseline) -> RemoteWheels, wheels
    tested(message, task, names, wheels) -> TrialResult, or RemoteFailure

The client needs no compiler and no Python of the recipe's, and leaves its cache alone: its keys are of that machine.
Dask hands a build's bytes from worker to worker. Builds of one run share a `WorkerState`. Each job has its own folder:
it may be done twice.
"""

import dataclasses
import hashlib
import os
import platform
import shutil
import sys
import tempfile
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

from vbuild.build.job import Job
from vbuild.build.source import TREE_SUFFIX, fetched_source, pack_tree, unpacked
from vbuild.errors import BuildError, VbuildError
from vbuild.files.atomic import LOGS
from vbuild.files.cache import sweep_daily
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import read_file
from vbuild.process.run import keep_watch, stoppable, supervised
from vbuild.recipe.hidden import hiding_secrets
from vbuild.recipe.matrix import Matrix
from vbuild.recipe.model import Recipe, TrialResult
from vbuild.recipe.spelling import MACHINES, baseline
from vbuild.recipe.target import Target
from vbuild.release import finishing, matrix
from vbuild.release.builder import (
    Builder,
    PlannedWheel,
    RepairedWheel,
    check_identity,
    digest_of,
    interpreter_of,
    patches_of,
    tree_of,
)
from vbuild.release.cache import BuildCache
from vbuild.release.model import Failure, OnProgress, Product, ReleaseContext, ReleaseFamily, ReleaseWheels, slug
from vbuild.sbom.model import Material
from vbuild.wheel.name import WheelName
from vbuild.workers.cluster import Cluster, Promise, connected
from vbuild.workers.executor import GPU, Executor, opened, packed, scratch, tell, while_wanted

LOGS_HERE = "\0logs\0"  # stands for the folder of logs in the text of an error
_IDLE_STATES = 2  # of a worker, which stay when no job uses them

Needs = Mapping[str, float]
Result = tuple[bytes, ...]  # what was packed, then the bytes of wheels


class PythonHome(Struct, frozen=True):
    path: str
    version: str

    @classmethod
    def of_this(cls) -> Self:
        kind, (major, minor, *_) = sys.implementation.name, sys.version_info
        free = "t" if "t" in sys.abiflags else ""
        return cls(sys.executable, f"{kind}@{major}.{minor}{free}")

    def local(self, target: Target) -> Target:
        """*target*; for the Python that runs vbuild there, one of the same version here."""
        if target.python != self.path:
            return target
        here = self.of_this()
        return replace(target, python=here.path if here.version == self.version else self.version)


class RunMessage(Struct, frozen=True):
    """What all jobs of a run share; *source* is a digest, with *patches* applied."""

    name: str
    recipe: Recipe
    source: str
    patches: tuple[Material, ...]
    family: ReleaseFamily
    is_part: bool
    fresh: bool
    home: PythonHome

    @classmethod
    def of(cls, name: str, context: ReleaseContext, *, source: str) -> Self:
        recipe = context.recipe
        build = replace(recipe.build, patches=())
        sent = dataclasses.replace(recipe, build=build, matrix=Matrix(), variant=None, split=None)
        is_fresh = bool(context.cache and context.cache.fresh)
        home = PythonHome.of_this()
        return cls(name, sent, source, patches_of(recipe), context.family, context.is_part, is_fresh, home)


class Task(Struct, frozen=True):
    places: tuple[int, ...]
    targets: tuple[Target, ...]


class RemoteFailure(Struct, frozen=True):
    error: str
    log: str | None = None
    logs: tuple[tuple[str, bytes], ...] = ()


class RemoteBuild(Struct, frozen=True):
    job: Job
    key: str
    repaired: RepairedWheel
    notes: tuple[str, ...]


class RemoteWheels(Struct, frozen=True):
    outcomes: tuple[Product | RemoteFailure, ...]
    notes: tuple[str, ...] = ()


@contextmanager
def wheels_of_workers(context: ReleaseContext, executor: Executor) -> Iterator[ReleaseWheels]:
    """The wheels of all targets, made by the workers, which test changed ones within the block.

    Its end cancels unfinished jobs. `BuildError` without such a cluster, or for a recipe with native dependencies,
    whose sources only this machine has.
    """
    recipe = context.recipe
    if recipe.natives:
        raise BuildError(f"{recipe.file}: native: not built on workers; expected this machine, without --executor")
    with supervised(), connected(executor) as cluster:
        source, digest = _packed(context)
        places = {target: position for position, target in enumerate(context.targets)}
        remote = _Remote(cluster, context, RunMessage.of(uuid.uuid4().hex, context, source=digest), places)
        outcomes = remote.outcomes(source)
        yield ReleaseWheels(outcomes, remote.tested_again, interpreter_of, remote.notes, is_remote=True)


class _Remote(Struct, frozen=True):
    """The release *context* on *cluster*; all jobs get the *message*."""

    cluster: Cluster
    context: ReleaseContext
    message: RunMessage
    places: Mapping[Target, int]
    sent: dict[str, Promise] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def outcomes(self, source: Path) -> tuple[Product | Failure, ...]:
        self.cluster.listen(self._hear)
        groups: dict[tuple[str, ...], list[Target]] = {}
        for target in self.context.targets:
            groups.setdefault(target.build_key, []).append(target)
        outcomes: dict[Target, Product | Failure] = {}
        jobs = self._submitted(groups, self._sent(source), outcomes)
        for group, result in self.cluster.each(jobs):
            outcomes.update(zip(group, self._outcomes(group, result), strict=True))
        return tuple(outcomes[target] for target in self.context.targets)

    def tested_again(self, product: Product, find_links: Path) -> Product | Failure:
        own = WheelName.parse(product.wheel.name).distribution
        others = [path for path in sorted(find_links.glob("*.whl")) if WheelName.parse(path.name).distribution != own]
        files = (product.wheel, *others)
        names = tuple(path.name for path in files)
        target = product.target
        try:
            wheels = [self._sent(path) for path in files]
            job = self._job("tested", (target,), names, *wheels, needs=self._for_test(target, self.cluster.resources()))
        except BuildError as error:
            return self._failure(target, error)
        result = self.cluster.result(job)
        outcome = result if isinstance(result, BuildError) else opened(result)
        if isinstance(outcome, TrialResult):
            return replace(product, trial=outcome)
        return self._failure(target, outcome)

    def _submitted(
        self, groups: Mapping[tuple[str, ...], Sequence[Target]], source: Promise, outcomes: dict[Target, Any]
    ) -> dict[Promise, Sequence[Target]]:
        """The last jobs of all *groups* of one build each; *outcomes* gets what no worker can build."""
        workers = self.cluster.resources()
        builds: dict[tuple[str, ...], Promise] = {}
        for key, group in groups.items():
            try:
                builds[key] = self._job("built", group[:1], source, needs=_for_build(group[0], workers))
            except BuildError as error:
                outcomes.update({target: self._failure(target, error) for target in group})
        jobs: dict[Promise, Sequence[Target]] = {}
        for key, build in builds.items():
            group = groups[key]
            other = matrix.baseline_of(group[0], self.context.targets)
            compared = builds.get(other.build_key) if other else None
            needs = self._for_test(group[0], workers)
            # before further builds: what is finished is safe
            jobs[self._job("finished", group, build, compared, needs=needs, priority=1)] = group
        return jobs

    def _job(
        self, function: str, targets: Sequence[Target], *arguments: object, needs: Needs, priority: int = 0
    ) -> Promise:
        message = packed(self.message)
        task = packed(Task(tuple(map(self.places.__getitem__, targets)), tuple(targets)))
        inputs = [argument.key if isinstance(argument, Promise) else argument for argument in arguments]
        # two runs of the same are one job, also of two clients
        content = packed([replace(self.message, name=""), list(targets), inputs])
        return self.cluster.submit(
            f"{__name__}:{function}",
            message,
            task,
            *arguments,
            key=f"vbuild-{function}-{hashlib.sha256(content).hexdigest()}",
            needs=needs,
            priority=priority,
        )

    def _sent(self, file: Path) -> Promise:
        """The bytes of *file*, which go out once, also under several names."""
        key = f"vbuild-bytes-{sha256_of(file)}"
        if key not in self.sent:
            self.sent[key] = self.cluster.brought(read_file(file), key=key)
        return self.sent[key]

    def _for_test(self, target: Target, workers: Sequence[Needs]) -> Needs:
        """What a worker needs to test *target*, as far as some of the *workers* have it."""
        if self.context.recipe.test.command is None:
            return {}
        level, gpu = {str(target.cpu): 1.0}, {GPU: 1.0} if target.cuda else {}
        for needs in ({**level, **gpu}, level):
            if any(needs.keys() <= resources.keys() for resources in workers):
                return needs
        return {}

    def _outcomes(self, group: Sequence[Target], result: Any) -> Iterator[Product | Failure]:  # noqa: ANN401 - jobs'
        if isinstance(result, BuildError):
            yield from (self._failure(target, result) for target in group)
            return
        received: RemoteWheels = opened(result[0])
        self.notes.extend(received.notes)
        wheels = iter(result[1:])
        for target, outcome in zip(group, received.outcomes, strict=True):
            if isinstance(outcome, RemoteFailure):
                yield self._failure(target, outcome)
                continue
            wheel = written(self.context.stage_folder("made", target), outcome.wheel.name, next(wheels))
            self.context.log(target).unlink(missing_ok=True)  # an earlier run's
            yield replace(outcome, target=target, wheel=wheel, verdict=replace(outcome.verdict, wheel=wheel))

    def _failure(self, target: Target, why: RemoteFailure | BuildError) -> Failure:
        self.context.on_progress(target, "failed")
        if isinstance(why, BuildError):
            return Failure(target, str(why), None)
        logs = self.context.folder / LOGS
        for name, data in why.logs:
            written(logs, name, data)
        return Failure(target, why.error.replace(LOGS_HERE, f"{logs}/"), logs / why.log if why.log else None)

    def _hear(self, event: Mapping[str, Any]) -> None:
        if event["run"] == self.message.name:
            self.context.on_progress(self.context.targets[event["place"]], event["step"])


def _for_build(target: Target, workers: Sequence[Needs]) -> Needs:
    """What a worker needs to build *target*: its machine, if the *workers* are of several.

    `BuildError` if all of them are of others.
    """
    ours, known = str(baseline(target.cpu.machine)), {str(baseline(machine)) for machine in MACHINES}
    declared = [known & resources.keys() for resources in workers]
    if not any(names - {ours} for names in declared):
        return {}
    if any(ours in names for names in declared):
        return {ours: 1}
    if all(declared):
        others = ", ".join(sorted(set().union(*declared)))
        raise BuildError(f"no worker is for {ours}; there are workers for {others}")
    return {}


def _packed(context: ReleaseContext) -> tuple[Path, str]:
    recipe, folder, look = context.recipe, context.folder, context.stage / "look"
    digest = digest_of(recipe, folder)
    project = tree_of(recipe, fetched_source(recipe.source), look, exclude=folder)
    check_identity(recipe, project)
    if digest_of(recipe, folder) != digest:
        raise BuildError(f"{recipe.source}: edited while it was packed; expected it to stay as it is for that moment")
    tree = context.stage / f"source{TREE_SUFFIX}"
    pack_tree(look / project.relative_to(look).parts[0], tree)
    return tree, " ".join([digest, *map(sha256_of, recipe.build.patches)])


def built(message: bytes, task: bytes, source: bytes) -> Result:
    """The build of *task*'s one target from *source*, a packed tree, with its portable wheel."""
    with _working(message, task) as work:
        try:
            build = work.built(source)
        except (VbuildError, OSError) as error:
            return (packed(work.failure(error)),)
        if isinstance(build, Failure):
            return (packed(work.failure(build)),)
        return (packed(build), read_file(build.repaired.wheel))


def finished(message: bytes, task: bytes, build: Result, baseline: Result | None) -> Result:
    """The wheels of *task*'s targets, of one *build*, compared with the *baseline* and tested."""
    received = opened(build[0])
    count = len(opened(task).targets)
    if isinstance(received, RemoteFailure):
        return (packed(RemoteWheels((received,) * count)),)
    with _working(message, task) as work:
        try:
            outcomes = work.finished(received, build[1], baseline)
        except (VbuildError, OSError) as error:
            return (packed(RemoteWheels((work.failure(error),) * count, received.notes)),)
        to_send = tuple(work.failure(outcome) if isinstance(outcome, Failure) else outcome for outcome in outcomes)
        wheels = (read_file(outcome.wheel) for outcome in outcomes if isinstance(outcome, Product))
        return (packed(RemoteWheels(to_send, (*received.notes, *work.builder.notes))), *wheels)


def tested(message: bytes, task: bytes, names: tuple[str, ...], *wheels: bytes) -> bytes:
    with _working(message, task) as work:
        try:
            return packed(work.tested(dict(zip(names, wheels, strict=True))))
        except (VbuildError, OSError) as error:
            return packed(work.failure(error))


class WorkerState:
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
        context = replace(self._builder.context, stage=folder, folder=folder, on_progress=on_progress)
        return replace(self._builder, context=context, notes=[])

    def with_source(self, builder: Builder, source: bytes) -> Builder:
        with self._lock:
            if self._project is None:
                builder.archive.write_bytes(source)
                subdirectory = self.message.recipe.source.subdirectory
                self._project = unpacked(builder.archive, self.folder / "look", subdirectory=subdirectory)
            return replace(builder, project=self._project)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        sweep_daily()


class _States:
    """The states of this worker by run, the last used one at the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: OrderedDict[str, WorkerState] = OrderedDict()

    @contextmanager
    def of(self, message: bytes) -> Iterator[WorkerState]:
        """The state of the run of *message*, which stays at least for the block."""
        key = hashlib.sha256(message).hexdigest()
        with self._lock:
            if key not in self._states:
                keep_watch()
                self._states[key] = WorkerState(opened(message))
            state = self._states[key]
            self._states.move_to_end(key)
            state.users += 1
            idle = [key for key, other in self._states.items() if not other.users]
            old = [self._states.pop(key) for key in idle[: max(len(self._states) - _IDLE_STATES, 0)]]
        for other in old:
            other.close()
        try:
            yield state
        finally:
            with self._lock:
                state.users -= 1


_states = _States()


class _Work(Struct, frozen=True):
    state: WorkerState
    builder: Builder
    targets: tuple[Target, ...]
    sent: tuple[Target, ...]

    def built(self, source: bytes) -> RemoteBuild | Failure:
        builder = self.state.with_source(self.builder, source)
        [target] = self.targets
        try:
            job = builder.job_of(target)
        except VbuildError as error:
            # other targets miss the same here, and get one message together
            why = str(error).removeprefix(f"{builder.context.recipe.name}: {target}: ")
            raise BuildError(f"{platform.node()}: {why}") from error
        [wheel] = matrix.planned_wheels(builder, [job])
        outcome = builder.built(wheel, builder.ccache())
        if isinstance(outcome, Failure):
            return outcome
        return RemoteBuild(job, wheel.build, outcome, tuple(dict.fromkeys([*job.notes, *builder.notes])))

    def finished(self, build: RemoteBuild, data: bytes, baseline: Result | None) -> list[Product | Failure]:
        """The outcome of each target of *build*, whose portable wheel has the bytes *data*."""
        builder, stage = self.builder, self.builder.context.stage
        repaired = replace(build.repaired, wheel=written(stage / "build", build.repaired.wheel.name, data))
        other = opened(baseline[0]) if baseline else None
        compared = None
        if baseline and isinstance(other, RemoteBuild):
            compared = written(stage / "baseline", other.repaired.wheel.name, baseline[1])
        wheels = [self._planned_wheel(target, build, other) for target in self.targets]
        outcomes: dict[PlannedWheel, Product | Failure] = {
            wheel: product for wheel in wheels if (product := finishing.finished_before(builder, wheel))
        }
        missing = [wheel for wheel in wheels if wheel not in outcomes]
        cut = finishing.slimmed(builder, missing[0], missing, repaired.wheel) if missing else {}
        for wheel in missing:
            outcomes[wheel] = (
                replace(cut, target=wheel.target)
                if isinstance(cut, Failure)
                else finishing.finished(builder, wheel, repaired, cut.get(wheel.target), baseline=compared)
            )
        return [outcomes[wheel] for wheel in wheels]

    def tested(self, wheels: Mapping[str, bytes]) -> TrialResult:
        [target] = self.targets
        folder = self.builder.context.stage / "required"
        file, *_ = [written(folder, name, data) for name, data in wheels.items()]
        python = interpreter_of(target)
        return finishing.result_of_test(self.builder, target, file, interpreter=python, find_links=folder)

    def failure(self, error: Failure | Exception) -> RemoteFailure:
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

    def _planned_wheel(
        self, target: Target, build: RemoteBuild, other: RemoteBuild | RemoteFailure | None
    ) -> PlannedWheel:
        """The wheel of *target* from *build*, with the keys of the workers that made that and *other*."""
        # a wheel whose baseline failed to build differs from a compared one
        baseline = other.key if isinstance(other, RemoteBuild) else "failed" if other else None
        test = self.builder.context.recipe.test
        is_tested = test.command or test.is_emulated
        interpreter = interpreter_of(target) if is_tested else build.job.interpreter
        job = replace(build.job, target=target, interpreter=interpreter)
        return matrix.planned_wheel(self.builder, job, build.key, baseline)

    def _as_sent(self, text: str) -> str:
        for own, sent in zip(self.targets, self.sent, strict=True):
            text = text.replace(slug(own), slug(sent))
        return text


@contextmanager
def _working(message: bytes, task: bytes) -> Iterator[_Work]:
    """The job on *task*; if its run is over, its commands are stopped, with a `BuildError`."""
    with (
        _states.of(message) as state,
        tempfile.TemporaryDirectory(dir=state.folder, prefix="job-", ignore_cleanup_errors=True) as folder,
        stoppable() as stop,
    ):
        received: Task = opened(task)
        targets = tuple(map(state.message.home.local, received.targets))
        places = dict(zip(targets, received.places, strict=True))
        unwanted = threading.Event()

        def on_progress(target: Target, step: str) -> None:
            tell({"run": state.message.name, "place": places[target], "step": step})

        def abandon() -> None:
            unwanted.set()
            stop()

        with hiding_secrets(state.message.recipe, targets), while_wanted(abandon):
            yield _Work(state, state.builder(Path(folder), on_progress), targets, received.targets)
        if unwanted.is_set():
            raise BuildError(f"{platform.node()}: stopped, as nobody wanted it any more")


def written(folder: Path, name: str, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(data)
    return path
