"""Run a wheel with copies for CPU levels as processors of each level see it.

    wheel -> uv -> fresh environment -> for each level and method: import modules, run the test, read LD_DEBUG
          -> LevelReport

The loader must take the best copy of each library: a copy that is never loaded passes every test. A wheel without
copies is run as it is, and in an emulator, where an instruction above the level ends the process. LD_DEBUG=libs logs
which files the loader tries: it loads the last one for a name, if that exists.
https://man7.org/linux/man-pages/man8/ld.so.8.html
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from msgspec import Struct
from msgspec.structs import replace as replace_in

from vbuild.elf.linkage import at_level, baseline_of, level_of
from vbuild.errors import RepackageError, WheelError, at
from vbuild.files.reading import read_text
from vbuild.hardware.cpu import AARCH64_VERSIONS, X86_64_LEVELS, Cpu
from vbuild.hardware.machine import cpu_here
from vbuild.index_client.configuration import Indexes
from vbuild.process.python import isolated
from vbuild.recipe.model import Check
from vbuild.verification.emulator import StoppedAt, is_above, stopped_at
from vbuild.verification.environments import (
    WheelEnvironment,
    WheelSources,
    make_environment,
    python_for,
    why_not_here,
)
from vbuild.verification.installed_wheel import InstalledWheel
from vbuild.verification.level_emulation import (
    METHODS,
    Launch,
    LevelHost,
    LevelMethod,
    LevelReport,
    LevelRun,
    plain_environment,
)
from vbuild.verification.python_tests import is_asked_for, is_python_code, python_code
from vbuild.verification.verify import claimed_cpu
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.name import WheelName

_TRACED = 3  # failures of a run for which the instruction is looked for
OnProgress = Callable[[str], None]
_MACHINE = "x86_64"
_BASELINES = {"x86_64": X86_64_LEVELS[0], "aarch64": AARCH64_VERSIONS[0]}
_LINE = re.compile(r"\s*\d+:\t\s*(?:(?P<find>find library=)|trying file=(?P<tried>.*)|calling init: (?P<init>.*))")
LATE = "took more than"
_LAST_LINES = 25
_PROBE = """
import importlib, json, os, sys, traceback
with open(sys.argv[1], "a", encoding="utf-8") as file:
    def write(**row):
        file.write(json.dumps(row) + chr(10))
        file.flush()
    for name in sys.argv[2:]:
        write(started=name)
        try:
            importlib.import_module(name)
        except BaseException as error:
            traceback.print_exc()
            lines = str(error).strip().splitlines() or [""]
            text = " ".join(lines) if sum(map(len, lines)) < 200 else lines[-1]
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
            place = next((file for file in reversed(files) if not file.startswith("<")), "")
            text = f"{type(error).__name__}: {text}".removesuffix(": ")
            write(name=name, error=text, missing=missing, place=place)
        else:
            write(name=name)
os._exit(0)
"""


class LevelSettings(Struct, frozen=True, kw_only=True):
    """How to run a wheel at each level.

    *cpu* is the level of a wheel that claims none. Requirements may be in *links*, by default the wheel's folder; what
    has no wheel is built if it *builds*. The wheel is also run on qemu's *processors*.
    """

    check: Check = Check()
    cpu: Cpu | None = None
    python: Path | None = None
    links: tuple[Path, ...] | None = None
    builds: bool = False
    methods: tuple[LevelMethod, ...] = METHODS
    processors: tuple[str, ...] = ()
    timeout: float | None = 1800.0
    log: Path | None = None
    variables: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result of importing *name*: the *error*, and the *missing* module if that caused it.

    *place* is the innermost file of Python code that the error came through.
    """

    name: str
    error: str | None = None
    missing: str | None = None
    place: str = ""


@dataclass(frozen=True, slots=True)
class CommandResult:
    why: str | None
    output: str


