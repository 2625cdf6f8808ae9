"""Run a build's commands so that none of them outlives the build.

Each command leads a session of its own: Ctrl-C on the terminal reaches vbuild alone, which then stops the whole process
group, with the compilers that a backend started. Output goes to a log file, masked (`vbuild.process.masking`), never to
the terminal.

A process that is killed, by Dask, or by the system if memory ends, cannot stop its commands, and a compiler may run for
hours. A second, small process, the supervisor, does that:

    process -> "? 64513 9" before a command starts, "+ 4711" when it runs, "- 4711" when it has ended -> supervisor

The pipe between them closes when the process ends, for whatever reason, then the supervisor ends what is left. It finds
a command whose start was not reported by its output, a file of that device and inode. ``PR_SET_PDEATHSIG`` belongs to
the thread that starts a command, and would have to be set between fork and exec, where a process with threads may do
next to nothing.
"""

import atexit
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from vbuild.errors import BuildError
from vbuild.process.masking import Mask
from vbuild.process.python import isolated
from vbuild.process.signals import interruptible

_SUPERVISOR = """
import os, signal, sys, time
process = int(sys.argv[2])
left, starting = set(), None
for line in sys.stdin:
    sign, *numbers = line.split()
    starting = tuple(map(int, numbers)) if sign == "?" else None
    if sign != "?":
        (left.add if sign == "+" else left.discard)(int(numbers[0]))
for _ in range(100 if starting else 0):  # its files are closed before it is gone; at its own end, it waits for us
    if os.getppid() == process:
        time.sleep(0.01)
for entry in os.listdir("/proc") if starting else ():
    try:
        output, stat = os.stat(f"/proc/{entry}/fd/1"), open(f"/proc/{entry}/stat").read()
        parent, group = map(int, stat.rpartition(")")[2].split()[1:3])
        if (output.st_dev, output.st_ino) == starting and parent == os.getppid() and group == int(entry):
            left.add(group)
    except (OSError, ValueError):
        pass
for number in (signal.SIGTERM, signal.SIGKILL):
    for pid in left:
        try:
            os.killpg(pid, number)
        except OSError:
            pass
    if left and number == signal.SIGTERM:
        time.sleep(float(sys.argv[1]))
"""


class Supervisor:
    """The supervisor of this process, which gives commands *grace* seconds to end by themselves."""

    def __init__(self, grace: float) -> None:
        self._lock = threading.Lock()
        # with a session of its own, so that Ctrl-C does not end it
        self._process = subprocess.Popen(
            isolated("-S", "-c", _SUPERVISOR, str(grace), str(os.getpid())),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=os.sep,
            start_new_session=True,
        )
        atexit.register(self._end)

    def starting(self, output: int) -> None:
        """Report that a command is about to start whose output goes to the descriptor *output*."""
        file = os.fstat(output)
        self.report("?", file.st_dev, file.st_ino)

    def report(self, sign: str, *numbers: int) -> None:
        """Report a process: "+" one that is to be ended, "-" one that has ended, or 0."""
        if stdin := self._process.stdin:
            # a supervisor that was killed does not let a build fail
            with self._lock, suppress(OSError, ValueError):
                stdin.write(f"{sign} {' '.join(map(str, numbers))}\n".encode())
                stdin.flush()

    def _end(self) -> None:
        if stdin := self._process.stdin:
            with suppress(OSError):
                stdin.close()
        self._process.wait()


GRACE = 3.0  # seconds between SIGTERM and SIGKILL
UMASK = 0o022  # of all commands: modes of what they make become those of members of wheels
_PIECE = 1 << 16  # bytes of output
_LEFT_RUNNING = 1.0  # seconds to wait for the rest of a command's output if its child holds the pipe
LAST_LINES = 25  # of a failed command's output, shown with the error
_LONGEST_END = 1 << 22  # bytes at the end of the output with these lines

_FRAME = re.compile(rb'  File ".*", line \d+, in ')  # of a Python traceback; its source follows, indented further

_Process = subprocess.Popen[bytes]


