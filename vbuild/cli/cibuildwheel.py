import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.cli.render import show_release
from vbuild.files.wording import wrapped

if TYPE_CHECKING:
    from vbuild.build.cibuildwheel.runs import CibuildwheelRun


@click.command(epilog=options.example("vbuild cibuildwheel -o dist -- --only cp313-manylinux_x86_64"))
@click.argument("arguments", nargs=-1, metavar="[-- CIBUILDWHEEL'S ARGUMENTS]", type=click.UNPROCESSED)
@options.folder
@click.option("--variants", multiple=True, metavar="LABELS", help="Build only these, separated by commas; or 'plain'.")
@click.option("--dry-run", is_flag=True, help="Print every run with its variables; build and write nothing.")
def cibuildwheel(
    arguments: tuple[str, ...],
    folder: Path | None,
    *,
    variants: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Run cibuildwheel once for each variant, and make one release.

    The project's [tool.cibuildwheel] stays in force, and [tool.vbuild] in its pyproject.toml says which variants there
    are. What follows -- is passed to cibuildwheel.
    """
    if dry_run:
        from vbuild.api.arguments import labels_of
        from vbuild.release.cibuildwheel import foreseen_runs

        terminal.show(None, run_lines(foreseen_runs(arguments, variants=labels_of(variants))))
        return
    if folder is None:
        raise click.UsageError("expected --output-dir FOLDER, or --dry-run")
    with terminal.passing_on() as echo:
        release = vbuild.cibuildwheel(folder, arguments, variants=variants, echo=echo)
    show_release(release)


def run_lines(runs: Iterable["CibuildwheelRun"]) -> Iterator[str]:
    for run in runs:
        yield from wrapped(f"{run}: {', '.join(run.identifiers)}")
        yield from (f"  {name}={shlex.quote(value)}" for name, value in run.variables)