@dataclass(frozen=True, slots=True)
class ProbeProcess:
    folder: Path
    environment: Mapping[str, str]
    timeout: float | None
    log: Path | None
    title: str

    def on_path(self, folder: Path) -> Self:
        return self.seeing({"PATH": os.pathsep.join([str(folder), self.environment.get("PATH", os.defpath)])})

    def seeing(self, variables: Mapping[str, str]) -> Self:
        return replace(self, environment={**self.environment, **variables})

    def run(self, command: Sequence[str], description: str) -> CommandResult:
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            why = None
            try:
                output, _ = process.communicate(timeout=self.timeout)
            except BaseException as error:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                output, _ = process.communicate()
                why = f"{LATE} {self.timeout:g} s"
        status = process.returncode
        if status and not why:
            why = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"failed with status {status}"
        text = output.decode(errors="replace").rstrip()
        if self.log:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("a", encoding="utf-8") as file:
                title = f"{self.title} {description}"
                file.write(f"{title}\n{text}\n" if text else f"{title}\n")
        return CommandResult(why, "\n".join(text.splitlines()[-_LAST_LINES:]))


def run_levels(
    wheel: Path,
    settings: LevelSettings | None = None,
    *,
    indexes: Callable[[], Indexes] = Indexes.configured,
    on_progress: OnProgress = lambda _: None,
) -> LevelReport:
    """Run *wheel* as processors of its own level see it, and of each level that it has copies for.

    `WheelError` if the wheel cannot be installed, or this machine lacks the Python.
    """
    settings = settings or LevelSettings()
    name = WheelName.parse(wheel.name)
    settings = replace_in(settings, cpu=claimed_cpu(wheel) or settings.cpu)
    levels = levels_of(wheel, settings.cpu)
    if note := why_not_here(name):
        return LevelReport(wheel.name, levels, notes=(note,))
    with TemporaryDirectory(prefix="vbuild-levels-") as text, at(wheel.name):
        folder = Path(text).resolve()
        on_progress(f"{wheel.name}: installing it")
        links = (wheel.parent,) if settings.links is None else settings.links
        sources = WheelSources(links, indexes(), builds=settings.builds)
        try:
            python = settings.python or python_for(name)
            environment = make_environment(
                wheel,
                python,
                requires=settings.check.requires,
                sources=sources,
                folder=folder,
                is_enough_alone=not (settings.builds or settings.check.command),
            )
        except RepackageError as error:
            raise WheelError(f"cannot be installed: {error}") from error
        installed = InstalledWheel.of(environment.packages, name.project)
        runner = _LevelRunner.of(environment, installed, settings, folder=folder)
        why_none = runner.host.why_no_levels
        if len(levels) == 1:
            why_none = "no library has copies for CPU levels: run as it is"
        runs = []
        for level, method in product(() if why_none else levels, settings.methods):
            on_progress(f"{wheel.name}: {level} by {method}")
            runs.append(runner.run(level, method))
        if not runs:
            runs = [runner.run(levels[0], LevelMethod.NONE)]
            if LevelMethod.QEMU in settings.methods and installed.files:
                on_progress(f"{wheel.name}: {levels[0]} by {LevelMethod.QEMU}")
                runs.append(runner.run(levels[0], LevelMethod.QEMU))
        for processor in settings.processors:
            on_progress(f"{wheel.name}: {LevelMethod.QEMU} -cpu {processor}")
            runs.append(runner.run(levels[0], LevelMethod.QEMU, processor=processor))
        alone = [f"run without what it requires: {environment.reason}"] if environment.reason else []
        notes = [*([why_none] if why_none else []), *alone, *runner.notes(runs)]
    return LevelReport(wheel.name, levels, tuple(runs), tuple(notes))


