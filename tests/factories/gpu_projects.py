"""The CUDA projects of tests/projects, releases of them, and what has to be in the wheels of these.

a group of GPUs -> for each fatbin of the project its machine code and PTX, as cuobjdump lists them
"""

import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vbuild.hardware.gpu import GpuList
from vbuild.release.cache import BuildCache
from vbuild.release.matrix import MatrixRequest, matrix
from vbuild.release.model import Product, ReleaseResult

PROJECTS = Path(__file__).parents[1] / "projects"

GROUPS = {"sm75": "75", "sm80": "80,86,89", "sm90": "90,90a", "sm120": "120+ptx"}
LEVELS = 'cpu = ["x86-64", "x86-64-v3"]\n'
# what is looked at was compiled by the test, and by nothing before it
FRESH = '[build]\ncache = "none"\n'


@dataclass(frozen=True, slots=True)
class Project:
    """A folder of tests/projects, its package, what its selftest gives on a GPU, and which fatbins its library has.

    *compiled* hold the whole list, *linked*, by the device linker, the machine code of it, and *always* is the one for
    a single architecture. *host* is a function of a .cu file that has loops for the host, by its symbol; empty where
    the library is stripped, and has loops nowhere else. *rules* are the recipe's.
    """

    folder: str
    name: str
    answer: float
    host: str
    compiled: int = 1
    linked: int = 0
    always: tuple[str, ...] = ()
    rules: str = '[build.cuda]\narchs = "replace"\n'

    def __str__(self) -> str:
        return self.folder

    def codes(self, gpus: str) -> Counter[str]:
        """What cuobjdump should list of the library for *gpus*: ``sm_90.cubin``, ``sm_90.ptx``."""
        found = Counter(self.always)
        for request in GpuList.parse(gpus):
            form = f"sm_{request.arch.number}{request.arch.suffix}"
            found[f"{form}.cubin"] += (self.compiled + self.linked) * request.real
            found[f"{form}.ptx"] += self.compiled * request.ptx
        return +found

    def recipe(self, folder: Path, text: str, *, source: Path | None = None) -> Path:
        """A recipe in *folder* for this project, or for its copy at *source*, that says *text*."""
        file = folder / f"{self.name}.toml"
        place = source or PROJECTS / self.folder
        file.write_text(f'name = "{self.name}"\n[source]\npath = "{place}"\n{text}')
        return file

    def released(self, folder: Path, text: str, *, source: Path | None = None) -> ReleaseResult:
        """The release in ``dist`` of that recipe, with nothing kept from before."""
        recipe = self.recipe(folder, text, source=source)
        return matrix(recipe, folder / "dist", MatrixRequest(jobs=2), store=BuildCache(folder / "store"))


TALLY = Project(
    "setuptools-cuda",
    "tally",
    500500,
    "tally_host_norm",
    always=("sm_90a.cubin",),  # hopper.cu, whose one entry stays in every wheel
    rules='[build.cuda]\narchs = "replace"\nfiles = { "hopper.cu" = "90a" }\n',
)
EMBEDDED = Project("setuptools-embedded-cuda", "embedded", 0, "")
COLLATZ = Project("scikit-build-core-cuda", "collatz", 59542, "", compiled=2, linked=1)
HISTO = Project("meson-python-cuda", "histo", 49500, "_ZN5histo17histogram_on_hostEPKhm", linked=1)


def cuda(groups: Mapping[str, str] | None = None, *more: str) -> str:
    """The matrix' one entry for CUDA 13.0, with *groups*, and *more* keys."""
    gpus = ", ".join(f'{label} = "{gpus}"' for label, gpus in (GROUPS if groups is None else groups).items())
    return "\n".join(("[[matrix.cuda]]", 'toolkit = "13.0"', f"gpus = {{ {gpus} }}", *more, ""))


def gpus_of(product: Product) -> str:
    """The GPUs of `GROUPS` that *product* is for; all of them, if it is plain."""
    label = (product.label or "").removeprefix("x86_64_v3_")
    return GROUPS[label] if label else ",".join(GROUPS.values())


def library(wheel: Path, folder: Path) -> Path:
    """The one library of *wheel*, taken out into *folder*."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".so")]
        return Path(archive.extract(name, folder / wheel.stem))
