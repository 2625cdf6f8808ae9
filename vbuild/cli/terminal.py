"""What the user sees: results on stdout, errors and progress on stderr. No other module prints.

Anybody chooses the names in a wheel, and what a build says. So no line from here moves the cursor, or is a command:

    ::error::, ::add-mask::     GitHub, at the beginning of a line; groups of lines stay those of cibuildwheel
    ##[, ##vso[, ##teamcity[    GitHub, Azure Pipelines, TeamCity, anywhere
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from vbuild.errors import VbuildError

_TO_GITHUB = re.compile(r"^(\s*):(?=:)(?!:(?:end)?group::)")
_TO_OTHERS = re.compile(r"##(?=(?:\w+)?\[)")
# what colours a line, as many commands do; other sequences move the cursor, or speak to the terminal
_COLOUR = re.compile(r"(\x1b\[[\d;]*m)")
# bytes of a line that has no end yet
_LONGEST = 1 << 16


class Refusal(click.ClickException):
    """A `VbuildError` as the user sees it: one line, on a terminal also the advice of its class, and its exit code."""

    def __init__(self, message: str, kind: type[VbuildError] = VbuildError, *, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = kind.exit_code if exit_code is None else exit_code  # type: ignore[misc] # click has one for the class
        self._advice = kind.advice

    def show(self, file: Any = None) -> None:  # noqa: ANN401 - click's own signature
        click.echo(f"vbuild: {_printable(' '.join(self.message.split()))}", err=True, file=file)
        if self._advice and sys.stderr.isatty():
            click.echo(self._advice, err=True, file=file)


class UsageMistake(click.ClickException):
    """A mistake on the command line in two lines, status 2: what is wrong, and how to get help."""

    exit_code = 2

    def __init__(self, error: click.UsageError) -> None:
        super().__init__(error.format_message())
        self._command = error.ctx.command_path if error.ctx else "vbuild"

    def show(self, file: Any = None) -> None:  # noqa: ANN401 - click's own signature
        click.echo(f"{self._command}: {_printable(' '.join(self.message.split()))}", err=True, file=file)
        click.echo(f"'{self._command} --help' explains its options.", err=True, file=file)


def show(data: Any, lines: Iterable[str], *, as_json: bool = False) -> None:  # noqa: ANN401 - whatever JSON holds
    if as_json:
        # the same JSON, in which a command to a CI system is none
        click.echo(_TO_OTHERS.sub(r"#\\u0023", json.dumps(data, indent=2)))
    else:
        click.echo("\n".join(map(_printable, lines)))


def write(text: str) -> None:
    """Print *text* as it is, such as a file that the user redirects."""
    click.echo(text, nl=False)


def note(line: str) -> None:
    click.echo(_printable(line), err=True)


@contextmanager
def passing_on() -> Iterator[Callable[[bytes], None]]:
    """Show the output of a command while it runs, line by line, on stderr: stdout is for results."""
    rest = b""

    def pass_on(output: bytes) -> None:
        nonlocal rest
        whole, end, rest = (rest + output).rpartition(b"\n")
        if not end and len(rest) > _LONGEST:
            whole, rest = rest, b""
        if whole or end:
            written("".join(f"{_spoken(line)}\n" for line in whole.decode(errors="replace").split("\n")))

    def written(text: str) -> None:
        sys.stderr.buffer.write(text.encode())
        sys.stderr.buffer.flush()

    try:
        yield pass_on
    finally:
        written(_spoken(rest.decode(errors="replace")))


def _spoken(line: str) -> str:
    """A *line* of a command's output: with its colours, and nothing else that speaks to a terminal or a CI system."""
    parts = _COLOUR.split(line.rstrip("\r"))
    return _mute("".join(part if place % 2 else _shown(part) for place, part in enumerate(parts)))


def _printable(line: str) -> str:
    """*line* without characters that control a terminal, and without commands to CI systems."""
    return _mute(_shown(line, blanks=" "))


def _shown(text: str, *, blanks: str = " \t") -> str:
    return "".join(
        letter if letter.isprintable() or letter in blanks else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def _mute(line: str) -> str:
    return _TO_OTHERS.sub("# #", _TO_GITHUB.sub(r"\1: ", line))


@contextmanager
def status(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show on stderr in one line what is being done, if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _step: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as line:
        yield lambda step: line.update(_plain(step))


@contextmanager
def bar(*, quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar on stderr, if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("")
        yield lambda step, done, total: shown.update(task, description=_plain(step), completed=done, total=total)


def _plain(text: str) -> str:
    """*text* as rich shows it letter by letter: for it, words in brackets are styles."""
    from rich.markup import escape

    return escape(_printable(text))