def emulated(wheel: Path, environment: WheelEnvironment, settings: LevelSettings, *, folder: Path) -> LevelRun:
    installed = InstalledWheel.of(environment.packages, WheelName.parse(wheel.name).project)
    runner = _LevelRunner.of(environment, installed, settings, folder=folder)
    return runner.run(settings.cpu.level if settings.cpu else _BASELINES[runner.host.machine], LevelMethod.QEMU)


def levels_of(wheel: Path, cpu: Cpu | None = None) -> tuple[str, ...]:
    with open_wheel(wheel) as source:
        copies = {level for member in source.members if (level := level_of(member.path))}
    machine = next(iter(WheelName.parse(wheel.name).machines), _MACHINE)
    own = cpu.level if cpu and cpu.machine == machine else _BASELINES[machine]
    return (own, *sorted(level for level in copies if level > own))


class _LevelRunner(Struct, frozen=True):
    """Runs an installed wheel at a level; *copies* are the levels by the baseline's path."""

    environment: WheelEnvironment
    host: LevelHost
    modules: tuple[str, ...]
    copies: Mapping[str, tuple[str, ...]]
    settings: LevelSettings
    folder: Path
    imports: tuple[str, ...] = ()
    files: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, environment: WheelEnvironment, installed: InstalledWheel, settings: LevelSettings, *, folder: Path
    ) -> Self:
        host = LevelHost.of(environment.python)
        copies: dict[str, list[str]] = {}
        for path in installed.files:
            if level := level_of(path):
                copies.setdefault(baseline_of(path), []).append(level)
        levels = {base: tuple(sorted(several)) for base, several in copies.items()}
        modules = tuple(dict.fromkeys((*installed.imports, *installed.modules(host.suffixes))))
        return cls(environment, host, modules, levels, settings, folder, installed.imports, frozenset(installed.files))

    def run(self, level: str, method: LevelMethod, *, processor: str = "") -> LevelRun:
        run = LevelRun(level, method, processor=processor)
        launch = self._launch(level, method, processor=processor)
        if isinstance(launch, str):
            return replace_in(run, untried=launch)
        results, test, copies = self._tried(launch, f"[{run}]")
        if launch.before and all(result.error for result in results) and (why := self.host.why_python_fails(launch)):
            return replace_in(run, untried=why)
        failed = self._failed(results, launch)
        failures = [f"import: {result.name}: {result.error}" for result in failed]
        if test and test.why:
            failures.append(": ".join(["test", test.why, *test.output.splitlines()[-1:]]))
        stops = self._stops(launch, failed, failures)
        if launch.before and (why := self._cause_elsewhere(failed, stops.values())):
            return replace_in(run, untried=why)
        for number, stop in stops.items():
            failures[number] += f"; SIGILL at {stop.described(self.environment.packages)}"
        failures += self._wrong_copies(level, copies)
        imported = tuple(result.name for result in results if not result.error)
        if not (imported or failures or test):
            lacking = (f"{result.name} cannot be imported: {result.error}" for result in results)
            return replace_in(run, untried=next(lacking, "no module to import"))
        # a processor by its name refuses what it does not have, and a trap needs no features
        cpu = self._cpu(level)
        above = (stop for stop in stops.values() if any(processor or is_above(name, cpu) for name in stop.features))
        return replace_in(
            run,
            imported=imported,
            loaded=copies,
            is_tested=test is not None,
            failures=tuple(failures),
            output=test.output if test and test.why else "",
            illegal=tuple(dict.fromkeys(stop.described(self.environment.packages) for stop in above)),
        )

    def _launch(self, level: str, method: LevelMethod, *, processor: str) -> Launch | str:
        if processor:
            return self.host.launch_on(processor)
        if method is LevelMethod.NONE:
            here = cpu_here()
            if here and here.machine == self.host.machine == _MACHINE and not here.runs(Cpu.known(_MACHINE, level)):
                return f"this machine is {here.march}, below x86-64-{level}"
            return Launch()
        # without copies it is all one which folders the loader searches
        is_for_loader = method is not LevelMethod.QEMU or bool(self.copies)
        return self.host.launch(method, self._cpu(level), is_for_loader=is_for_loader)

    def _tried(self, launch: Launch, title: str) -> tuple[list[ImportResult], CommandResult | None, tuple[str, ...]]:
        with self._process(launch, title) as bare:
            logs = bare.folder / "loader-log"
            process = bare.seeing({"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": str(logs)} if self.copies else {})
            results = []
            for result in import_each(self.modules, self.environment.python, process):
                results.append(result)
                if result.error and LATE in result.error:  # the others would take as long
                    break
            test = self._tested(process)
            libraries = loaded(logs, self.environment.packages)
        return results, test, tuple(path for path in libraries if baseline_of(path) in self.copies)

    def _cpu(self, level: str) -> Cpu:
        own = self.settings.cpu
        return Cpu.known(self.host.machine, level).with_extras(own.extras if own else ())

    def _failed(self, results: Iterable[ImportResult], launch: Launch) -> list[ImportResult]:
        failed = [result for result in results if result.error and not self._lacks(result.missing)]
        if not (launch.before and failed):
            return failed
        with self._process(Launch(), "[as it is]") as process:
            # modules that fail on this machine's processor say nothing of the level
            names = [result.name for result in failed]
            here_too = {result.name for result in import_each(names, self.environment.python, process) if result.error}
        return [result for result in failed if result.name not in here_too and not self._is_asked_for(result.name)]

    def _stops(
        self, launch: Launch, failed: Sequence[ImportResult], failures: Sequence[str]
    ) -> Mapping[int, StoppedAt]:
        if not launch.before:
            return {}
        # a test may end otherwise if a process of its own is ended so
        likely = [number for number, text in enumerate(failures) if "SIGILL" in text or number >= len(failed)]
        stops = {
            number: self._stop(launch, failed[number].name if number < len(failed) else None)
            for number in likely[:_TRACED]
            if LATE not in failures[number]
        }
        return {number: stop for number, stop in stops.items() if stop}

    @contextmanager
    def _process(self, launch: Launch, title: str) -> Iterator[ProbeProcess]:
        """A process by *launch*, in a folder of its own, because a test may write there."""
        with (
            TemporaryDirectory(dir=self.folder, prefix="run-") as text,
            (launched := launch.within(Path(text))).replacing(self.environment.python),
        ):
            settings = self.settings
            before = plain_environment() if settings.variables is None else dict(settings.variables)
            yield ProbeProcess(Path(text), launched.environment(before), settings.timeout, settings.log, title)

    def _tested(self, process: ProbeProcess) -> CommandResult | None:
        if (command := self.settings.check.command) is None:
            return None
        work_folder = process.folder / "work"
        work_folder.mkdir()
        moved = replace(process.on_path(self.environment.python.parent), folder=work_folder)
        return moved.run(["sh", "-c", command], command.strip())

    def _stop(self, launch: Launch, module: str | None) -> StoppedAt | None:
        with TemporaryDirectory(dir=self.folder, prefix="trace-") as text:
            logs = Path(text, "log")
            with self._process(launch.traced(logs), "[again, to see where]") as process:
                _ = (
                    self._tested(process)
                    if module is None
                    else [*import_each([module], self.environment.python, process)]
                )
            return next(filter(None, map(stopped_at, sorted(logs.parent.glob(f"{logs.name}.*")))), None)

    def _is_asked_for(self, module: str) -> bool:
        if module in self.imports:
            return False
        folders = (self.environment.packages.joinpath(*name.split(".")) for name in self.imports)
        files = (
            path for folder in folders for path in folder.rglob("*.py*") if is_python_code(path.relative_to(folder))
        )
        sources = (python_code(path, read_text(path, errors="replace")) for path in files)
        return is_asked_for(module.rpartition(".")[2], sources)

    def _cause_elsewhere(self, failed: Iterable[ImportResult], stops: Iterable[StoppedAt]) -> str | None:
        packages = self.environment.packages
        own = {name.partition(".")[0] for name in self.modules}
        for result in failed:
            file = Path(result.place)
            if file.is_relative_to(packages):
                top = file.relative_to(packages).parts[0].removesuffix(".py")
                if top not in own:
                    return f"{top}, which it requires, cannot be imported: {result.error}"
        for stop in stops:
            if stop.file and not any(stop.file == packages / path for path in self.files):
                return f"SIGILL at {stop.described(packages)}, which is not of the wheel"
        return None

    def notes(self, runs: Iterable[LevelRun]) -> Iterator[str]:
        tried = [run for run in runs if run.is_tried]
        loaded_bases = {baseline_of(path) for run in tried for path in run.loaded}
        if tried and (unseen := sorted(self.copies.keys() - loaded_bases)):
            yield f"nothing loaded {', '.join(unseen)}: which copy is taken was not seen"
        never = [name for name in self.modules if not any(name in run.imported for run in tried)]
        failed = {failure.split(": ")[1] for run in tried for failure in run.failures if failure.startswith("import: ")}
        emulated = [run for run in tried if run.method is LevelMethod.QEMU]
        others = {name for run in tried if run.method is not LevelMethod.QEMU for name in run.imported}
        if emulated and (left := sorted(others.difference(failed, *(run.imported for run in emulated)))):
            yield f"not imported in the emulator, as Python code asks about the CPU before: {', '.join(left)}"
        if tried and (lacking := [name for name in never if name not in failed]):
            yield f"not imported for want of another package: {', '.join(lacking)}"

    def _lacks(self, missing: str | None) -> bool:
        """Whether the module *missing* belongs to another project, which the wheel does not require."""
        if missing is None:
            return False
        top = missing.partition(".")[0]
        return not any(name.partition(".")[0] == top for name in self.modules)

    def _wrong_copies(self, level: str, taken: Sequence[str]) -> Iterator[str]:
        for path in taken:
            rank = X86_64_LEVELS.index(level)
            base = baseline_of(path)
            fitting = [name for name in self.copies[base] if X86_64_LEVELS.index(name) <= rank]
            expected = at_level(base, fitting[-1]) if fitting else base
            if path != expected:
                yield f"loaded: {path}, expected {expected}"


