"""What a stub costs: libraries that Python opens by their paths, in wheels as they were and after a split.

    python -m tests.benchmarks.stubs

A process opens all libraries with ctypes; the two kinds of wheels take turns. The median time of the split ones, less
that of the others, by the number of stubs, should be 0.05 ms at most.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.factories.extensions import library
from tests.factories.repaired_wheels import NAME
from tests.factories.site_packages import site_packages
from tests.factories.wheels import wheel
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.split import split

REACH, LIBRARIES, ROUNDS = 0.05, 20, 41
OPENS = """
import ctypes, os, time
folder = os.path.dirname(__file__)
start = time.perf_counter()
for number in range({0}):
    ctypes.CDLL(f"{{folder}}/lib{{number}}.so")
print((time.perf_counter() - start) * 1000)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        files: dict[str, bytes | str] = {"demo/__init__.py": OPENS.format(LIBRARIES)}
        for number in range(LIBRARIES):
            source = f"int number{number}(void) {{ return {number}; }}"
            files[f"demo/lib{number}.so"] = library(f"lib{number}.so", source=source)
        fat = [wheel(place, name, files) for name in (NAME, NAME.replace("311", "312"))]
        request = SplitRequest(smallest=0)
        result = split(fat, place / "thin", request=request, indexes=lambda: Indexes(no_index=True))
        stubs = sum(move.stub for move in result.libraries)
        if stubs != LIBRARIES or result.wheels[0].path is None:
            sys.exit(f"{stubs} stubs, expected {LIBRARIES}")
        before = site_packages(place / "before", fat[0])
        after = site_packages(place / "after", result.wheels[0].path, *result.companion_paths)
        pairs = [(_opened(before), _opened(after)) for _ in range(ROUNDS)]
    cost = statistics.median(second - first for first, second in pairs) / LIBRARIES
    print(f"{LIBRARIES} libraries: {cost:.4f} ms for each stub, expected {REACH} at most")
    sys.exit(cost > REACH)


def _opened(site: Path) -> float:
    """The milliseconds in which a new process opens all libraries of *site*."""
    command = [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(site)!r}); import demo"]
    return float(subprocess.check_output(command, text=True))


if __name__ == "__main__":
    main()
