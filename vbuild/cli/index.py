from pathlib import Path

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.files.wording import counted


@click.command(epilog=options.example("vbuild index dist --simple site"))
@click.argument("folder", type=options.FOLDER)
@click.option(
    "--simple", type=options.FOLDER, help="Also write a static simple index (PEP 503, 691, 658) there, or update it."
)
@click.option(
    "--remove",
    multiple=True,
    metavar="RELEASE",
    help="With --simple: remove this release, as in demo==1.0. Repeatable.",
)
def index(folder: Path, *, simple: Path | None, remove: tuple[str, ...]) -> None:
    """Write the variants.json of every release in a folder, or the repodata of a channel for conda.

    An index at --simple that is there already keeps its other releases. It is replaced in one step. FOLDER is a channel
    if it has packages for conda in folders such as linux-64, and no wheels.
    """
    from vbuild.publishing.conda.channel import packages_in
    from vbuild.wheel.archive import wheels_in

    if remove and not simple:
        raise click.UsageError("--remove goes with --simple, the index that has the release")
    if folder.is_dir() and not wheels_in(folder) and packages_in(folder):
        if simple:
            raise click.UsageError("--simple is for wheels; expected none for a channel of packages for conda")
        subdirs = vbuild.index_channel(folder)
        terminal.show(None, [f"{subdir.path}: {counted(len(subdir.packages), 'package')}" for subdir in subdirs])
        return
    lines = []
    for release in vbuild.index(folder, simple=simple, remove=remove):
        lines += [f"{release.path.name}: {', '.join(release.labels)}", *(f"  note: {note}" for note in release.notes)]
    lines = lines or [f"{folder}: no variant wheels"]
    terminal.show(None, [*lines, *([str(simple)] if simple else [])])
