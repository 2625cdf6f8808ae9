"""What came of running a wheel as processors of several levels see it, as values and as lines for a terminal.

Run a wheel with copies for CPU levels as processors of each level see it: installed, imported, tested, looked at.

    wheel -> uv -> fresh environment -> each level, each way: modules imported, test run, LD_DEBUG read -> Leveled

Of each library the copy must have been taken that is the best for the level: a fast copy that nobody ever loads still
passes every test. A level that this machine cannot bring about is not tried, and that is said.
"""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import uv
from msgspec import Struct

from vbuild.elf.library_names import at_level, baseline_of, level_of
from vbuild.errors import ClaimError, SplitError, at
from vbuild.hardware.cpu import X86_64_LEVELS
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.model import Check
from vbuild.verification.environments import TestEnvironment, equipped, is_native, variables
from vbuild.verification.installation import InstalledWheel
from vbuild.verification.level_probe import Ended, imported, loaded
from vbuild.verification.level_ways import WAYS, LevelHost, Start, Way, plain
from vbuild.verification.target import LoadTarget, platforms_of
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.name import WheelName

_WIDTH = 80
_SHOWN = 5  # libraries of a run; those that are wrong are all told


class LevelRun(Struct, frozen=True):
    """A wheel run as processors of *level* see it, which came about by *way*; *untried* says why it was not.

    *imported* are modules, *loaded* the libraries with copies that the loader took, by their paths from site-packages.
    It *is_tested* where the test's command was run, too, and *output* are the last lines of one that failed.
    """

    level: str
    way: Way
    untried: str | None = None
    imported: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    is_tested: bool = False
    failures: tuple[str, ...] = ()
    output: str = ""

    def __str__(self) -> str:
        return str(self.way) if self.way is Way.NONE else f"{self.level} by {self.way}"

    @property
    def is_tried(self) -> bool:
        return self.untried is None

    def data(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "way": self.way.value,
            "tried": self.is_tried,
            "untried": self.untried,
            "imported": list(self.imported),
            "loaded": list(self.loaded),
            "tested": self.is_tested,
            "failures": list(self.failures),
            "output": self.output,
        }

    def lines(self) -> Iterator[str]:
        """The run for a terminal: a line, libraries that were taken, what failed, how a failed test ended."""
        if self.untried is not None:
            yield from _wrapped(f"  {self}: not tried: {self.untried}")
            return
        done = [_counted(len(self.imported), "module") + " imported"]
        done += ["test failed" if self._has_failed_test else "test passed"] if self.is_tested else []
        yield from _wrapped(f"  {self}: {', '.join(done)}")
        yield from (f"    {path}" for path in self.loaded[:_SHOWN])
        if len(self.loaded) > _SHOWN:
            yield f"    and {len(self.loaded) - _SHOWN} more"
        for failure in self.failures:
            yield from _wrapped(f"    failed: {failure}")
        yield from (f"    | {line}" for line in self.output.splitlines())

    @property
    def _has_failed_test(self) -> bool:
        return any(failure.startswith("test: ") for failure in self.failures)