class _Running:
    """The running commands with their threads, and which threads may start more.

    The thread *stopped_by* has stopped all others: a pool's workers may have tasks left.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.leaders: dict[_Process, int] = {}
        self.stopped_by: int | None = None
        self.stopped: set[int] = set()
        self.supervisor: Supervisor | None = None

    @property
    def is_open(self) -> bool:
        """Whether the calling thread may run commands."""
        me = threading.get_ident()
        return self.stopped_by in {None, me} and me not in self.stopped

    def add(self, process: _Process) -> None:
        self.leaders[process] = threading.get_ident()
        if self.supervisor:
            self.supervisor.report("+", process.pid)

    def discard(self, process: _Process) -> None:
        self.leaders.pop(process, None)
        if self.supervisor:
            self.supervisor.report("-", process.pid)  # another process may soon have its number


_running = _Running()


def run(
    command: Sequence[str],
    *,
    log: Path,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float | None = None,
    name: str | None = None,
    is_kept: bool = True,
) -> None:
    """Run *command* to its end, with its output appended to *log*; errors call it *name*; *timeout* is in seconds.

    `BuildError`, with the last lines of the output, and with the path of a log that *is_kept*, if the command cannot
    start, fails or takes too long. After an error, Ctrl-C or `stop_all` in another thread, no process of the command's
    group is left.
    """
    name = name or Path(command[0]).name
    with _opened(log) as output:
        head = Mask()
        output.write(head.shown(f"$ {shlex.join(command)}\n".encode()) + head.rest())
        output.flush()
        begin = output.tell()
        with (
            _masked(output) as (pipe, finish),
            _started(command, name, pipe, cwd=cwd, environment=environment) as process,
        ):
            try:
                status = process.wait(timeout)
            except subprocess.TimeoutExpired as error:
                _stop(frozenset({process}))
                finish()
                end = _end(log if is_kept else None, output, begin)
                raise BuildError(f"{name} took more than {timeout:g} s{end}") from error
            finish()
            if not _running.is_open:
                raise BuildError(f"{name} was stopped")
            if status:
                raise BuildError(f"{name} {ended(status)}{_end(log if is_kept else None, output, begin)}")


def ended(status: int) -> str:
    """How a process with the return code *status*, not 0, ended: by itself, or by a signal."""
    return f"failed with status {status}" if status > 0 else f"was ended by {signal.Signals(-status).name}"


def stop_all() -> None:
    """Stop the commands of all threads, and let other threads start none until the next `supervised` block."""
    with _running.lock:
        _running.stopped_by = _running.stopped_by or threading.get_ident()
        leaders = frozenset(_running.leaders)
    _stop(leaders)


def check_running() -> None:
    """`BuildError` if the calling thread may start no command any more; for code that waits for something else."""
    if not _running.is_open:
        raise BuildError("stopped")


def keep_watch() -> None:
    """From now on, no command outlives this process, even if it is killed."""
    with _running.lock:
        _running.supervisor = _running.supervisor or Supervisor(GRACE)


@contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """Gives a function that stops, from any thread, the commands of this one, and lets it start no more in the block.

    For processes with tasks of several users.
    """
    me = threading.get_ident()

    def stop() -> None:
        with _running.lock:
            _running.stopped.add(me)
            leaders = frozenset(leader for leader, thread in _running.leaders.items() if thread == me)
        _stop(leaders)

    try:
        yield stop
    finally:
        with _running.lock:
            _running.stopped.discard(me)


@contextmanager
def supervised() -> Iterator[None]:
    """An error or Ctrl-C in the block stops all running commands, also those of worker threads.

    SIGTERM and a closed terminal count as Ctrl-C. A pool of workers goes outside of this block, so that it has nothing
    to wait for.
    """
    with _running.lock:
        _running.stopped_by = None
    keep_watch()
    with interruptible():
        try:
            yield
        except BaseException:
            stop_all()
            raise


def _opened(log: Path) -> BinaryIO:
    while True:
        log.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another run has just removed the empty folder
            return log.open("a+b")


@contextmanager
def _masked(log: BinaryIO) -> Iterator[tuple[int, Callable[[], None]]]:
    """The descriptor of a pipe to *log*, masked, and a function to call at the end.

    What the command leaves running may go on to write.
    """
    reading, writing = os.pipe()
    failures: list[OSError] = []
    thread = threading.Thread(target=_append, args=(reading, os.dup(log.fileno()), Mask(), failures), daemon=True)
    thread.start()
    with os.fdopen(writing, "wb", buffering=0) as pipe:

        def finish() -> None:
            pipe.close()
            thread.join(_LEFT_RUNNING)
            if failures:
                raise failures[0]

        yield writing, finish


def _append(reading: int, log: int, mask: Mask, failures: list[OSError]) -> None:
    """Copy *reading* to *log*; if that cannot be written, read on, so that no command waits."""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        try:
            with os.fdopen(log, "ab", buffering=0) as file:
                while piece := pipe.read(_PIECE):
                    file.write(mask.shown(piece))
                file.write(mask.rest())
        except OSError as error:
            failures.append(error)
            while pipe.read(_PIECE):
                pass


def _with_innermost_frames(lines: Iterable[bytes]) -> Iterator[bytes]:
    frame: list[bytes] = []
    for line in lines:
        if _FRAME.match(line):
            frame = [line]
        elif frame and line.startswith((b"    ", b"  [Previous line repeated")):
            frame.append(line)
        else:
            yield from (*frame, line)
            frame = []
    yield from frame


@contextmanager
def _started(
    command: Sequence[str], name: str, output: int, *, cwd: Path | None, environment: Mapping[str, str] | None
) -> Iterator[_Process]:
    # with the lock, so that stop_all sees either no process or a registered one
    with _running.lock:
        if not _running.is_open:
            raise BuildError(f"{name} was not started: the build was stopped")
        if _running.supervisor:
            _running.supervisor.starting(output)
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=UMASK,
            )
        except OSError as error:
            if _running.supervisor:
                _running.supervisor.report("-", 0)  # it did not start
            raise BuildError(f"{command[0]} cannot be run: {error.strerror}") from error
        _running.add(process)
    try:
        yield process
    except BaseException:
        _stop(frozenset({process}))
        process.wait()
        raise
    finally:
        with _running.lock:
            _running.discard(process)


def _stop(leaders: frozenset[_Process]) -> None:
    left = {leader for leader in leaders if _signalled(leader, signal.SIGTERM)}
    deadline = time.monotonic() + GRACE
    while left and time.monotonic() < deadline:
        time.sleep(0.01)
        left = {leader for leader in left if _is_alive(leader)}
    for leader in left:
        _signalled(leader, signal.SIGKILL)


def _is_alive(leader: _Process) -> bool:
    leader.poll()  # else a zombie stays in its group
    return _signalled(leader, 0) and (leader.returncode is None or not _has_ended(leader.pid))


def _has_ended(group: int) -> bool:
    """Whether only zombies are left of *group*: a container's first process waits late for orphans, or never.

    False if the system does not say.
    """
    states = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            state, _parent, of_group = file.read_bytes().rpartition(b") ")[2].split(maxsplit=3)[:3]
            if int(of_group) == group:
                states.append(state)
    return bool(states) and not {*states} - {b"Z", b"X"}


def _signalled(leader: _Process, number: int) -> bool:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, number)
        return True
    return False


def _end(log: Path | None, output: BinaryIO, begin: int) -> str:
    """The last lines of the output from byte *begin* on, and the path of *log*, unless that is None."""
    # by descriptor: the file may have no name any more
    size = os.fstat(output.fileno()).st_size
    begin = max(begin, size - _LONGEST_END)
    lines = os.pread(output.fileno(), size - begin, begin).splitlines(keepends=True)
    last = deque(_with_innermost_frames(lines), LAST_LINES)
    shown = b"".join(last).decode(errors="replace").rstrip()
    if log is None:
        return f", and says:\n{shown}" if shown else ""
    return f"; its log is {log}" + (f", which ends:\n{shown}" if shown else ", which is empty")
