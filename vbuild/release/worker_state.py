"""What a worker does for `vbuild matrix`: builds, finishes and tests wheels, with its own compilers and its own store.

    built(parcel, piece, source) -> Made, wheel
    finished(parcel, piece, build, baseline) -> Finished, wheels
    tested(parcel, piece, names, wheels) -> Trial, or why there is none

Arguments and results are bytes; Dask hands a build's from worker to worker. What builds of one run share, environments
and the unpacked source, is on one `WorkerState` in the worker's folder, until other runs have come. Each job has a
folder of its own, as it may be done twice. What is kept is kept in the worker's own store, under the worker's own
keys: these say which compilers, packages and variables a wheel was made with, and that is the worker's matter.
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
from functools import cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from vbuild.build.agreement import TrialCompile
from vbuild.build.environment import Environments
from vbuild.build.packing import SUFFIX
from vbuild.build.source import unpacked
from vbuild.errors import BuildError, ExecutorError, VbuildError
from vbuild.files.cache import sweep_daily
from vbuild.files.staging import LOGS
from vbuild.hardware.machine import Machine
from vbuild.index_client.configuration import Indexes
from vbuild.process.run import keep_watch, stoppable
from vbuild.recipe.target import Target
from vbuild.release.builder import Builder, OnProgress, slug
from vbuild.release.cache import BuildCache, product_key
from vbuild.release.finishing import Finishing
from vbuild.release.messages import LOGS_HERE, Finished, Lost, RunMessage, Task, WheelsMade, written
from vbuild.release.order import BuildOrder, ordered
from vbuild.release.outcome import Failure, Product
from vbuild.toolchain.interpreter import Interpreter
from vbuild.toolchain.toolkit.provision import FETCHED
from vbuild.workers.calls import opened, packed
from vbuild.workers.executor import scratch, tell, while_wanted

Result = tuple[bytes, ...]  # what was packed, then the bytes of wheels

_KEPT = 2  # benches that stay when nobody works at them


def built(parcel: bytes, piece: bytes, source: bytes) -> Result:
    """The build of the one target of *piece* from *source*, a packed tree, with the bytes of its portable wheel."""
    with _at_work(parcel, piece) as work:
        try:
            made = work.built(source)
        except (VbuildError, OSError) as error:
            return (packed(work.lost(error)),)
        if isinstance(made, Failure):
            return (packed(work.lost(made)),)
        return (packed(made), made.repaired.wheel.read_bytes())


def finished(parcel: bytes, piece: bytes, build: Result, baseline: Result | None) -> Result:
    """The wheels of all targets of *piece*, of their one *build*, held against that for the *baseline* and tested."""
    made = opened(build[0])
    count = len(opened(piece).targets)
    if isinstance(made, Lost):
        return (packed(Finished((made,) * count)),)
    with _at_work(parcel, piece) as work:
        try:
            outcomes = work.finished(made, build[1], baseline)
        except (VbuildError, OSError) as error:
            return (packed(Finished((work.lost(error),) * count, made.notes)),)
        told = tuple(work.lost(outcome) if isinstance(outcome, Failure) else outcome for outcome in outcomes)
        wheels = (outcome.wheel.read_bytes() for outcome in outcomes if isinstance(outcome, Product))
        return (packed(Finished(told, (*made.notes, *work.shop.notes))), *wheels)


def tested(parcel: bytes, piece: bytes, names: tuple[str, ...], *wheels: bytes) -> bytes:
    """What becomes of the test of the first of *wheels*, called by *names*; it may require the others."""
    with _at_work(parcel, piece) as work:
        try:
            return packed(work.tested(dict(zip(names, wheels, strict=True))))
        except (VbuildError, OSError) as error:
            return packed(work.lost(error))


class WorkerState:
    """What the jobs of one run share on this worker."""

    def __init__(self, parcel: RunMessage) -> None:
        self.parcel = parcel
        self.folder = Path(tempfile.mkdtemp(prefix="vbuild-", dir=scratch())).resolve()
        self.users = 0
        self._lock = threading.Lock()
        self._project: Path | None = None
        configuration = cache(lambda: Indexes.configured().environment())
        self._shop = Builder(
            recipe=parcel.recipe,
            archive=self.folder / f"source{SUFFIX}",
            digest=parcel.source,
            looked=lambda: parcel.source,
            project=self.folder,
            stage=self.folder,
            without=self.folder,
            store=BuildCache.of_user(fresh=parcel.fresh),
            environments=Environments(
                self.folder / "environments",
                configuration,
                logs=self.folder / LOGS,
                asked=parcel.recipe.build.pass_env,
                lock=parcel.recipe.build.lock,
            ),
            configuration=configuration,
            cpu=Machine.here().cpu,
            on_progress=lambda _target, _step: None,
            supply=FETCHED,
            patches=parcel.patches,
        )

    def shop(self, folder: Path, on_progress: OnProgress) -> Builder:
        """The workshop for a job in *folder*, without a source."""
        return replace(self._shop, stage=folder, without=folder, on_progress=on_progress, notes=[])

    def supplied(self, shop: Builder, source: bytes) -> Builder:
        """*shop* with *source* to build from, a packed tree."""
        with self._lock:
            if self._project is None:
                shop.archive.write_bytes(source)
                where = self.parcel.recipe.source.subdirectory
                self._project = unpacked(shop.archive, self.folder / "look", subdirectory=where)
            return replace(shop, project=self._project)

    def close(self) -> None:
        """Remove its folder, and from the stores what nobody has used for long."""
        shutil.rmtree(self.folder, ignore_errors=True)
        sweep_daily()


class _Benches:
    """The benches of this worker by their runs, the one that was used last at the end.

    Their folders are in the worker's own, which Dask removes with the worker, or after it where it was killed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._benches: OrderedDict[str, WorkerState] = OrderedDict()

    @contextmanager
    def of(self, parcel: bytes) -> Iterator[WorkerState]:
        """The bench of the run that *parcel* is of, which stays for the block at least."""
        key = hashlib.sha256(parcel).hexdigest()
        with self._lock:
            if key not in self._benches:
                keep_watch()
                self._benches[key] = WorkerState(opened(parcel))
            bench = self._benches[key]
            self._benches.move_to_end(key)
            bench.users += 1
            idle = [key for key, other in self._benches.items() if not other.users]
            old = [self._benches.pop(key) for key in idle[: max(len(self._benches) - _KEPT, 0)]]
        for other in old:
            other.close()
        try:
            yield bench
        finally:
            with self._lock:
                bench.users -= 1


