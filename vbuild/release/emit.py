"""`vbuild matrix --emit` and `vbuild init --emit`: a release as the file that a CI system runs.

    recipe -> targets -> those of one build -> JobPart -> Jobs -> github   a workflow: matrices of builds, then collect
                                                              -> json     the parts and their commands

Each part is one command, ``vbuild matrix SOURCE --only LABEL … --part``; the last job collects what was built.

- A matrix generates at most 256 jobs, and a file of more than 500 KB starts none:
  https://docs.github.com/en/actions/reference/limits
- ``actions/download-artifact`` sees 100 or 600 of 1243 artifacts; GitHub's own command turns the pages, and fails if
  there are none: https://github.com/actions/download-artifact/issues/363, /441
- An artifact of a run that is run again has to be overwritten: https://github.com/actions/upload-artifact/issues/478
"""

import hashlib
import json
import os
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, distribution, version
from itertools import takewhile
from pathlib import Path
from typing import Self

from msgspec import Struct, to_builtins

from vbuild import DISTRIBUTION
from vbuild.build.cibuildwheel.program import Arguments, Cibuildwheel
from vbuild.errors import BuildError
from vbuild.files.atomic import replacing
from vbuild.files.templates import Written, templates, yaml_text
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.compiling import HostCompiler
from vbuild.recipe.model import Recipe
from vbuild.recipe.source import Folder
from vbuild.recipe.target import Target

FORMAT = 1  # of the JSON, which docs/howto/other-ci.md describes; rises when a key changes its meaning
GITHUB_MATRIX = 256  # jobs
_GITHUB_FILE = 500_000  # bytes
_LONGEST_NAME = 64  # characters of a part's name, which is in the name of an artifact
_PLAIN = "plain"
_CPYTHON = re.compile(r"(?:c?python@?)?(\d+(?:\.\d+)*t?)")
# the names of Pythons that actions/setup-python knows
_SETUP_CPYTHON = re.compile(r"(?:c?python@?)?(\d+(?:\.\d+){0,2}t?)")
_SETUP_PYPY = re.compile(r"pypy@?(\d+\.\d+)")
_RUNNERS = {"x86_64": "ubuntu-24.04", "aarch64": "ubuntu-24.04-arm"}
# what cibuildwheel builds without variants: the platform, its machines and the runner
_OTHERS = (
    *(("linux", machine, runner) for machine, runner in _RUNNERS.items()),
    ("macos", "x86_64,arm64,universal2", "macos-15"),
    ("windows", "AMD64,x86", "windows-2025"),
)
_ACTION = ".github/actions/vbuild"
# https://packaging.python.org/en/latest/specifications/direct-url/
_ON_GITHUB = re.compile(r"https://github\.com/(?P<repository>[\w.-]+/[\w-]+)(?:\.git)?/?")
_REUSABLE = "uses: .../vbuild/.github/workflows/vbuild.yml"

# vbuild-wheels is on no package index yet: each project says which wheel or commit its jobs install
VARIABLE = "VBUILD_WHEELS"
INSTALL = (
    f'pip install "${{{VARIABLE}:?set it to a wheel of a {DISTRIBUTION} release, '
    'or to git+https://HOST/OWNER/REPOSITORY@COMMIT}"'
)
# fails in a job that has another project's vbuild, before it runs anything else
CHECK = f"vbuild --version | grep '^{DISTRIBUTION} '"


class CiSystem(StrEnum):
    GITHUB = "github"
    JSON = "json"


class JobPart(Struct, frozen=True):
    """One job of a release: one build, and all wheels that are cut from it.

    *name* is unique, also if case does not count. *python* is what ``--python`` takes, *version* what that is; None if
    the recipe has one Python, or gives a path.
    """

    name: str
    labels: tuple[str, ...]
    python: str | None
    version: str | None
    cpu: str
    cuda: str | None = None

    @property
    def selection(self) -> tuple[str, ...]:
        """The arguments of ``vbuild matrix`` that choose this part's targets and no other."""
        only = tuple(argument for label in self.labels for argument in ("--only", label))
        return (*only, "--python", self.python) if self.python else only


