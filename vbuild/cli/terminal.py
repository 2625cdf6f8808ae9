"""What the user sees: results on stdout, errors and progress on stderr. No other module prints.

Anybody chooses the names in a wheel, and what a build says. So no line moves the cursor, or is a command:

    ::error::, ::add-mask::     GitHub, at the beginning of a line; groups of lines stay those of cibuildwheel
    ##[, ##vso[, ##teamcity[    GitHub, Azure Pipelines, TeamCity, anywhere

What takes long is one line that changes on a terminal, and elsewhere a line each ten seconds in which it changed:

    1:42  3 of 6  x86_64_v3: building  kernel.cpp          a terminal
    [  102 s] 3 of 6  x86_64_v3: building                  a file, a pipe, CI
    x86_64_v3 | g++ -O3 -c kernel.cpp                      the logs of builds, with --verbose
"""

import json
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vbuild.errors import VbuildError
from vbuild.files.reading import open_file
from vbuild.files.wording import percent

if TYPE_CHECKING:
    from vbuild.recipe.target import Target

_TO_GITHUB = re.compile(r"^(\s*):(?=:)(?!:(?:end)?group::)")
_TO_OTHERS = re.compile(r"##(?=(?:\w+)?\[)")
# colours of a line; other sequences move the cursor, or speak to the terminal
_COLOUR = re.compile(r"(\x1b\[[\d;]*m)")
# bytes of a line that has no end yet
_LONGEST = 1 << 16
_PAUSE = 0.5  # seconds between two looks at the logs
_LONG = 10.0  # seconds without a line, if there is no terminal
_QUIET = "VBUILD_NO_PROGRESS"  # cron sends mail for every line on stderr
_ENDS = frozenset({"done", "failed", "kept"})
_SOURCE = re.compile(r"[\w./+-]+\.(?:c|cc|cpp|cxx|c\+\+|cu|f90|f|rs|pyx|m|S|asm)(?=[\s'\"]|$)")
_COUNTED = re.compile(r"^\s*\[\s*(\d+/\d+|\d+%)\]")
_TAIL = 4096  # bytes


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

    def __init__(self, error: click.UsageError, command: str) -> None:
        super().__init__(error.format_message())
        self._command = command

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
    """A *line* of output with its colours, and nothing else that speaks to a terminal or a CI system."""
    parts = _COLOUR.split(line.rstrip("\r"))
    return _mute("".join(part if place % 2 else _visible(part) for place, part in enumerate(parts)))


def _printable(line: str) -> str:
    """*line* without characters that control a terminal, and without commands to CI systems."""
    return _mute(_visible(line, blanks=" "))


