"""`vbuild matrix --emit`: a recipe's release as the file that a CI system or a cluster runs.

    recipe -> parts -> github   a workflow: matrices of builds, then a job that collects
                    -> gitlab   a pipeline of two stages
                    -> slurm    a script that submits job arrays, and a job behind them
                    -> json     the parts and their commands, for any other system

Every part is one command, ``vbuild matrix SOURCE --only LABEL … --part``, that does the same on any machine. The last
job collects what was built, also where some builds failed: finished wheels are kept, and what is missing is named.

A release as a GitHub Actions workflow: matrices of builds, and a job that collects what they made.

    parts -> build-1, build-2, ... of at most 256 -> artifacts -> collect -> one artifact, the release

- A matrix generates at most 256 jobs, and a file of more than 500 KB starts none:
  https://docs.github.com/en/actions/reference/limits
- ``actions/download-artifact`` sees the first artifacts of a run alone, 100 or 600 of 1243, so the command of GitHub's
  own, which turns the pages, fetches them: https://github.com/actions/download-artifact/issues/363, /441
- It fails if there is none, as where no build came to an end. The job goes on: collecting says what is missing.
- An artifact of a run that is run again has to be overwritten: https://github.com/actions/upload-artifact/issues/478
- A job may take six hours on GitHub's own runners, which is 360 minutes.

A release as a GitLab pipeline: a stage of builds, and a stage that collects what they made.

    parts -> build-1, build-2, ... of at most 200 -> artifacts -> collect -> one artifact, the release

- ``parallel: matrix`` makes at most 200 jobs: https://gitlab.com/gitlab-org/gitlab/-/issues/438369
- A job may need at most 50 others, so that collecting waits for a stage, and names no jobs:
  https://gitlab.com/gitlab-org/gitlab/-/issues/419720
- The matrix's values are in the job's name, of 255 characters at most, so that a part's command stands in the script:
  https://gitlab.com/gitlab-org/gitlab/-/issues/353024
- A whole configuration has at most 2 MB: https://gitlab.com/gitlab-org/gitlab/-/issues/370116

A release as a script for Slurm: job arrays, one task for each part, and a job that collects what they made.

    bash FILE [options of sbatch]      in the working folder -> arrays -> collect, after them

- An array's last number is below the cluster's ``MaxArraySize``, 1001 unless it is configured; the script asks, and
  submits as many arrays as it takes: https://slurm.schedmd.com/job_array.html
- Collecting starts ``afterany``: with ``afterok`` one build that fails would leave it waiting for ever, and wheels that
  were built would be no release: https://slurm.schedmd.com/sbatch.html#OPT_dependency
- A script has at most 4 MB (``max_script_size``): https://slurm.schedmd.com/slurm.conf.html#OPT_max_script_size

All tasks share one folder, and it may be the project that they build. So parts are in one whose name begins as that of
vbuild's own work in progress does, which is no part of any source. Each submission has a folder of its own in there:
the tasks of one before may still be running.
"""

import json
import re
import shlex
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from vbuild.errors import BuildError
from vbuild.files.staging import STAGE
from vbuild.release.emit_jobs import CHECK, INSTALL, VARIABLE, Jobs, chunks, rendered

GITHUB_MATRIX = 256
_GITHUB_FILE = 500_000  # bytes

_RUNNERS = {"x86_64": "ubuntu-24.04", "aarch64": "ubuntu-24.04-arm"}
_REUSABLE = "uses: .../vbuild/.github/workflows/vbuild.yml"

# the names of Pythons that actions/setup-python knows
_CPYTHON = re.compile(r"(?:c?python@?)?(\d+(?:\.\d+){0,2}t?)")
_PYPY = re.compile(r"pypy@?(\d+\.\d+)")


def workflow(jobs: Jobs) -> str:
    """The workflow file of *jobs*; `BuildError` if GitHub would not start it, as it is too large."""
    entries = []
    for part in jobs.parts:
        version = set_up(part.version) if part.version else ""
        # the last is the one that runs vbuild
        pythons = [*([version] if version and version != jobs.python else []), jobs.python]
        selection = literal(shlex.join(part.selection))  # quoted for the shell
        entries.append({"part": part.name, "pythons": "\n".join(pythons), "selection": selection})
    command = shlex.join(["vbuild", "matrix", jobs.source, "-o", jobs.parts_folder])
    options = f"{shlex.join(jobs.options)} " if jobs.options else ""
    text = rendered(
        "github.yml.jinja",
        jobs=jobs,
        title=f"wheels of {jobs.name}",
        runner=jobs.runner or _RUNNERS[jobs.machine],
        builds=list(chunks(entries, GITHUB_MATRIX)),
        variable=VARIABLE if jobs.install == INSTALL else None,
        install=literal(jobs.install),
        check=CHECK,
        build=f"{literal(command)}/${{{{ matrix.part }}}} --part {literal(options)}${{{{ matrix.selection }}}}",
        collect=literal(shlex.join(jobs.collecting)),
    )
    if (size := len(text.encode())) > _GITHUB_FILE:
        what = f"the workflow would have {size} bytes, and GitHub starts none of more than {_GITHUB_FILE}"
        raise BuildError(f"{jobs.source}: {what}; expected fewer builds, or the reusable workflow ({_REUSABLE})")
    return text


def literal(text: str) -> str:
    """*text* where GitHub looks for expressions, and finds none."""
    return text.replace("${{", "${{ '${{' }}")


def set_up(version: str) -> str:
    """The Python *version* as actions/setup-python calls it; empty for one that the runner has to have."""
    if match := _CPYTHON.fullmatch(version):
        return match.group(1)
    if match := _PYPY.fullmatch(version):
        return f"pypy{match.group(1)}"
    return ""


