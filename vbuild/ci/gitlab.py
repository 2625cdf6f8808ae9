"""A release as a GitLab pipeline: a stage of builds, and a stage that collects what they made.

    parts -> build-1, build-2, ... of at most 200 -> artifacts -> collect -> one artifact, the release

- ``parallel: matrix`` makes at most 200 jobs: https://gitlab.com/gitlab-org/gitlab/-/issues/438369
- A job may need at most 50 others, so that collecting waits for a stage, and names no jobs:
  https://gitlab.com/gitlab-org/gitlab/-/issues/419720
- The matrix's values are in the job's name, of 255 characters at most, so that a part's command stands in the script:
  https://gitlab.com/gitlab-org/gitlab/-/issues/353024
- A whole configuration has at most 2 MB: https://gitlab.com/gitlab-org/gitlab/-/issues/370116
"""

import shlex

from vbuild.ci.jobs import Jobs, chunks
from vbuild.ci.templates import rendered
from vbuild.errors import CiError

MATRIX = 200
_FILE = 2_000_000  # bytes


def pipeline(jobs: Jobs) -> str:
    """The ``.gitlab-ci.yml`` of *jobs*; `CiError` where GitLab would not take it, as it is too large."""
    commands = [(part.name, shlex.join(jobs.command(part))) for part in jobs.parts]
    versions = [version for version in jobs.versions if version != jobs.python]
    text = rendered(
        "gitlab.yml.jinja",
        jobs=jobs,
        image=jobs.runner or f"python:{jobs.python.removesuffix('t')}",
        # the image has one Python; uv comes with vbuild
        before=[jobs.install, *([shlex.join(["uv", "python", "install", *versions])] if versions else [])],
        collect=shlex.join(jobs.collecting),
        builds=list(chunks(commands, MATRIX)),
    )
    if (size := len(text.encode())) > _FILE:
        what = f"the configuration would have {size} bytes, and GitLab takes none of more than {_FILE}"
        raise CiError(f"{jobs.source}: {what}; expected fewer builds")
    return text
