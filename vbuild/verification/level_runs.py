"""Run a wheel with copies for CPU levels as processors of each level see it.

    wheel -> uv -> fresh environment -> for each level and method: import modules, run the test, read LD_DEBUG
          -> LevelReport

For each library, the loader must take the best copy for the level: a fast copy that is never loaded still passes every
test. A level that this machine cannot emulate is not tried, and the report says so.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Self

from msgspec import Struct

from vbuild.elf.hwcaps_folders import at_level, baseline_of, level_of
from vbuild.errors import RepackageError, WheelError, at
from vbuild.files.wording import counted, wrapped
from vbuild.hardware.cpu import X86_64_LEVELS
from vbuild.index_client.configuration import Indexes, find_command
from vbuild.recipe.model import Check
from vbuild.verification.environments import (
    TargetPython,
    WheelEnvironment,
    WheelSources,
    is_native,
    make_environment,
    platforms_of,
    variables,
)
from vbuild.verification.installed_wheel import InstalledWheel
from vbuild.verification.level_emulation import METHODS, Launch, LevelHost, LevelMethod, plain_environment
from vbuild.verification.level_probe import ProbeProcess, import_each, loaded
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.name import WheelName

_SHOWN = 5  # libraries of a run; all wrong ones are shown


class LevelRun(Struct, frozen=True):
    """The result of running a wheel as processors of *level* see it; *untried* says why it was not run.

    *imported* are modules, *loaded* the libraries with copies that the loader took, by their paths from site-packages.
    *is_tested* says whether the test's command ran, too; *output* are its last lines if it failed.
    """

    level: str
    method: LevelMethod
    untried: str | None = None
    imported: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    is_tested: bool = False
    failures: tuple[str, ...] = ()
    output: str = ""

    def __str__(self) -> str:
        return str(self.method) if self.method is LevelMethod.NONE else f"{self.level} by {self.method}"

    @property
    def is_tried(self) -> bool:
        return self.untried is None

    def data(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "way": self.method.value,
            "tried": self.is_tried,
            "untried": self.untried,
            "imported": list(self.imported),
            "loaded": list(self.loaded),
            "tested": self.is_tested,
            "failures": list(self.failures),
            "output": self.output,
        }

    def lines(self) -> Iterator[str]:
        """The run for a terminal: a summary, loaded libraries, failures, the last lines of a failed test."""
        if self.untried is not None:
            yield from wrapped(f"  {self}: not tried: {self.untried}", indent=6)
            return
        done = [counted(len(self.imported), "module") + " imported"]
        has_failed = any(failure.startswith("test: ") for failure in self.failures)
        done += ["test failed" if has_failed else "test passed"] if self.is_tested else []
        yield from wrapped(f"  {self}: {', '.join(done)}", indent=6)
        yield from (f"    {path}" for path in self.loaded[:_SHOWN])
        if len(self.loaded) > _SHOWN:
            yield f"    and {len(self.loaded) - _SHOWN} more"
        for failure in self.failures:
            yield from wrapped(f"    failed: {failure}", indent=8)
        yield from (f"    | {line}" for line in self.output.splitlines())


class LevelReport(Struct, frozen=True):
    """The results for a wheel's *levels*, the baseline first: its *runs*, and *notes* on what no run could show."""

    wheel: str
    levels: tuple[str, ...]
    runs: tuple[LevelRun, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no run failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        """The failures of all runs, each after its level and method."""
        return tuple(f"{run}: {failure}" for run in self.runs for failure in run.failures)

    @property
    def tried(self) -> tuple[str, ...]:
        """The levels that were run by some method."""
        return tuple(level for level in self.levels if any(run.level == level and run.is_tried for run in self.runs))

    @property
    def untried(self) -> tuple[str, ...]:
        return tuple(level for level in self.levels if level not in self.tried)

    def data(self) -> dict[str, Any]:
        """The result for JSON."""
        return {
            "wheel": self.wheel,
            "levels": list(self.levels),
            "tried": list(self.tried),
            "ok": self.ok,
            "runs": [run.data() for run in self.runs],
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[str]:
        """The result for a terminal of 80 columns; paths are not broken."""
        yield self.wheel
        yield from wrapped(f"  {self.summary}", indent=6)
        for run in self.runs:
            yield from run.lines()
        for note in self.notes:
            yield from wrapped(f"  note: {note}", indent=6)

    @property
    def summary(self) -> str:
        """The result in a few words: ``works as v1, v3; v4 not tried``."""
        if not self.tried:
            return "not tried"
        if all(run.method is LevelMethod.NONE for run in self.runs):
            return f"{'works' if self.ok else 'fails'} on this machine"
        failed = [level for level in self.tried if any(run.level == level and run.failures for run in self.runs)]
        works = [level for level in self.tried if level not in failed]
        parts = [f"works as {', '.join(works)}"] if works else []
        parts += [f"fails as {', '.join(failed)}"] if failed else []
        parts += [f"{', '.join(self.untried)} not tried"] if self.untried else []
        return "; ".join(parts)


OnProgress = Callable[[str], None]

_BASELINE = X86_64_LEVELS[0]
_MODULE = re.compile(r"[^\W\d]\w*")


class LevelSettings(Struct, frozen=True, kw_only=True):
    """How to run a wheel at each level.

    *check* is the test to run. The wheel is installed for *python*, by default one of this machine that takes it; its
    requirements may also be in *links*, by default the wheel's folder. Each level is emulated by each of *methods*. A
    command may take *timeout* seconds; its output is appended to *log*.
    """

    check: Check = Check()
    python: Path | None = None
    links: tuple[Path, ...] | None = None
    methods: tuple[LevelMethod, ...] = METHODS
    timeout: float | None = 1800.0
    log: Path | None = None


def run_levels(
    wheel: Path,
    settings: LevelSettings | None = None,
    *,
    indexes: Callable[[], Indexes] = Indexes.configured,
    on_progress: OnProgress = lambda _: None,
) -> LevelReport:
    """Run *wheel* as processors of the baseline and of each of its levels see it.

    Raises `WheelError` if the wheel cannot be installed, or this machine lacks the Python.
    """
    settings = settings or LevelSettings()
    name = WheelName.parse(wheel.name)
    levels = levels_of(wheel)
    if note := _why_not_here(name):
        return LevelReport(wheel.name, levels, notes=(note,))
    with TemporaryDirectory(prefix="vbuild-levels-") as text, at(wheel.name):
        folder = Path(text).resolve()
        on_progress(f"{wheel.name}: installing it")
        sources = WheelSources((wheel.parent,) if settings.links is None else settings.links, indexes())
        try:
            python = settings.python or python_for(name)
            requires = settings.check.requires
            environment = make_environment(wheel, python, requires=requires, sources=sources, folder=folder)
        except RepackageError as error:
            raise WheelError(f"cannot be installed: {error}") from error
        installed = InstalledWheel.of(environment.packages, name.project)
        runner = _LevelRunner.of(environment, installed, settings, folder=folder)
        why_none = runner.host.why_no_levels
        if len(levels) == 1:
            why_none = "no library has copies for CPU levels: run as it is"
        runs = [] if why_none else [*_run_each(runner, levels, wheel.name, on_progress)]
        runs = runs or [runner.run(_BASELINE, LevelMethod.NONE)]
        notes = [*([why_none] if why_none else []), *runner.notes(runs)]
    return LevelReport(wheel.name, levels, tuple(runs), tuple(notes))


def _run_each(runner: "_LevelRunner", levels: Iterable[str], name: str, on_progress: OnProgress) -> Iterator[LevelRun]:
    for level in levels:
        for method in runner.settings.methods:
            on_progress(f"{name}: {level} by {method}")
            yield runner.run(level, method)


def levels_of(wheel: Path) -> tuple[str, ...]:
    """Return the baseline, and the levels that *wheel* has copies of libraries for."""
    with open_wheel(wheel) as source:
        found = {level for member in source.members if (level := level_of(member.path))}
    return (_BASELINE, *sorted(found))


def _why_not_here(name: WheelName) -> str | None:
    """Return why this machine cannot run the wheel called *name* with any Python, or None if it may."""
    here = os.uname().machine
    platforms = platforms_of(name)
    machines = {platform.machine for platform in platforms}
    if machines and here not in machines:
        return f"for {', '.join(sorted(machines))}, and this machine is {here}: nothing was run"
    if not platforms and name.platform != "any":
        return f"for {name.platform}, expected a Linux wheel: nothing was run"
    wanted = {"musl" if platform.tag.startswith("musllinux") else "glibc" for platform in platforms}
    libc = "musl"
    with suppress(ValueError, OSError):  # musl does not know the name
        libc = "glibc" if os.confstr("CS_GNU_LIBC_VERSION") else "musl"
    if wanted and libc not in wanted:
        return f"for {' or '.join(sorted(wanted))}, and the C library of this machine is another: nothing was run"
    return None


def python_for(name: WheelName) -> Path:
    """Return a Python of this machine for the wheel called *name*; raises `WheelError` if there is none."""
    if is_native(name):
        return Path(sys.executable)
    target = TargetPython.of(name)
    version = f"{target.version}{'t' if target.abi.endswith('t') else ''}" if target else ""
    command = find_command(version)
    ran = subprocess.run(command, env=variables(), capture_output=True, text=True, check=False)
    if ran.returncode:
        raise WheelError(f"no Python {version} on this machine; expected one that takes {name.python}-{name.abi}")
    return Path(ran.stdout.strip())


class _LevelRunner(Struct, frozen=True):
    """Runs an installed wheel at a level; *copies* are the levels of its libraries by the path of the baseline's."""

    environment: WheelEnvironment
    python: Path
    host: LevelHost
    modules: tuple[str, ...]
    copies: Mapping[str, tuple[str, ...]]
    settings: LevelSettings
    folder: Path

    @classmethod
    def of(
        cls, environment: WheelEnvironment, installed: InstalledWheel, settings: LevelSettings, *, folder: Path
    ) -> Self:
        python = environment.python
        assert python  # noqa: S101 - `make_environment` gives one
        host = LevelHost.of(python)
        copies: dict[str, list[str]] = {}
        for path in installed.files:
            if level := level_of(path):
                copies.setdefault(baseline_of(path), []).append(level)
        levels = {base: tuple(sorted(found)) for base, found in copies.items()}
        modules = tuple(dict.fromkeys((*installed.imports, *_modules(installed, host.suffixes))))
        return cls(environment, python, host, modules, levels, settings, folder)

    def run(self, level: str, method: LevelMethod) -> LevelRun:
        """Run the wheel as processors of *level* see it, emulated by *method*."""
        launch = Launch() if method is LevelMethod.NONE else self.host.launch(method, level)
        if isinstance(launch, str):
            return LevelRun(level, method, untried=launch)
        settings, command = self.settings, self.settings.check.command
        with launch.replacing(self.python), TemporaryDirectory(dir=self.folder, prefix="run-") as text:
            logs, place = Path(text, "loader-log"), Path(text, "work")
            # in a folder of its own, because the test may write there
            place.mkdir()
            variables = launch.environment(plain_environment()) | {"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": str(logs)}
            process = ProbeProcess(place, variables, settings.timeout, settings.log, f"[{level} by {method}]")
            results = [*import_each(self.modules, self.python, process)]
            failures = [
                f"import: {one.name}: {one.error}" for one in results if one.error and not self._lacks(one.missing)
            ]
            output = ""
            if command:
                ended = process.on_path(self.python.parent).run(["sh", "-c", command], command.strip())
                if ended.why:
                    failures.append(": ".join(["test", ended.why, *ended.output.splitlines()[-1:]]))
                    output = ended.output
            taken = loaded(logs, self.environment.packages)
        copies = tuple(path for path in taken if baseline_of(path) in self.copies)
        failures += self._wrong_copies(level if method is not LevelMethod.NONE else _BASELINE, copies)
        names = tuple(one.name for one in results if not one.error)
        return LevelRun(level, method, None, names, copies, command is not None, tuple(failures), output)

    def notes(self, runs: Iterable[LevelRun]) -> Iterator[str]:
        """Yield what no run could show: libraries that nothing loaded, and modules that lack what they import."""
        tried = [run for run in runs if run.is_tried]
        loaded_bases = {baseline_of(path) for run in tried for path in run.loaded}
        if tried and (unseen := sorted(self.copies.keys() - loaded_bases)):
            yield f"nothing loaded {', '.join(unseen)}: which copy is taken was not seen"
        never = [name for name in self.modules if not any(name in run.imported for run in tried)]
        failed = {failure.split(": ")[1] for run in tried for failure in run.failures if failure.startswith("import: ")}
        if tried and (lacking := [name for name in never if name not in failed]):
            yield f"not imported for want of another package: {', '.join(lacking)}"

    def _lacks(self, missing: str | None) -> bool:
        """Whether the module *missing* belongs to another project, which the wheel does not require."""
        if missing is None:
            return False
        top = missing.partition(".")[0]
        return not any(name.partition(".")[0] == top for name in self.modules)

    def _wrong_copies(self, level: str, taken: Sequence[str]) -> Iterator[str]:
        """Yield a failure for each library of which a processor of *level* should take another copy."""
        rank = X86_64_LEVELS.index(level)
        for path in taken:
            base = baseline_of(path)
            fitting = [name for name in self.copies[base] if X86_64_LEVELS.index(name) <= rank]
            expected = at_level(base, fitting[-1]) if fitting else base
            if path != expected:
                yield f"loaded: {path}, expected {expected}"


def _modules(installed: InstalledWheel, suffixes: Sequence[str]) -> Iterator[str]:
    """Yield the extension modules that a Python with *suffixes* imports; a stub has its module in what it needs."""
    exports: dict[str, set[str]] = {}
    for path, file in installed.files.items():
        exports.setdefault(PurePosixPath(path).name, set()).update(file.modules)
    for path, file in installed.files.items():
        *folders, name = path.split("/")
        suffix = next((suffix for suffix in suffixes if name.endswith(suffix)), None)
        parts = [*folders, name.removesuffix(suffix)] if suffix else []
        modules = set(file.modules).union(*(exports.get(need, ()) for need in file.outline.needed))
        if parts and parts[-1] in modules and all(_MODULE.fullmatch(part) for part in parts):
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
