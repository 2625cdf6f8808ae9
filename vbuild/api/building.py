"""Build: a release from a recipe or a project."""

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vbuild.api.arguments import axes_of, labels_of, machine_of, matrix_request, path_of, paths_of, places_of, texts_of
from vbuild.api.request import Gpus, Paths, RequestError, StrPath, Texts, option, silent, takes

if TYPE_CHECKING:
    from vbuild.build.init import WrittenRecipe
    from vbuild.hardware.cpu import Cpu
    from vbuild.hardware.driver import Dotted
    from vbuild.recipe.target import Target
    from vbuild.release.lock import MachineLock, WrittenLock
    from vbuild.release.model import ReleaseResult
    from vbuild.workers.executor import Executor


CPU: "str | Iterable[str | Cpu] | None" = option(
    "Build for these CPU levels instead of the recipe's: v2,v3, or native.",
    default=None,
    parse="vbuild.hardware.machine:cpus_asked",
    metavar="LIST",
)
CUDA: "Gpus | None" = option(
    "Build for these GPUs instead of the recipe's, a wheel for each: 80,90+ptx, H100, native.",
    default=None,
    parse="vbuild.hardware.gpu:GpuList.asked",
    metavar="LIST",
)
STEPS: "Callable[[Target, str], None]" = option(
    "Call this with each target and the name of the step that it is at.", default=silent, flags=None
)


@dataclass(frozen=True)
class MatrixRequest:
    """What to build of the targets of a recipe."""

    source: StrPath
    output_dir: StrPath
    _: KW_ONLY
    cpu: "str | Iterable[str | Cpu] | None" = CPU
    cuda: "Gpus | None" = CUDA
    toolkit: "str | Dotted | Iterable[str | Dotted] | None" = option(
        "With --cuda: compile with this CUDA. [default: the newest for these GPUs] Without: build code that has "
        "no kernels with these, a wheel for each: 12.9,13.0.",
        default=None,
        parse="vbuild.api.arguments:toolkits_of",
        metavar="LIST",
    )
    hwcaps: bool = option(
        "Make one wheel of all CPU levels, which every installer takes and glibc chooses from.", default=False
    )
    python: Texts = option(
        "Build for this Python: one of the recipe's, any if it names none. Repeatable.", default=(), metavar="NAME"
    )
    jobs: int | None = option(
        "Run this many builds at a time. [default: as many as cores and memory allow]",
        default=None,
        flags="-j --jobs",
        metavar="N",
        least=1,
    )
    only: Texts = option(
        "Build only this target; 'plain' is the one without a label. Repeatable.", default=(), metavar="LABEL"
    )
    executor: "str | Executor" = option(
        "Work on this machine, or on the workers of dask://HOST:PORT.",
        default="local",
        parse="vbuild.workers.executor:Executor.parse",
        metavar="WHERE",
    )
    part: bool = option("Leave what needs the whole release to 'vbuild collect'.", default=False)
    fresh: bool = option("Build everything again, even if it was built before.", default=False)
    locked: bool = option("Use only what the recipe's lock file names.", default=False)
    on_progress: "Callable[[Target, str], None]" = STEPS
    on_note: Callable[[str], None] = option(
        "Call this, before anything is built, with each line on what was chosen for the user.",
        default=silent,
        flags=None,
    )


@takes(MatrixRequest)
def matrix(request: MatrixRequest) -> "ReleaseResult":
    """Build *source* for every target: a recipe, a project's folder, an sdist, or a name such as "mmh3==5.3.1".

    *output_dir* gets the wheels, a variants.json, report.json, report.html, and the logs of builds that failed. A
    target that fails is in the result's ``failures``, and the others are finished. `RecipeError` if the
    recipe is wrong, `BuildError` or `FetchError` if no build can start; then nothing is written.
    """
    from vbuild.release.matrix import matrix as verb

    return verb(str(request.source), Path(request.output_dir), matrix_request(request), on_progress=request.on_progress)


@dataclass(frozen=True)
class InitRequest:
    """Where to write which recipe."""

    source: StrPath
    _: KW_ONLY
    output: StrPath | None = option(
        "Write the recipe into this file. [default: NAME.toml, or the pyproject.toml of a project]",
        default=None,
        flags="-o --output",
        parse="file",
    )
    cpu: "str | Iterable[str | Cpu] | None" = CPU
    cuda: "Gpus | None" = CUDA


@takes(InitRequest)
def init(request: InitRequest) -> "WrittenRecipe":
    """Write a recipe for *source*, as `matrix` takes it, into the file *output*; by default as ``vbuild init`` does.

    *cpu* and *cuda* are those of `matrix`. `RecipeError`, and nothing written, if there is a recipe already.
    """
    from vbuild.build.init import init as verb

    return verb(str(request.source), axes_of(request.cpu, request.cuda), file=path_of(request.output))


