"""Make a process see the processor of another CPU level.

    GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F    hides features of this processor from all child processes
    qemu-x86_64 -cpu NAME                       emulates another processor

A level is tried only if ``ld.so --help`` then lists its folders. The first changes what glibc's loader sees, and stops
no code of a higher level; `vbuild.verification.emulator` does.
https://sourceware.org/glibc/manual/latest/html_node/Hardware-Capability-Tunables.html
"""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from vbuild.elf.linkage import LEVELS, OLDEST_GLIBC
from vbuild.errors import WheelError
from vbuild.files.wording import counted, wrapped
from vbuild.hardware.cpu import X86_64_LEVELS, Cpu
from vbuild.process.python import isolated
from vbuild.verification.emulator import NO_EMULATOR, Emulator, cpuinfo
from vbuild.verification.environments import variables
from vbuild.verification.model import Finding, Severity, Verdict, VerifyRule

# the feature that is hidden to go below each level
_MASKED = {"v4": "AVX512F", "v3": "AVX2", "v2": "SSE4_2"}
_SEARCHED = re.compile(rf"^\s+x86-64-({'|'.join(LEVELS)}) \(supported, searched\)", re.MULTILINE)
# variables that lead the loader to other libraries, or make it print
_LOADER_VARIABLES = frozenset(
    {"LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "LD_DEBUG", "LD_DEBUG_OUTPUT", "GLIBC_TUNABLES"}
)
# by which libraries assume another processor: SIGILL in the emulator
_OF_ANOTHER_CPU = frozenset(
    {"ARROW_USER_SIMD_LEVEL", "ATEN_CPU_CAPABILITY", "BLIS_ARCH_TYPE", "DNNL_MAX_CPU_ISA", "GLIBC_TUNABLES"}
    | {"MKL_CBWR", "MKL_DEBUG_CPU_TYPE", "MKL_ENABLE_INSTRUCTIONS", "NPY_DISABLE_CPU_FEATURES"}
    | {"NPY_ENABLE_CPU_FEATURES", "NUMBA_CPU_FEATURES", "NUMBA_CPU_NAME", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE"}
    | {"OPENSSL_armcap", "OPENSSL_ia32cap", "SIMDJSON_FORCE_IMPLEMENTATION"}
)
_CPUINFO = Path("/proc/cpuinfo")
_SECONDS = 60.0
_IMPORT = re.compile(r"import: (?P<module>[^:]+): (?P<why>.*)", re.DOTALL)
_SHOWN = 5  # libraries of a run; all wrong ones are shown
_PROBE = """
import importlib.machinery, json, os, sys
with open("/proc/self/maps") as lines:
    files = {line.rstrip().split(None, 5)[5] for line in lines if "/" in line}
name = os.path.basename
loader = [file for file in files if name(file).startswith(("ld-linux-", "ld-musl-", "ld-2."))]
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION")
except (ValueError, OSError):  # musl has no such value
    libc = None
suffixes = importlib.machinery.EXTENSION_SUFFIXES
print(json.dumps({"loader": loader, "libc": libc, "machine": os.uname().machine, "suffixes": suffixes}))
"""


class LevelMethod(StrEnum):
    TUNABLES = "GLIBC_TUNABLES"
    QEMU = "qemu-x86_64"
    NONE = "this machine as it is"


NEVER = "test.emulate = 'never' leaves the emulator out"
METHODS = (LevelMethod.TUNABLES, LevelMethod.QEMU)


class LevelRun(Struct, frozen=True, rename={"method": "way", "is_tested": "tested"}):
    """A run of a wheel as processors of *level* see it; *untried* says why there was none.

    *loaded* are the loader's copies of libraries. *illegal* are instructions above the level that ended a process.
    *instead* says why the level is not the wheel's own.
    """

    level: str
    method: LevelMethod
    untried: str | None = None
    imported: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    is_tested: bool = False
    failures: tuple[str, ...] = ()
    output: str = ""
    illegal: tuple[str, ...] = ()
    instead: str = ""
    processor: str = ""

    def __str__(self) -> str:
        if self.processor:
            return f"{self.method} -cpu {self.processor}"
        return str(self.method) if self.method is LevelMethod.NONE else f"{self.level} by {self.method}"

    @property
    def cpu(self) -> Cpu:
        return Cpu.known("x86_64", self.level)

    @property
    def is_tried(self) -> bool:
        return self.untried is None

    def data(self) -> dict[str, Any]:
        data = {"level": self.level, "way": self.method.value, "tried": self.is_tried, **to_builtins(self)}
        if not self.processor:
            del data["processor"]
        return data

    @property
    def grouped(self) -> tuple[str, ...]:
        reasons: dict[str, list[str]] = {}
        for failure in self.failures:
            match = _IMPORT.fullmatch(failure)
            reasons.setdefault(match["why"] if match else failure, []).extend([match["module"]] if match else [])
        shown = {
            why: [*names[:_SHOWN], *([f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else [])]
            for why, names in reasons.items()
        }
        return tuple(f"import: {', '.join(names)}: {why}" if names else why for why, names in shown.items())

    @property
    def works(self) -> bool:
        return self.is_tried and not self.failures

    @property
    def done(self) -> str:
        """``3 modules imported, test passed``"""
        done = [counted(len(self.imported), "module") + " imported"]
        has_failed = any(failure.startswith("test: ") for failure in self.failures)
        done += ["test failed" if has_failed else "test passed"] if self.is_tested else []
        return ", ".join(done)

    def lines(self) -> Iterator[str]:
        if self.untried is not None:
            yield from wrapped(f"  {self}: not tried: {self.untried}", indent=6)
            return
        yield from wrapped(f"  {self}: {self.done}", indent=6)
        yield from (f"    {path}" for path in self.loaded[:_SHOWN])
        if len(self.loaded) > _SHOWN:
            yield f"    and {len(self.loaded) - _SHOWN} more"
        for failure in self.grouped:
            yield from wrapped(f"    failed: {failure}", indent=8)
        yield from (f"    | {line}" for line in self.output.splitlines())


def with_evidence(verdict: Verdict, run: LevelRun | None, *, why_not: str = "") -> Verdict:
    """*verdict* with what *run*, in an emulator, shows of functions in doubt: evidence, no proof."""
    doubtful = [violation for library in verdict.libraries for violation in library.violations if violation.doubt]
    about = f"{{}} above {verdict.cpu} that may run without a check of the CPU"
    notes = [run.instead] if run and run.instead else []
    lacking = why_not if run is None else run.untried or run.instead
    if doubtful and lacking:
        notes = [f"{about.format(counted(len(doubtful), 'function'))}: no emulator shows that none does: {lacking}"]
    elif doubtful and run and run.works:
        message = f"none ran in an emulator of {run.cpu} ({run.done}); this is evidence, and no proof"
        notes.append(f"{about.format(counted(len(doubtful), 'function'))}: {message}")
    findings = [Finding(Severity.NOTE, VerifyRule.ISA_EMULATED, (), message) for message in notes]
    if run and run.is_tried and run.failures:
        message = f"as {run.cpu} in the emulator, by no instruction above the level: {'; '.join(run.grouped)}"
        findings.append(Finding(Severity.WARNING, VerifyRule.ISA_EMULATED, (), message, NEVER))
    return replace(verdict, findings=(*verdict.findings, *findings)) if findings else verdict


class LevelReport(Struct, frozen=True):
    """The results for a wheel's *levels*, the baseline first, with *notes* on what no run could show."""

    wheel: str
    levels: tuple[str, ...]
    runs: tuple[LevelRun, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        return tuple(f"{run}: {failure}" for run in self.runs for failure in run.failures)

    @property
    def crash(self) -> str:
        """The processor on which an instruction of the wheel first ended a run, and where; empty if none did."""
        run = next((run for run in self.runs if run.illegal), None)
        if run is None:
            return ""
        return f"crashes on {run if run.processor else f'{run.method} as {run.cpu}'}: {run.illegal[0]}"

    @property
    def tried(self) -> tuple[str, ...]:
        return tuple(level for level in self.levels if any(run.level == level and run.is_tried for run in self.runs))

    @property
    def untried(self) -> tuple[str, ...]:
        return tuple(level for level in self.levels if level not in self.tried)

    def data(self) -> dict[str, Any]:
        return {
            "wheel": self.wheel,
            "levels": list(self.levels),
            "tried": list(self.tried),
            "ok": self.ok,
            "runs": [run.data() for run in self.runs],
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[str]:
        yield self.wheel
        yield from wrapped(f"  {self.summary}", indent=6)
        for run in self.runs:
            yield from run.lines()
        for note in self.notes:
            yield from wrapped(f"  note: {note}", indent=6)

    def evidence_for(self, verdict: Verdict) -> Verdict:
        emulated = next((run for run in self.runs if run.method is LevelMethod.QEMU), None)
        has_failed = self.crash or (emulated and emulated.failures)
        return with_evidence(verdict, emulated) if emulated and not has_failed else verdict

    @property
    def summary(self) -> str:
        """``works as v1, v3; v4 not tried``"""
        if not self.tried:
            return "not tried"
        runs = [run for run in self.runs if not run.processor]
        if runs[0].method is LevelMethod.NONE:
            parts = [f"{_became(runs[0])} on this machine", *(f"{_became(run)} as {run.level}" for run in runs[1:])]
        else:
            failed = [level for level in self.tried if any(run.level == level and run.failures for run in runs)]
            works = [level for level in self.tried if level not in failed]
            parts = [f"works as {', '.join(works)}"] if works else []
            parts += [f"fails as {', '.join(failed)}"] if failed else []
            parts += [f"{', '.join(self.untried)} not tried"] if self.untried else []
        parts += [f"{_became(run)} on {run}" for run in self.runs if run.processor and run.failures]
        return "; ".join(parts)


def _became(run: LevelRun) -> str:
    return "not tried" if not run.is_tried else "fails" if run.failures else "works"


class LevelHost(Struct, frozen=True):
    """The machine of a Python, *program*, and its C library: the dynamic *loader*, and the *glibc* version."""

    program: Path
    machine: str
    loader: Path | None
    glibc: tuple[int, ...] | None
    suffixes: tuple[str, ...]

    @classmethod
    def of(cls, python: Path) -> Self:
        """The host of *python*; `WheelError` if that does not run."""
        program = Path(os.path.realpath(python))
        try:
            ran = _run(isolated("-c", _PROBE, python=python), plain_environment())
            answer = json.loads(ran.stdout)
        except ValueError as error:
            *_, why = ("exit status " + str(ran.returncode), *ran.stderr.splitlines())
            raise WheelError(f"{program}: not a Python that runs: {why}") from error
        except (OSError, subprocess.SubprocessError) as error:
            raise WheelError(f"{program}: not a Python that runs: {error}") from error
        version = answer["libc"].split()[-1] if answer["libc"] else ""
        glibc = tuple(map(int, re.findall(r"\d+", version)[:2])) or None
        loader = Path(answer["loader"][0]) if answer["loader"] else None
        return cls(program, answer["machine"], loader, glibc, tuple(answer["suffixes"]))

    @property
    def why_no_levels(self) -> str | None:
        taken = "it takes the copies for every processor"
        if self.machine != "x86_64":
            return f"glibc has no levels for {self.machine}: {taken}"
        if self.glibc is None:
            return f"the C library of this Python is not glibc, and knows no glibc-hwcaps: {taken}"
        if self.glibc < OLDEST_GLIBC:
            here, oldest = (".".join(map(str, version)) for version in (self.glibc, OLDEST_GLIBC))
            return f"glibc {here} knows no glibc-hwcaps, as {oldest} does: {taken}"
        return None

    def launch(self, method: LevelMethod, cpu: Cpu, *, is_for_loader: bool = True) -> "Launch | str":
        """How to launch a process that sees *cpu* by *method*, or why that is impossible.

        If it *is_for_loader*, the loader has to search the folders of the level.
        """
        level = cpu.level
        if method is LevelMethod.QEMU:
            launch = self._emulated(cpu)
        else:
            masked = ",".join(f"-{_MASKED[name]}" for name in LEVELS[cpu.rank :])
            launch = Launch(variables={"GLIBC_TUNABLES": f"glibc.cpu.hwcaps={masked}"} if masked else {})
        if isinstance(launch, str) or not is_for_loader:
            return launch
        searched_levels = self.searched(launch)
        highest = searched_levels[-1] if searched_levels else X86_64_LEVELS[0]
        if highest == level:
            return launch
        where = "in qemu" if method is LevelMethod.QEMU else "on this machine"
        return f"{where} the loader searches for {highest}, not {level}"

    def searched(self, launch: "Launch") -> tuple[str, ...]:
        command = [*launch.before, str(self.loader), "--help"]
        try:
            ran = _run(command, launch.environment(plain_environment()))
        except (OSError, subprocess.SubprocessError):
            return ()
        return tuple(sorted(_SEARCHED.findall(ran.stdout)))

    def _emulated(self, cpu: Cpu) -> "Launch | str":
        emulator = Emulator.of(cpu)
        if isinstance(emulator, str):
            return emulator
        features = cpu.features | {feature.name for feature in cpu.extra_features}
        return self._launched(emulator.command(cpu), features)

    def launch_on(self, processor: str) -> "Launch | str":
        if (emulator := Emulator.on_path()) is None:
            return NO_EMULATOR
        features = emulator.features(processor)
        if features is None:
            return f"{emulator} knows no processor {processor}"
        return self._launched(emulator.on(processor), features)

    def _launched(self, before: tuple[str, ...], features: Collection[str]) -> "Launch":
        # some programs ask this file, not the processor
        text = cpuinfo(features, _CPUINFO.read_text(encoding="utf-8")) if _CPUINFO.is_file() else ""
        return Launch(before=before, program=self.program, cpuinfo=text)

    def why_python_fails(self, launch: "Launch") -> str | None:
        try:
            ran = _run([*launch.before, *isolated("-c", "", python=self.program)], plain_environment())
        except (OSError, subprocess.SubprocessError) as error:
            return f"{self.program}: {error}"
        return f"{self.program} itself does not run there" if ran.returncode else None


class Launch(Struct, frozen=True):
    """How processes are launched: with *variables*, or Python's *program* in an emulator by the command *before*.

    *cpuinfo* is what /proc/cpuinfo says there.
    """

    variables: Mapping[str, str] = {}
    before: tuple[str, ...] = ()
    program: Path | None = None
    cpuinfo: str = ""

    def within(self, folder: Path) -> "Launch":
        if not self.cpuinfo:
            return self
        root = folder / "machine"
        (root / "proc").mkdir(parents=True)
        (root / "proc" / "cpuinfo").write_text(self.cpuinfo, encoding="utf-8")
        qemu, *options = self.before
        return replace(self, before=(qemu, "-L", str(root), *options))

    def environment(self, before: Mapping[str, str]) -> dict[str, str]:
        gone = _OF_ANOTHER_CPU if self.before else ()
        return {name: text for name, text in before.items() if name not in gone} | dict(self.variables)

    def traced(self, logs: Path) -> "Launch":
        qemu, *options = self.before
        return replace(self, before=(qemu, "-strace", "-D", f"{logs}.%d", *options))

    @contextmanager
    def replacing(self, python: Path) -> Iterator[None]:
        """In the block, every start of *python* in its environment goes through this command."""
        if self.program is None:
            yield
            return
        # by the name that follows, Python finds its environment
        link = python.readlink()
        python.unlink()
        try:
            start = f'exec {shlex.join([*self.before, "-0"])} "$0" {shlex.quote(str(self.program))} "$@"'
            # the emulator writes a core file for each crash
            python.write_text(f"#!/bin/sh\nulimit -c 0\n{start}\n")
            python.chmod(0o755)
            yield
        finally:
            python.unlink(missing_ok=True)
            python.symlink_to(link)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=_SECONDS)


def plain_environment() -> dict[str, str]:
    return {name: text for name, text in variables().items() if name not in _LOADER_VARIABLES}
