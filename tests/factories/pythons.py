"""Other Pythons of this machine, beside the one that runs the tests."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

_ASK = "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_path('include'))"


@cache
def other_python() -> str:
    """A Python of another version whose headers are here, as a path; skips the test where there is none."""
    beside = Path(sys.base_prefix).parent.glob("*3.1[0-9]*/bin/python3")
    for path in sorted({*beside, *Path("/usr/bin").glob("python3.1[0-9]")}):
        told = subprocess.run([path, "-c", _ASK], capture_output=True, text=True, check=False).stdout.split()
        if told and tuple(map(int, told[:2])) != sys.version_info[:2] and (Path(told[2]) / "Python.h").is_file():
            return str(path)
    pytest.skip("no other Python with headers")
