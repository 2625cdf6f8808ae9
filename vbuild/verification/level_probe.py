"""Import modules in a process of their own, and read which libraries the loader took meanwhile.

    LD_DEBUG=libs         find library=libx.so [0]; searching
                            trying file=/…/demo.libs/glibc-hwcaps/x86-64-v3/libx.so
    LD_DEBUG_OUTPUT=FILE  one file for each process, with its number appended to the name

The last file that the loader tries for a name is the one it loads, if that file exists.
https://man7.org/linux/man-pages/man8/ld.so.8.html
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from vbuild.process.python import isolated

_LINE = re.compile(r"\s*\d+:\t\s*(?:(?P<find>find library=)|trying file=(?P<tried>.*)|calling init: (?P<init>.*))")
LATE = "took more than"
_LAST_LINES = 25
_PROBE = """
import importlib, json, os, sys, traceback
with open(sys.argv[1], "a", encoding="utf-8") as file:
    def write(**row):
        file.write(json.dumps(row) + chr(10))
        file.flush()
    for name in sys.argv[2:]:
        write(started=name)
        try:
            importlib.import_module(name)
        except BaseException as error:
            traceback.print_exc()
            lines = str(error).strip().splitlines() or [""]
            text = " ".join(lines) if sum(map(len, lines)) < 200 else lines[-1]
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
            place = next((file for file in reversed(files) if not file.startswith("<")), "")
            text = f"{type(error).__name__}: {text}".removesuffix(": ")
            write(name=name, error=text, missing=missing, place=place)
        else:
            write(name=name)
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result of importing the module *name*: the *error*, and the *missing* module if that caused it.

    *place* is the innermost file of Python code that the error came through, or empty.
    """

    name: str
    error: str | None = None
    missing: str | None = None
    place: str = ""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended: *why* it failed, in a few words, or None for success; the last lines of its *output*."""

    why: str | None
    output: str


@dataclass(frozen=True, slots=True)
class ProbeProcess:
    """How commands are run: in *folder*, with *environment*, for *timeout* seconds at most.

    Their output is appended to *log* after *title* and a description of the command.
    """

    folder: Path
    environment: Mapping[str, str]
    timeout: float | None
    log: Path | None
    title: str

    def on_path(self, folder: Path) -> Self:
        """The same with *folder* first in PATH."""
        return self.seeing({"PATH": os.pathsep.join([str(folder), self.environment.get("PATH", os.defpath)])})

    def seeing(self, variables: Mapping[str, str]) -> Self:
        """The same with *variables*, too."""
        return replace(self, environment={**self.environment, **variables})

    def run(self, command: Sequence[str], description: str) -> CommandResult:
        """Run *command*, and end its whole process group if it takes too long."""
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            why = None
            try:
                output, _ = process.communicate(timeout=self.timeout)
            except BaseException as error:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                output, _ = process.communicate()
                why = f"{LATE} {self.timeout:g} s"
        status = process.returncode
        if status and not why:
            why = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"failed with status {status}"
        text = output.decode(errors="replace").rstrip()
        if self.log:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("a", encoding="utf-8") as file:
                title = f"{self.title} {description}"
                file.write(f"{title}\n{text}\n" if text else f"{title}\n")
        return CommandResult(why, "\n".join(text.splitlines()[-_LAST_LINES:]))


def import_each(modules: Sequence[str], python: Path, process: ProbeProcess) -> Iterator[ImportResult]:
    """Import each of *modules* in *python*; after a crash the rest are imported in a new process."""
    left = list(modules)
    while left:
        file = process.folder / "answer"
        file.write_text("")
        ended = process.run(isolated("-c", _PROBE, str(file), *left, python=python), f"import {', '.join(left)}")
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        done = [ImportResult(**row) for row in rows if "name" in row]
        yield from done
        if len(done) < len(left):
            yield ImportResult(left[len(done)], f"the process {ended.why or 'ended'}")
        left = left[len(done) + 1 :]


def loaded(logs: Path, packages: Path) -> tuple[str, ...]:
    """Return the libraries below *packages* that the loader took by name, as sorted paths from there.

    *logs* is the path with which the names of LD_DEBUG's output files begin.
    """
    found: set[str] = set()
    for log in logs.parent.glob(f"{logs.name}*"):
        found.update(_paths(log.read_text(encoding="utf-8", errors="replace")))
    prefix = f"{packages}{os.sep}"
    below = (os.path.normpath(path) for path in found)
    return tuple(
        sorted(path.removeprefix(prefix) for path in below if path.startswith(prefix) and Path(path).is_file())
    )


def _paths(text: str) -> Iterator[str]:
    last: str | None = None
    for line in text.splitlines():
        if not (match := _LINE.match(line)):
            continue
        if match["tried"]:
            last = match["tried"]
            continue
        if last:
            yield last
        last = None
        if match["init"]:
            yield match["init"]
    if last:
        yield last
