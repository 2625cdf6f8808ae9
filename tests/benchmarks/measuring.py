"""Samples of what processes do: how long one takes, what it prints, how large the wheels are that it writes.

A command is run in the folder of its setting, which is new and empty. Python may keep what it compiled, as it does
where it is installed, whatever the environment says.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.benchmarks.figure import Broken, Made, Measure, Sample, Setting, Wheel
from tests.benchmarks.inputs import last_line, shown

# from the setting to the command to run; what it does itself is not timed
Command = Callable[[Setting], Sequence[str | Path]]
Word = str | Path | Wheel | Made

MB = 10**6
BIN = Path(sys.executable).parent
# starts a command, and writes what it took to the file of the first argument. The peak of a process counts from its
# fork, with what its parent has in memory, so that the parent has to be small
LAUNCHER = """
import os, sys, time
begun = time.perf_counter()
process = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(process, 0)
seconds = time.perf_counter() - begun
os.write(int(sys.argv[1]), f"{seconds} {usage.ru_utime + usage.ru_stime} {usage.ru_maxrss}".encode())
sys.exit(abs(os.waitstatus_to_exitcode(status)))
"""
INSIDE = Path(__file__).with_name("inside.py")


def timed(command: Command, *, env: Mapping[str, str] | None = None) -> Measure:
    """The seconds of one process from start to end, its children included."""

    def measured(setting: Setting) -> Sample:
        return ran(command(setting), setting.folder, env=env)[0]

    return measured


def printed(command: Command, *, env: Mapping[str, str] | None = None) -> Measure:
    """The number in the last line that a process prints."""

    def measured(setting: Setting) -> Sample:
        sample, output = ran(command(setting), setting.folder, env=env)
        return Sample(float(last_line(output)), sample.memory, sample.cpu)

    return measured


def packed(command: Command) -> Measure:
    """The MB of all wheels that a process writes below its folder."""

    def measured(setting: Setting) -> Sample:
        ran(command(setting), setting.folder)
        return Sample(sum(wheel.stat().st_size for wheel in setting.folder.rglob("*.whl")) / MB)

    return measured


def unpacked(command: Command) -> Measure:
    """The MB of the files in all wheels that a process writes below its folder."""

    def measured(setting: Setting) -> Sample:
        ran(command(setting), setting.folder)
        return Sample(sum(map(unpacked_size, setting.folder.rglob("*.whl"))))

    return measured


def published(*wheels: Wheel) -> Measure:
    """The MB of *wheels* as they are."""
    return lambda setting: Sample(sum(setting.inputs[wheel].stat().st_size for wheel in wheels) / MB)


def installed(*wheels: Wheel) -> Measure:
    """The MB of the files in *wheels*."""
    return lambda setting: Sample(sum(unpacked_size(setting.inputs[wheel]) for wheel in wheels))


def ran(command: Sequence[str | Path], folder: Path, *, env: Mapping[str, str] | None = None) -> tuple[Sample, str]:
    """The seconds and the output of a process in *folder*. Raises Broken if it fails."""
    arguments = [str(argument) for argument in command]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as usage:
        launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER, str(usage.fileno()), *arguments]
        done = subprocess.run(
            launcher,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", **(env or {})},
            pass_fds=[usage.fileno()],
            check=False,
        )
        for file in (output, usage):
            file.seek(0)
        text, numbers = output.read().decode(errors="replace"), usage.read().split()
    if done.returncode:
        raise Broken(f"{shown(arguments)}: exit {done.returncode}: {last_line(text)}")
    seconds, cpu, peak = map(float, numbers)
    # kilobytes on Linux, bytes on macOS
    return Sample(seconds, peak * (1 if sys.platform == "darwin" else 1024) / MB, cpu), text


def command(*arguments: Word) -> Command:
    """A command of these words, in which an input stands for its path."""
    return lambda setting: [_placed(one, setting) for one in arguments]


def vbuild(*arguments: Word) -> Command:
    """``vbuild ARGUMENTS``, of the vbuild to measure."""
    return lambda setting: [setting.vbuild.vbuild, *(_placed(one, setting) for one in arguments)]


def inside(function: str, *arguments: Word) -> Command:
    """A process of the Python that has the vbuild to measure, which calls a *function* of inside.py."""
    # -P: what else is in that folder is not to be found by imports
    return lambda setting: [
        *(setting.vbuild.python, "-P", INSIDE, function),
        *(_placed(one, setting) for one in arguments),
    ]


def shell(script: str, *arguments: Word) -> Command:
    """A command for sh in which *arguments* are ``$1`` and so on."""
    return command("sh", "-euc", script, "sh", *arguments)


def _placed(word: Word, setting: Setting) -> str | Path:
    return setting.inputs[word] if isinstance(word, Wheel | Made) else word


def unpacked_size(wheel: Path) -> float:
    """The MB of all files in *wheel*."""
    with zipfile.ZipFile(wheel) as archive:
        return sum(info.file_size for info in archive.infolist()) / MB
