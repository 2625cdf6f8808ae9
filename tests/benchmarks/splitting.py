"""Splitting real wheelhouses: time against inflating them once, bytes before and after, passing, provenance, memory.

    python -m tests.benchmarks.splitting [CACHE]

fetches the wheels (2.5 GB) into CACHE, or into a folder that is removed at the end, and prints a line for each figure.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.ratio import Command, paired, verdict
from tests.benchmarks.stamping import BIN, fetched
from vbuild.elf.catalogue import by_stem
from vbuild.elf.read import Loading
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.official import Officials, Provenance

MB = 1_000_000
MUMAX = "mumaxplus==1.2.2"
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
PLATFORM = "manylinux_2_34_x86_64"
# what all five wheels come to when they are split
SMALL = 30 * MB
# with nothing to split: one with many members, one with few
PASSING = (("torch==2.15.0", "torch-*.whl"), ("nvidia-cublas-cu12==12.9.1.4", "nvidia_cublas_cu12-*.whl"))
PROVENANCE, TRANSFER = 1.0, 2 * MB
# releases that Python's start and its modules outweigh: of many small files that are edited, and of few
SMALL_RELEASES = {
    "h5py==3.16.0": "manylinux_2_28_x86_64",
    "shapely==2.2.0": "manylinux_2_28_x86_64",
    "psycopg2-binary==2.9.13": "manylinux_2_17_x86_64",
}
START = 0.3

# every member inflated once and dropped, with the inflater that is fastest here
INFLATING = """
import sys
from pathlib import Path
from vbuild.wheel.zip_read import ZipReader
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        source = ZipReader(file)
        for member in source.members:
            for chunk in source.inflated(member):
                pass
"""


def main(arguments: Sequence[str]) -> int:
    """0 where every figure is reached."""
    with contextlib.ExitStack() as stack:
        cache = Path(arguments[0]) if arguments else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        return 0 if all([*measured(cache)]) else 1


def measured(cache: Path) -> Iterator[bool]:
    """Whether each figure is reached."""
    wheels = release(cache)
    peak = 300 * MB + max(_largest(wheel) for wheel in wheels)
    title = f"split {MUMAX}, {len(wheels)} wheels, {sum(wheel.stat().st_size for wheel in wheels) / MB:.1f} MB"
    yield verdict(paired(f"{title} vs inflating them once", splitting(wheels), inflating(wheels)), reach=1.5, peak=peak)
    yield sized(title, wheels)
    for requirement, pattern in PASSING:
        whole = fetched(cache, requirement, pattern)
        name = f"pass {whole.name} ({whole.stat().st_size / MB:.1f} MB) --no-verify vs cp"
        yield verdict(paired(name, splitting([whole], "--no-verify"), copying(whole)), reach=3.0, peak=peak)
    for requirement, platform in SMALL_RELEASES.items():
        small = release(cache, requirement, PYTHONS[1:4], platform)
        name = f"split {requirement}, {len(small)} wheels, vs inflating them once"
        yield verdict(paired(name, splitting(small), inflating(small), rounds=7), reach=2, start=START)
    yield from provenances(wheels[0])


def release(
    cache: Path, requirement: str = MUMAX, pythons: Sequence[str] = PYTHONS, platform: str = PLATFORM
) -> list[Path]:
    """The wheels of one release for *pythons*."""
    cache.mkdir(parents=True, exist_ok=True)
    project = requirement.partition("==")[0].replace("-", "_")
    found: list[Path] = []
    for python in pythons:
        pattern = f"{project}-*-cp{python.replace('.', '')}-*.whl"
        if not [*cache.glob(pattern)]:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
            tags = ["--python-version", python, "--platform", platform]
            subprocess.run([*command, *tags, "-d", cache, requirement], check=True)
        found += cache.glob(pattern)
    return sorted(found)


def splitting(wheels: Sequence[Path], *options: str) -> Command:
    return lambda folder: [BIN / "vbuild", "split", *wheels, "-o", folder / "out", *options]


def inflating(wheels: Sequence[Path]) -> Command:
    return lambda _folder: [sys.executable, "-c", INFLATING, *wheels]


def copying(wheel: Path) -> Command:
    return lambda folder: ["cp", wheel, folder / "copy.whl"]


def sized(title: str, wheels: Sequence[Path]) -> bool:
    """Print the size of what is written, and whether it is small enough."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(argument) for argument in splitting(wheels)(Path(folder))]
        subprocess.run(arguments, check=True, capture_output=True)
        size = sum(wheel.stat().st_size for wheel in Path(folder).rglob("*.whl"))
    print(f"{title}: {size / MB:.1f} MB; reach {SMALL / MB:.1f} MB: {'reached' if size <= SMALL else 'MISSED'}")
    return size <= SMALL


def provenances(wheel: Path) -> Iterator[bool]:
    """Where each of its official libraries comes from: seconds and bytes for each, nothing known before."""
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(name for name in archive.namelist() if ".libs/libcu" in name):
            data = memoryview(archive.read(name))
            officials = Officials("x86_64", indexes=Indexes.configured, store=Path(folder, str(number)))
            file, loading = name.rpartition("/")[2], Loading.parse(data)
            begun = time.perf_counter()
            found = officials.provenance(file, loading, data, sha256="", entries=by_stem(file))
            seconds = time.perf_counter() - begun
            is_reached = isinstance(found, Provenance) and seconds <= PROVENANCE and found.transferred <= TRANSFER
            what = f"{file}: {found.wheel.project}=={found.wheel.version}" if isinstance(found, Provenance) else file
            print(
                f"{what}: {seconds:.2f} s, {found.transferred / MB:.2f} MB read; "
                f"reach {PROVENANCE} s, {TRANSFER / MB:.0f} MB: {'reached' if is_reached else 'MISSED'}"
            )
            yield is_reached


def _largest(wheel: Path) -> int:
    with zipfile.ZipFile(wheel) as archive:
        return max(info.file_size for info in archive.infolist())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
