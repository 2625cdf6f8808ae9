"""How long `vbuild --help` takes, against a Python that does nothing.

python -m tests.benchmarks.starting
"""

import shutil
import sys
from pathlib import Path

from tests.benchmarks.ratio import paired, verdict

REACH = 7
ROUNDS = 21


def main() -> None:
    vbuild = shutil.which("vbuild", path=Path(sys.executable).parent)
    if vbuild is None:
        sys.exit("vbuild is not installed beside this Python")
    result = paired(
        "vbuild --help", lambda _into: [vbuild, "--help"], lambda _into: [sys.executable, "-c", "pass"], rounds=ROUNDS
    )
    sys.exit(not verdict(result, reach=REACH))


if __name__ == "__main__":
    main()
