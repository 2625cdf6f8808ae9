"""A run of cibuildwheel, done: which wheel it made for which identifier, and what became of the others.

    fast_sum-1.0-cp311-cp311-manylinux_2_17_x86_64.whl    cp311-manylinux_x86_64
    fast_sum-1.0-cp39-abi3-manylinux_2_17_x86_64.whl      the first that it fits: later ones make none

https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/

The folder on the host that containers see below /host, and write logs to:

    kit/vbuild/                          this package, for a Python without packages
    kit/runs/<run>/settings.json         what `vbuild.build.cibuildwheel.container` puts into the container
    kit/runs/<run>/logs/<identifier>/    overrides.jsonl, nvcc.jsonl; calls: a line for each call of a compiler;
                                         objects/: what commands made that kept flags of the project's own
"""

import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace
from packaging.tags import Tag

import vbuild
from vbuild.build.cibuildwheel.program import (
    BEFORE_BUILD,
    Arguments,
    Cibuildwheel,
    Containers,
    Echo,
    Journal,
    explained_failure,
)
from vbuild.build.cibuildwheel.runs import CibuildwheelRun, inside
from vbuild.build.kept_flags import KeptFlags
from vbuild.build.wrappers import (
    CompilerCall,
    FailedCall,
    Override,
    compiler_calls,
    compilers_in,
    failures,
    overrides,
)
from vbuild.errors import BuildError, WheelError
from vbuild.process.run import supervised
from vbuild.recipe.model import TrialResult
from vbuild.sbom.model import Material
from vbuild.toolchain import nvcc_commands
from vbuild.toolchain.nvcc_commands import Command
from vbuild.wheel.name import WheelName

_GIVEN = "environment-pass"
_PASSED = ("CIBW_ENVIRONMENT_PASS", "CIBW_ENVIRONMENT_PASS_LINUX")


def passed_on(arguments: Arguments, environment: Mapping[str, str]) -> set[str]:
    """The variables in *environment* that cibuildwheel passes on into its containers."""
    texts = {*_named(arguments.configuration), *(environment.get(name, "") for name in _PASSED)}
    return {name for text in texts for name in text.split()}


def _named(options: Any) -> Iterator[str]:  # noqa: ANN401 - whatever TOML holds
    if isinstance(options, Mapping):
        for key, value in options.items():
            if key == _GIVEN:
                yield value if isinstance(value, str) else " ".join(map(str, value)) if value else ""
            else:
                yield from _named(value)
    elif isinstance(options, list):
        for value in options:
            yield from _named(value)


class WrapperRecord(Struct, frozen=True):
    """What the compiler wrappers recorded of a build since *started*.

    *objects* is a folder of what commands with kept flags made.
    """

    overrides: tuple[Override, ...] = ()
    commands: tuple[Command, ...] = ()
    calls: tuple[CompilerCall, ...] = ()
    started: float | None = None
    failed: tuple[FailedCall, ...] = ()
    objects: Path = Path()
    compilers: tuple[Material, ...] = ()

    def kept_flags(self, project: Path) -> KeptFlags:
        return KeptFlags.of(self.overrides, self.calls, project, objects=self.objects)


class ContainerSetup(Struct, frozen=True):
    """The kit for containers in *folder*, outside of the project that cibuildwheel copies."""

    folder: Path

    @classmethod
    def in_folder(cls, folder: Path) -> Self:
        try:
            shutil.copytree(Path(vbuild.__file__).parent, folder / "vbuild", ignore=_all_but_modules)
        except OSError as error:
            why = error.strerror or str(error)
            if isinstance(error, shutil.Error) and isinstance(error.args[0], list):
                # shutil joins the reasons, one for each file
                why = str(error.args[0][0][2]).partition("] ")[2].partition(": ")[0]
            raise BuildError(
                f"{folder}: {why}; expected room for what containers run: point TMPDIR at a folder that has it"
            ) from error
        return cls(folder)

    @property
    def inside(self) -> PurePosixPath:
        return inside(self.folder)

    def add(self, run: CibuildwheelRun) -> None:
        if settings := run.settings():
            logs = self._of(run) / "logs"
            logs.mkdir(parents=True)
            (self._of(run) / "settings.json").write_text(json.dumps(settings), encoding="utf-8")

    def record(self, run: CibuildwheelRun, identifier: str) -> WrapperRecord:
        logs = self._of(run) / "logs" / identifier
        started = logs / "started"
        return WrapperRecord(
            tuple(
                replace(override, object=override.object.lstrip("/"))
                for override in overrides(logs / "overrides.jsonl")
            ),
            tuple(dict.fromkeys(nvcc_commands.logged(logs / nvcc_commands.LOG))),
            compiler_calls(logs / "calls"),
            started.stat().st_mtime if started.exists() else None,
            failures(logs / "overrides.jsonl"),
            logs / "objects",
            compilers_in(logs / "calls"),
        )

    def _of(self, run: CibuildwheelRun) -> Path:
        return self.folder / "runs" / run.name


def _all_but_modules(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if not name.endswith(".py") and not Path(folder, name, "__init__.py").is_file()}


NOT_PUT = (
    "before-build ended without vbuild's part of it, which puts compiler wrappers before the compilers: the "
    "project's own has "
    "an exec or a trap for EXIT; expected neither: leave the exec out, or put that command into a script"
)
_BEFORE = frozenset({"", BEFORE_BUILD, "Setting up build environment"})
_MINOR = len("cp3")


