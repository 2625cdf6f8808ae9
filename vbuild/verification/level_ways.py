"""How a process comes to see the processor of another CPU level, as far as glibc's loader asks for it.

    GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F    takes features of this processor away, for all processes below
    ld.so --glibc-hwcaps-mask LIST              searches no other folders than those of LIST
    qemu-x86_64 -cpu NAME                       is another processor

The loader itself says which folders it then searches (``ld.so --help``): what it does not say is not tried. None of the
three makes code of a higher level stop: that a library keeps to its level is for a disassembler to say.
https://sourceware.org/glibc/manual/latest/html_node/Hardware-Capability-Tunables.html and
https://man7.org/linux/man-pages/man8/ld.so.8.html
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Self

from msgspec import Struct, field

from vbuild.elf.library_names import LEVELS, OLDEST_GLIBC
from vbuild.errors import ClaimError
from vbuild.hardware.cpu import X86_64_LEVELS
from vbuild.verification.environments import variables

_QEMU = "qemu-x86_64"
# the feature of each level that is taken away, or the processor that has it
_MASKED = {"v4": "AVX512F", "v3": "AVX2", "v2": "SSE4_2"}
_PROCESSORS = {"v1": "qemu64", "v2": "Nehalem", "v3": "max,-avx512f", "v4": "max"}
_SEARCHED = re.compile(r"^\s+x86-64-(v[234]) \(supported, searched\)", re.MULTILINE)
# what would lead the loader elsewhere, or make it talk
_OF_THE_LOADER = frozenset(
    {"LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "LD_DEBUG", "LD_DEBUG_OUTPUT", "GLIBC_TUNABLES"}
)
_SECONDS = 60.0
_ASK = """
import importlib.machinery, json, os, sys
with open("/proc/self/maps") as lines:
    files = {line.rstrip().split(None, 5)[5] for line in lines if "/" in line}
name = os.path.basename
loader = [file for file in files if name(file).startswith(("ld-linux-", "ld-musl-", "ld-2."))]
libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
suffixes = importlib.machinery.EXTENSION_SUFFIXES
print(json.dumps({"loader": loader, "libc": libc, "machine": os.uname().machine, "suffixes": suffixes}))
"""


class Way(StrEnum):
    """How a level is brought about."""

    TUNABLES = "GLIBC_TUNABLES"
    MASK = "ld.so --glibc-hwcaps-mask"
    QEMU = "qemu-x86_64"
    NONE = "this machine as it is"


WAYS = (Way.TUNABLES, Way.MASK, Way.QEMU)


class LevelHost(Struct, frozen=True):
    """The C library and the machine that a Python runs on: its dynamic *loader*, and the *glibc* version, if any.

    *suffixes* are how the names of extension modules end that the Python takes, and *program* is its file.
    """

    program: Path
    machine: str
    loader: Path | None
    glibc: tuple[int, ...] | None
    suffixes: tuple[str, ...]

    @classmethod
    def of(cls, python: Path) -> Self:
        """The host of *python*; `ClaimError` where that does not run."""
        try:
            ran = subprocess.run(
                [python, "-I", "-c", _ASK], capture_output=True, text=True, check=True, timeout=_SECONDS, env=plain()
            )
            told = json.loads(ran.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise ClaimError(f"{python}: not a Python that runs: {error}") from error
        version = told["libc"].split()[-1] if told["libc"] else ""
        glibc = tuple(map(int, re.findall(r"\d+", version)[:2])) or None
        loader = Path(told["loader"][0]) if told["loader"] else None
        return cls(Path(os.path.realpath(python)), told["machine"], loader, glibc, tuple(told["suffixes"]))

    @property
    def why_no_levels(self) -> str | None:
        """Why its loader knows no levels, in a line; None where it does."""
        taken = "it takes the copies for every processor"
        if self.machine != "x86_64":
            return f"glibc has no levels for {self.machine}: {taken}"
        if self.glibc is None:
            return f"the C library of this Python is not glibc, and knows no glibc-hwcaps: {taken}"
        if self.glibc < OLDEST_GLIBC:
            here, oldest = (".".join(map(str, version)) for version in (self.glibc, OLDEST_GLIBC))
            return f"glibc {here} knows no glibc-hwcaps, as {oldest} does: {taken}"
        return None

    def start(self, way: Way, level: str) -> "Start | str":
        """How a process sees *level* by *way*; or why that cannot be, in a few words."""
        start = self._start(way, level)
        if isinstance(start, str):
            return start
        found = self.searched(start)
        highest = found[-1] if found else X86_64_LEVELS[0]
        if highest == level:
            return start
        where = "in qemu" if way is Way.QEMU else "on this machine"
        return f"{where} the loader searches for {highest}, not {level}"

    def searched(self, start: "Start") -> tuple[str, ...]:
        """The levels whose folders the loader says that it searches, lowest first."""
        command = [*start.before, str(self.loader), *start.options, "--help"]
        try:
            ran = subprocess.run(
                command, env=start.environment(plain()), capture_output=True, text=True, check=False, timeout=_SECONDS
            )
        except (OSError, subprocess.SubprocessError):
            return ()
        return tuple(sorted(_SEARCHED.findall(ran.stdout)))

    def _start(self, way: Way, level: str) -> "Start | str":
        above = LEVELS[X86_64_LEVELS.index(level) :]
        match way:
            case Way.TUNABLES:
                masked = ",".join(f"-{_MASKED[name]}" for name in above)
                return Start(variables={"GLIBC_TUNABLES": f"glibc.cpu.hwcaps={masked}"} if masked else {})
            case Way.MASK:
                below = [f"x86-64-{name}" for name in LEVELS if name not in above]
                # an empty list would mask nothing
                options = ("--glibc-hwcaps-mask", ":".join(below) or "none")
                return Start(options=options, loader=self.loader, program=self.program)
            case Way.QEMU:
                if (qemu := shutil.which(_QEMU)) is None:
                    return f"{_QEMU} is not installed"
                return Start(before=(qemu, "-cpu", _PROCESSORS[level]), program=self.program)
        return Start()


class Start(Struct, frozen=True):
    """How processes are started: with *variables*, and Python's program behind other words, where it has any.

    *before* are the words of an emulator, and *options* those of the *loader*, each where there is one.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    loader: Path | None = None
    program: Path | None = None

    def environment(self, before: Mapping[str, str]) -> dict[str, str]:
        return {**before, **self.variables}

    @contextmanager
    def instead_of(self, python: Path) -> Iterator[None]:
        """In the block, whoever starts *python* of a virtual environment, a script or a test, starts it so."""
        if self.program is None:
            yield
            return
        link = python.readlink()
        python.unlink()
        try:
            python.write_text(
                f'#!/bin/sh\nexec {shlex.join(self._words())} "$0" {shlex.quote(str(self.program))} "$@"\n'
            )
            python.chmod(0o755)
            yield
        finally:
            python.unlink(missing_ok=True)
            python.symlink_to(link)

    def _words(self) -> Sequence[str]:
        """The command up to the name that Python is to see as its own, by which it finds its environment."""
        if self.loader:
            return [str(self.loader), *self.options, "--argv0"]
        return [*self.before, "-0"]


def plain() -> dict[str, str]:
    """The environment variables of what is run: ours without those that lead Python or the loader elsewhere."""
    return {name: text for name, text in variables().items() if name not in _OF_THE_LOADER}
