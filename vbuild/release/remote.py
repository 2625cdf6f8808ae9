"""Make a release on the workers of a cluster: the source goes out once, and what comes back is wheels and records.

    recipe, source -> packed -> builds, each once -> finished, each build's wheels -> Product, or at any step a Failure

This machine needs no compiler for it, and no Python of the recipe's. The user's store here is neither read nor
written: its keys say what this machine would build, with its own compilers, packages and variables. A worker for which
all of these are the same is on this machine and has the same user, and keeps what it makes in this very store.
"""

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from vbuild.build.source import TREE_SUFFIX, fetched, pack_tree, unpacked
from vbuild.build.trial import TrialResult
from vbuild.errors import BuildError
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import read_file
from vbuild.files.staging import LOGS
from vbuild.process.run import supervised
from vbuild.recipe.spelling import MACHINES, baseline
from vbuild.recipe.target import Target
from vbuild.release.builder import interpreter_of
from vbuild.release.builds import check_identity, digest_of
from vbuild.release.messages import LOGS_HERE, RemoteFailure, RemoteWheels, RunMessage, Task, written
from vbuild.release.model import Failure, Product, ReleaseContext, ReleaseWheels
from vbuild.release.pipeline import baseline_of
from vbuild.wheel.name import WheelName
from vbuild.workers.cluster import Cluster, Promise, connected
from vbuild.workers.executor import GPU, Executor, opened, packed

_JOBS = "vbuild.release.worker_state"

Needs = Mapping[str, float]


@contextmanager
def wheels_of_workers(context: ReleaseContext, executor: Executor) -> Iterator[ReleaseWheels]:
    """The wheels of all targets, made by the workers of *executor*, which test changed wheels within the block.

    When the block ends, also by Ctrl-C, jobs that are not done are cancelled. `BuildError` if there is no such
    cluster, `BuildError` for a recipe with native dependencies, whose sources only this machine has.
    """
    recipe = context.recipe
    if recipe.natives:
        raise BuildError(f"{recipe.file}: native: not built on workers; expected this machine, without --executor")
    with supervised(), connected(executor) as cluster:
        source, digest = _packed(context)
        places = {target: place for place, target in enumerate(context.targets)}
        remote = _Remote(cluster, context, RunMessage.of(uuid.uuid4().hex, context, source=digest), places)
        outcomes = remote.outcomes(source)
        yield ReleaseWheels(outcomes, remote.tested_again, interpreter_of, remote.notes, is_remote=True)


class _Remote(Struct, frozen=True):
    """The release *context* on *cluster*: the *message* that all its jobs get, and the *places* of its targets."""

    cluster: Cluster
    context: ReleaseContext
    message: RunMessage
    places: Mapping[Target, int]
    sent: dict[str, Promise] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def outcomes(self, source: Path) -> tuple[Product | Failure, ...]:
        """What becomes of every target, built from the packed tree *source*."""
        self.cluster.listen(self._hear)
        groups: dict[tuple[str, ...], list[Target]] = {}
        for target in self.context.targets:
            groups.setdefault(target.build_key, []).append(target)
        found: dict[Target, Product | Failure] = {}
        jobs = self._submitted(groups, self._sent(source), found)
        for group, result in self.cluster.each(jobs):
            found.update(zip(group, self._outcomes(group, result), strict=True))
        return tuple(found[target] for target in self.context.targets)

    def tested_again(self, product: Product, find_links: Path) -> Product | Failure:
        """*product*, whose wheel is another now, tested again; wheels that it requires are in *find_links*."""
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
        self, groups: Mapping[tuple[str, ...], Sequence[Target]], source: Promise, found: dict[Target, Any]
    ) -> dict[Promise, Sequence[Target]]:
        """The last jobs of all *groups*, each of targets with one build; *found* gets what no worker can build."""
        there = self.cluster.resources()
        builds: dict[tuple[str, ...], Promise] = {}
        for key, group in groups.items():
            try:
                builds[key] = self._job("built", group[:1], source, needs=_for_build(group[0], there))
            except BuildError as error:
                found.update({target: self._failure(target, error) for target in group})
        jobs: dict[Promise, Sequence[Target]] = {}
        for key, build in builds.items():
            group = groups[key]
            other = baseline_of(group[0], self.context.targets)
            compared = builds.get(other.build_key) if other else None
            needs = self._for_test(group[0], there)
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
            f"{_JOBS}:{function}",
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

    def _for_test(self, target: Target, there: Sequence[Needs]) -> Needs:
        """What a worker needs to test *target*, as far as some of those *there* have it: others see what they can."""
        if self.context.recipe.test.command is None:
            return {}
        level, gpu = {str(target.cpu): 1.0}, {GPU: 1.0} if target.cuda else {}
        wanted = ({**level, **gpu}, level)
        return next((needs for needs in wanted if any(needs.keys() <= has.keys() for has in there)), {})

    def _outcomes(self, group: Sequence[Target], result: Any) -> Iterator[Product | Failure]:  # noqa: ANN401 - jobs'
        if isinstance(result, BuildError):
            yield from (self._failure(target, result) for target in group)
            return
        finished: RemoteWheels = opened(result[0])
        self.notes.extend(finished.notes)
        wheels = iter(result[1:])
        for target, outcome in zip(group, finished.outcomes, strict=True):
            if isinstance(outcome, RemoteFailure):
                yield self._failure(target, outcome)
                continue
            wheel = written(self.context.place("made", target), outcome.wheel.name, next(wheels))
            self.context.log(target).unlink(missing_ok=True)  # an earlier run's
            yield replace(outcome, target=target, wheel=wheel, verdict=replace(outcome.verdict, wheel=wheel))

    def _failure(self, target: Target, why: RemoteFailure | BuildError) -> Failure:
        """That there is no wheel of *target*, its logs written here."""
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


def _for_build(target: Target, there: Sequence[Needs]) -> Needs:
    """What a worker needs to build *target*: where those *there* are of several machines, the right one.

    `BuildError` if all of them are of others.
    """
    ours, known = str(baseline(target.cpu.machine)), {str(baseline(machine)) for machine in MACHINES}
    declared = [known & resources.keys() for resources in there]
    if not any(names - {ours} for names in declared):
        return {}
    if any(ours in names for names in declared):
        return {ours: 1}
    if all(declared):
        others = ", ".join(sorted(set().union(*declared)))
        raise BuildError(f"no worker is for {ours}; there are workers for {others}")
    return {}


def _packed(context: ReleaseContext) -> tuple[Path, str]:
    """The source of *context* with its patches, packed in its stage, and its digest."""
    recipe, folder, look = context.recipe, context.folder, context.stage / "look"
    digest = digest_of(recipe, folder)
    patches, where = recipe.build.patches, recipe.source.subdirectory
    project = unpacked(fetched(recipe.source), look, subdirectory=where, patches=patches, without=folder)
    check_identity(recipe, project)
    if digest_of(recipe, folder) != digest:
        raise BuildError(f"{recipe.source}: edited while it was packed; expected it to stay as it is for that moment")
    tree = context.stage / f"source{TREE_SUFFIX}"
    pack_tree(look / project.relative_to(look).parts[0], tree)
    return tree, " ".join([digest, *map(sha256_of, patches)])
