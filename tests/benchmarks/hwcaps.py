"""What a stub costs at import, and what copies for levels cost in bytes.

    python -m tests.benchmarks.hwcaps [PAIRS]

Import: fresh processes in turn, one with the module where it was built, one with the stub in its place; each times
`import _c` alone, and the difference of the medians counts. Bytes: a joined wheel of three levels against the plain
wheel and what differs in the others, compressed.
"""

import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tests.factories.hwcaps_wheels import environment, hwcaps_release, join, module, so, unpacked

Files = dict[str, dict[str, bytes | str]]

LEVELS = ("v1", "v3", "v4")
PAIRS = 400
MOST = 0.0003  # seconds
RATIO = 1.02

_TIMED = """
import sys, time
sys.path.insert(0, sys.argv[1])
import demo
begun = time.perf_counter()
import demo._c
ended = time.perf_counter()
assert demo._c.level() == sys.argv[2], demo._c.level()
print(ended - begun)
"""


def main(arguments: Sequence[str]) -> int:
    """0 where both figures are reached."""
    pairs = int(arguments[0]) if arguments else PAIRS
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        return 0 if all([_importing(folder, pairs), _sized(folder)]) else 1


def _importing(folder: Path, pairs: int) -> bool:
    files: Files = {level: {"demo/__init__.py": "", f"demo/{so('_c')}": module(level)} for level in LEVELS}
    wheels = hwcaps_release(folder / "modules", files)
    sites = {
        "v1": unpacked(wheels[0], folder / "direct"),
        "v4": unpacked(join(folder / "joined", wheels), folder / "stub"),
    }
    found: dict[str, list[float]] = {level: [] for level in sites}
    for _ in range(pairs):
        for level, site in sites.items():
            command = [sys.executable, "-I", "-S", "-c", _TIMED, str(site), level]
            run = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
            found[level].append(float(run.stdout))
    direct, stub = (statistics.median(found[level]) for level in sites)
    is_reached = stub - direct <= MOST
    print(
        f"import through a stub: {stub * 1000:.3f} ms, directly {direct * 1000:.3f} ms, {pairs} pairs of processes: "
        f"{(stub - direct) * 1000:+.3f} ms; reach +{MOST * 1000:.1f} ms: {'reached' if is_reached else 'MISSED'}"
    )
    return is_reached


def _sized(folder: Path) -> bool:
    """Whether the join of wheels with a module of 1 MB, most of it code, is no larger than what it is made of."""
    code = "".join(
        f"void f{n}(float *a, const float *b) {{ for (int i = 0; i < 64; i++) a[i] = a[i] * {n} + b[i * {n} & 63]; }}"
        for n in range(2000)
    )
    files: Files = {level: {"demo/__init__.py": "", f"demo/{so('_c')}": module(level, more=code)} for level in LEVELS}
    wheels = hwcaps_release(folder / "sizes", files)
    expected = wheels[0].stat().st_size
    for path in wheels[1:]:
        with zipfile.ZipFile(path) as archive:
            expected += archive.getinfo(f"demo/{so('_c')}").compress_size
    size = join(folder / "joined sizes", wheels).stat().st_size
    ratio = size / expected
    is_reached = ratio <= RATIO
    print(
        f"joined wheel of three levels: {size} bytes, the parts {expected}: {ratio:.4f}; reach {RATIO}: "
        f"{'reached' if is_reached else 'MISSED'}"
    )
    return is_reached


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
