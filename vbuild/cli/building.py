"""Commands that build: `vbuild matrix`, here or under cibuildwheel, the parts of it, and the toolkits for it."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vbuild.cli import options, terminal
from vbuild.cli import render as report
from vbuild.cli.group import Commands
from vbuild.errors import WheelError

if TYPE_CHECKING:
    from vbuild.release.outcome import ReleaseResult
    from vbuild.variants.document import Schema
    from vbuild.workers.executor import Executor


@click.command(epilog=options.example("vbuild matrix recipes/annoy.toml -o dist --jobs 2"))
@click.argument("source", type=click.Path(path_type=Path))
@click.option("-o", "--output-dir", "folder", type=options.FOLDER, help="Where the results go.")
@click.option("-j", "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Builds at a time.")
@click.option("--only", multiple=True, metavar="LABEL", help="Build this target, or 'plain'; may be repeated.")
@click.option("--python", "pythons", multiple=True, metavar="NAME", help="For this Python of the recipe's only.")
@options.executor
@click.option("--part", "is_part", is_flag=True, help="Leave what is for all of a release to 'vbuild collect'.")
@click.option(
    "--emit",
    "system",
    type=click.Choice(["github", "gitlab", "slurm", "json"]),
    help="Print the parts as jobs of this system; build nothing.",
)
@click.option(
    "--install",
    metavar="COMMAND",
    help="With --emit: the shell command that installs vbuild in a job. [default: pip, with what VBUILD_WHEELS names]",
)
@click.option("--runner", metavar="NAME", help="With --emit: GitHub's runs-on, or GitLab's image.")
@click.option("--dry-run", is_flag=True, help="Print every target with its flags; build and write nothing.")
@click.option("--fresh", is_flag=True, help="Build everything again, also what was built before and is the same.")
@click.option("--locked", "is_locked", is_flag=True, help="Use nothing but what the recipe's lock has.")
@click.option(
    "--pass-env",
    type=options.VARIABLE,
    multiple=True,
    metavar="NAME",
    help="Let builds see this variable, or those of a pattern; may be repeated.",
)
@options.compare
@options.drafts
@options.as_json
def matrix(
    source: Path,
    folder: Path | None,
    *,
    jobs: int,
    only: tuple[str, ...],
    pythons: tuple[str, ...],
    executor: "Executor",
    is_part: bool,
    system: str | None,
    install: str | None,
    runner: str | None,
    dry_run: bool,
    fresh: bool,
    is_locked: bool,
    pass_env: tuple[str, ...],
    compare: Path | None,
    schema: "Schema",
    as_json: bool,
) -> None:
    """Build a recipe, or the project in a folder, for every target."""
    if system:
        if only or pythons or folder or is_part or dry_run or compare or as_json or not executor.is_local:
            raise click.UsageError(
                "--emit prints the jobs of every part; of the other options only --jobs, --fresh, --locked, "
                "--pass-env, --schema, --install and --runner have an effect on these"
            )
        further = _handed_on(jobs=jobs, fresh=fresh, is_locked=is_locked, pass_env=pass_env, schema=schema)
        terminal.write(_emitted(source, system, install=install, runner=runner, further=further))
        return
    if install or runner:
        raise click.UsageError("--install and --runner are for --emit")
    from vbuild.release import matrix as verb

    asked = verb.MatrixOptions(
        jobs=jobs,
        only=only,
        pythons=pythons,
        executor=executor,
        is_part=is_part,
        is_locked=is_locked,
        fresh=fresh,
        pass_env=pass_env,
        schema=schema,
        compare=compare,
    )
    if dry_run:
        plan = verb.planned(source, asked)
        terminal.show([job.data() for job in plan], report.job_lines(plan), as_json=as_json)
        return
    if folder is None:
        raise click.UsageError("expected --output-dir FOLDER, --dry-run, or --emit SYSTEM")
    with terminal.progress(quiet=as_json) as on_progress:
        release = verb.matrix(source, folder, asked, on_progress=on_progress)
    _show(release, as_json=as_json)


@click.command(epilog=options.example("vbuild lock recipes/annoy.toml"))
@click.argument("source", type=click.Path(path_type=Path))
@options.as_json
def lock(source: Path, *, as_json: bool) -> None:
    """Pin what a recipe is built of, in a file beside it.

    That are its sources, CUDA toolkits and build requirements, each with its hash. What is there is used by 'vbuild
    matrix', and with --locked nothing else.
    """
    from vbuild.release.lock import lock as verb

    with terminal.status(quiet=as_json) as on_progress:
        written = verb(source, on_progress=on_progress)
    terminal.show(written.data(), written.lines(), as_json=as_json)


@click.command(epilog=options.example("vbuild cibuildwheel -o dist -- --only cp313-manylinux_x86_64"))
@click.argument("arguments", nargs=-1, metavar="[-- CIBUILDWHEEL'S ARGUMENTS]", type=click.UNPROCESSED)
@click.option("-o", "--output-dir", "folder", type=options.FOLDER, help="Where the results go.")
@click.option("--variants", multiple=True, metavar="LABELS", help="Build these only, with commas; or 'plain'.")
@click.option("--dry-run", is_flag=True, help="Print every run with its variables; build and write nothing.")
@options.compare
@options.drafts
@options.as_json
def cibuildwheel(
    arguments: tuple[str, ...],
    folder: Path | None,
    *,
    variants: tuple[str, ...],
    dry_run: bool,
    compare: Path | None,
    schema: "Schema",
    as_json: bool,
) -> None:
    """Run cibuildwheel once a variant, and make one release."""
    from vbuild.release import cibuildwheel as verb

    labels = [label.strip() for text in variants for label in text.split(",")]
    if dry_run:
        runs = verb.planned(arguments, variants=labels)
        terminal.show([run.data() for run in runs], report.run_lines(runs), as_json=as_json)
        return
    if folder is None:
        raise click.UsageError("expected --output-dir FOLDER, or --dry-run")
    release = verb.cibuildwheel(
        folder,
        arguments,
        variants=labels,
        compare=compare,
        schema=schema,
        echo=None if as_json else terminal.pass_on,
    )
    _show(release, as_json=as_json)


@click.command(epilog=options.example("vbuild collect parts/* --recipe . -o dist"))
@click.argument("parts", type=options.FOLDER, nargs=-1, required=True)
@options.output
@click.option("--recipe", type=click.Path(path_type=Path), help="What the parts are of: what is missing is told.")
@options.compare
@options.as_json
def collect(parts: tuple[Path, ...], folder: Path, *, recipe: Path | None, compare: Path | None, as_json: bool) -> None:
    """Make one release of what 'vbuild matrix --part' left."""
    from vbuild.release.collect import collect as collected

    with terminal.progress(quiet=as_json) as on_progress:
        release = collected(parts, folder, recipe=recipe, compare=compare, on_progress=on_progress)
    _show(release, as_json=as_json)


def _handed_on(
    *, jobs: int, fresh: bool, is_locked: bool, pass_env: tuple[str, ...], schema: "Schema"
) -> tuple[str, ...]:
    """The options of this command that each job's has, too."""
    from vbuild.variants.document import Schema

    return (
        *(("--jobs", str(jobs)) if jobs > 1 else ()),
        *(("--fresh",) if fresh else ()),
        *(("--locked",) if is_locked else ()),
        *(word for name in pass_env for word in ("--pass-env", name)),
        *(("--schema", schema.version) if schema is not Schema.PEP_850 else ()),
    )


