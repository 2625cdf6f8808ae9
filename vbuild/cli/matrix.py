import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.cli.render import show_release
from vbuild.files.wording import wrapped

if TYPE_CHECKING:
    from vbuild.build.job import Job

_FOLDER = Path("dist")
# the options that have an effect on emitted jobs
_FOR_JOBS = ("jobs", "fresh", "locked")


@click.command(
    cls=options.RequestCommand,
    epilog=options.example(
        "vbuild matrix mmh3==5.3.1 --cpu v2,v3\n  vbuild matrix recipes/annoy.toml -o dist --jobs 2"
    ),
)
@click.argument("source", type=options.SOURCE)
@click.option(
    "-o", "--output-dir", "folder", type=options.FOLDER, help="Write the results into this folder. [default: dist]"
)
@options.of("vbuild.api.building:MatrixRequest")
@click.option(
    "--emit",
    type=options.Choice(["github", "json"]),
    help="Print jobs for this system, one for each build; build nothing.",
)
@click.option("--dry-run", is_flag=True, help="Print every target with its flags; build and write nothing.")
@click.option("-v", "--verbose", is_flag=True, help="Show every step, and the logs of builds as they grow.")
@options.as_json
def matrix(
    source: str,
    folder: Path | None,
    *,
    emit: str | None,
    dry_run: bool,
    verbose: bool,
    as_json: bool,
    **given: options.Given,
) -> None:
    """Build a wheel for every CPU level and GPU group of a recipe.

    SOURCE is a recipe, the folder of a project, an sdist, or a name on the package index, as in mmh3 or mmh3==5.3.1.
    The output folder gets the wheels, their index, report.json and report.html. A target that fails does not stop the
    others.
    """
    if emit:
        options.refuse_others("emit", *_FOR_JOBS, where="with --emit, which prints the jobs of every part")
        terminal.write(_emitted(Path(source), emit, given))
    elif dry_run:
        from vbuild.api.arguments import matrix_request
        from vbuild.api.building import MatrixRequest
        from vbuild.release.matrix import jobs_of

        request = MatrixRequest(source, folder or _FOLDER, **given, on_note=terminal.note)
        jobs = jobs_of(source, matrix_request(request))
        terminal.show([job.data() for job in jobs], job_lines(jobs), as_json=as_json)
    else:
        folder = folder or _FOLDER
        with terminal.progress(folder, quiet=as_json, verbose=verbose) as on_progress:
            release = vbuild.matrix(source, folder, **given, on_progress=on_progress, on_note=terminal.note)
        show_release(release, as_json=as_json)


def _emitted(source: Path, system: str, settings: dict[str, Any]) -> str:
    from vbuild.release.emit import CiSystem, emitted

    words = []
    for name in _FOR_JOBS:
        if value := settings[name]:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return emitted(source, CiSystem(system), options=words)


def job_lines(jobs: Iterable["Job"]) -> Iterator[str]:
    builds: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        builds.setdefault(job.target.build_key, []).append(job)
    for wheels in builds.values():
        yield from _build_lines(wheels)
    for job in [wheels[0] for wheels in builds.values()][:1]:  # all builds see the same
        names = ", ".join(job.passed) or "none"
        yield from wrapped(f"environment variables that builds see: {names}; {job.held_back} others are hidden")


def _build_lines(wheels: Sequence["Job"]) -> Iterator[str]:
    job = wheels[0]
    targets = ", ".join(str(wheel.target) for wheel in wheels)
    yield from wrapped(f"{targets} (Python {job.target.python}, {job.target.cpu}, {job.plan.backend})")
    variables = {**dict(job.target.env), **dict(job.plan.environment)}
    yield from (f"  {name}={shlex.quote(value)}" for name, value in variables.items())
    yield from (f"  -C{key}={value}" for key, value in job.plan.config_settings)
    rules = job.plan.wrapper_rules
    yield from wrapped(f"  compiler wrappers append: {' '.join((*rules.compile, *rules.link))}", indent=4)
    for prefix in job.prefixes:
        yield from wrapped(f"  native {prefix}", indent=4)
    for project, version in job.target.requires:
        yield from wrapped(f"  built against {project} {version}, which it requires", indent=4)
    if cuda := job.target.cuda:
        where = "" if job.toolkit and job.toolkit.root.exists() else ", which will be fetched"
        contents = f"compiled for {cuda.archs}" if cuda.archs.requests else "its libraries, and no code for GPUs"
        yield from wrapped(f"  CUDA {cuda.toolkit}{where}: {contents}", indent=4)
    for wheel in wheels:
        if gpus := wheel.target.gpus:
            yield from wrapped(f"  {wheel.target}: slimmed to {gpus}", indent=4)
