"""A release as a script for Slurm: job arrays, one task for each part, and a job that collects what they made.

    bash FILE [options of sbatch]      in the working folder -> arrays -> collect, after them

- An array's last number is below the cluster's ``MaxArraySize``, 1001 unless it is configured; the script asks, and
  submits as many arrays as it takes: https://slurm.schedmd.com/job_array.html
- Collecting starts ``afterany``: with ``afterok`` one build that fails would leave it waiting for ever, and wheels that
  were built would be no release: https://slurm.schedmd.com/sbatch.html#OPT_dependency
- A script has at most 4 MB (``max_script_size``): https://slurm.schedmd.com/slurm.conf.html#OPT_max_script_size

All tasks share one folder, and it may be the project that they build. So parts are in one whose name begins as that of
vbuild's own work in progress does, which is no part of any source.
"""

import shlex
from dataclasses import replace

from vbuild.ci.jobs import Jobs
from vbuild.ci.templates import rendered
from vbuild.errors import CiError

# as vbuild.build.source.STAGE, which is not imported for one word: it brings what fetches
_WORK = ".vbuild-slurm"
_FILE = 4_000_000  # bytes


def script(jobs: Jobs) -> str:
    """The script that submits *jobs*, and is submitted itself; `CiError` where Slurm would not take it."""
    placed = replace(jobs, parts_folder=f"{_WORK}/parts")
    text = rendered(
        "slurm.sh.jinja",
        jobs=placed,
        work=_WORK,
        title=shlex.quote(f"vbuild-{jobs.name}"),
        collect=shlex.join(placed.collecting),
        commands=[shlex.join(placed.command(part)) for part in placed.parts],
    )
    if (size := len(text.encode())) > _FILE:
        what = f"the script would have {size} bytes, and Slurm takes none of more than {_FILE}"
        raise CiError(f"{jobs.source}: {what}; expected fewer builds")
    return text