def import_each(modules: Sequence[str], python: Path, process: ProbeProcess) -> Iterator[ImportResult]:
    """Import each of *modules* in *python*, the rest after a crash in a new process."""
    left = list(modules)
    while left:
        file = process.folder / "answer"
        file.write_text("")
        ended = process.run(isolated("-c", _PROBE, str(file), *left, python=python), f"import {', '.join(left)}")
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        done = [ImportResult(**row) for row in rows if "name" in row]
        yield from done
        if len(done) < len(left):
            yield ImportResult(left[len(done)], f"the process {ended.why or 'ended'}")
        left = left[len(done) + 1 :]


def loaded(logs: Path, packages: Path) -> tuple[str, ...]:
    """The sorted libraries below *packages* that the loader took by name; LD_DEBUG's files begin with *logs*."""
    paths: set[str] = set()
    for log in logs.parent.glob(f"{logs.name}*"):
        paths.update(_paths(log.read_text(encoding="utf-8", errors="replace")))
    prefix = f"{packages}{os.sep}"
    below = (os.path.normpath(path) for path in paths)
    return tuple(
        sorted(path.removeprefix(prefix) for path in below if path.startswith(prefix) and Path(path).is_file())
    )


def _paths(text: str) -> Iterator[str]:
    last: str | None = None
    for line in text.splitlines():
        if not (match := _LINE.match(line)):
            continue
        if match["tried"]:
            last = match["tried"]
            continue
        if last:
            yield last
        last = None
        if match["init"]:
            yield match["init"]
    if last:
        yield last
