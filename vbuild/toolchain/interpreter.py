"""Pythons of this machine, and what programs say of themselves, remembered in the user's cache from run to run.

    Interpreter    a Python, and the compiler it was built with, which is what setuptools compiles with
    remembered     (question, program, what it is, environment) -> cache/probes/<sha256>.json -> the answer

A program is what its file is: path, the file behind it, size and time of change. So it is for every program of that
name on PATH, since the first may only lead to the next: ccache's ``gcc`` does.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from msgspec import Struct

from vbuild.errors import BuildError
from vbuild.files.cache import Cache, Part
from vbuild.files.hashing import key_of
from vbuild.index_client.configuration import find_python
from vbuild.process.python import isolated

T = TypeVar("T")

_ASK = """
import json, sys, sysconfig
known = sysconfig.get_config_vars()
names = ("CC", "CXX", "CFLAGS", "LDFLAGS", "LDSHARED", "EXT_SUFFIX", "MULTIARCH")
print(json.dumps({
    "path": sys.executable,
    "implementation": sys.implementation.name,
    "version": sys.version_info[:3],
    "scripts": sysconfig.get_path("scripts"),
    "include": sysconfig.get_path("include"),
    **{name.lower(): str(known.get(name) or "") for name in names},
}))
"""

# the fields of an interpreter that are not text
_PARSED: dict[str, Callable[[Any], Any]] = {"path": Path, "scripts": Path, "include": Path, "version": tuple}

# differs between sessions or jobs, and says nothing of what is built; any other may be read by some build
_NOISE = frozenset(
    {
        *("PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES", "TMPDIR", "TEMP", "TMP", "COLORTERM", "LS_COLORS"),
        *("PS1", "PS2", "PROMPT", "PROMPT_COMMAND", "RPROMPT", "EDITOR", "VISUAL", "PAGER", "LESS", "LESSOPEN"),
        *("LESSCLOSE", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "WINDOWID", "STY", "GPG_TTY", "GPG_AGENT_INFO"),
        *("KRB5CCNAME", "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "MANAGERPID", "SECURITYSESSIONID"),
        *("HOSTNAME", "HOST", "CI"),
    }
)
_NOISE_PREFIXES = (
    *("TERM", "SSH_", "XDG_SESSION", "DBUS_", "HISTFILE", "TMUX", "VTE_", "COVERAGE_", "COV_", "PYTEST_"),
    *("CI_", "GITHUB_", "RUNNER_", "GITLAB_", "BUILDKITE_", "CIRCLE_", "SLURM_", "DASK_", "__DASK_"),
)


class Interpreter(Struct, frozen=True):
    """A Python, and what its sysconfig hands to extension builds."""

    path: Path
    implementation: str
    version: tuple[int, ...]
    scripts: Path
    cc: str = ""
    cxx: str = ""
    cflags: str = ""
    ldflags: str = ""
    ldshared: str = ""
    ext_suffix: str = ""
    multiarch: str = ""
    include: Path = Path()

    @classmethod
    def named(cls, python: str, environment: Mapping[str, str]) -> Self:
        """The interpreter *python*, a version or a path; none is downloaded."""
        if python in {"", sys.executable}:
            return cls.at(Path(sys.executable), environment)
        ran = find_python(python, environment)
        if ran.returncode:
            reason = next((line for line in ran.stderr.splitlines() if line.startswith("error:")), "error: not found")
            why = reason.removeprefix("error: ")
            raise BuildError(
                f"no Python {python!r} on this machine: {why}; install it, or name another in matrix.python"
            )
        return cls.at(Path(ran.stdout.strip()), environment)

    @classmethod
    def at(cls, path: Path, environment: Mapping[str, str]) -> Self:
        """The interpreter at *path*; `BuildError` if it does not run."""

        def ask() -> dict[str, Any]:
            command = isolated("-c", _ASK, python=path)
            try:
                ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
                known: dict[str, Any] = json.loads(ran.stdout)
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                raise BuildError(f"{path}: not a Python that runs: {error}; expected one in matrix.python") from error
            return known

        # an environment's settings are in its Python's folder, or in the one above
        settings = (path.parent / "pyvenv.cfg", path.parent.parent / "pyvenv.cfg")
        # a script, such as pyenv's, may lead to another Python tomorrow
        known = ask() if is_script(path) else remembered(_ASK, path, environment=environment, ask=ask, also=settings)
        return cls(**{name: _PARSED.get(name, str)(value) for name, value in known.items()})

    @property
    def kind(self) -> str:
        """What decides which packages there are for it."""
        version = ".".join(map(str, self.version[:2]))
        return f"{self.implementation}-{version}-{sys.platform}-{platform.machine()}"

    @property
    def rpaths(self) -> tuple[str, ...]:
        """The linker arguments that name its own folders, which no wheel may carry."""
        words = [*self.ldflags.split(), *self.ldshared.split()]
        return tuple(dict.fromkeys(word for word in words if word.startswith(("-Wl,-rpath,", "-Wl,-R"))))


def ambient(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that an answer, or a build, may depend on: all but known noise."""
    return {
        name: text
        for name, text in sorted(environment.items())
        if name not in _NOISE and not name.startswith(_NOISE_PREFIXES)
    }


def facts(path: Path) -> tuple[str, ...]:
    """What *path* is, without reading it; it may be missing."""
    try:
        status, real = path.stat(), path.resolve()
    except (OSError, RuntimeError):  # a loop of links, which resolve() calls a RuntimeError before Python 3.13
        return (str(path), "not there")
    return (str(path), str(real), str(status.st_size), str(status.st_mtime_ns))


def is_script(program: Path) -> bool:
    """Whether *program* starts others, so that its facts do not suffice."""
    try:
        with program.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def facts_by_name(names: Iterable[str], path: str) -> list[tuple[str, ...]]:
    wanted = sorted(set(names))
    folders = dict.fromkeys(folder for folder in path.split(os.pathsep) if folder)
    return [facts(file) for folder in folders for name in wanted if (file := Path(folder, name)).exists()]


def remembered(
    question: str,
    program: Path,
    *,
    environment: Mapping[str, str],
    ask: Callable[[], T],
    also: Iterable[Path] = (),
    memory: Path | None = None,
) -> T:
    """What *ask* gives, or gave for the same *question* to the same *program*, as JSON takes it.

    The answer depends on the files *also*, too.
    """
    key = key_of(
        [
            question,
            facts(program),
            facts_by_name([program.name], environment.get("PATH", os.defpath)),
            [facts(path) for path in also],
            ambient(environment),
        ]
    )
    cache = Cache.of(Part.PROBES, memory)
    with suppress(ValueError, LookupError, TypeError):
        entry = json.loads(cache.text(f"{key}.json") or "")
        if entry["question"] == question and (answer := json.loads(entry["answer"])) is not None:
            return cast("T", answer)
    text = json.dumps(ask())
    with suppress(OSError):  # it is asked again next time
        cache.keep_text(f"{key}.json", json.dumps({"question": question, "answer": text}))
    return cast("T", json.loads(text))
