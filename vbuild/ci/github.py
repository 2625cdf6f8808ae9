"""A release as a GitHub Actions workflow: matrices of builds, and a job that collects what they made.

    parts -> build-1, build-2, ... of at most 256 -> artifacts -> collect -> one artifact, the release

- A matrix generates at most 256 jobs, and a file of more than 500 KB starts none:
  https://docs.github.com/en/actions/reference/limits
- ``actions/download-artifact`` sees the first artifacts of a run alone, 100 or 600 of 1243, so the command of GitHub's
  own, which turns the pages, fetches them: https://github.com/actions/download-artifact/issues/363, /441
- It fails where there is none, as where no build came to an end. The job goes on: collecting says what is missing.
- An artifact of a run that is run again has to be overwritten: https://github.com/actions/upload-artifact/issues/478
- A job may take six hours on GitHub's own runners, which is 360 minutes.
"""

import re
import shlex

from vbuild.ci.jobs import Jobs, chunks
from vbuild.ci.parts import Part
from vbuild.ci.templates import rendered
from vbuild.errors import CiError

MATRIX = 256
_FILE = 500_000  # bytes

_RUNNERS = {"x86_64": "ubuntu-24.04", "aarch64": "ubuntu-24.04-arm"}
_REUSABLE = "uses: .../vbuild/.github/workflows/vbuild.yml"

# the names of Pythons that actions/setup-python knows
_CPYTHON = re.compile(r"(?:c?python@?)?(\d+(?:\.\d+){0,2}t?)")
_PYPY = re.compile(r"pypy@?(\d+\.\d+)")


def workflow(jobs: Jobs) -> str:
    """The workflow file of *jobs*; `CiError` where GitHub would not start it, as it is too large."""
    text = rendered(
        "github.yml.jinja",
        jobs=jobs,
        title=f"wheels of {jobs.name}",
        runner=jobs.runner or _RUNNERS[jobs.machine],
        builds=[[_entry(part, jobs) for part in chunk] for chunk in chunks(jobs.parts, MATRIX)],
        install=literal(jobs.install),
        build=f"{_before_part(jobs)}/${{{{ matrix.part }}}} --part {_options(jobs)}${{{{ matrix.selection }}}}",
        collect=literal(shlex.join(jobs.collecting)),
    )
    if (size := len(text.encode())) > _FILE:
        what = f"the workflow would have {size} bytes, and GitHub starts none of more than {_FILE}"
        raise CiError(f"{jobs.source}: {what}; expected fewer builds, or the reusable workflow ({_REUSABLE})")
    return text


def literal(text: str) -> str:
    """*text* where GitHub looks for expressions, and finds none."""
    return text.replace("${{", "${{ '${{' }}")


def _entry(part: Part, jobs: Jobs) -> dict[str, str]:
    """One job of a matrix: *selection* is quoted for the shell."""
    version = set_up(part.version) if part.version else ""
    # the last is the one that runs vbuild
    pythons = [*([version] if version and version != jobs.python else []), jobs.python]
    return {"part": part.name, "pythons": "\n".join(pythons), "selection": literal(shlex.join(part.selection))}


def set_up(version: str) -> str:
    """The Python *version* as actions/setup-python calls it; empty for one that the runner has to have."""
    if match := _CPYTHON.fullmatch(version):
        return match.group(1)
    if match := _PYPY.fullmatch(version):
        return f"pypy{match.group(1)}"
    return ""


def _before_part(jobs: Jobs) -> str:
    return literal(shlex.join(["vbuild", "matrix", jobs.source, "-o", jobs.parts_folder]))


def _options(jobs: Jobs) -> str:
    return literal(f"{shlex.join(jobs.options)} ") if jobs.options else ""
