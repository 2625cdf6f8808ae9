"""What the module that loads libraries first adds to an import, where RPATHs lead to them and it has nothing to do.

Two environments have a package split with the module and without it; new processes import it in turn, what it requires
first.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figure import Comparison, Figure, Installed, Made, Measure, Peer, Wheel
from tests.benchmarks.inputs import ran
from tests.benchmarks.measuring import printed

OWN, NEXT = (f"{sys.version_info[0]}.{sys.version_info[1] + more}" for more in (0, 1))
# the requirement, the package, what is imported before it
PACKAGES = (
    ("shapely==2.2.0", "shapely", "numpy"),
    ("h5py==3.16.0", "h5py", "numpy"),
    ("psycopg2-binary==2.9.13", "psycopg2", "re"),
)
WAYS = {"preload": True, "direct": False}
SPLIT = """
import sys
from pathlib import Path
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.split import split
request = SplitRequest(smallest=0, preload=sys.argv[2] == "True")
split([Path(path) for path in sys.argv[3:]], Path(sys.argv[1]), request=request)
"""
# of the processor: other processes do not count
TIMED = """
import {0}, ctypes, os, time
began = time.process_time()
import {1}
print((time.process_time() - began) * 1000)
"""


def environments(folder: Path, vbuild: Installed, *wheels: Path) -> None:
    """Two environments in *folder* with the package of *wheels*, the first of which is for this Python."""
    own = wheels[0].name.split("-")[2]
    for name, preload in WAYS.items():
        ran(vbuild.python, "-c", SPLIT, folder / name / "thin", str(preload), *wheels)
        thin = [path for path in (folder / name / "thin").glob("*.whl") if f"-{own}-" in path.name]
        ran(sys.executable, "-m", "venv", folder / name / "venv")
        python = folder / name / "venv" / "bin" / "python"
        ran(python, "-m", "pip", "install", "-q", f"--find-links={folder / name / 'thin'}", *thin)


def figures() -> Iterator[Figure]:
    for requirement, package, before in PACKAGES:
        made = Made(environments, others=(Wheel(requirement, OWN), Wheel(requirement, NEXT)), by_vbuild=True)
        code = TIMED.format(before, package)
        yield Figure(
            name=package,
            what=f"import {package}, split, with the module that loads libraries first",
            measure=_importing(made, "preload", code),
            unit="ms",
            peer=Peer("`split.preload = false`", _importing(made, "direct", code)),
            comparison=Comparison.DIFFERENCE,
            reach=0.3,
            pairs=201,
            inputs=(made,),
            note="Time of the processor; the median of the differences.",
        )


def _importing(made: Made, way: str, code: str) -> Measure:
    return printed(lambda setting: [setting.inputs[made] / way / "venv" / "bin" / "python", "-c", code])
