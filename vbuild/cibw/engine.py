"""cibuildwheel as a program: where it is, what it would build, and one run of it to the end.

    found -> Engine -> identifiers (--print-build-identifiers) -> run, into a log -> wheels in a folder, or CiError

Nothing of it is imported: it promises no Python interface.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from shutil import which
from typing import Self

from packaging.version import InvalidVersion, Version

from vbuild.build.process import run
from vbuild.cibw.arguments import Arguments
from vbuild.cibw.containers import Containers
from vbuild.cibw.journal import Journal
from vbuild.errors import BuildError, CiError

NEEDED = Version("4.3")  # the first with CIBW_INHERIT
_INSTALL = "install it: pip install 'vbuild[cibuildwheel]'"
_ASK = "import importlib.metadata as m; print(m.version('cibuildwheel'))"
_LOOKS = 0.1  # seconds between two looks at a log that is shown as it grows

Echo = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Engine:
    """The command of cibuildwheel, and its version."""

    command: tuple[str, ...]
    version: Version

    @classmethod
    def found(cls, path: str | None = None) -> Self:
        """The cibuildwheel of this Python, else the one on *path*; `CiError` where there is none, or it is too old."""
        engine = cls._here() or cls.on(path)
        if engine is None:
            raise CiError(f"no cibuildwheel in this environment or on PATH; {_INSTALL}")
        if engine.version < NEEDED:
            raise CiError(
                f"cibuildwheel {engine.version} is too old: {NEEDED} is the first that can add to a project's own "
                f"options (CIBW_INHERIT); {_INSTALL}"
            )
        return engine

    @classmethod
    def _here(cls) -> Self | None:
        try:
            # -P: a project may have a folder of the same name
            return cls((sys.executable, "-P", "-m", "cibuildwheel"), Version(installed("cibuildwheel")))
        except PackageNotFoundError:
            return None

    @classmethod
    def on(cls, path: str | None) -> Self | None:
        """The program on *path*, whose first line names the Python that knows its version."""
        if (program := which("cibuildwheel", path=path)) is None:
            return None
        with Path(program).open("rb") as file:
            python = os.fsdecode(file.readline()).removeprefix("#!").strip()
        try:
            ran = subprocess.run([python, "-I", "-c", _ASK], capture_output=True, text=True, check=True)
            return cls((program,), Version(ran.stdout.strip()))
        except (OSError, ValueError, subprocess.SubprocessError, InvalidVersion) as error:
            raise CiError(f"{program}: cannot tell which cibuildwheel it is; {_INSTALL}") from error

    def identifiers(self, arguments: Arguments, environment: Mapping[str, str]) -> tuple[str, ...]:
        """What cibuildwheel would build with *arguments*; `CiError`, in its words, where it refuses them."""
        command = [*self.command, *arguments.words, "--print-build-identifiers"]
        ran = subprocess.run(command, env=environment, capture_output=True, check=False)
        if ran.returncode:
            raise CiError(f"cibuildwheel: {_said(ran.stderr.decode(errors='replace'))}")
        return tuple(ran.stdout.decode().split())

    def run(
        self,
        arguments: Arguments,
        output: Path,
        *,
        environment: Mapping[str, str],
        containers: Containers,
        log: Path,
        echo: Echo | None = None,
    ) -> None:
        """Run cibuildwheel for its wheels in *output*, what it prints going to *log*, and to *echo* as it comes.

        `BuildError` where it fails. None of its *containers* is left, however it ends.
        """
        command = [*self.command, f"--output-dir={output}", *arguments.words]
        with containers.removed(), _echoed(log, echo):
            run(command, log=log, environment={**environment, **containers.variables(environment)}, name="cibuildwheel")


@contextmanager
def _echoed(log: Path, echo: Echo | None) -> Iterator[None]:
    """What comes into *log* while the block runs goes to *echo* as well."""
    if echo is None:
        yield
        return
    done = threading.Event()
    place = log.stat().st_size if log.exists() else 0

    def follow() -> None:
        position = place
        while True:
            is_last = done.wait(_LOOKS)
            if log.exists():
                with log.open("rb") as file:
                    file.seek(position)
                    if said := file.read():
                        position += len(said)
                        echo(said)
            if is_last:
                return

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def failed(error: BuildError, journal: Journal) -> CiError:
    """*error* of a run of cibuildwheel, told by what its *journal* says of the reason.

    The end of the log is with it, as far as it is the last step's, where the reason is not all there is to know.
    """
    said, _, end = str(error).partition(", which ends:\n")
    place = f"{journal.at_work}: " if journal.at_work else ""
    reason = journal.reason or said.partition(";")[0]
    last = "" if journal.explains else Journal.parse(end).said
    return CiError(f"{place}{reason}" + (f"; the last it said:\n{last}" if last else ""))


def _said(text: str) -> str:
    """Why cibuildwheel refuses something, of all that it printed."""
    lines = [line for line in text.splitlines() if line.strip()] or ["failed without a word"]
    last = lines[-1].rpartition("error: ")[2]  # of argparse, which names the program in front
    return Journal.parse(text).reason or last.partition(" (choose from")[0].strip()