class Leveled(Struct, frozen=True):
    """What came of a wheel's *levels*, the baseline's first: its *runs*, and *notes* on what could not be seen."""

    wheel: str
    levels: tuple[str, ...]
    runs: tuple[LevelRun, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing failed of what was tried."""
        return not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        """What failed, level and way in front."""
        return tuple(f"{run}: {failure}" for run in self.runs for failure in run.failures)

    @property
    def tried(self) -> tuple[str, ...]:
        """The levels that were tried by some way."""
        return tuple(level for level in self.levels if any(run.level == level and run.is_tried for run in self.runs))

    @property
    def untried(self) -> tuple[str, ...]:
        return tuple(level for level in self.levels if level not in self.tried)

    def data(self) -> dict[str, Any]:
        """The result as JSON takes it."""
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
        yield from _wrapped(f"  {self.summary}")
        for run in self.runs:
            yield from run.lines()
        for note in self.notes:
            yield from _wrapped(f"  note: {note}")

    @property
    def summary(self) -> str:
        """How it ended, in a few words: ``works as v1, v3; v4 not tried``."""
        if not self.tried:
            return "not tried"
        if all(run.way is Way.NONE for run in self.runs):
            return f"{'works' if self.ok else 'fails'} on this machine"
        failed = [level for level in self.tried if any(run.level == level and run.failures for run in self.runs)]
        works = [level for level in self.tried if level not in failed]
        said = [f"works as {', '.join(works)}"] if works else []
        said += [f"fails as {', '.join(failed)}"] if failed else []
        said += [f"{', '.join(self.untried)} not tried"] if self.untried else []
        return "; ".join(said)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _wrapped(text: str) -> Iterator[str]:
    begin = " " * (len(text) - len(text.lstrip()))
    yield from textwrap.wrap(
        text, _WIDTH, subsequent_indent=f"{begin}    ", break_on_hyphens=False, break_long_words=False
    )


OnProgress = Callable[[str], None]

_BASELINE = X86_64_LEVELS[0]
_SECONDS = 1800.0
_MODULE = re.compile(r"[^\W\d]\w*")


def run_levels(
    wheel: Path,
    *,
    check: Check | None = None,
    python: Path | None = None,
    links: Sequence[Path] | None = None,
    indexes: Callable[[], Indexes] = Indexes.configured,
    ways: Collection[Way] = WAYS,
    timeout: float | None = _SECONDS,
    log: Path | None = None,
    on_progress: OnProgress = lambda _: None,
) -> Leveled:
    """What comes of *wheel*, and of the test in *check*, as processors of the baseline and of each level in it see it.

    It is installed for *python*, or else for one of this machine that takes it; what it requires may be in *links*, or
    else beside it. Each level comes about in each of *ways*; no command may take more than *timeout* seconds, and what
    they print goes into *log*, too. `ClaimError` where it cannot be installed, or this machine lacks the Python.
    """
    name = WheelName.parse(wheel.name)
    levels = levels_of(wheel)
    if note := _why_not_here(name):
        return Leveled(wheel.name, levels, notes=(note,))
    with TemporaryDirectory(prefix="vbuild-levels-") as text, at(wheel.name):
        folder = Path(text).resolve()
        on_progress(f"{wheel.name}: installing it")
        beside = (wheel.parent,) if links is None else links
        environment = _environment(wheel, name, python, check, links=beside, indexes=indexes(), folder=folder)
        installation = InstalledWheel.of(environment.packages, name.project)
        bench = _LevelRunner.of(environment, installation, check or Check(), folder=folder, timeout=timeout, log=log)
        why_none = bench.host.why_no_levels
        if len(levels) == 1:
            why_none = "no library has copies for CPU levels: run as it is"
        if why_none:
            runs = [bench.run(_BASELINE, Way.NONE)]
        else:
            runs = [_told(bench, level, way, wheel, on_progress) for level in levels for way in ways]
        notes = [why_none] if why_none else []
        notes += bench.notes(runs)
    return Leveled(wheel.name, levels, tuple(runs), tuple(notes))


def levels_of(wheel: Path) -> tuple[str, ...]:
    """The levels that *wheel* has copies of libraries for, behind the baseline's."""
    with open_wheel(wheel) as source:
        found = {level for member in source.members if (level := level_of(member.path))}
    return (_BASELINE, *sorted(found))


def _told(bench: "_LevelRunner", level: str, way: Way, wheel: Path, on_progress: OnProgress) -> LevelRun:
    on_progress(f"{wheel.name}: {level} by {way}")
    return bench.run(level, way)


def _why_not_here(name: WheelName) -> str | None:
    """Why this machine cannot run the wheel called *name* whatever Python there is, in a line."""
    here = os.uname().machine
    machines = {platform.machine for platform in platforms_of(name)}
    if machines and here not in machines:
        return f"for {', '.join(sorted(machines))}, and this machine is {here}: nothing was run"
    if not platforms_of(name) and name.platform != "any":
        return f"for {name.platform}, expected a Linux wheel: nothing was run"
    wanted = {"musl" if platform.tag.startswith("musllinux") else "glibc" for platform in platforms_of(name)}
    if wanted and _libc() not in wanted:
        return f"for {' or '.join(sorted(wanted))}, and the C library of this machine is another: nothing was run"
    return None


def _libc() -> str:
    try:
        return "glibc" if os.confstr("CS_GNU_LIBC_VERSION") else "musl"
    except (ValueError, OSError):  # musl has no such name
        return "musl"


def _environment(
    wheel: Path,
    name: WheelName,
    python: Path | None,
    check: Check | None,
    *,
    links: Sequence[Path],
    indexes: Indexes,
    folder: Path,
) -> TestEnvironment:
    requires = check.requires if check else ()
    try:
        found = python or _python(name)
        return equipped(wheel, found, requires=requires, links=links, indexes=indexes, folder=folder)
    except SplitError as error:
        raise ClaimError(f"cannot be installed: {error}") from error


def _python(name: WheelName) -> Path:
    """A Python of this machine for the wheel called *name*; `ClaimError` where there is none."""
    if is_native(name):
        return Path(sys.executable)
    target = LoadTarget.of(name)
    version = f"{target.version}{'t' if target.abi.endswith('t') else ''}" if target else ""
    command = [uv.find_uv_bin(), "python", "find", "--no-project", "--no-config", "--no-python-downloads", version]
    ran = subprocess.run(command, env=variables(), capture_output=True, text=True, check=False)
    if ran.returncode:
        raise ClaimError(f"no Python {version} on this machine; expected one that takes {name.python}-{name.abi}")
    return Path(ran.stdout.strip())


class _LevelRunner(Struct, frozen=True):
    """An environment with the wheel in it, and all that is to be done in it; *copies* are by the baseline's paths."""

    environment: TestEnvironment
    host: LevelHost
    modules: tuple[str, ...]
    copies: Mapping[str, tuple[str, ...]]
    check: Check
    folder: Path
    timeout: float | None
    log: Path | None

    @classmethod
    def of(
        cls,
        environment: TestEnvironment,
        installation: InstalledWheel,
        check: Check,
        *,
        folder: Path,
        timeout: float | None,
        log: Path | None,
    ) -> "_LevelRunner":
        assert environment.python  # noqa: S101 - `equipped` says so
        host = LevelHost.of(environment.python)
        copies: dict[str, list[str]] = {}
        for path in installation.files:
            if level := level_of(path):
                copies.setdefault(baseline_of(path), []).append(level)
        found = {base: tuple(sorted(levels)) for base, levels in copies.items()}
        modules = tuple(dict.fromkeys((*installation.imports, *_modules(installation, host.suffixes))))
        return cls(environment, host, modules, found, check, folder, timeout, log)

    def run(self, level: str, way: Way) -> LevelRun:
        """What comes of processors of *level*, brought about by *way*."""
        start = Start() if way is Way.NONE else self.host.start(way, level)
        if isinstance(start, str):
            return LevelRun(level, way, untried=start)
        python = self.environment.python
        assert python  # noqa: S101 - as above
        with start.instead_of(python), TemporaryDirectory(dir=self.folder, prefix="run-") as text:
            folder = Path(text)
            said = folder / "said"
            # what a test does with its folder is its own matter
            (place := folder / "work").mkdir()
            environment = start.environment(plain()) | {"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": str(said)}
            title = f"[{level} by {way}]"
            told = imported(
                self.modules,
                python,
                folder=place,
                environment=environment,
                timeout=self.timeout,
                log=self.log,
                title=title,
            )
            answers = [*told]
            failures = [
                f"import: {one.name}: {one.error}" for one in answers if one.error and not self._lacks(one.missing)
            ]
            output = ""
            if self.check.command:
                ended = self._test(self.check.command, place, environment, title=title)
                if ended.why:
                    failures.append(": ".join(["test", ended.why, *ended.output.splitlines()[-1:]]))
                    output = ended.output
            taken = loaded(said, self.environment.packages)
        done = tuple(path for path in taken if baseline_of(path) in self.copies)
        failures += self._wrong(level if way is not Way.NONE else _BASELINE, done)
        names = tuple(one.name for one in answers if not one.error)
        return LevelRun(level, way, None, names, done, self.check.command is not None, tuple(failures), output)

    def notes(self, runs: Iterable[LevelRun]) -> Iterator[str]:
        """What no run could show: libraries that nothing loaded, and modules that lack what they import."""
        tried = [run for run in runs if run.is_tried]
        seen = {baseline_of(path) for run in tried for path in run.loaded}
        if tried and (unseen := sorted(self.copies.keys() - seen)):
            yield f"nothing loaded {', '.join(unseen)}: which copy is taken was not seen"
        never = [name for name in self.modules if not any(name in run.imported for run in tried)]
        failed = {failure.split(": ")[1] for run in tried for failure in run.failures if failure.startswith("import: ")}
        if tried and (lacking := [name for name in never if name not in failed]):
            yield f"not imported for want of another package: {', '.join(lacking)}"

    def _lacks(self, missing: str | None) -> bool:
        """Whether the module *missing* is another project's, which the wheel does not require."""
        if missing is None:
            return False
        top = missing.partition(".")[0]
        return not any(name.partition(".")[0] == top for name in self.modules)

    def _test(self, command: str, place: Path, environment: Mapping[str, str], *, title: str) -> Ended:
        python = self.environment.python
        assert python  # noqa: S101 - as above
        path = os.pathsep.join([str(python.parent), environment.get("PATH", os.defpath)])
        return Ended.of(
            ["sh", "-c", command],
            cwd=place,
            environment={**environment, "PATH": path},
            timeout=self.timeout,
            log=self.log,
            title=f"{title} {command.strip()}",
        )

    def _wrong(self, level: str, taken: Sequence[str]) -> Iterator[str]:
        """The libraries of which a processor of *level* should have taken another copy."""
        rank = X86_64_LEVELS.index(level)
        for path in taken:
            base = baseline_of(path)
            fitting = [name for name in self.copies[base] if X86_64_LEVELS.index(name) <= rank]
            expected = at_level(base, fitting[-1]) if fitting else base
            if path != expected:
                yield f"loaded: {path}, expected {expected}"


def _modules(installation: InstalledWheel, suffixes: Sequence[str]) -> Iterator[str]:
    """The extension modules in *installation* that a Python imports which takes *suffixes*, also behind stubs."""
    behind: dict[str, set[str]] = {}
    for path, file in installation.files.items():
        behind.setdefault(PurePosixPath(path).name, set()).update(file.modules)
    for path, file in installation.files.items():
        *folders, name = path.split("/")
        suffix = next((suffix for suffix in suffixes if name.endswith(suffix)), None)
        parts = [*folders, name.removesuffix(suffix)] if suffix else []
        exported = set(file.modules).union(*(behind.get(need, ()) for need in file.outline.needed))
        if parts and parts[-1] in exported and all(_MODULE.fullmatch(part) for part in parts):
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
