"""Workflows and pipelines as their systems carry them out: what each job runs, with its values put in."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

# what stands in an emitted workflow: a value of the matrix, or the mark that begins an expression
_VALUE = re.compile(r"\$\{\{ matrix\.(\w+) \}\}")
_MARK = "${{ '${{' }}"


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a workflow: its steps, with the values of its matrix in them."""

    name: str
    steps: tuple[Mapping[str, Any], ...]
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def scripts(self) -> list[str]:
        return [step["run"] for step in self.steps if "run" in step]


def jobs_of(workflow: str) -> Iterator[Job]:
    """Every job of a *workflow*'s text, one for each entry of a matrix."""
    for name, job in yaml.safe_load(workflow)["jobs"].items():
        for values in job.get("strategy", {}).get("matrix", {}).get("include", [{}]):
            steps = tuple(_filled(step, values) for step in job["steps"])
            yield Job(name, steps, values)


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    match value:
        case str():
            return _VALUE.sub(lambda match: _plain(values[match[1]]), value).replace(_MARK, "${{")
        case dict():
            return {key: _filled(item, values) for key, item in value.items()}
        case _:
            return value


def _plain(text: str) -> str:
    return text.replace(_MARK, "${{")


def words(script: str, **variables: str) -> list[list[str]]:
    """What bash would start for *script*: each call of vbuild, as its arguments."""
    recording = 'vbuild() { printf "%s\\0" "$@"; printf "\\0\\0"; }\n'
    ran = subprocess.run(
        ["bash", "-euc", recording + script], env=variables, capture_output=True, text=True, check=True, timeout=60
    )
    return [call.split("\0") for call in ran.stdout.split("\0\0\0") if call]


def run(script: str, folder: Path, **variables: str) -> None:
    """Run *script* in *folder* as a job does: bash that stops at what fails, with this environment's vbuild first."""
    surroundings = {**environment(), **variables}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    ran = subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True, check=False)
    assert not ran.returncode, f"{script}\n{ran.stdout[-4000:]}\n{ran.stderr[-4000:]}"


def checkout(project: Path, folder: Path) -> Path:
    """A fresh copy of *project* at *folder*."""
    return Path(shutil.copytree(project, folder))


def environment() -> dict[str, str]:
    """The variables of these tests, with their own vbuild first on PATH."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
