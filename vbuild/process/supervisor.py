"""End the commands of a process that is killed: nobody else knows of them, and a compiler may run for hours.

    process -> "? 64513 9" before a command starts, "+ 4711" when it runs, "- 4711" when it has ended
            -> keeper, a small process beside it

A pipe is closed with its process, whatever ends that one; then the keeper ends the groups of what is still running. A
command whose start the process could not tell of any more is found by its output, a file of that device and inode.
For processes that others kill, as Dask kills its workers, or the system where memory ends; ``PR_SET_PDEATHSIG``,
which is for this, is of the thread that starts a command, and would have to be set between fork and exec, where a
process with threads may do next to nothing.
"""

import atexit
import os
import subprocess
import sys
import threading
from contextlib import suppress

_KEEPER = """
import os, signal, sys, time
process = int(sys.argv[2])
left, starting = set(), None
for line in sys.stdin:
    sign, *said = line.split()
    starting = tuple(map(int, said)) if sign == "?" else None
    if sign != "?":
        (left.add if sign == "+" else left.discard)(int(said[0]))
while starting and os.getppid() == process:
    time.sleep(0.01)  # its files are closed before it is gone
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
    """The keeper of this process, which gives commands *grace* seconds to end by themselves."""

    def __init__(self, grace: float) -> None:
        self._lock = threading.Lock()
        # of a session of its own: what is meant for the process's group, such as Ctrl-C, does not end the keeper
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _KEEPER, str(grace), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=os.sep,
            start_new_session=True,
        )
        atexit.register(self._end)

    def starting(self, output: int) -> None:
        """A command is about to start whose output goes to the file with the descriptor *output*."""
        file = os.fstat(output)
        self._say(f"? {file.st_dev} {file.st_ino}\n")

    def failed(self) -> None:
        """It did not start."""
        self._say("- 0\n")

    def started(self, leader: int) -> None:
        """Keep watch over the group of the process *leader*."""
        self._say(f"+ {leader}\n")

    def ended(self, leader: int) -> None:
        """Forget the group of *leader*, whose number may soon be another's."""
        self._say(f"- {leader}\n")

    def _say(self, line: str) -> None:
        if stdin := self._process.stdin:
            # the keeper was killed, or this process is about to end: no reason for a build to fail
            with self._lock, suppress(OSError, ValueError):
                stdin.write(line.encode())
                stdin.flush()

    def _end(self) -> None:
        """Let the keeper go with this process, which ends by itself."""
        if stdin := self._process.stdin:
            with suppress(OSError):
                stdin.close()
        self._process.wait()
