"""`vbuild index`: what installers need to choose among variant wheels."""

from pathlib import Path

import click

from vbuild.cli import options, terminal


@click.command(epilog=options.example("vbuild index dist --simple site"))
@click.argument("folder", type=options.FOLDER)
@click.option("--simple", type=options.FOLDER, help="Also write a static simple index (PEP 503, 691, 658) there.")
@options.as_json
def index(folder: Path, *, simple: Path | None, as_json: bool) -> None:
    """Write the variants.json of every release in a folder."""
    from vbuild.variants.index import index as verb

    indexed = verb(folder, simple=simple)
    data = {"variants": [item.data() for item in indexed], "simple": str(simple) if simple else None}
    lines = [f"{item.path.name}: {', '.join(item.labels)}" for item in indexed] or [f"{folder}: no variant wheels"]
    terminal.show(data, [*lines, *([str(simple)] if simple else [])], as_json=as_json)