_benches = _Benches()


class _Work(Struct, frozen=True):
    """One job: on which bench, in which workshop, and its targets, each as it is meant here and as it was sent."""

    bench: WorkerState
    shop: Builder
    targets: tuple[Target, ...]
    sent: tuple[Target, ...]

    def built(self, source: bytes) -> WheelsMade | Failure:
        """The build of the one target."""
        shop = self.bench.supplied(self.shop, source)
        [target] = self.targets
        try:
            job = shop.prepared(target)
        except VbuildError as error:
            # other targets lack the same here, and are told together
            why = str(error).removeprefix(f"{shop.recipe.name}: {target}: ")
            raise BuildError(f"{platform.node()}: {why}") from error
        family = self.bench.parcel.family
        [order] = ordered([job], recipe=shop.recipe, family=family, source=shop.digest, machine=shop.cpu)
        with shop.caching() as running:
            outcome = shop.built(order, running)
        if isinstance(outcome, Failure):
            return outcome
        return WheelsMade(job, order.build, outcome, tuple(dict.fromkeys([*job.notes, *shop.notes])))

    def finished(self, made: WheelsMade, wheel: bytes, baseline: Result | None) -> list[Product | Failure]:
        """What comes of each target of the build *made*, whose portable wheel is *wheel*."""
        shop, family = self.shop, self.bench.parcel.family
        repaired = replace(made.repaired, wheel=written(shop.stage / "build", made.repaired.wheel.name, wheel))
        other = opened(baseline[0]) if baseline else None
        held_against = None
        if baseline and isinstance(other, WheelsMade):
            held_against = written(shop.stage / "baseline", other.repaired.wheel.name, baseline[1])
        orders = [self._order(target, made, other) for target in self.targets]
        finishing = Finishing(shop, family, is_part=self.bench.parcel.is_part)
        found: dict[BuildOrder, Product | Failure] = {
            order: kept for order in orders if (kept := finishing.kept(order))
        }
        missing = [order for order in orders if order not in found]
        cut = finishing.divided(missing[0], missing, repaired) if missing else {}
        for order in missing:
            found[order] = (
                replace(cut, target=order.target)
                if isinstance(cut, Failure)
                else finishing.finished(order, repaired, cut, baseline=held_against)
            )
        return [found[order] for order in orders]

    def tested(self, wheels: Mapping[str, bytes]) -> TrialCompile:
        """What becomes of the test of the first of *wheels*."""
        [target] = self.targets
        beside = self.shop.stage / "beside"
        file, *_ = [written(beside, name, data) for name, data in wheels.items()]
        finishing = Finishing(self.shop, self.bench.parcel.family)
        return finishing.tried(target, file, interpreter=_interpreter(target), beside=beside)

    def lost(self, error: Failure | Exception) -> Lost:
        """That there is no wheel, with the logs that the *error* speaks of, told as the sender's own."""
        if isinstance(error, OSError):
            error = BuildError(f"{platform.node()}: {error.strerror or error}")
        if not isinstance(error, Failure):
            own = self.shop.log(self.targets[0])
            error = Failure(self.targets[0], str(error), own if own.exists() else None)
        text, logs = error.error, {error.log} if error.log else set[Path]()
        for folder in (self.shop.without / LOGS, self.bench.folder / LOGS):
            if folder.is_dir():
                logs |= {path for path in folder.iterdir() if str(path) in text}
            text = text.replace(f"{folder}{os.sep}", LOGS_HERE)
        names = {path: self._as_sent(path.name) for path in sorted(logs)}
        contents = tuple((name, path.read_bytes()) for path, name in names.items())
        return Lost(self._as_sent(text), names[error.log] if error.log else None, contents)

    def _order(self, target: Target, made: WheelsMade, other: WheelsMade | Lost | None) -> BuildOrder:
        """What *made* is to become for *target*: with the keys of the workers that built it, and what it is held to."""
        shop, parcel = self.shop, self.bench.parcel
        # a wheel that was held against nothing, for a build that failed, is not one that was
        baseline = other.key if isinstance(other, WheelsMade) else "failed" if other else None
        document = parcel.family.document(target)
        product = product_key(
            made.key,
            target,
            document=document.pack() if document else None,
            verify=shop.recipe.verify,
            check=shop.recipe.test,
            baseline=baseline,
            cpu=shop.cpu,
        )
        interpreter = _interpreter(target) if shop.recipe.test.command else made.job.interpreter
        return BuildOrder(replace(made.job, target=target, interpreter=interpreter), made.key, baseline, product)

    def _as_sent(self, text: str) -> str:
        for here, there in zip(self.targets, self.sent, strict=True):
            text = text.replace(slug(here), slug(there))
        return text


@contextmanager
def _at_work(parcel: bytes, piece: bytes) -> Iterator[_Work]:
    """What the job on *piece* needs; its commands are stopped where nobody wants it any more, an `ExecutorError`."""
    with (
        _benches.of(parcel) as bench,
        tempfile.TemporaryDirectory(dir=bench.folder, prefix="job-", ignore_cleanup_errors=True) as folder,
        stoppable() as stop,
    ):
        about: Task = opened(piece)
        targets = tuple(map(bench.parcel.home.local, about.targets))
        places = dict(zip(targets, about.places, strict=True))
        unwanted = threading.Event()

        def told(target: Target, step: str) -> None:
            tell({"run": bench.parcel.name, "place": places[target], "step": step})

        def abandon() -> None:
            unwanted.set()
            stop()

        with while_wanted(abandon):
            yield _Work(bench, bench.shop(Path(folder), told), targets, about.targets)
        if unwanted.is_set():
            raise ExecutorError(f"{platform.node()}: stopped, as nobody wanted it any more")


def _interpreter(target: Target) -> Interpreter:
    return Interpreter.found(target.python, {**os.environ, **dict(target.env)})
