"""Build: a release from a recipe or a project."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from vbuild.api.arguments import (
    axes_of,
    matrix_request,
    path_of,
    paths_of,
    silent,
)
from vbuild.api.options import (
    MatrixOptions,
    StrPath,
)

if TYPE_CHECKING:
    from vbuild.build.init import WrittenRecipe
    from vbuild.hardware.cpu import Cpu
    from vbuild.hardware.gpu import GpuList
    from vbuild.recipe.target import Target
    from vbuild.release.model import ReleaseResult


def matrix(source: StrPath, output_dir: StrPath, **options: Unpack[MatrixOptions]) -> "ReleaseResult":
    """Build *source* for every target: a recipe, a project's folder, an sdist, or a name such as "mmh3==5.3.1".

    *output_dir* gets the wheels, a variants.json, report.json, report.html, and the logs of builds that failed. A
    target that fails is in the result's ``failures``, and the others are finished. `RecipeError` if the
    recipe is wrong, `BuildError` or `FetchError` if no build can start; then nothing is written.
    """
    from vbuild.release.matrix import matrix as verb

    request = matrix_request(**options)
    return verb(str(source), Path(output_dir), request, on_progress=options.get("on_progress", silent))


def init(
    source: StrPath,
    *,
    output: StrPath | None = None,
    cpu: "str | Iterable[str | Cpu] | None" = None,
    cuda: "str | Iterable[str] | GpuList | None" = None,
) -> "WrittenRecipe":
    """Write a recipe for *source*, as `matrix` takes it, into the file *output*; by default as ``vbuild init`` does.

    *cpu* and *cuda* are those of `matrix`. `RecipeError`, and nothing written, if there is a recipe already.
    """
    from vbuild.build.init import init as verb

    return verb(str(source), axes_of(cpu, cuda), file=path_of(output))


def collect(
    parts: "StrPath | Iterable[StrPath]",
    output_dir: StrPath,
    *,
    recipe: StrPath | None = None,
    on_progress: "Callable[[Target, str], None] | None" = None,
) -> "ReleaseResult":
    """Make one release of the folders *parts*, which `matrix` made with ``part=True``.

    *recipe* is what they are parts of: targets that no part has are then among the ``failures``. *output_dir* gets what
    `matrix` writes. A `VbuildError`, and nothing written, if a part cannot be read or the parts are not of one release.
    """
    from vbuild.release.collect import collect as verb

    return verb(
        paths_of(parts),
        Path(output_dir),
        recipe=path_of(recipe),
        on_progress=on_progress or silent,
    )
