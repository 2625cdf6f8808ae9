"""End the commands of a process that is killed: nobody else knows of them, and a compiler may run for hours.

    process -> "+ 4711" when a command starts, "- 4711" when it has ended -> keeper, a small process beside it

A pipe is closed with its process, whatever ends that one; then the keeper ends the groups of what is still running.
For processes that others kill, as Dask kills its workers; ``PR_SET_PDEATHSIG``, which is for this, is of the thread
that starts a command, and would have to be set between fork and exec, where a process with threads may do next to
nothing.
"""

import os
import subprocess
import sys
import threading
from contextlib import suppress

_KEEPER = """
import os, signal, sys, time
left = set()
for line in sys.stdin:
    sign, pid = line.split()
    (left.add if sign == "+" else left.discard)(int(pid))
for number in (signal.SIGTERM, signal.SIGKILL):
    for pid in left:
        try:
            os.killpg(pid, number)
        except OSError:
            pass
    if left and number == signal.SIGTERM:
        time.sleep(float(sys.argv[1]))
"""


class Keeper:
    """The keeper of this process, which gives commands *grace* seconds to end by themselves."""

    def __init__(self, grace: float) -> None:
        self._lock = threading.Lock()
        # of a session of its own: what is meant for the process's group, such as Ctrl-C, does not end the keeper
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _KEEPER, str(grace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=os.sep,
            start_new_session=True,
        )

    def started(self, leader: int) -> None:
        """Keep watch over the group of the process *leader*."""
        self._say(f"+ {leader}\n")

    def ended(self, leader: int) -> None:
        """Forget the group of *leader*, whose number may soon be another's."""
        self._say(f"- {leader}\n")

    def _say(self, line: str) -> None:
        if stdin := self._process.stdin:
            with self._lock, suppress(OSError):  # the keeper was killed: no reason for a build to fail
                stdin.write(line.encode())
                stdin.flush()
