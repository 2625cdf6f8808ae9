"""What the user sees: results on stdout, refusals and progress on stderr. The only file that prints."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from vbuild.recipe.target import Target


class Refusal(click.ClickException):
    """A `VbuildError` as the user meets it: one line, status 1."""

    def show(self, file: Any = None) -> None:  # noqa: ANN401 - click's own signature
        click.echo(f"vbuild: {_printable(' '.join(self.message.split()))}", err=True, file=file)


class UsageMistake(click.ClickException):
    """A mistake on the command line in two lines, status 2: what is wrong, and how to get help."""

    exit_code = 2

    def __init__(self, error: click.UsageError) -> None:
        super().__init__(error.format_message())
        self._command = error.ctx.command_path if error.ctx else "vbuild"

    def show(self, file: Any = None) -> None:  # noqa: ANN401 - click's own signature
        click.echo(f"{self._command}: {_printable(' '.join(self.message.split()))}", err=True, file=file)
        click.echo(f"'{self._command} --help' explains its options.", err=True, file=file)


def show(data: Any, lines: Iterable[str], *, as_json: bool) -> None:  # noqa: ANN401 - whatever JSON holds
    """Print *data* as JSON, or *lines* for people."""
    click.echo(json.dumps(data, indent=2) if as_json else "\n".join(map(_printable, lines)))


def write(text: str) -> None:
    """Print *text* as it is: a file, for whoever redirects it."""
    click.echo(text, nl=False)


def pass_on(output: bytes) -> None:
    """Show the *output* of a command while it runs, on stderr: stdout is for results."""
    sys.stderr.buffer.write(output)
    sys.stderr.buffer.flush()


def _printable(line: str) -> str:
    """*line* without what could make a terminal do something: names in a wheel are anybody's."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line)


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[["Target", str], None]]:
    """Lines on stderr that say which target is at which step; nothing where that is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _target, _step: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    steps: dict[str, str] = {}
    with console.status("fetching the source") as line:

        def told(target: "Target", step: str) -> None:
            steps[str(target)] = step
            at_work = [f"{label}: {said}" for label, said in steps.items() if said.endswith("ing")]
            line.update(", ".join(at_work) or step)

        yield told


@contextmanager
def status(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """One line on stderr that says what is being done; nothing where that is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _step: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as line:
        yield line.update


@contextmanager
def bar(*, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on stderr; nothing where that is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("")
        yield lambda what, done, total: shown.update(task, description=what, completed=done, total=total)