class Jobs(Struct, frozen=True):
    """The *parts* of a release as jobs, into *parts_folder*, collected in *folder*.

    *source* is a path from the working folder, *python* the version that runs vbuild, and builds if the recipe names
    none.
    """

    name: str
    source: str
    parts: tuple[JobPart, ...]
    options: tuple[str, ...]
    machine: str
    python: str
    parts_folder: str = Written("parts")
    folder: str = Written("dist")

    @classmethod
    def of(cls, source: Path, options: Sequence[str] = ()) -> Self:
        """The jobs of the recipe or project at *source*; `BuildError` if it is not in the working folder."""
        where = _relative(source)
        recipe = Recipe.load(source)
        inside = recipe.source.path if isinstance(recipe.source, Folder) else None
        if inside and not inside.resolve().is_relative_to(Path.cwd().resolve()):
            fault = f"the project it builds, {inside}, is outside the working folder, {Path.cwd()}"
            raise BuildError(f"{source}: {fault}; expected one that the jobs find in a checkout, or source.git")
        job_parts = parts(recipe)
        for part in job_parts:
            _line(part.python or "", "matrix.python")
        # zig compiles for any machine
        is_cross = recipe.build.host.compiler is HostCompiler.ZIG
        return cls(
            name=_line(recipe.name, "name"),
            source=where,
            parts=job_parts,
            options=tuple(options),
            machine="x86_64" if is_cross else Cpu.parse(job_parts[0].cpu).machine,
            python=f"{sys.version_info.major}.{sys.version_info.minor}{'t' if 't' in sys.abiflags else ''}",
        )

    def command(self, part: JobPart) -> tuple[str, ...]:
        output = f"{self.parts_folder}/{part.name}"
        return ("vbuild", "matrix", self.source, "-o", output, "--part", *self.options, *part.selection)

    @property
    def collecting(self) -> tuple[str, ...]:
        return ("vbuild", "collect", self.parts_folder, "-o", self.folder, "--recipe", self.source)


def emitted(source: Path, system: CiSystem, *, options: Sequence[str] = ()) -> str:
    """The file that makes the release of the recipe or project at *source* on *system*, run in this working folder.

    *options* are given to every ``vbuild matrix``. `BuildError` if jobs would not find the recipe, or for too large a
    file.
    """
    jobs = Jobs.of(source, options)
    if system is CiSystem.GITHUB:
        return workflow(jobs)
    data = {
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
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def parts(recipe: Recipe) -> tuple[JobPart, ...]:
    """The parts of *recipe*'s release; `BuildError` for a label that `--only` misreads."""
    builds: dict[tuple[str, ...], list[Target]] = defaultdict(list)
    for target in recipe.targets:
        if target.label == _PLAIN:
            raise BuildError(
                f"{recipe.file}: a variant is labelled 'plain', as --only calls the plain wheel; expected another label"
            )
        builds[target.build_key].append(target)
    has_pythons = len(recipe.matrix.pythons) > 1
    here = f"{recipe.file.parent.absolute()}/"
    names: set[str] = set()
    job_parts = []
    for targets in builds.values():
        first = targets[0]
        base = name = _named(targets, with_python=has_pythons)
        number = 1
        while name.lower() in names:
            number += 1
            name = f"{base}-{number}"
        names.add(name.lower())
        python = first.python
        part = JobPart(
            name=name,
            labels=tuple(map(str, targets)),
            # a path below the recipe is relative to it, as on any machine
            python=(f"./{python.removeprefix(here)}" if python.startswith(here) else python) if has_pythons else None,
            version=None if "/" in python or python == sys.executable else python,
            cpu=str(first.cpu),
            cuda=str(first.cuda.toolkit) if first.cuda else None,
        )
        job_parts.append(part)
    return tuple(job_parts)


def _named(targets: list[Target], *, with_python: bool) -> str:
    """A name for the part of *targets*, by the pieces that their labels begin with."""
    labels, python = [str(target) for target in targets], targets[0].python
    name = _PLAIN
    if _PLAIN not in labels:
        columns = zip(*(label.split("_") for label in labels), strict=False)
        name = "_".join(column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)) or labels[0]
    if with_python:
        match = _CPYTHON.fullmatch(python)
        name += f"-cp{match[1].replace('.', '')}" if match else f"-{python.rpartition('/')[2]}"
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".-") or "part"
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _relative(source: Path) -> str:
    """*source* from the working folder, as no command takes it for an option."""
    here = Path.cwd()
    path = Path(os.path.abspath(source))  # noqa: PTH100 - a link in the folder stays what it is
    if not path.is_relative_to(here):
        path = path.parent.resolve() / path.name
    if not path.is_relative_to(here):
        fault = f"outside the working folder, {here}, in which the jobs would not find it"
        raise BuildError(f"{source}: {fault}; expected a recipe or project below it, or another working folder")
    text = _line(path.relative_to(here).as_posix(), "source")
    return f"./{text}" if text.startswith("-") else text


