"""One run of `vbuild matrix` at work: the steps that a target goes through, and what they share.

target -> prepared -> Job -> built -> Repaired -> finished -> Product, or at any step a Failure
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from packaging.version import Version

from vbuild.build.environment import Environments
from vbuild.build.frontend import Built, Job, build_wheel, prepared
from vbuild.build.indexes import Indexes
from vbuild.build.repair import repaired
from vbuild.build.source import fetched, unpacked
from vbuild.build.trial import Trial, tried
from vbuild.errors import BuildError, ClaimError, RecipeError, VbuildError, at
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.machine import Machine
from vbuild.recipe.model import Recipe
from vbuild.recipe.source import Sdist, same_project
from vbuild.recipe.target import Target
from vbuild.release.family import Family
from vbuild.release.outcome import Failure, Product
from vbuild.verdict.model import Severity, Verdict
from vbuild.verify import verify
from vbuild.wheel.distinfo import Metadata
from vbuild.wheel.name import WheelName

Told = Callable[[Target, str], None]

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Repaired:
    """A build with its portable wheel, still plain."""

    job: Job
    built: Built
    wheel: Path


Builds = Mapping[tuple[str, ...], Repaired | Failure]


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where a recipe's targets are built: the source, the folder of work in progress, and what builds share."""

    recipe: Recipe
    archive: Path
    project: Path
    stage: Path
    logs: Path
    environments: Environments
    configuration: Mapping[str, str]
    cpu: Cpu | None
    told: Told

    @classmethod
    def opened(cls, recipe: Recipe, stage: Path, *, logs: Path, told: Told = lambda _target, _step: None) -> Self:
        """The workshop in the folder *stage*, with the source of *recipe* fetched and looked at."""
        indexes = Indexes.configured()
        configuration = indexes.environment()
        archive = fetched(recipe.source, indexes=indexes)
        look = unpacked(archive, stage / "look", subdirectory=recipe.source.subdirectory, patches=recipe.build.patches)
        _check_identity(recipe, look)
        environments = Environments(stage / "environments", configuration, logs=logs)
        cpu = Machine.here().cpu
        return cls(recipe, archive, look, stage, logs, environments, configuration, cpu, told)

    def prepared(self, target: Target) -> Job:
        """The job of building *target*; `BuildError` where this machine cannot."""
        with at(self.recipe.name), at(target):
            return prepared(self.project, target, self.recipe.build)

    def built(self, job: Job) -> Repaired | Failure:
        """Build and repair *job* in a tree of its own."""
        target = job.target
        folder = self.stage / "builds" / _slug(target)
        log = self._log(target)
        try:
            self.told(target, "building")
            project = unpacked(
                self.archive,
                folder / "tree",
                subdirectory=self.recipe.source.subdirectory,
                patches=self.recipe.build.patches,
            )
            built = build_wheel(job, project, folder, log=log, environments=self.environments)
            if not same_project(WheelName.parse(built.wheel.name).distribution, self.recipe.name):
                raise BuildError(f"{built.wheel.name}: not of {self.recipe.name}, which the recipe builds")
            self.told(target, "repairing")
            wheel = repaired(
                built.wheel,
                folder / "repaired",
                log=log,
                settings=self.recipe.repair,
                environment=dict(target.env),
            )
        except VbuildError as error:
            return self._failure(target, error)
        self.told(target, "built")
        return Repaired(job, built, wheel)

    def finished(self, job: Job, *, builds: Builds, family: Family) -> Product | Failure:
        """Stamp, verify and test the wheel of *job*, one of *builds*."""
        target = job.target
        build = builds[target.build_key]
        if isinstance(build, Failure):
            return Failure(target, build.error, build.log)
        try:
            self.told(target, "verifying")
            wheel = family.stamped(target, build.wheel, self.stage / "finished" / _slug(target))
            verdict = verify(
                wheel,
                cpu=target.cpu,
                baseline=_baseline(target, builds.values()),
                allow=self.recipe.verify.allow,
            )
            if verdict.failed:
                raise ClaimError(_broken(verdict))
            if not (verdict.libraries or target.cpu.is_baseline):
                raise ClaimError(
                    f"{wheel.name}: no compiled code for {target.cpu}; did the build leave its modules out?"
                )
            self.told(target, "testing")
            trial = self._tried(build)
        except VbuildError as error:
            return self._failure(target, error)
        self.told(target, "done")
        self._log(target).unlink(missing_ok=True)
        variant = family.variant(target)
        return Product(
            target=target,
            wheel=wheel,
            label=variant.label if variant else None,
            plan=build.job.plan,
            seconds=build.built.seconds,
            overrides=build.built.overrides,
            verdict=verdict,
            trial=trial,
        )

    def _tried(self, build: Repaired) -> Trial:
        target = build.job.target
        return tried(
            build.wheel,
            self.recipe.test,
            interpreter=build.job.interpreter,
            cpu=target.cpu,
            machine=self.cpu,
            folder=self.stage / "trials" / _slug(target),
            log=self._log(target),
            configuration=self.configuration,
        )

    def _failure(self, target: Target, error: VbuildError) -> Failure:
        self.told(target, "failed")
        log = self._log(target)
        return Failure(target, str(error), log if log.exists() else None)

    def _log(self, target: Target) -> Path:
        return self.logs / f"{self.recipe.name}-{_slug(target)}.log"


def _check_identity(recipe: Recipe, project: Path) -> None:
    """`RecipeError` where an sdist says that it is another release than the recipe names: the hash alone counts."""
    source, stated = recipe.source, project / "PKG-INFO"
    if isinstance(source, Sdist) and stated.is_file():
        with at(recipe.file), at("PKG-INFO"):
            metadata = Metadata.parse(stated.read_text(encoding="utf-8", errors="replace"))
        if not same_project(metadata.name, source.name) or Version(metadata.version) != source.version:
            raise RecipeError(
                f"{recipe.file}: source.sdist: sha256 is of {metadata.name}=={metadata.version}, expected {source}"
            )


def _slug(target: Target) -> str:
    """A file name for what belongs to *target* alone."""
    python = "".join(letter if letter.isalnum() or letter in "._" else "_" for letter in target.python)
    return f"{target}-{python.strip('_')}"


def _baseline(target: Target, builds: Iterable[Repaired | Failure]) -> Path | None:
    """The wheel of the same Python and choices that was built for the baseline; None for the baseline itself."""
    for build in builds:
        if isinstance(build, Repaired) and not target.cpu.is_baseline:
            other = build.job.target
            if other.cpu.is_baseline and (other.python, other.choices) == (target.python, target.choices):
                return build.wheel
    return None


def _broken(verdict: Verdict) -> str:
    """The promises that a wheel does not keep, in one line."""
    errors = [finding for finding in verdict.findings if finding.severity is Severity.ERROR]
    said = [f"{finding.member}: {finding.what}" if finding.member else finding.what for finding in errors[:_SHOWN]]
    if len(errors) > _SHOWN:
        said.append(f"and {len(errors) - _SHOWN} more")
    return f"{verdict.wheel.name}: {'; '.join(said)}"
