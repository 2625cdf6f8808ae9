"""A release as a script for Slurm: job arrays, one task for each part, and a job that collects what they made.

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

import shlex
from collections.abc import Sequence
from itertools import pairwise

from vbuild.build.stage import STAGE
from vbuild.ci.jobs import Jobs
from vbuild.ci.templates import rendered
from vbuild.errors import CiError

_WORK = f"{STAGE}slurm"
_FILE = 4_000_000  # bytes


def script(jobs: Jobs) -> str:
    """The script that submits *jobs*, and is submitted itself; `CiError` where Slurm would not take it."""
    commands = [jobs.command(part) for part in jobs.parts]
    text = rendered(
        "slurm.sh.jinja",
        jobs=jobs,
        work=_WORK,
        title=shlex.quote(f"vbuild-{jobs.name}"),
        cpus=_cpus(jobs.options),
        collect=_in_work(jobs.collecting, jobs.collecting.index(jobs.parts_folder)),
        commands=[_in_work(command, command.index("-o") + 1) for command in commands],
    )
    if (size := len(text.encode())) > _FILE:
        what = f"the script would have {size} bytes, and Slurm takes none of more than {_FILE}"
        raise CiError(f"{jobs.source}: {what}; expected fewer builds")
    return text


def _in_work(command: Sequence[str], place: int) -> str:
    """The *command* for a shell, its word at *place* in the folder of a submission, as the script calls that."""
    words = [shlex.quote(word) for word in command]
    words[place] = f'"$work"/{words[place]}'
    return " ".join(words)


def _cpus(options: Sequence[str]) -> str | None:
    """How much a task has to do at a time, where the *options* say it."""
    return dict(pairwise(options)).get("--jobs")
