from pathlib import Path

import click

from vbuild.cli import options, terminal


@click.command(epilog=options.example("vbuild repair demo-1.0-cp313-cp313-linux_x86_64.whl wheelhouse"))
@click.argument("wheel", type=options.WHEEL)
@click.argument("folder", type=options.FOLDER, metavar="DEST_DIR")
@click.option("--recipe", type=options.PATH, help="Follow [repair] of this recipe. [default: the project here]")
def repair(wheel: Path, folder: Path, *, recipe: Path | None) -> None:
    """Make a wheel portable; use it as cibuildwheel's repair command.

    Writes WHEEL into DEST_DIR with the libraries that it needs and the manylinux tag that it fits.
    """
    from vbuild.build.repair import repair as verb

    terminal.show(None, [str(verb(wheel, folder, recipe=recipe).wheel)])