def lock(source: StrPath, *, on_progress: Callable[[str], None] = silent) -> "WrittenLock":
    """Pin what the recipe or project *source* is built from, in a lock file next to it; returns what that holds.

    `RecipeError` if the recipe is wrong, `BuildError` or `FetchError` if something cannot be had.
    """
    from vbuild.release.lock import lock as verb

    return verb(Path(source), on_progress=on_progress)


@dataclass(frozen=True)
class LockMachinesRequest:
    """Whose locks to write, and out of which wheels."""

    project: str
    machines: Paths = option(
        "Write a pylock.toml for the machine in this file, as 'vbuild select' takes it. Repeatable.",
        default=(),
        flags="--machine",
        parse="file",
    )
    find_links: Paths = option(
        "With --machine: look for wheels in this folder, page of links or simple index. Repeatable.",
        default=(),
        flags="-f --find-links",
        parse="place",
        metavar="FOLDER|URL",
        only="machines",
    )
    output_dir: StrPath | None = option(
        "With --machine: write the locks into this folder.",
        default=None,
        flags="-o --output-dir",
        parse="folder",
        only="machines",
    )
    _: KW_ONLY
    requires: Texts = option(
        "With --machine: install this, too, as in torch==2.14.*. Repeatable.",
        default=(),
        flags="--with",
        parse="vbuild.recipe.spelling:requirement",
        metavar="REQUIREMENT",
        only="machines",
    )
    allow_builds: bool = option(
        "With --machine: build requirements that have no wheel, which runs their code.", default=False, only="machines"
    )


@takes(LockMachinesRequest)
def lock_machines(request: LockMachinesRequest) -> "tuple[MachineLock, ...]":
    """Write a pylock.toml of *project* for each of *machines*: its variant, and all that this requires.

    *machines* are files, as for `select`; *output_dir* gets the locks. Returns a result for each. `VariantError`, and
    nothing written, if nothing fits a machine; `BuildError` if a requirement cannot be had.
    """
    from vbuild.release.lock import lock_machines as verb

    if not (request.find_links and request.output_dir):
        raise RequestError("{machines}: expected {find_links} with the wheels, and {output_dir} for the locks")
    return verb(
        request.project,
        places_of(request.find_links),
        {str(file): machine_of(file) for file in paths_of(request.machines)},
        Path(request.output_dir),
        requires=texts_of(request.requires),
        allow_builds=request.allow_builds,
    )


@dataclass(frozen=True)
class CibuildwheelRequest:
    """Which variants to run cibuildwheel for, and with which *arguments*."""

    output_dir: StrPath
    arguments: Iterable[str] = ()
    _: KW_ONLY
    variants: Texts = option("Build only these, separated by commas; or 'plain'.", default=(), metavar="LABELS")
    echo: Callable[[bytes], None] | None = option("Call this with what it prints.", default=None, flags=None)


@takes(CibuildwheelRequest)
def cibuildwheel(request: CibuildwheelRequest) -> "ReleaseResult":
    """Run cibuildwheel with *arguments* once for each of *variants*, by default all, and make one release.

    `BuildError` if cibuildwheel is missing, `RecipeError` if the project's [tool.vbuild] is wrong; then no wheel is
    written.
    """
    from vbuild.release.cibuildwheel import cibuildwheel as verb

    return verb(
        Path(request.output_dir),
        tuple(request.arguments),
        variants=labels_of(request.variants),
        echo=request.echo,
    )


@dataclass(frozen=True)
class CollectRequest:
    """The folders of the parts, and where to put the release."""

    parts: Paths
    output_dir: StrPath
    _: KW_ONLY
    recipe: StrPath | None = option(
        "Also name the targets of this recipe or project that are in no part.", default=None, parse="path"
    )
    on_progress: "Callable[[Target, str], None]" = STEPS


@takes(CollectRequest)
def collect(request: CollectRequest) -> "ReleaseResult":
    """Make one release of the folders *parts*, which `matrix` made with ``part=True``.

    *recipe* is what they are parts of: targets that no part has are then among the ``failures``. *output_dir* gets what
    `matrix` writes. A `VbuildError`, and nothing written, if a part cannot be read or the parts are not of one release.
    """
    from vbuild.release.collect import collect as verb

    parts, folder = paths_of(request.parts), Path(request.output_dir)
    return verb(parts, folder, recipe=path_of(request.recipe), on_progress=request.on_progress)
