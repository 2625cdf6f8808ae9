"""Commands that build: `vbuild matrix`, and the toolkits for it."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vbuild import options, report, terminal
from vbuild.commands.group import Commands
from vbuild.errors import ClaimError

if TYPE_CHECKING:
    from vbuild.variant.document import Schema


@click.command(epilog=options.example("vbuild matrix recipes/annoy.toml -o dist --jobs 2"))
@click.argument("source", type=click.Path(path_type=Path))
@options.output
@click.option("-j", "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Builds at a time.")
@click.option("--only", multiple=True, metavar="LABEL", help="Build this target, or 'plain'; may be repeated.")
@click.option("--python", "pythons", multiple=True, metavar="NAME", help="For this Python of the recipe's only.")
@click.option("--part", "is_part", is_flag=True, help="Leave what is for all of a release to 'vbuild collect'.")
@click.option("--dry-run", is_flag=True, help="Print every target with its flags; build and write nothing.")
@click.option("--fresh", is_flag=True, help="Build everything again, also what was built before and is the same.")
@options.drafts
@options.as_json
def matrix(
    source: Path,
    folder: Path,
    *,
    jobs: int,
    only: tuple[str, ...],
    pythons: tuple[str, ...],
    is_part: bool,
    dry_run: bool,
    fresh: bool,
    schema: "Schema",
    as_json: bool,
) -> None:
    """Build a recipe, or the project in a folder, for every target."""
    from vbuild import matrix as verb
    from vbuild.release.store import Store

    if dry_run:
        plan = verb.planned(source, only=only, pythons=pythons)
        terminal.show([job.data() for job in plan], report.job_lines(plan), as_json=as_json)
        return
    with terminal.progress(quiet=as_json) as told:
        store = Store.of_user(fresh=fresh)
        release = verb.matrix(
            source,
            folder,
            jobs=jobs,
            only=only,
            pythons=pythons,
            is_part=is_part,
            schema=schema,
            store=store,
            told=told,
        )
    terminal.show(release.data(), report.release_lines(release), as_json=as_json)
    if release.failures:
        raise ClaimError(f"{release.name}: {len(release.failures)} of {release.targets} targets failed")


@click.group(cls=Commands, epilog=options.example("vbuild toolkit install 13.0 nccl==2.28.9"))
def toolkit() -> None:
    """Keep CUDA toolkits of the package index, as matrix uses them."""


@toolkit.command("list", epilog=options.example("vbuild toolkit list --json"))
@options.as_json
def list_toolkits(*, as_json: bool) -> None:
    """List the toolkits that are kept, and those installed."""
    from vbuild import provision

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
    from vbuild import provision

    with terminal.status(quiet=as_json) as told:
        provided = provision.install(version, libraries, told=told)
    terminal.show(provided.data(), provided.lines(), as_json=as_json)


@toolkit.command("path", epilog=options.example('CUDA_HOME="$(vbuild toolkit path 13.0)" make'))
@click.argument("version")
@click.argument("libraries", nargs=-1)
@options.as_json
def toolkit_path(version: str, libraries: tuple[str, ...], *, as_json: bool) -> None:
    """Print the CUDA_HOME of the kept toolkit VERSION with LIBRARIES."""
    from vbuild import provision

    kept = provision.path(version, libraries)
    terminal.show(kept.data(), kept.lines(), as_json=as_json)


@toolkit.command("prune", epilog=options.example("vbuild toolkit prune --unused-for 30"))
@click.option("--unused-for", type=click.IntRange(0, 36500), metavar="DAYS", help="Only what was not used for so long.")
@options.as_json
def prune_toolkits(*, unused_for: int | None, as_json: bool) -> None:
    """Take kept toolkits away, and what only they used.

    No build should be running then: one that has begun does not show that it uses its toolkit.
    """
    from vbuild import provision

    pruned = provision.prune(unused_for=unused_for)
    terminal.show(pruned.data(), pruned.lines(), as_json=as_json)
