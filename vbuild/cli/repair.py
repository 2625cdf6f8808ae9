"""`vbuild repair`: a portable wheel, as auditwheel makes it, for code above the baseline, too."""

from pathlib import Path

import click

from vbuild.cli import options, terminal


@click.command(epilog=options.example("vbuild repair demo-1.0-cp313-cp313-linux_x86_64.whl wheelhouse"))
@click.argument("wheel", type=options.WHEEL)
@click.argument("folder", type=options.FOLDER, metavar="DEST_DIR")
@click.option("--recipe", type=options.PATH, help="Follow [repair] of this recipe. [default: the project here]")
@options.as_json
def repair(wheel: Path, folder: Path, *, recipe: Path | None, as_json: bool) -> None:
    """Make a wheel portable; use it as cibuildwheel's repair command.

    Writes WHEEL into DEST_DIR with the libraries that it needs and the manylinux tag that it fits.
    """
    from vbuild.build.repair import repair as verb

    result = verb(wheel, folder, recipe=recipe)
    terminal.show(result.data(), [str(result.wheel)], as_json=as_json)
