"""`vbuild matrix --emit`: a recipe's release as the file that a CI system runs.

    recipe -> parts -> github   a workflow: matrices of builds, then a job that collects
                    -> gitlab   a pipeline of two stages
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
"""

import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from vbuild.build.cibuildwheel.program import Arguments
from vbuild.errors import BuildError
from vbuild.files.atomic import replacing
from vbuild.files.templates import Written, yaml_block, yaml_text
from vbuild.recipe.model import Recipe
from vbuild.release.emit_jobs import CHECK, INSTALL, VARIABLE, JobPart, Jobs, chunks, rendered

GITHUB_MATRIX = 256
_GITHUB_FILE = 500_000  # bytes

_RUNNERS = {"x86_64": "ubuntu-24.04", "aarch64": "ubuntu-24.04-arm"}
# where cibuildwheel builds the wheels that have no variants
_OTHERS = {
    "x86_64": "ubuntu-24.04",
    "aarch64": "ubuntu-24.04-arm",
    "macos": "macos-15",
    "windows": "windows-2025",
}
_REUSABLE = "uses: .../vbuild/.github/workflows/vbuild.yml"

# the names of Pythons that actions/setup-python knows
_CPYTHON = re.compile(r"(?:c?python@?)?(\d+(?:\.\d+){0,2}t?)")
_PYPY = re.compile(r"pypy@?(\d+\.\d+)")


class ActionPins(Struct, frozen=True):
    """The actions of a project's workflow, by the commits of their versions."""

    checkout: Written = Written("actions/checkout@08c6903cd8c0fde910a37f88322edcfb5dd907a8 # v5.0.0")
    python: Written = Written("actions/setup-python@e797f83bcb11b83ae66e0230d6156d7c80228e7c # v6.0.0")
    cache: Written = Written("actions/cache@0057852bfaa89a56745cba8c7296529d2fc39830 # v4.3.0")
    upload: Written = Written("actions/upload-artifact@330a01c490aca151604b8cf639adc76d48f6c5d4 # v5.0.0")
    download: Written = Written("actions/download-artifact@634f93cb2916e3fdff6788551b99b062d0335ce0 # v5.0.0")
    pages: Written = Written("actions/upload-pages-artifact@7b1f4a764d45c48632c6b24a0339c27f5614fb0b # v4.0.0")
    deploy: Written = Written("actions/deploy-pages@d6db90164ac5ed86f2b6aed7e0febac5b3c0c03e # v4.0.5")
    pypi: Written = Written("pypa/gh-action-pypi-publish@ed0c53931b1dc9bd32cbe73a98c7f6766f8a527e # v1.13.0")


def workflow(jobs: Jobs) -> str:
    """The workflow file of *jobs*; `BuildError` if GitHub would not start it, as it is too large."""
    entries = []
    for part in jobs.parts:
        version = set_up(part.version) if part.version else ""
        # the last is the one that runs vbuild
        pythons = [*([version] if version and version != jobs.python else []), jobs.python]
        # quoted for the shell
        entries.append({"part": part.name, "pythons": "\n".join(pythons), "selection": shlex.join(part.selection)})
    command = shlex.join(["vbuild", "matrix", jobs.source, "-o", jobs.parts_folder])
    options = f"{shlex.join(jobs.options)} " if jobs.options else ""
    build = f"{literal(command)}/${{{{ matrix.part }}}} --part {literal(options)}${{{{ matrix.selection }}}}"
    text = rendered(
        "github.yml.jinja",
        github_text,
        jobs=jobs,
        actions=ActionPins(),
        title=f"wheels of {jobs.name}",
        group=Written(yaml_text(f"{literal(jobs.name)}-${{{{ github.ref }}}}")),
        runner=_RUNNERS[jobs.machine],
        builds=list(chunks(entries, GITHUB_MATRIX)),
        variable=Written(VARIABLE),
        install=INSTALL,
        check=CHECK,
        build=Written(yaml_text(build)),
        collect=shlex.join(jobs.collecting),
    )
    if (size := len(text.encode())) > _GITHUB_FILE:
        what = f"the workflow would have {size} bytes, and GitHub starts none of more than {_GITHUB_FILE}"
        raise BuildError(f"{jobs.source}: {what}; expected fewer builds, or the reusable workflow ({_REUSABLE})")
    return text


def literal(text: str) -> str:
    """*text* where GitHub looks for expressions, and finds none."""
    return text.replace("${{", "${{ '${{' }}")


def github_text(text: str) -> str:
    """*text* as a workflow has it, whatever is in it."""
    return yaml_text(literal(text))


def set_up(version: str) -> str:
    """The Python *version* as actions/setup-python calls it; empty for one that the runner has to have."""
    if match := _CPYTHON.fullmatch(version):
        return match.group(1)
    if match := _PYPY.fullmatch(version):
        return f"pypy{match.group(1)}"
    return ""


