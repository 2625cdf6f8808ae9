"""`vbuild matrix --emit`: a recipe's release as the file that a CI system or a cluster runs.

    recipe -> parts -> github   a workflow: matrices of builds, then a job that collects
                    -> gitlab   a pipeline of two stages
                    -> slurm    a script that submits job arrays, and a job behind them
                    -> json     the parts and their commands, for any other system

Every part is one command, ``vbuild matrix SOURCE --only LABEL … --part``, that does the same on any machine. The last
job collects what was built, also where some builds failed: finished wheels are kept, and what is missing is named.
"""

import json
import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from vbuild.ci.github import workflow
from vbuild.ci.gitlab import pipeline
from vbuild.ci.jobs import INSTALL, Jobs
from vbuild.ci.slurm import script

# rises when a key changes its meaning
FORMAT = 1


class System(StrEnum):
    """What a release can be emitted for."""

    GITHUB = "github"
    GITLAB = "gitlab"
    SLURM = "slurm"
    JSON = "json"


def emitted(
    source: Path, system: System, *, install: str = INSTALL, runner: str | None = None, options: Sequence[str] = ()
) -> str:
    """The file that makes the release of the recipe or project at *source* on *system*, run in this working folder.

    *install* is the shell command that brings vbuild into a job; on a cluster, where jobs have what their submitter
    has, nothing is installed. *runner* is GitHub's ``runs-on`` or GitLab's ``image``. *options* are given to every
    ``vbuild matrix``, such as ``--schema``. The same recipe gives the same text. `RecipeError` for a recipe that is
    wrong, `CiError` where the jobs would not find it or the file would be too large.
    """
    jobs = Jobs.of(source, install=install, runner=runner, options=options)
    match system:
        case System.GITHUB:
            return workflow(jobs)
        case System.GITLAB:
            return pipeline(jobs)
        case System.SLURM:
            return script(jobs)
    return json.dumps(data(jobs), indent=2, ensure_ascii=False) + "\n"


def data(jobs: Jobs) -> dict[str, Any]:
    """*jobs* as JSON takes them.

    | key | meaning |
    |---|---|
    | ``format`` | 1 |
    | ``name``, ``source`` | the project; the recipe, from the working folder |
    | ``install``, ``python`` | the shell command that brings vbuild; the version of Python that runs it |
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
        "python": jobs.python,
        "parts": [
            {
                **part.data(),
                "folder": f"{jobs.parts_folder}/{part.name}",
                "command": list(jobs.command(part)),
                "shell": shlex.join(jobs.command(part)),
            }
            for part in jobs.parts
        ],
        "collect": {"folder": jobs.folder, "command": list(jobs.collecting), "shell": shlex.join(jobs.collecting)},
    }
