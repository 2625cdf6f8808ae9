"""What both fuzzers do with an input: read it, and keep it where a law was broken that no input broke before.

A fuzzer's process is not the place to measure in: it is full of what former inputs left, and atheris counts branches.
So what is kept here is a suspect only, and `tests.fuzz.alone` says whether it is a finding.
"""

import hashlib
from pathlib import Path

from tests.fuzz.bounds import measured
from tests.fuzz.target import Target

# suspects for one law; the first may be none when it is measured alone
_MOST = 3


class Hunt:
    """Inputs of *target*, those that broke a law written to *folder*; the latest one lies there while it is read."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target, self.folder = target, folder
        self.count = 0
        self._broken: dict[str, int] = {}
        self._latest = folder / "latest"

    def read(self, data: bytes) -> None:
        """Read *data*; any exception is kept with it, and goes no further."""
        self._latest.write_bytes(data)
        self.count += 1
        broken = measured(self.target, data, settled=False).broken
        if broken and self._broken.setdefault(broken, 0) < _MOST:
            self._broken[broken] += 1
            (self.folder / f"suspect-{hashlib.sha256(data).hexdigest()}").write_bytes(data)
