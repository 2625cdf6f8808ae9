"""`vbuild lock`: pin what a recipe is built from."""

from pathlib import Path

import click

from vbuild.cli import options, terminal


@click.command(epilog=options.example("vbuild lock recipes/annoy.toml"))
@click.argument("source", type=options.PATH)
@options.as_json
def lock(source: Path, *, as_json: bool) -> None:
    """Pin what a recipe is built from: sources, toolkits, packages.

    Writes a lock file next to SOURCE with the hash of everything. 'vbuild matrix' uses what the file names as long as
    it fits the recipe; with --locked it uses nothing else.
    """
    from vbuild.release.lock import lock as verb

    with terminal.status(quiet=as_json) as on_progress:
        written = verb(source, on_progress=on_progress)
    terminal.show(written.data(), written.lines(), as_json=as_json)
