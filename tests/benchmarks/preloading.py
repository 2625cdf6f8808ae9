"""What the module that loads libraries first adds to an import, where RPATHs lead to them and it has nothing to do.

    python -m tests.benchmarks.preloading [CACHE]

fetches the wheels (20 MB) into CACHE, or into a folder that is removed at the end. Two environments have a package
split with the module and without it; new processes import it in turn, what it requires first.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from vbuild.splitting.request import SplitRequest
from vbuild.splitting.split import split

ROUNDS = 201
# seconds
REACH = 0.0003
# the requirement, the package, what is imported before it
PACKAGES = (
    ("shapely==2.2.0", "shapely", "numpy"),
    ("h5py==3.16.0", "h5py", "numpy"),
    ("psycopg2-binary==2.9.13", "psycopg2", "re"),
)
# the module alone, again and again in one process
ALONE = """
import importlib, statistics, sys, time
importlib.import_module("{0}")
times = []
for _ in range({1}):
    del sys.modules["{0}._preload_libraries"]
    began = time.process_time()
    importlib.import_module("{0}._preload_libraries")
    times.append(time.process_time() - began)
print(statistics.median(times))
"""
# of the processor: other processes do not count
TIMED = "import {0}, ctypes, os, time; began = time.process_time(); import {1}; print(time.process_time() - began)"


def main(arguments: list[str]) -> bool:
    with tempfile.TemporaryDirectory() as temporary:
        cache = Path(arguments[0]) if arguments else Path(temporary, "cache")
        results = [measured(*package, cache=cache, folder=Path(temporary)) for package in PACKAGES]
    return all(results)


def measured(requirement: str, package: str, before: str, *, cache: Path, folder: Path) -> bool:
    """Print what the module adds to the import of *package*, and return whether that is little enough."""
    fat = cache / package
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for version in (own, f"3.{sys.version_info[1] + 1}"):
        where = ["--only-binary", ":all:", "--no-deps", "--python-version", version, "--dest", str(fat)]
        platforms = ("--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_17_x86_64")
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", *where, *platforms, requirement], check=True)
    pythons = {}
    for preload in (True, False):
        place = folder / f"{package}-{preload}"
        result = split([fat], place / "thin", request=SplitRequest(smallest=0, preload=preload))
        thin = [one.path for one in result.wheels if one.path and f"cp{own.replace('.', '')}-" in one.name]
        subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
        pythons[preload] = place / "venv" / "bin" / "python"
        install = [str(pythons[preload]), "-m", "pip", "install", "-q", f"--find-links={place / 'thin'}"]
        subprocess.run([*install, *map(str, thin)], check=True)
    code = TIMED.format(before, package)
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(ROUNDS):
        for preload, python in sorted(pythons.items(), reverse=bool(number % 2)):
            ran = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
            times[preload].append(float(ran.stdout))
    more = statistics.median(one - other for one, other in zip(times[True], times[False], strict=True))
    whole = statistics.median(times[False])
    print(
        f"import {package}: {more * 1e3:+.3f} ms of {whole * 1e3:.1f} ms, {ROUNDS} pairs; reach +{REACH * 1e3:.1f} ms"
    )
    return more <= REACH


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1:]))
