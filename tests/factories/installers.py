"""pip and installer, each on many wheels in one process, for starting pip takes longer than what it does.

    python installers.py TARGET wheel...  ->  a line of JSON for each wheel and tool: why it refused, or null

The wheel goes to ``TARGET`` in the folders ``pip`` and ``installer`` next to it.
"""

import contextlib
import io
import json
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import installer
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile
from pip._internal.cli.main import main as pip

# seconds of CPU for one wheel, and bytes for all: some attacks work
_PATIENCE = 5
_MEMORY = 1 << 30


class OutOfTimeError(BaseException):
    """Nothing that a tool would catch."""


def by_pip(wheel: Path, target: Path) -> str | None:
    """The last line of pip if it refused, or None."""
    options = ["--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check", "--no-cache-dir", "--isolated"]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            status = pip(["install", *options, "--target", str(target), str(wheel)])
        except (Exception, OutOfTimeError) as error:  # noqa: BLE001 - what ends pip is a refusal too
            return f"{type(error).__name__}: {error}"
    lines = [line for line in output.getvalue().splitlines() if line.strip()]
    return lines[-1].strip() if status else None


def by_installer(wheel: Path, target: Path) -> str | None:
    """The exception that ended installer, which does what ``python -m installer --validate-record all`` does."""
    scheme = dict.fromkeys(("purelib", "platlib", "data"), str(target)) | {"scripts": str(target / "bin")}
    scheme["headers"] = str(target / "include")
    try:
        with WheelFile.open(wheel) as source:
            source.validate_record(validate_contents=True)
            destination = SchemeDictionaryDestination(scheme, interpreter=sys.executable, script_kind="posix")
            installer.install(source, destination, {})
    except (Exception, OutOfTimeError) as error:  # noqa: BLE001 - whatever ends it is a refusal
        return f"{type(error).__name__}: {error}"
    return None


def in_time(install: Callable[[Path, Path], str | None], wheel: Path, target: Path) -> str | None:
    """What *install* says, or that it took too long."""
    signal.setitimer(signal.ITIMER_PROF, _PATIENCE)
    try:
        return install(wheel, target)
    except OutOfTimeError:
        return "out of time"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def out_of_time(*_: object) -> NoReturn:
    raise OutOfTimeError


def main(inside: str, *wheels: str) -> None:
    signal.signal(signal.SIGPROF, out_of_time)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    for wheel in map(Path, wheels):
        for name, install in (("pip", by_pip), ("installer", by_installer)):
            target = wheel.parent / name / inside
            target.mkdir(parents=True)
            print(json.dumps([str(wheel), name, in_time(install, wheel, target)]), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