def project_workflows(project: Path) -> Mapping[Path, str]:
    """The workflows of *project*, whose table says what its variants are, by their files.

    One builds with cibuildwheel for all its Pythons, one the variants with CUDA if there are any, and one puts the
    files of a tag into its release, and serves those of all releases as an index. `RecipeError` if the table is wrong,
    `BuildError` if *project* is none with a table.
    """
    recipe = Recipe.load(project)
    if recipe.file.name != "pyproject.toml":
        raise BuildError(
            f"{project}: a recipe besides its project; expected the folder of a project with [tool.vbuild]"
        )
    given = Arguments(package=recipe.file.parent).configuration
    machine = recipe.targets[0].cpu.machine
    # every label once, the Pythons being cibuildwheel's
    targets = {str(target): target for target in recipe.targets}
    values = {
        "name": recipe.name,
        "actions": ActionPins(),
        "machine": Written(machine),
        "runner": _RUNNERS[machine],
        "others": Written(json.dumps([name for kind, name in _OTHERS.items() if kind != machine])),
        # one Mac builds for both kinds, unless the project says for which
        "macs": not any("archs" in options for options in (given, given.get("macos", {}))),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "cibuildwheel": Written(_pinned("cibuildwheel")),
        "frontend": Written(_pinned("build")),
        "install": Written(INSTALL),
        "check": Written(CHECK),
    }
    found = {}
    for file, is_cuda in (("wheels.yml", False), ("wheels-cuda.yml", True)):
        labels = [label for label, target in targets.items() if bool(target.cuda) is is_cuda]
        if labels or not is_cuda:
            chosen = [] if len(labels) == len(targets) else ["--variants", ",".join(labels)]
            command = shlex.join(["vbuild", "cibuildwheel", "-o", "dist", *chosen, "--", "--only"])
            build = f'{command} "$IDENTIFIER"' if labels else ""  # the plain wheel may have CUDA, too
            title = f"wheels of {recipe.name}{' with CUDA' if is_cuda else ''}"
            own = {"cuda": is_cuda, "file": Written(file), "title": title, "build": build}
            found[file] = rendered("wheels.yml.jinja", github_text, **values, **own)
    title, has_cuda = f"release of {recipe.name}", len(found) > 1
    found["release.yml"] = rendered("release.yml.jinja", github_text, **values, title=title, cuda=has_cuda)
    folder = recipe.file.parent / ".github" / "workflows"
    return {folder / file: text for file, text in found.items()}


def write_workflows(project: Path) -> tuple[Path, ...]:
    """Write the workflows of *project*, complete or not at all; gives their files.

    `BuildError`, besides what `project_workflows` raises, if one is there already.
    """
    found = project_workflows(project)
    for file in found:
        if file.exists():
            raise BuildError(
                f"{file}: exists; expected none: move it away, or compare it with what is written elsewhere"
            )
    try:
        with ExitStack() as stack:
            for file, text in found.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(replacing(file)).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{error.filename}: cannot be written: {error.strerror}") from error
    return tuple(found)


def _pinned(name: str) -> str:
    """The requirement of the package *name* in the version that is here, or any if it is not."""
    try:
        return f"{name}=={version(name)}"
    except PackageNotFoundError:
        return name


GITLAB_MATRIX = 200
_GITLAB_FILE = 2_000_000  # bytes


def pipeline(jobs: Jobs) -> str:
    """The ``.gitlab-ci.yml`` of *jobs*; `BuildError` if GitLab would not take it, as it is too large."""
    builds = [
        ([part.name for part in several], Written(yaml_block([*_chosen(jobs, several)], indent=6)))
        for several in chunks(jobs.parts, GITLAB_MATRIX)
    ]
    versions = [version for version in jobs.versions if version != jobs.python]
    text = rendered(
        "gitlab.yml.jinja",
        yaml_text,
        jobs=jobs,
        image=f"python:{jobs.python.removesuffix('t')}",
        # the image has one Python; uv comes with vbuild
        before=[INSTALL, CHECK, *([shlex.join(["uv", "python", "install", *versions])] if versions else [])],
        collect=shlex.join(jobs.collecting),
        builds=builds,
    )
    if (size := len(text.encode())) > _GITLAB_FILE:
        what = f"the configuration would have {size} bytes, and GitLab takes none of more than {_GITLAB_FILE}"
        raise BuildError(f"{jobs.source}: {what}; expected fewer builds")
    return text


def _chosen(jobs: Jobs, several: Iterable[JobPart]) -> Iterator[str]:
    """The lines of a script that makes that one of *several* parts of *jobs* which a variable names."""
    yield 'case "$PART" in'
    yield from (f"{part.name}) {shlex.join(jobs.command(part))} ;;" for part in several)
    yield "esac"


# rises when a key changes its meaning
FORMAT = 1


class CiSystem(StrEnum):
    """What a release can be emitted for."""

    GITHUB = "github"
    GITLAB = "gitlab"
    JSON = "json"


def emitted(source: Path, system: CiSystem, *, options: Sequence[str] = ()) -> str:
    """The file that makes the release of the recipe or project at *source* on *system*, run in this working folder.

    Every job installs what the variable ``VBUILD_WHEELS`` names, and fails with a sentence if that is empty; or if its
    ``vbuild`` is another project's. *options* are given to every ``vbuild matrix``, such as ``--locked``. The same
    recipe gives the same text. `RecipeError` for a recipe that is wrong, `BuildError` if the jobs would not find it or
    the file would be too large.
    """
    jobs = Jobs.of(source, options)
    match system:
        case CiSystem.GITHUB:
            return workflow(jobs)
        case CiSystem.GITLAB:
            return pipeline(jobs)
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
        "install": INSTALL,
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
