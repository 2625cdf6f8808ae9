"""Run a plugin apart from vbuild, within limits, and get the bytes of its answer or the reason why there is none.

    vbuild -> plugin_warden.py -> python -I plugin_probe.py: the plugin
              ends all     own session, no input, no descriptors of ours, an empty folder as its own and as HOME

This limits what goes wrong by accident, and keeps a plugin from changing a result unnoticed. It is not a sandbox: a
plugin runs with the rights of the user, and has the network. One that kills the warden can leave processes behind,
which vbuild reports.
"""

import base64
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from vbuild.errors import VariantError
from vbuild.variants.plugin_answer import MOST_BYTES

TIMEOUT = 10.0  # seconds

_HERE = Path(__file__).parent
_GRACE = 10.0  # seconds that the warden has to end what is left, and to say so
_MEMORY, _FILE, _DESCRIPTORS = 1 << 32, 1 << 24, 256
_MOST = {"answer": MOST_BYTES, "stdout": 200, "stderr": 4000, "processes": 64}
_SHOWN = 200
# where programs and drivers are, which devices count, and what providers let users say in a machine's stead
_PASSED = re.compile(
    r"""LD_LIBRARY_PATH | ROCM_PATH | (CUDA|NVIDIA|HIP|ROCR|GPU|ASCEND_RT)_VISIBLE_DEVICES | ZE_AFFINITY_MASK
    | ONEAPI_DEVICE_SELECTOR | [A-Z0-9]+_VARIANT_PROVIDER_[A-Z0-9_]+""",
    re.VERBOSE,
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def answer_of(endpoint: str, *, python: Path, folder: Path, timeout: float = TIMEOUT) -> bytes:
    """What the plugin at *endpoint* in the environment of *python* answers, in *folder*, an empty one, in *timeout* s.

    `VariantError` if it answers nothing, or does anything else: takes too long, prints, or leaves processes behind.
    """
    variables = _variables(os.environ, folder)
    order = {
        "command": [str(python), "-I", "-B", str(_HERE / "plugin_probe.py")],
        "arguments": [endpoint],
        "folder": str(folder),
        "environment": variables,
        "limits": _limits(timeout),
        "most": _MOST,
        "timeout": timeout,
    }
    ended = _guarded([sys.executable, "-I", str(_HERE / "plugin_warden.py"), json.dumps(order)], variables, timeout)
    if ended.why:
        raise VariantError(ended.why)
    return ended.answer


class _Ended(Struct, frozen=True):
    """How a plugin ended: *why* that is not an answer, or None if it is one."""

    why: str | None
    answer: bytes = b""


def _guarded(command: Sequence[str], variables: Mapping[str, str], timeout: float) -> _Ended:
    """How the plugin ended that *command*, the warden, watches over for *timeout* s and some more, then ended too."""
    with subprocess.Popen(
        command,
        cwd=os.sep,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as warden:
        try:
            text, _ = warden.communicate(timeout=timeout + _GRACE)
        except subprocess.TimeoutExpired:
            _woken(warden)
            return _Ended("stopped the process that watches over it")
        except BaseException:
            _woken(warden)
            raise
    if warden.returncode:
        what = f"the process that watches over it {_ending(warden.returncode)}"
        return _Ended(f"{what}; what it has started may go on")
    found = json.loads(text)
    return _Ended(_fault(found, timeout), base64.b64decode(found["answer"]))


def _woken(warden: subprocess.Popen[bytes]) -> None:
    """End *warden*, which the plugin may have stopped, once it has ended all that the plugin started."""
    warden.terminate()
    warden.send_signal(signal.SIGCONT)
    try:
        warden.communicate(timeout=_GRACE)
    except subprocess.TimeoutExpired:
        warden.kill()


def _fault(found: Mapping[str, Any], timeout: float) -> str | None:
    """What is wrong with how the plugin ended, in a few words, or None if nothing is."""
    status, printed = found["status"], found["stdout"]
    faults = {
        f"answers more than {MOST_BYTES} bytes": found["overflowing"],
        f"started more than {_MOST['processes']} processes, which were ended": found["crowded"],
        f"took more than {timeout:g} s, and was ended": status is None,
        _ending(status or 0, _last_line(found["stderr"])): status,
        "left processes running behind it, which were ended; expected none": found["left"],
        f"printed {printed[:_SHOWN]!r}; expected nothing on stdout": printed,
        "ended without an answer": not found["answer"],
    }
    return next((what for what, is_so in faults.items() if is_so), None)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_SHOWN] if lines else ""


def _ending(status: int, output: str = "") -> str:
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"failed with status {status}"
    return f"{how}: {output}" if output else how


def _limits(timeout: float) -> dict[str, int]:
    """The limits of each of its processes: bytes of memory and of a file, open files, seconds of CPU."""
    return {
        "RLIMIT_AS": _MEMORY,
        "RLIMIT_FSIZE": _FILE,
        "RLIMIT_NOFILE": _DESCRIPTORS,
        "RLIMIT_CPU": math.ceil(timeout) + 1,
        "RLIMIT_CORE": 0,
    }


def _variables(ours: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The variables of the plugin's process: the few of *ours* that say something of the machine, and *folder*."""
    passed = {name: text for name, text in ours.items() if _PASSED.fullmatch(name)}
    return {**passed, "PATH": _PATH, "LANG": "C.UTF-8", "HOME": str(folder), "TMPDIR": str(folder)}
