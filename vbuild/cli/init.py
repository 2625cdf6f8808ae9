from pathlib import Path
from typing import Any

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.files.wording import wrapped


@click.command(cls=options.RequestCommand, epilog=options.example("vbuild init mmh3==5.3.1 --cpu v2,v3"))
@click.argument("source", type=options.SOURCE, default=".")
@click.option(
    "-o",
    "--output",
    "file",
    type=options.FILE,
    help="Write the recipe into this file. [default: NAME.toml, or the pyproject.toml of a project]",
)
@options.of("vbuild.api.building:MatrixRequest", "cpu", "cuda")
@click.option(
    "--emit",
    type=options.Choice(["github"]),
    help="Write workflows for the project in the folder SOURCE: wheels of all Pythons, release, index, PyPI.",
)
def init(source: str, file: Path | None, *, emit: str | None, **given: Any) -> None:  # noqa: ANN401 - axes
    """Write a recipe for a project from what its files say.

    SOURCE is the folder of a project, an sdist, or a name on the package index. The recipe names the source and its
    hash, the axes, what the build needs to be told, and a test, each with a comment.
    """
    if emit:
        if file or any(given.values()):
            raise click.UsageError("--emit writes what the project's [tool.vbuild] says; expected SOURCE alone with it")
        from vbuild.release.emit import write_workflows

        terminal.show(None, map(str, write_workflows(Path(source))))
        return
    written = vbuild.init(source, output=file, **given)
    lines = [line for note in written.notes for line in wrapped(note, indent=2)]
    terminal.show(None, [*lines, f"{written.path}:", *written.text.splitlines()])
