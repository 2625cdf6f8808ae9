"""How long it takes to see that a folder of 10,000 files has not changed.

python -m tests.benchmarks.digesting
"""

import sys
import tempfile
import time
from pathlib import Path

from vbuild.build.source import digest
from vbuild.recipe.source import Folder

REACH = 0.5  # seconds
FILES = 10_000
ROUNDS = 7


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number in range(FILES):
            package = Path(folder) / f"package{number % 100}"
            package.mkdir(exist_ok=True)
            (package / f"module{number}.py").write_text(f"answer = {number}\n" * 20)
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            digest(Folder(Path(folder)))
            times.append(time.perf_counter() - start)
    print(f"{FILES} files: {min(times):.2f} s to {max(times):.2f} s, reach {REACH} s")
    sys.exit(min(times) > REACH)


if __name__ == "__main__":
    main()
