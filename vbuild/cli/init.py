from pathlib import Path
from typing import Any

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.errors import BuildError
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
@click.option("--check", is_flag=True, help="Say what a build would meet on this machine; write nothing.")
def init(source: str, file: Path | None, *, emit: str | None, check: bool, **given: Any) -> None:  # noqa: ANN401 - axes
    """Write a recipe for a project from what its files say.

    SOURCE is the folder of a project, an sdist, or a name on the package index. The recipe names the source and its
    hash, the axes, what the build needs to be told, and a test, each with a comment.
    """
    if emit:
        if check or file or any(given.values()):
            raise click.UsageError("--emit writes what the project's [tool.vbuild] says; expected SOURCE alone with it")
        from vbuild.release.emit import write_workflows

        terminal.show(None, map(str, write_workflows(Path(source))))
        return
    if check:
        if file:
            raise click.UsageError("--check writes nothing; expected no --output")
        from vbuild.api.arguments import axes_of
        from vbuild.build.init import prospect

        outlook = prospect(source, axes_of(**given))
        lines = [line for point in (*outlook.notes, *outlook.obstacles) for line in wrapped(str(point), indent=2)]
        if not outlook.obstacles:
            lines.append(f"{outlook.name}: no Python, compiler or build requirement is missing")
        terminal.show(None, lines)
        if outlook.errors:
            raise BuildError(
                f"{outlook.name}: {outlook.errors} {'thing' if outlook.errors == 1 else 'things'} in the way"
            )
        return
    written = vbuild.init(source, output=file, **given)
    lines = [line for note in written.notes for line in wrapped(note, indent=2)]
    terminal.show(None, [*lines, f"{written.path}:", *written.text.splitlines()])
