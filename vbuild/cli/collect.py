from pathlib import Path

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.cli.render import show_release


@click.command(epilog=options.example("vbuild collect parts/* --recipe . -o dist"))
@click.argument("parts", type=options.FOLDER, nargs=-1, required=True)
@options.required_folder
@click.option(
    "--recipe", type=options.PATH, help="Also name the targets of this recipe or project that are in no part."
)
def collect(parts: tuple[Path, ...], folder: Path, *, recipe: Path | None) -> None:
    """Join the parts that several CI jobs built into one release.

    PARTS are folders that 'vbuild matrix --part' wrote, or folders of these. Every wheel is verified again.
    """
    with terminal.progress(folder) as on_progress:
        release = vbuild.collect(parts, folder, recipe=recipe, on_progress=on_progress)
    show_release(release)
