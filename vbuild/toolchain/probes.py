"""What compilers and interpreters have said of themselves, remembered in the user's cache from run to run.

    (question, program, what it is, environment) -> cache/probes/<sha256>.json -> the answer, nothing was started

A program is what its file is: path, the file behind it, size and time of change. So it is for every program of that
name on PATH, since the first may only lead to the next: ccache's ``gcc`` does. Nothing is ever wrong for want of the
cache: what cannot be read there is asked again, what cannot be written is asked again next time.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, cast

from vbuild.files.cache import Cache, Part

T = TypeVar("T")

# what differs between two sessions of one user, or two jobs of a build server or a cluster, and says nothing of what
# is built there; all else may be read by some build, and no list of what builds read could be complete
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


def ambient(environment: Mapping[str, str]) -> dict[str, str]:
    """Those variables of *environment* that a program's answer, or a build, may depend on: all but known noise."""
    return {
        name: text
        for name, text in sorted(environment.items())
        if name not in _NOISE and not name.startswith(_NOISE_PREFIXES)
    }


def facts(path: Path) -> tuple[str, ...]:
    """What *path* is, as far as can be told without reading it; one that is not there has facts, too."""
    try:
        found, real = path.stat(), path.resolve()
    except (OSError, RuntimeError):  # a loop of links, which resolve() calls a RuntimeError before Python 3.13
        return (str(path), "not there")
    return (str(path), str(real), str(found.st_size), str(found.st_mtime_ns))


def is_script(program: Path) -> bool:
    """Whether *program* starts others: then what it is, is no more than a part of the answer."""
    try:
        with program.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def named(names: Iterable[str], path: str) -> list[tuple[str, ...]]:
    """The facts of every file that has one of *names* in a folder of *path*, by folder."""
    wanted = sorted(set(names))
    folders = dict.fromkeys(folder for folder in path.split(os.pathsep) if folder)
    return [facts(file) for folder in folders for name in wanted if (file := Path(folder, name)).exists()]


def key_of(data: object) -> str:
    """The SHA-256 of *data*, which has to be what JSON takes: in whatever process, the same for the same."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def remembered(
    question: str,
    program: Path,
    *,
    environment: Mapping[str, str],
    ask: Callable[[], T],
    also: Iterable[Path] = (),
    memory: Path | None = None,
) -> T:
    """What `ask` gives, a value as JSON takes it; or what it gave when *question* was put to the same *program*.

    *also* are further files and folders that the answer depends on. Answers are in *memory*, a folder of the user's
    cache where None. What `ask` raises is not remembered.
    """
    key = key_of(
        [
            question,
            facts(program),
            named([program.name], environment.get("PATH", os.defpath)),
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