def _line(text: str, place: str) -> str:
    """*text*; `BuildError` if it cannot stand in one line of a file that is emitted."""
    if not text.isprintable():
        raise BuildError(f"{place}: {text!r} cannot be written in one line; expected printable characters alone")
    return text


class ActionPins(Struct, frozen=True):
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
        jobs=jobs,
        actions=ActionPins(),
        title=f"wheels of {jobs.name}",
        group=Written(yaml_text(f"{literal(jobs.name)}-${{{{ github.ref }}}}")),
        runner=_RUNNERS[jobs.machine],
        builds=[entries[start : start + GITHUB_MATRIX] for start in range(0, len(entries), GITHUB_MATRIX)],
        variable=Written(VARIABLE),
        install=INSTALL,
        check=CHECK,
        build=Written(yaml_text(build)),
        collect=shlex.join(jobs.collecting),
    )
    if (size := len(text.encode())) > _GITHUB_FILE:
        fault = f"the workflow would have {size} bytes, and GitHub starts none of more than {_GITHUB_FILE}"
        raise BuildError(f"{jobs.source}: {fault}; expected fewer builds, or the reusable workflow ({_REUSABLE})")
    return text


def github_text(text: str) -> str:
    return yaml_text(literal(text))


def literal(text: str) -> str:
    """*text* in which GitHub finds no expressions."""
    return text.replace("${{", "${{ '${{' }}")


def set_up(version: str) -> str:
    """The Python *version* as actions/setup-python calls it; empty for one that it does not know."""
    if match := _SETUP_CPYTHON.fullmatch(version):
        return match.group(1)
    if match := _SETUP_PYPY.fullmatch(version):
        return f"pypy{match.group(1)}"
    return ""