def _visible(text: str, *, blanks: str = " \t") -> str:
    return "".join(
        letter if letter.isprintable() or letter in blanks else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def _mute(line: str) -> str:
    return _TO_OTHERS.sub("# #", _TO_GITHUB.sub(r"\1: ", line))


@contextmanager
def status(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show on stderr in one line what is being done."""
    if quiet or not sys.stderr.isatty():
        last = deque([""], maxlen=1)
        with _lines(lambda: last[0], quiet=quiet):
            yield last.append
        return
    from rich.console import Console

    with Console(stderr=True).status("") as line:
        yield lambda step: line.update(_plain(step))


@contextmanager
def bar(*, quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Show on stderr how many of the bytes are done, on a terminal as a bar."""
    if quiet or not sys.stderr.isatty():
        last = deque([""], maxlen=1)
        with _lines(lambda: last[0], quiet=quiet):
            yield lambda step, done, total: last.append(f"{step}: {percent(done, total)}" if done else step)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("")
        yield lambda step, done, total: shown.update(task, description=_plain(step), completed=done, total=total)


@contextmanager
def _lines(current: Callable[[], str], *, quiet: bool = False) -> Iterator[None]:
    """Print the *current* line on stderr every ten seconds, unless it is the last one or empty."""
    start, ended, quiet = time.monotonic(), threading.Event(), quiet or bool(os.environ.get(_QUIET))

    def watch() -> None:
        last = ""
        while not ended.wait(_LONG):
            if (line := current()) not in {last, ""}:
                note(f"[{time.monotonic() - start:>5.0f} s] {line}")
                last = line

    watcher = threading.Thread(target=watch, daemon=True)
    if not quiet:
        watcher.start()
    try:
        yield
    finally:
        ended.set()
        if not quiet:
            watcher.join()


def _plain(text: str) -> str:
    """*text* as rich shows it letter by letter: for it, words in brackets are styles."""
    from rich.markup import escape

    return escape(_printable(text))


class _Logs:
    def __init__(self, folder: Path) -> None:
        from vbuild.files.atomic import LOGS

        self.folder = folder / LOGS
        # what is there already is of an earlier run
        self._read = {file: file.stat().st_size for file in self._files()}

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))

    def grown(self) -> Iterator[tuple[str, str]]:
        """The log's name and the text of each whole line since the last call."""
        for file in self._files():
            done = self._read.get(file, 0)
            try:
                with open_file(file) as log:
                    # a log that begins anew is shorter
                    start = log.seek(done if file.stat().st_size >= done else 0)
                    whole, end, _ = log.read().rpartition(b"\n")
            except OSError:  # removed in the meantime
                continue
            self._read[file] = start + len(whole) + len(end)
            yield from ((file.stem, line) for line in whole.decode(errors="replace").splitlines())

    def compiled(self) -> str:
        """The file being compiled by the youngest log, with its number if there is one; or ""."""
        try:
            youngest = max(self._files(), key=lambda file: file.stat().st_mtime, default=None)
            if youngest is None:
                return ""
            with open_file(youngest) as log:
                log.seek(max(0, youngest.stat().st_size - _TAIL))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        for line in reversed(lines):
            if sources := _SOURCE.findall(line):
                number = f"{match[1]} " if (match := _COUNTED.match(line)) else ""
                return f"{number}{Path(sources[-1]).name}"
        return ""


class _Steps:
    """The step of each target, the number of finished ones, and the seconds since the start."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.at: dict[str, str] = {}

    @property
    def seconds(self) -> int:
        return int(time.monotonic() - self.start)

    def label_of(self, log: str) -> str:
        """The target whose log is called *log*, else what the log begins with."""
        labels = [label for label in self.at if f"-{label}-" in f"{log}-"]
        return max(labels, key=len, default=log.partition("-")[0])

    @property
    def line(self) -> str:
        ended = sum(step in _ENDS for step in self.at.values())
        at_work = [f"{label}: {step}" for label, step in self.at.items() if step.endswith("ing") and step != "waiting"]
        begun = at_work or [step for step in list(self.at.values())[-1:] if step != "waiting"]
        work = ", ".join(begun) or ("preparing" if self.at else "fetching the source")
        count = f"{ended} of {len(self.at)}  " if self.at else ""
        return f"{count}{work}"


@contextmanager
def progress(folder: Path, *, quiet: bool = False, verbose: bool = False) -> Iterator[Callable[["Target", str], None]]:
    """Show which target is at which step of a release into *folder*, as above; nothing if it is to be *quiet*."""
    steps, is_terminal = _Steps(), sys.stderr.isatty()

    def show_step(target: "Target", step: str) -> None:
        is_new = steps.at.get(str(target)) != step
        steps.at[str(target)] = step
        if is_new and step != "waiting" and verbose and not (quiet or is_terminal):
            note(f"[{steps.seconds:>5} s] {target}: {step}")

    if quiet or not (is_terminal or verbose):
        with _lines(lambda: steps.line, quiet=quiet):
            yield show_step
        return
    with _watched(steps, _Logs(folder), is_terminal=is_terminal, verbose=verbose):
        yield show_step


@contextmanager
def _watched(steps: _Steps, logs: _Logs, *, is_terminal: bool, verbose: bool) -> Iterator[None]:
    from rich.console import Console

    console, ended = Console(stderr=True), threading.Event()
    line = console.status("") if is_terminal else None

    def look() -> None:
        if verbose:
            for log, text in logs.grown():
                note(f"{steps.label_of(log)} | {text}")
        if line:
            file = f"  {compiled}" if (compiled := logs.compiled()) and "building" in steps.line else ""
            line.update(f"{steps.seconds // 60}:{steps.seconds % 60:02}  {steps.line}{file}")

    def watch() -> None:
        while not ended.wait(_PAUSE):
            look()

    watcher = threading.Thread(target=watch, daemon=True)
    if line:
        line.start()
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        look()
        if line:
            line.stop()