class ContainerBuild(Struct, frozen=True):
    """The plain *wheel* for an identifier; its *seconds* last until the next identifier's wrappers are put there."""

    wheel: Path
    record: WrapperRecord
    trial: TrialResult
    seconds: float


class ContainerResult(Struct, frozen=True):
    """What *run* made, by identifier; if it failed, *at_work* names the identifier."""

    run: CibuildwheelRun
    log: Path
    builds: Mapping[str, ContainerBuild] = field(default_factory=dict)
    error: BuildError | None = None
    at_work: str = ""


class ContainerRunner(Struct, frozen=True):
    program: Cibuildwheel
    arguments: Arguments
    environment: Mapping[str, str]
    folder: Path
    setup: ContainerSetup
    containers: Containers
    echo: Echo | None = None

    def result_of(self, run: CibuildwheelRun) -> ContainerResult:
        self.setup.add(run)
        output, log = self.folder / "wheels" / run.name, self.folder / "logs" / f"{run.name}.log"
        scratch = self.folder / "scratch"
        for folder in (output, scratch):
            folder.mkdir(parents=True, exist_ok=True)
        environment = {**self.environment, **dict(run.variables), "TMPDIR": str(scratch)}
        start = time.time()
        failure: BuildError | None = None
        try:
            with supervised():
                self.program.run(
                    self.arguments,
                    output,
                    environment=environment,
                    containers=self.containers,
                    log=log,
                    echo=self.echo,
                )
        except BuildError as error:
            failure = error
        end = time.time()
        journal = Journal.parse(log.read_text(encoding="utf-8", errors="replace")) if log.exists() else Journal()
        records = {identifier: self.setup.record(run, identifier) for identifier in run.identifiers}
        if failure:
            record = records.get(journal.at_work)
            # behind before-build, and yet without compiler wrappers
            is_unwrapped = run.plan and journal.step not in _BEFORE and record and not record.started
            failure = (
                BuildError(f"{journal.at_work}: {NOT_PUT}") if is_unwrapped else explained_failure(failure, journal)
            )
        wheels: dict[str, Path] = {}
        try:
            wheels = wheels_by_identifier(sorted(output.glob("*.whl")), run.identifiers)
        except BuildError as error:
            failure = failure or error
        lengths = _seconds([records[identifier].started for identifier in run.identifiers], start, end)
        seconds = dict(zip(run.identifiers, lengths, strict=True))
        untested = TrialResult.NOT_RUN if journal.has_test else TrialResult.NONE
        builds = {
            identifier: ContainerBuild(
                wheel,
                records[identifier],
                TrialResult.PASSED if identifier in journal.tested else untested,
                seconds[identifier],
            )
            for identifier, wheel in wheels.items()
        }
        return ContainerResult(run, log, builds, failure, journal.at_work)


def wheels_by_identifier(wheels: Iterable[Path], identifiers: Sequence[str]) -> dict[str, Path]:
    """*wheels* by identifier, in order; `BuildError` for a wheel that is for none."""
    by_identifier: dict[str, Path] = {}
    for wheel in wheels:
        try:
            tags = WheelName.parse(wheel.name).tags
        except WheelError as error:
            raise BuildError(f"cibuildwheel made {error}") from error
        free = [identifier for identifier in identifiers if identifier not in by_identifier]
        fitting = (identifier for fits in (_is_of, _runs_on) for identifier in free if fits(tags, identifier))
        if (identifier := next(fitting, None)) is None:
            problem = f"cibuildwheel made {wheel.name}, which is for none of {', '.join(identifiers)}"
            raise BuildError(f"{problem}; expected one wheel for each: look at repair-wheel-command")
        by_identifier[identifier] = wheel
    return {identifier: by_identifier[identifier] for identifier in identifiers if identifier in by_identifier}


def _is_of(tags: Iterable[Tag], identifier: str) -> bool:
    python, is_free, platform = _parted(identifier)
    interpreter = f"graalpy{python[2:]}" if python.startswith("gp") else python
    return any(
        tag.interpreter == interpreter
        and (tag.abi.endswith("t") == is_free or not python.startswith("cp"))
        and tag.abi not in {"abi3", "none"}
        and _is_on(tag, platform)
        for tag in tags
    )


def _runs_on(tags: Iterable[Tag], identifier: str) -> bool:
    python, is_free, platform = _parted(identifier)
    return any(
        _is_on(tag, platform)
        and (
            tag.abi == "none"
            or (tag.abi == "abi3" and python.startswith("cp3") and not is_free and _minor(tag) <= int(python[_MINOR:]))
        )
        for tag in tags
    )


def _parted(identifier: str) -> tuple[str, bool, str]:
    """``cp313`` of ``cp313t-manylinux_x86_64``, whether it is without the GIL, and its platform."""
    python, _, platform = identifier.partition("-")
    python = python.partition("_")[0]
    return python.removesuffix("t"), python.endswith("t"), platform


def _is_on(tag: Tag, platform: str) -> bool:
    """Whether *tag* is of *platform*; ``linux_x86_64``, of a wheel not repaired, is of both."""
    kind, _, machine = platform.partition("_")
    return tag.platform.startswith((kind, "linux_")) and tag.platform.endswith(f"_{machine}")


def _minor(tag: Tag) -> int:
    digits = tag.interpreter[_MINOR:]
    return int(digits) if digits.isdigit() else 0


def _seconds(starts: Sequence[float | None], first: float, last: float) -> list[float]:
    ends = sorted(start for start in starts if start is not None)
    return [
        (next((end for end in ends if end > start), last) - start) if start is not None else last - first
        for start in starts
    ]
