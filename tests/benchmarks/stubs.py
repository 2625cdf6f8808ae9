"""What a stub costs: libraries that Python opens by their paths, in wheels as they were and after a split.

A process opens all libraries with ctypes; the two kinds of wheels take turns.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figure import Broken, Comparison, Figure, Installed, Made, Measure, Peer
from tests.benchmarks.inputs import ran
from tests.benchmarks.measuring import printed
from tests.factories.extensions import library
from tests.factories.repaired_wheels import NAME
from tests.factories.site_packages import site_packages
from tests.factories.wheels import wheel

LIBRARIES = 20
OPENS = """
import ctypes, os, time
folder = os.path.dirname(__file__)
start = time.perf_counter()
for number in range({0}):
    ctypes.CDLL(f"{{folder}}/lib{{number}}.so")
print((time.perf_counter() - start) * 1000 / {0})
"""


def release(folder: Path) -> None:
    """Two wheels with the same libraries."""
    files: dict[str, bytes | str] = {"demo/__init__.py": OPENS.format(LIBRARIES)}
    for number in range(LIBRARIES):
        source = f"int number{number}(void) {{ return {number}; }}"
        files[f"demo/lib{number}.so"] = library(f"lib{number}.so", source=source)
    for name in (NAME, NAME.replace("311", "312")):
        wheel(folder, name, files)


def sites(folder: Path, vbuild: Installed, made: Path) -> None:
    """What the first wheel of *made* installs, in *folder*/before, and in after once both were split."""
    fat = sorted(made.glob("*.whl"))
    ran(vbuild.vbuild, "split", *fat, "-o", folder / "thin", "--min-size", "0", PIP_NO_INDEX="1")
    thin = [path for path in (folder / "thin").glob("*.whl") if "312" not in path.name]
    stubs = sum(path.stat().st_size < 4096 for path in site_packages(folder / "after", *thin).glob("demo/*.so"))
    if stubs != LIBRARIES and len(thin) != len(fat):
        raise Broken(f"split left {stubs} stubs, expected {LIBRARIES}")
    site_packages(folder / "before", fat[0])


SITES = Made(sites, others=(Made(release),), by_vbuild=True)


def figures() -> Iterator[Figure]:
    yield Figure(
        name="open",
        what="open a library through a stub, twenty in a process",
        measure=_opened("after"),
        unit="ms",
        peer=Peer("the same libraries where they were", _opened("before")),
        comparison=Comparison.DIFFERENCE,
        reach=0.05,
        pairs=41,
        inputs=(SITES,),
        tools=("gcc",),
    )


def _opened(site: str) -> Measure:
    """The milliseconds for each library in which a new process opens all of them."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import demo"
    return printed(lambda setting: [sys.executable, "-S", "-c", code, setting.inputs[SITES] / site])
