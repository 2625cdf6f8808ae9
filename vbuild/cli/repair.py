from pathlib import Path

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.files.wording import wrapped


@click.command(epilog=options.example("vbuild repair demo-1.0-cp313-cp313-linux_x86_64.whl wheelhouse"))
@click.argument("wheel", type=options.WHEEL)
@click.argument("folder", type=options.FOLDER, metavar="DEST_DIR")
@click.option("--recipe", type=options.PATH, help="Follow [repair] of this recipe. [default: the project here]")
def repair(wheel: Path, folder: Path, *, recipe: Path | None) -> None:
    """Make a wheel portable; use it as cibuildwheel's repair command.

    Writes WHEEL into DEST_DIR with the libraries that it needs and the manylinux tag that it fits. The tags in WHEEL
    become those of the file name, and libraries no longer want an executable stack if no code in them
    writes a trampoline to it.
    """
    portable = vbuild.repair(wheel, folder, recipe=recipe)
    notes = (line for note in portable.notes for line in wrapped(f"  {note}", indent=4))
    terminal.show(None, [str(portable.wheel), *notes])