def _emitted(source: Path, system: str, *, install: str | None, runner: str | None, further: tuple[str, ...]) -> str:
    from vbuild.release.emit import CiSystem, emitted
    from vbuild.release.emit_jobs import INSTALL

    return emitted(source, CiSystem(system), install=install or INSTALL, runner=runner, options=further)


@click.group(cls=Commands, epilog=options.example("vbuild toolkit install 13.0 nccl==2.28.9"))
def toolkit() -> None:
    """Keep CUDA toolkits of the package index, as matrix uses them."""


@toolkit.command("list", epilog=options.example("vbuild toolkit list --json"))
@options.as_json
def list_toolkits(*, as_json: bool) -> None:
    """List the toolkits that are kept, and those installed."""
    from vbuild.toolchain.toolkit import command as provision

    listing = provision.listing()
    terminal.show(listing.data(), listing.lines(), as_json=as_json)


@toolkit.command("install", epilog=options.example("vbuild toolkit install 13.0 cublas nccl==2.28.9"))
@click.argument("version")
@click.argument("libraries", nargs=-1)
@options.as_json
def install_toolkit(version: str, libraries: tuple[str, ...], *, as_json: bool) -> None:
    """Fetch toolkit VERSION of the package index.

    LIBRARIES are further components of it, or packages with a version, such as nccl==2.28.9.
    """
    from vbuild.toolchain.toolkit import command as provision

    with terminal.status(quiet=as_json) as on_progress:
        provided = provision.install(version, libraries, on_progress=on_progress)
    terminal.show(provided.data(), provided.lines(), as_json=as_json)


@toolkit.command("path", epilog=options.example('CUDA_HOME="$(vbuild toolkit path 13.0)" make'))
@click.argument("version")
@click.argument("libraries", nargs=-1)
@options.as_json
def toolkit_path(version: str, libraries: tuple[str, ...], *, as_json: bool) -> None:
    """Print the CUDA_HOME of the kept toolkit VERSION with LIBRARIES."""
    from vbuild.toolchain.toolkit import command as provision

    kept = provision.path(version, libraries)
    terminal.show(kept.data(), kept.lines(), as_json=as_json)


@toolkit.command("prune", epilog=options.example("vbuild toolkit prune --unused-for 30"))
@click.option("--unused-for", type=click.IntRange(0, 36500), metavar="DAYS", help="Only what was not used for so long.")
@options.as_json
def prune_toolkits(*, unused_for: int | None, as_json: bool) -> None:
    """Take kept toolkits away, and what only they used.

    No build should be running then: one that has begun does not show that it uses its toolkit.
    """
    from vbuild.toolchain.toolkit import command as provision

    pruned = provision.prune(unused_for=unused_for)
    terminal.show(pruned.data(), pruned.lines(), as_json=as_json)


def _show(release: "ReleaseResult", *, as_json: bool) -> None:
    """Print *release*; a refusal, and thus status 1, where something of it failed."""
    changes = {"changes": release.changes.data() if release.changes else None}
    terminal.show({**release.data(), **changes}, report.release_lines(release), as_json=as_json)
    if release.failures:
        raise WheelError(f"{release.name}: {len(release.failures)} of {release.targets} targets failed")
