"""What is to be made for each target: the job of its build, and the keys by which the store knows build and wheel."""

from collections.abc import Iterable

from msgspec import Struct

from vbuild.build.frontend import Job
from vbuild.build.identity import build_key
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.model import Recipe
from vbuild.recipe.target import Target
from vbuild.release.cache import product_key
from vbuild.release.family import ReleaseFamily


class BuildOrder(Struct, frozen=True):
    """A wheel to be made: of the build with the key *build*, held against that with the key *baseline*, if any."""

    job: Job
    build: str
    baseline: str | None
    product: str

    @property
    def target(self) -> Target:
        return self.job.target


def ordered(
    jobs: Iterable[Job], *, recipe: Recipe, family: ReleaseFamily, source: str, machine: Cpu | None
) -> tuple[BuildOrder, ...]:
    """The orders of *jobs*, to be built from what has the digest *source* and tested on *machine*."""
    jobs = tuple(jobs)
    distinct = {job.target.build_key: job for job in jobs}
    builds = {key: build_key(job, source=source, repair=recipe.repair) for key, job in distinct.items()}
    return tuple(_order(job, jobs, builds, recipe=recipe, family=family, machine=machine) for job in jobs)


def _order(
    job: Job,
    jobs: Iterable[Job],
    builds: dict[tuple[str, ...], str],
    *,
    recipe: Recipe,
    family: ReleaseFamily,
    machine: Cpu | None,
) -> BuildOrder:
    target = job.target
    document = family.document(target)
    other = baseline_of(target, (job.target for job in jobs))
    baseline = builds[other.build_key] if other else None
    build = builds[target.build_key]
    product = product_key(
        build,
        target,
        document=document.pack() if document else None,
        verify=recipe.verify,
        check=recipe.test,
        baseline=baseline,
        cpu=machine,
    )
    return BuildOrder(job, build, baseline, product)


def baseline_of(target: Target, others: Iterable[Target]) -> Target | None:
    """The first of *others* that differs from *target* in nothing but the CPU level, the lowest, if there is one.

    None for a baseline itself.
    """
    if target.cpu.is_baseline:
        return None
    alike = (other for other in others if other.cpu.is_baseline and without_cpu(other) == without_cpu(target))
    return next(alike, None)


def without_cpu(target: Target) -> tuple[object, ...]:
    """What the host code of *target* depends on, but for the CPU level; not on the GPUs that there is code for."""
    return (target.python, target.choices, target.cuda.toolkit if target.cuda else None)
