"""Disassembling real libraries: one core, all cores, and `objdump -d` of the same file; and proving their dispatch.

    python -m tests.benchmarks.isa [CACHE]

fetches two wheels (17 and 54 MB) into CACHE, or into a folder that is removed at the end, and prints for the largest
library of each: MB of code a second and core, with all cores, peak memory, and the ratio of the times. For these and
three that ask the processor much (1 to 8 MB) it prints the same of the proof: what of the code above the baseline
runs untested, the disassembly included. A wheel for aarch64 (9 MB) has a reach of its own.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from tests.benchmarks.ratio import Command, paired
from vbuild.elf.code import Elf
from vbuild.elf.dispatch import Dispatch
from vbuild.elf.dispatch import scan as scan_of
from vbuild.elf.isa import Isa
from vbuild.elf.regions import processes
from vbuild.hardware.cpu import available_cores

WHEELS = (("numpy==2.4.*", "numpy-2.4.*.whl"), ("polars-runtime-32==2.1.*", "polars_runtime_32-2.1.*.whl"))
ASKING = (
    ("cramjam==2.14.*", "cramjam-2.14.*.whl"),
    ("zstandard==0.25.*", "zstandard-0.25.*.whl"),
    ("cryptography==50.0.*", "cryptography-50.0.*.whl"),
)
ARM = ("scipy-openblas64==0.3.34.*", "scipy_openblas64-0.3.34.*_aarch64.whl")
ARM_PLATFORM = ("--platform", "manylinux_2_28_aarch64", "--platform", "manylinux_2_27_aarch64")
REACH, ARM_REACH, ROUNDS = 20, 50, 3
MB = 1e6
SCAN = "import sys; from tests.benchmarks.isa import scan; scan(sys.argv[1])"


def main(arguments: Sequence[str]) -> int:
    with contextlib.ExitStack() as stack:
        cache = Path(arguments[0] if arguments else stack.enter_context(tempfile.TemporaryDirectory()))
        cache.mkdir(parents=True, exist_ok=True)
        libraries = [library(cache, *wheel) for wheel in WHEELS]
        # first, because a child's peak memory is never less than this process's was when it started
        for path in libraries:
            print(paired(f"{path.name}: scan vs objdump -d", scanning(path), dumping(path), rounds=1))
        reached = [measured(path) for path in libraries]
        asking = [library(cache, *wheel) for wheel in ASKING]
        reached += [proved(path) for path in (*libraries, *asking)]
        reached.append(measured(library(cache, *ARM, options=ARM_PLATFORM), reach=ARM_REACH))
    return 0 if all(reached) else 1


def measured(path: Path, *, reach: int = REACH) -> bool:
    elf = Elf.parse(path.read_bytes())
    size = elf.code_size / MB
    # what a core does, however many others want it: processor time, not the clock's
    one = min(processor_seconds(elf) for _ in range(ROUNDS))
    with processes() as executor:
        scan_of(elf, executor)  # the processes are there for every library of a wheel
        several = min(clock_seconds(elf, executor) for _ in range(ROUNDS))
    clock = min(clock_seconds(elf, None) for _ in range(ROUNDS))
    print(f"{path.name}: {size:.1f} MB of code, {size / one:.1f} MB/s on one core (reach {reach})")
    print(
        f"  {available_cores()} cores: {size / several:.1f} MB/s by the clock, {clock / several:.2f} times one core's"
    )
    return size / one >= reach


def proved(path: Path) -> bool:
    elf = Elf.parse(path.read_bytes())
    size = elf.code_size / MB
    runs = []
    for _ in range(ROUNDS):
        start = time.process_time()
        isa = Isa.scan(elf)
        scanned = time.process_time()
        Dispatch({path.name: (elf, isa)}).judged(path.name, 0)
        runs.append((scanned - start, time.process_time() - start))
    speed = statistics.median(size / both for _, both in runs)
    ratio = statistics.median(both / alone for alone, both in runs)
    print(
        f"{path.name}: proof of {size:.1f} MB of code, {speed:.1f} MB/s on one core (reach {REACH}), "
        f"{ratio:.1f} times its disassembly alone"
    )
    return speed >= REACH


def processor_seconds(elf: Elf) -> float:
    start = time.process_time()
    scan_of(elf)
    return time.process_time() - start


def clock_seconds(elf: Elf, executor: Executor | None) -> float:
    start = time.perf_counter()
    scan_of(elf, executor)
    return time.perf_counter() - start


def scan(path: str) -> None:
    """Scan the file at *path* with all cores, from reading it to the result."""
    with processes() as executor:
        Isa.scan(Elf.parse(Path(path).read_bytes()), executor)


def scanning(path: Path) -> Command:
    return lambda _: ["env", f"PYTHONPATH={Path(__file__).parents[2]}", sys.executable, "-c", SCAN, path]


def dumping(path: Path) -> Command:
    return lambda _: ["sh", "-c", f"objdump -d '{path}' > {os.devnull}"]


def library(cache: Path, requirement: str, pattern: str, *, options: Sequence[str] = ()) -> Path:
    """The largest library of the wheel of *requirement* in *cache*, downloaded if it is not there."""
    if not list(cache.glob(pattern)):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", *options]
        subprocess.run([*pip, "--dest", str(cache), requirement], check=True)
    with zipfile.ZipFile(min(cache.glob(pattern))) as archive:
        members = [member for member in archive.infolist() if ".so" in member.filename]
        return Path(archive.extract(max(members, key=lambda member: member.file_size), cache)).resolve()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
