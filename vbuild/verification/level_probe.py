"""Import modules in a process of their own, and read what the loader said meanwhile.

    LD_DEBUG=libs         find library=libx.so [0]; searching
                            trying file=/…/demo.libs/glibc-hwcaps/x86-64-v3/libx.so
    LD_DEBUG_OUTPUT=FILE  one for each process, with its number behind the name

The last file that is tried for a name is the one that was loaded, if there is such a file.
https://man7.org/linux/man-pages/man8/ld.so.8.html
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_LINE = re.compile(r"\s*\d+:\t\s*(?:(?P<find>find library=)|trying file=(?P<tried>.*)|calling init: (?P<begun>.*))")
_LAST = 25
_PROBE = """
import importlib, json, os, sys, traceback
with open(sys.argv[1], "a", encoding="utf-8") as file:
    def tell(**told):
        file.write(json.dumps(told) + chr(10))
        file.flush()
    for name in sys.argv[2:]:
        tell(begun=name)
        try:
            importlib.import_module(name)
        except BaseException as error:
            traceback.print_exc()
            text = (str(error).strip().splitlines() or [""])[-1]
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            tell(name=name, error=f"{type(error).__name__}: {text}".removesuffix(": "), missing=missing)
        else:
            tell(name=name, error=None, missing=None)
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of importing the module *name*: the *error*, and the module that is *missing*, where that is why."""

    name: str
    error: str | None = None
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: in a few words, None where well, with the last lines of its *output*."""

    why: str | None
    output: str

    @classmethod
    def of(
        cls,
        command: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        timeout: float | None,
        log: Path | None,
        title: str,
    ) -> Self:
        """How *command* ended, after *timeout* seconds at most; what it printed goes into *log*, behind *title*."""
        with subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            why = None
            try:
                output, _ = process.communicate(timeout=timeout)
            except BaseException as error:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                output, _ = process.communicate()
                why = f"took more than {timeout:g} s"
        text = output.decode(errors="replace").rstrip()
        if log:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a", encoding="utf-8") as file:
                file.write(f"{title}\n{text}\n" if text else f"{title}\n")
        return cls(why or _ending(process.returncode), "\n".join(text.splitlines()[-_LAST:]))


def imported(
    modules: Sequence[str],
    python: Path,
    *,
    folder: Path,
    environment: Mapping[str, str],
    timeout: float | None,
    log: Path | None,
    title: str,
) -> Iterator[Imported]:
    """What comes of importing each of *modules* in *python*, in *folder*; behind one that crashes in a new process.

    What they print goes into *log*, behind *title* and the names, with the tracebacks of errors.
    """
    left = list(modules)
    while left:
        answer = folder / "answer"
        answer.write_text("")
        command = [str(python), "-I", "-c", _PROBE, str(answer), *left]
        ended = Ended.of(
            command,
            cwd=folder,
            environment=environment,
            timeout=timeout,
            log=log,
            title=f"{title} import {', '.join(left)}",
        )
        told = [json.loads(line) for line in answer.read_text(encoding="utf-8").splitlines()]
        done = [Imported(**one) for one in told if "name" in one]
        yield from done
        if len(done) < len(left):
            yield Imported(left[len(done)], f"the process {ended.why or 'ended'}")
        left = left[len(done) + 1 :]


def loaded(logs: Path, packages: Path) -> tuple[str, ...]:
    """The libraries below *packages* that the loader took by name, by their paths from there, sorted.

    LD_DEBUG has told it to files whose names begin as *logs*.
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
        if match["begun"]:
            yield match["begun"]
    if last:
        yield last


def _ending(status: int) -> str | None:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"failed with status {status}" if status else None
