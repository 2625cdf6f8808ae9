"""The containers of one run of cibuildwheel, none of which may outlive it.

cibuildwheel removes its container when it ends, but not when it is killed, as a build that is stopped is; and the
containers of other runs on the machine are nobody's business. So a launcher named like the engine stands first on the
PATH of cibuildwheel, and writes down the name of each container that it makes.

    podman create --name=cibuildwheel-<uuid> …  ->  names, and the engine with the same words
"""

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any, Self

from vbuild.cibw.arguments import Arguments
from vbuild.errors import CiError

_DEFAULT = "docker"
_KNOWN = ("docker", "podman")
_VARIABLES = ("CIBW_CONTAINER_ENGINE_LINUX", "CIBW_CONTAINER_ENGINE")
_KEY = "container-engine"
_KEEP = "CIBW_DEBUG_KEEP_CONTAINER"  # cibuildwheel's own

_LAUNCHER = """#!/bin/sh
if [ "$1" = create ]; then
    for word; do
        case $word in --name=*) echo "${{word#--name=}}" >> {names} ;; esac
    done
fi
exec {program} "$@"
"""


@dataclass(frozen=True, slots=True)
class Containers:
    """What runs of cibuildwheel make by the *engine*, a program; its launcher and the names are in *folder*."""

    engine: str
    folder: Path

    @classmethod
    def made(cls, arguments: Arguments, environment: Mapping[str, str], folder: Path) -> Self:
        """The containers of runs with *arguments* in *environment*; `CiError` where there is no engine for them."""
        name = engine_of(arguments, environment)
        if name not in _KNOWN:
            raise CiError(
                f"{_KEY} {name}: cibuildwheel knows {' and '.join(_KNOWN)} only; expected one of these, as in "
                f"CIBW_CONTAINER_ENGINE=podman"
            )
        if (program := which(name, path=environment.get("PATH"))) is None:
            raise CiError(
                f"no {name} on PATH, in which cibuildwheel builds wheels for Linux; install it (apt-get install "
                f"{'podman' if name == 'podman' else 'docker.io, or apt-get install podman'}), or name another: "
                f"CIBW_CONTAINER_ENGINE=podman"
            )
        folder.mkdir()
        launcher = folder / name
        names = shlex.quote(str(folder / "names"))
        launcher.write_text(_LAUNCHER.format(names=names, program=shlex.quote(program)), encoding="utf-8")
        launcher.chmod(0o755)
        return cls(program, folder.absolute())

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The variables that put the launcher before the engine of *environment*."""
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
