"""How a release comes along, on stderr: one line that changes on a terminal, a line per step elsewhere.

    1:42  3 of 6  x86_64_v3: building  kernel.cpp          a terminal
    [  102 s] x86_64_v3: building                          CI, where the variable CI is set
    x86_64_v3 | g++ -O3 -c kernel.cpp                      the logs of builds as they grow, with --verbose

Without a terminal, outside CI and without --verbose, nothing is shown.
"""

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vbuild.cli import terminal
from vbuild.files.reading import open_file

if TYPE_CHECKING:
    from vbuild.recipe.target import Target

_PAUSE = 0.5  # seconds between two looks at the logs
_ENDS = frozenset({"done", "failed", "kept"})
_SOURCE = re.compile(r"[\w./+-]+\.(?:c|cc|cpp|cxx|c\+\+|cu|f90|f|rs|pyx|m|S|asm)(?=[\s'\"]|$)")
_COUNTED = re.compile(r"^\s*\[\s*(\d+/\d+|\d+%)\]")
_TAIL = 4096  # bytes


class _Logs:
    def __init__(self, folder: Path) -> None:
        from vbuild.files.atomic import LOGS

        self.folder = folder / LOGS
        # what is there already is of an earlier run
        self._read = {file: file.stat().st_size for file in self._files()}

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))

    def grown(self) -> Iterator[tuple[str, str]]:
        """The name of the log and the text of each whole line that came since the last call."""
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
        """The file that the youngest log says is being compiled, with its number of all if there is one; or ""."""
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
    """The step that each target is at, the number of those at their end, and the seconds since the start."""

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

    def line(self, compiled: str) -> str:
        """All in one line."""
        ended = sum(step in _ENDS for step in self.at.values())
        at_work = [f"{label}: {step}" for label, step in self.at.items() if step.endswith("ing") and step != "waiting"]
        begun = at_work or [step for step in list(self.at.values())[-1:] if step != "waiting"]
        work = ", ".join(begun) or ("preparing" if self.at else "fetching the source")
        count = f"{ended} of {len(self.at)}  " if self.at else ""
        file = f"  {compiled}" if compiled and "building" in work else ""
        return f"{self.seconds // 60}:{self.seconds % 60:02}  {count}{work}{file}"


@contextmanager
def progress(folder: Path, *, quiet: bool = False, verbose: bool = False) -> Iterator[Callable[["Target", str], None]]:
    """Show which target is at which step of a release into *folder*, as above; nothing if it is to be *quiet*."""
    steps, is_terminal = _Steps(), sys.stderr.isatty()

    def note(target: "Target", step: str) -> None:
        is_new = steps.at.get(str(target)) != step
        steps.at[str(target)] = step
        if is_new and step != "waiting" and not quiet and not is_terminal and (verbose or os.environ.get("CI")):
            terminal.note(f"[{steps.seconds:>5} s] {target}: {step}")

    if quiet or not (is_terminal or verbose):
        yield note
        return
    with _shown(steps, _Logs(folder), is_terminal=is_terminal, verbose=verbose):
        yield note


@contextmanager
def _shown(steps: _Steps, logs: _Logs, *, is_terminal: bool, verbose: bool) -> Iterator[None]:
    from rich.console import Console

    console, ended = Console(stderr=True), threading.Event()
    line = console.status("") if is_terminal else None

    def look() -> None:
        if verbose:
            for log, text in logs.grown():
                terminal.note(f"{steps.label_of(log)} | {text}")
        if line:
            line.update(steps.line(logs.compiled()))

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