def project_workflows(project: Path) -> Mapping[Path, str]:
    """The workflows of *project*, whose table says what its variants are, by their files.

    Without [tool.cibuildwheel] it is one, which calls vbuild's action. Else one builds with cibuildwheel for all its
    Pythons, one the variants with CUDA, and one puts the files of a tag into its release, and serves those of all
    releases as an index. `RecipeError` if the table is wrong, `BuildError` without one.
    """
    recipe = Recipe.load(project)
    if recipe.file.name != "pyproject.toml":
        raise BuildError(
            f"{project}: a recipe besides its project; expected the folder of a project with [tool.vbuild]"
        )
    cibw = Arguments(package=recipe.file.parent).configuration
    folder = recipe.file.parent / ".github" / "workflows"
    machine = recipe.targets[0].cpu.machine
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not cibw:
        pythons = [version for target in recipe.targets if (version := set_up(target.python))]
        text = rendered(
            "one-job.yml.jinja",
            name=recipe.name,
            title=f"wheels of {recipe.name}",
            actions=ActionPins(),
            runner=_RUNNERS[machine],
            vbuild=Written(action()),
            pythons="\n".join(dict.fromkeys((*(version for version in pythons if version != here), here))),
        )
        return {folder / "wheels.yml": text}
    # every label once, the Pythons being cibuildwheel's
    targets = {str(target): target for target in recipe.targets}
    values = {
        "name": recipe.name,
        "actions": ActionPins(),
        "machine": Written(machine),
        "runner": _RUNNERS[machine],
        "others": Written(json.dumps([*_other_runners(recipe.file.parent, machine)])),
        # one Mac builds for both kinds, unless the project says for which
        "macs": not any("archs" in options for options in (cibw, cibw.get("macos", {}))),
        "python": here,
        "cibuildwheel": Written(_pinned("cibuildwheel")),
        "frontend": Written(_pinned("build")),
        "install": Written(INSTALL),
        "check": Written(CHECK),
    }
    texts = {}
    for file, is_cuda in (("wheels.yml", False), ("wheels-cuda.yml", True)):
        labels = [label for label, target in targets.items() if bool(target.cuda) is is_cuda]
        if labels or not is_cuda:
            chosen = [] if len(labels) == len(targets) else ["--variants", ",".join(labels)]
            command = shlex.join(["vbuild", "cibuildwheel", "-o", "dist", *chosen, "--", "--only"])
            build = f'{command} "$IDENTIFIER"' if labels else ""  # the plain wheel may have CUDA, too
            title = f"wheels of {recipe.name}{' with CUDA' if is_cuda else ''}"
            own = {"cuda": is_cuda, "file": Written(file), "title": title, "build": build}
            texts[file] = rendered("wheels.yml.jinja", **values, **own)
    title, has_cuda = f"release of {recipe.name}", len(texts) > 1
    texts["release.yml"] = rendered("release.yml.jinja", **values, title=title, cuda=has_cuda)
    return {folder / file: text for file, text in texts.items()}


def action() -> str:
    """The action of vbuild, at the commit on GitHub that this one was installed from, or with two words to fill in."""
    with suppress(PackageNotFoundError, ValueError, KeyError):
        origin = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
        if match := _ON_GITHUB.fullmatch(origin["url"]):
            return f"{match['repository']}/{_ACTION}@{origin['vcs_info']['commit_id']}"
    return f"OWNER/vbuild/{_ACTION}@COMMIT # fill in the repository of vbuild, and the full hash of a commit"


def _other_runners(project: Path, machine: str) -> Iterator[str]:
    """The runners besides those of *machine* for which *project* selects wheels; all without cibuildwheel here."""
    settings = {name: text for name, text in os.environ.items() if not name.startswith("CIBW_")}
    for platform, machines, runner in _OTHERS:
        arguments = Arguments(("--platform", platform, "--archs", machines, str(project)), project)
        try:
            is_selected = bool(Cibuildwheel.of_environment().identifiers(arguments, settings))
        except BuildError:
            is_selected = True  # the job says what is wrong
        if machines != machine and is_selected:
            yield runner


def write_workflows(project: Path) -> tuple[Path, ...]:
    """Write the workflows of *project*, all or none; `BuildError` if one exists already."""
    texts = project_workflows(project)
    for file in texts:
        if file.exists():
            raise BuildError(
                f"{file}: exists; expected none: move it away, or compare it with what is written elsewhere"
            )
    try:
        with ExitStack() as stack:
            for file, text in texts.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(replacing(file)).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{error.filename}: cannot be written: {error.strerror}") from error
    return tuple(texts)


def _pinned(name: str) -> str:
    try:
        return f"{name}=={version(name)}"
    except PackageNotFoundError:
        return name


def rendered(template: str, **values: object) -> str:
    environment = templates(
        "vbuild.release",
        github_text,
        lstrip_blocks=True,
        # GitHub's own placeholders look like jinja's
        variable_start_string="[[",
        variable_end_string="]]",
        comment_start_string="[#",
        comment_end_string="#]",
    )
    return environment.get_template(template).render(values)