GITLAB_MATRIX = 200
_GITLAB_FILE = 2_000_000  # bytes


def pipeline(jobs: Jobs) -> str:
    """The ``.gitlab-ci.yml`` of *jobs*; `BuildError` if GitLab would not take it, as it is too large."""
    commands = [(part.name, shlex.join(jobs.command(part))) for part in jobs.parts]
    versions = [version for version in jobs.versions if version != jobs.python]
    text = rendered(
        "gitlab.yml.jinja",
        jobs=jobs,
        image=jobs.runner or f"python:{jobs.python.removesuffix('t')}",
        # the image has one Python; uv comes with vbuild
        before=[jobs.install, CHECK, *([shlex.join(["uv", "python", "install", *versions])] if versions else [])],
        collect=shlex.join(jobs.collecting),
        builds=list(chunks(commands, GITLAB_MATRIX)),
    )
    if (size := len(text.encode())) > _GITLAB_FILE:
        what = f"the configuration would have {size} bytes, and GitLab takes none of more than {_GITLAB_FILE}"
        raise BuildError(f"{jobs.source}: {what}; expected fewer builds")
    return text


_WORK = f"{STAGE}slurm"
_SLURM_FILE = 4_000_000  # bytes


def script(jobs: Jobs) -> str:
    """The script that submits *jobs*, and is submitted itself; `BuildError` if Slurm would not take it."""
    commands = [jobs.command(part) for part in jobs.parts]
    text = rendered(
        "slurm.sh.jinja",
        jobs=jobs,
        work=_WORK,
        title=shlex.quote(f"vbuild-{jobs.name}"),
        check=CHECK,
        cpus=dict(pairwise(jobs.options)).get("--jobs"),  # how much a task does at a time
        collect=_in_work(jobs.collecting, jobs.collecting.index(jobs.parts_folder)),
        commands=[_in_work(command, command.index("-o") + 1) for command in commands],
    )
    if (size := len(text.encode())) > _SLURM_FILE:
        what = f"the script would have {size} bytes, and Slurm takes none of more than {_SLURM_FILE}"
        raise BuildError(f"{jobs.source}: {what}; expected fewer builds")
    return text


def _in_work(command: Sequence[str], place: int) -> str:
    """The *command* for a shell, its word at *place* in the folder of a submission, as the script calls that."""
    words = [shlex.quote(word) for word in command]
    words[place] = f'"$work"/{words[place]}'
    return " ".join(words)


# rises when a key changes its meaning
FORMAT = 1


class CiSystem(StrEnum):
    """What a release can be emitted for."""

    GITHUB = "github"
    GITLAB = "gitlab"
    SLURM = "slurm"
    JSON = "json"


def emitted(
    source: Path, system: CiSystem, *, install: str = INSTALL, runner: str | None = None, options: Sequence[str] = ()
) -> str:
    """The file that makes the release of the recipe or project at *source* on *system*, run in this working folder.

    *install* is the shell command that installs vbuild in a job; by default it installs what the variable
    ``VBUILD_WHEELS`` names, and fails with a sentence if that is empty. On a cluster nothing is installed: jobs have
    what their submitter has. Every job fails before it does anything else if its ``vbuild`` is another project's.
    *runner* is GitHub's ``runs-on`` or GitLab's ``image``. *options* are given to every ``vbuild matrix``, such as
    ``--schema``. The same recipe gives the same text. `RecipeError` for a recipe that is
    wrong, `BuildError` if the jobs would not find it or the file would be too large.
    """
    jobs = Jobs.of(source, install=install, runner=runner, options=options)
    match system:
        case CiSystem.GITHUB:
            return workflow(jobs)
        case CiSystem.GITLAB:
            return pipeline(jobs)
        case CiSystem.SLURM:
            return script(jobs)
    return json.dumps(data(jobs), indent=2, ensure_ascii=False) + "\n"


def data(jobs: Jobs) -> dict[str, Any]:
    """*jobs* as JSON takes them.

    | key | meaning |
    |---|---|
    | ``format`` | 1 |
    | ``name``, ``source`` | the project; the recipe, from the working folder |
    | ``install``, ``python`` | the shell command that installs vbuild; the version of Python that runs it |
    | ``check`` | the shell command to run next: it fails if the installed ``vbuild`` is another project's |
    | ``parts[].name`` | unique, and a name for a job, a file or an artifact |
    | ``parts[].labels``, ``.python`` | what ``--only`` and ``--python`` choose; null where the recipe has one Python |
    | ``parts[].version`` | the Python to set up for the part; null where the recipe names none by version |
    | ``parts[].cpu``, ``.cuda`` | the level; the CUDA toolkit, or null |
    | ``parts[].folder`` | where the part's wheels, its report.json and the logs of what failed will be |
    | ``parts[].command``, ``.shell`` | what makes it, as arguments and as a line for a shell |
    | ``collect.command``, ``.shell`` | what makes one release of all parts that are there, in ``collect.folder`` |
    """
    return {
        "format": FORMAT,
        "name": jobs.name,
        "source": jobs.source,
        "install": jobs.install,
        "check": CHECK,
        "python": jobs.python,
        "parts": [
            {
                **to_builtins(part),
                "folder": f"{jobs.parts_folder}/{part.name}",
                "command": list(jobs.command(part)),
                "shell": shlex.join(jobs.command(part)),
            }
            for part in jobs.parts
        ],
        "collect": {"folder": jobs.folder, "command": list(jobs.collecting), "shell": shlex.join(jobs.collecting)},
    }
