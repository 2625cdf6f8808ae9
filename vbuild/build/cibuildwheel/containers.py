"""The containers of one run of cibuildwheel, none of which may outlive it.

cibuildwheel removes its container when it ends, but not when it is killed, as a build that is stopped is; and the
containers of other runs on the machine are nobody's business. So a wrapper named like the engine stands first on the
PATH of cibuildwheel, and writes down the name of each container that it makes.

    podman create --name=cibuildwheel-<uuid> …  ->  names, and the engine with the same words

Where things are inside the container of a build, which cibuildwheel starts with the host's files at /host.

    /project              the folder that cibuildwheel runs in, copied
    /host/<path>          the host's <path>: the kit, and CUDA toolkits
    /tmp/vbuild           compiler wrappers, first on PATH; made anew for each identifier by container.py
    /tmp/vbuild/cuda      the CUDA_HOME with the wrapper of nvcc

A build's environment has these paths before anything is there.

cibuildwheel as a program: where it is, what it would build, and one run of it to the end.

    found -> Engine -> identifiers (--print-build-identifiers) -> run, into a log -> wheels in a folder, or BuildError

Nothing of it is imported: it promises no Python interface.
"""

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path, PurePosixPath
from shutil import which
from typing import Any, Self

from msgspec import Struct
from packaging.version import InvalidVersion, Version

from vbuild.build.cibuildwheel.arguments import Arguments
from vbuild.build.cibuildwheel.journal import Journal
from vbuild.errors import BuildError
from vbuild.process.run import run

_DEFAULT = "docker"
_KNOWN = ("docker", "podman")
_VARIABLES = ("CIBW_CONTAINER_ENGINE_LINUX", "CIBW_CONTAINER_ENGINE")
_KEY = "container-engine"
_KEEP = "CIBW_DEBUG_KEEP_CONTAINER"  # cibuildwheel's own

_WRAPPER = """#!/bin/sh
if [ "$1" = create ]; then
    for word; do
        case $word in --name=*) echo "${{word#--name=}}" >> {names} ;; esac
    done
fi
exec {program} "$@"
"""


