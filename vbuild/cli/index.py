from pathlib import Path
from typing import Any

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.files.wording import counted


@click.command(cls=options.RequestCommand, epilog=options.example("vbuild index dist --simple site"))
@click.argument("folder", type=options.FOLDER)
@options.of("vbuild.api.shipping:IndexRequest")
def index(folder: Path, **given: Any) -> None:  # noqa: ANN401 - of IndexRequest
    """Write the variants.json of every release in a folder, or the repodata of a channel for conda.

    An index at --simple that is there already keeps its other releases. It is replaced in one step. FOLDER is a channel
    if it has packages for conda in folders such as linux-64, and no wheels.
    """
    from vbuild.publishing.conda.channel import packages_in
    from vbuild.wheel.archive import wheels_in

    if folder.is_dir() and not wheels_in(folder) and packages_in(folder):
        if given["simple"]:
            raise click.UsageError("--simple is for wheels; expected none for a channel of packages for conda")
        subdirs = vbuild.index_channel(folder)
        terminal.show(None, [f"{subdir.path}: {counted(len(subdir.packages), 'package')}" for subdir in subdirs])
        return
    lines = []
    for release in vbuild.index(folder, **given):
        lines += [f"{release.path.name}: {', '.join(release.labels)}", *(f"  note: {note}" for note in release.notes)]
    lines = lines or [f"{folder}: no variant wheels"]
    terminal.show(None, [*lines, *filter(None, [given["simple"] and str(given["simple"])])])