class Containers(Struct, frozen=True):
    """What runs of cibuildwheel make by the *engine*, a program; its wrapper and the names are in *folder*."""

    engine: str
    folder: Path

    @classmethod
    def made(cls, arguments: Arguments, environment: Mapping[str, str], folder: Path) -> Self:
        """The containers of runs with *arguments* in *environment*; `BuildError` if there is no engine for them."""
        name = engine_of(arguments, environment)
        if name not in _KNOWN:
            raise BuildError(
                f"{_KEY} {name}: cibuildwheel knows {' and '.join(_KNOWN)} only; expected one of these, as in "
                f"CIBW_CONTAINER_ENGINE=podman"
            )
        if (program := which(name, path=environment.get("PATH"))) is None:
            raise BuildError(
                f"no {name} on PATH, in which cibuildwheel builds wheels for Linux; install it (apt-get install "
                f"{'podman' if name == 'podman' else 'docker.io, or apt-get install podman'}), or name another: "
                f"CIBW_CONTAINER_ENGINE=podman"
            )
        folder.mkdir()
        wrapper = folder / name
        names = shlex.quote(str(folder / "names"))
        wrapper.write_text(_WRAPPER.format(names=names, program=shlex.quote(program)), encoding="utf-8")
        wrapper.chmod(0o755)
        return cls(program, folder.absolute())

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The variables that put the wrapper before the engine of *environment*."""
        return {"PATH": os.pathsep.join([str(self.folder), environment.get("PATH", os.defpath)])}

    @contextmanager
    def removed(self) -> Iterator[None]:
        """Leaving the block by an error or Ctrl-C leaves no container that was made in it."""
        try:
            yield
        except BaseException:
            if os.environ.get(_KEEP, "") in {"", "0"}:
                self._remove()
            raise

    def _remove(self) -> None:
        with suppress(FileNotFoundError):
            for name in (self.folder / "names").read_text(encoding="utf-8").split():
                # rm waits ten seconds for a shell that ignores SIGTERM; what is not there any more is no error
                for command in (["kill", name], ["rm", "--force", "--volumes", name]):
                    subprocess.run([self.engine, *command], capture_output=True, check=False)


def engine_of(arguments: Arguments, environment: Mapping[str, str]) -> str:
    """The name of the engine that cibuildwheel takes with *arguments* in *environment*."""
    given = next((text for name in _VARIABLES if (text := environment.get(name)) is not None), None)
    value = _configured(arguments.configuration) if given is None else given
    if isinstance(value, Mapping):
        value = value.get("name", _DEFAULT)
    return str(value).partition(";")[0].removeprefix("name:").strip() or _DEFAULT


def _configured(options: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a text or a table
    """What the *options* of a project say of the engine."""
    linux = options.get("linux", {})
    return (linux if isinstance(linux, Mapping) else {}).get(_KEY, options.get(_KEY, _DEFAULT))


PROJECT = PurePosixPath("/project")
WRAPPERS = PurePosixPath("/tmp/vbuild")  # noqa: S108 - nobody else is in the container
CUDA = WRAPPERS / "cuda"
HOST = PurePosixPath("/host")


def inside(path: Path) -> PurePosixPath:
    """Where *path* of the host is in the container."""
    return HOST / path.resolve().relative_to("/")


NEEDED = Version("4.3")  # the first with CIBW_INHERIT
_INSTALL = f"install it: pip install 'cibuildwheel>={NEEDED}'"
_ASK = "import importlib.metadata as m; print(m.version('cibuildwheel'))"
_LOOKS = 0.1  # seconds between two looks at a log that is shown as it grows

Echo = Callable[[bytes], None]


class Engine(Struct, frozen=True):
    """The command of cibuildwheel, and its version."""

    command: tuple[str, ...]
    version: Version

    @classmethod
    def found(cls, path: str | None = None) -> Self:
        """The cibuildwheel of this Python, else the one on *path*; `BuildError` if there is none, or it is too
        old.
        """
        engine = cls._here() or cls.on(path)
        if engine is None:
            raise BuildError(f"no cibuildwheel in this environment or on PATH; {_INSTALL}")
        if engine.version < NEEDED:
            raise BuildError(
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
            raise BuildError(f"{program}: cannot tell which cibuildwheel it is; {_INSTALL}") from error

    def identifiers(self, arguments: Arguments, environment: Mapping[str, str]) -> tuple[str, ...]:
        """What cibuildwheel would build with *arguments*; `BuildError`, in its words, where it refuses them."""
        command = [*self.command, *arguments.words, "--print-build-identifiers"]
        ran = subprocess.run(command, env=environment, capture_output=True, check=False)
        if ran.returncode:
            raise BuildError(f"cibuildwheel: {_said(ran.stderr.decode(errors='replace'))}")
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

        `BuildError` if it fails. None of its *containers* is left, however it ends.
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


def failed(error: BuildError, journal: Journal) -> BuildError:
    """*error* of a run of cibuildwheel, told by what its *journal* says of the reason.

    The end of the log is with it, as far as it is the last step's, where the reason is not all there is to know.
    """
    said, _, end = str(error).partition(", which ends:\n")
    place = f"{journal.at_work}: " if journal.at_work else ""
    reason = journal.reason or said.partition(";")[0]
    last = "" if journal.explains else Journal.parse(end).said
    return BuildError(f"{place}{reason}" + (f"; the last it said:\n{last}" if last else ""))


def _said(text: str) -> str:
    """Why cibuildwheel refuses something, of all that it printed."""
    lines = [line for line in text.splitlines() if line.strip()] or ["failed without a word"]
    last = lines[-1].rpartition("error: ")[2]  # of argparse, which names the program in front
    return Journal.parse(text).reason or last.partition(" (choose from")[0].strip()
