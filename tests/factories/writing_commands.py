"""The commands of vbuild that write files, each on small real wheels.

Subject -> prepared(folder) -> Workplace: in/, out/, tmp/ and cache/, and the command to run there
        -> results(): the files of the output under names that somebody may take
"""

import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.factories import hwcaps_wheels, repaired_wheels
from tests.factories.extensions import library, module
from tests.factories.fatbins import device_library, entry, fatbin
from tests.factories.faults import Ended, Fault, run
from tests.factories.layouts import layout, tar
from tests.factories.projects import KERNEL, tree
from tests.factories.sources import sha256
from tests.factories.variants import variant
from tests.factories.wheels import dist_info_of, everything, record_of, wheel
from tests.factories.workdir import file_digests
from vbuild.variants.stamp import stamped

FAT = "demo-1.0-py3-none-manylinux_2_28_x86_64.whl"
V3 = variant("x86_64_v3", "x86_64 :: level :: v3")
_VERSION = "cp{}{}".format(*sys.version_info)
# nothing of the machine's own settings, and no index to ask
_SETTINGS = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "UV_OFFLINE": "1"}

_BACKEND = """
import base64, hashlib, os, subprocess, sysconfig, zipfile

def build_wheel(out, settings=None, metadata=None):
    tag = "TAG"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    flags = ["-shared", "-fPIC", "-march=native", "-I" + sysconfig.get_path("include")]
    command = [os.environ.get("CC", "gcc"), *os.environ.get("CFLAGS", "").split(), *flags, "demo.c", "-o", "demo.so"]
    subprocess.run(command, check=True)
    files = {
        "demo" + suffix: open("demo.so", "rb").read(),
        "demo-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\\nName: demo\\nVersion: 1.0\\n",
        "demo-1.0.dist-info/WHEEL": f"Wheel-Version: 1.0\\nRoot-Is-Purelib: false\\nTag: {tag}\\n".encode(),
    }
    rows = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}\\n")
    files["demo-1.0.dist-info/RECORD"] = "".join([*rows, "demo-1.0.dist-info/RECORD,,\\n"]).encode()
    with zipfile.ZipFile(f"{out}/demo-1.0-{tag}.whl", "w") as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path), data)
    return f"demo-1.0-{tag}.whl"
"""
_C = """
#include <Python.h>
KERNEL
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "demo", 0, -1, 0, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_demo(void) {
    static float a[16], b[16];
    kernel(a, b);
    return PyModule_Create(&definition);
}
"""
_RECIPE = """
name = "demo"
[source]
path = "project"
[matrix]
cpu = ["x86-64", "x86-64-v3"]
[build]
cache = "none"
isolation = false
"""


@dataclass(frozen=True, slots=True)
class CommandFolder:
    """Where a command runs: *inputs*, *out*, *tmp* and *cache* in *folder*, and the command's *arguments*."""

    folder: Path
    arguments: tuple[str, ...]
    resumes: str = ""

    @property
    def inputs(self) -> Path:
        return self.folder / "in"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def variables(self) -> dict[str, str]:
        folders = {"TMPDIR": str(self.folder / "tmp"), "XDG_CACHE_HOME": str(self.folder / "cache")}
        return {**_SETTINGS, **folders}

    def run(self, fault: Fault | None = None, *, inside: tuple[str, ...] = ()) -> Ended:
        """What the command says, disturbed by *fault*, whose calls are then in *log*; started *inside* another."""
        disturbing = fault.variables(self.folder, self.log) if fault else {}
        self.log.unlink(missing_ok=True)
        return run(*self.arguments, folder=self.folder, variables={**self.variables, **disturbing}, inside=inside)

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def results(self) -> dict[str, str]:
        """The SHA-256 of each file in the output, by path; not of what has a name that begins with a dot."""
        found = file_digests(self.out) if self.out.exists() else {}
        return {
            path: digest if Path(path).suffix != ".html" and Path(path).name != "report.json" else "not compared"
            for path, digest in found.items()
            if digest and not any(part.startswith(".") for part in Path(path).parts) and "logs" not in Path(path).parts
        }

    def check_told(self) -> None:
        """Hold what the reports of a matrix must be: whole; they tell how long it took, so no two are the same."""
        for report in self.out.glob("report.json"):
            json.loads(report.read_text())
        for page in self.out.glob("report.html"):
            assert page.read_text().rstrip().endswith("</html>")

    def left(self) -> list[str]:
        """What is in the output that is no result: names with a dot in front; but not what a next run goes on with."""
        found = sorted(path.relative_to(self.out) for path in self.out.rglob(".*")) if self.out.exists() else []
        return [str(path) for path in found if not self.resumes or path.parts[0] != self.resumes]


@dataclass(frozen=True, slots=True)
class WritingCommand:
    """A command of vbuild: what *fill* puts into its folder of inputs, the *arguments*, and its *closed* outputs.

    Folders that are *closed* are whole or not there, and have to go before the command runs again. A command that
    writes *alongside* its inputs gets them in the output; one that *goes on* after a failure reports the rest; one that
    *takes* more seconds is disturbed less often by default. If the file *seal* is there, the output is closed. One that
    *resumes* leaves the folder of this name to the next run, which goes on there.
    """

    name: str
    fill: Callable[[Path], object]
    arguments: tuple[str, ...]
    closed: tuple[str, ...] = ()
    alongside: bool = False
    goes_on: bool = False
    takes: int = 1
    seal: str = ""
    resumes: str = ""

    def __str__(self) -> str:
        return self.name

    def prepared(self, folder: Path, inputs: Path) -> CommandFolder:
        """A place to run it in *folder*, on hard links to the *inputs* that `fill` made."""
        (folder / "tmp").mkdir(parents=True)
        (folder / "cache/vbuild").mkdir(parents=True)
        shutil.copytree(inputs, folder / "in", copy_function=os.link)
        if self.alongside:
            shutil.copytree(inputs, folder / "out/dist", copy_function=os.link)
        return CommandFolder(folder, self.arguments, self.resumes)

    def reopen(self, place: CommandFolder, whole: Mapping[str, str]) -> None:
        """Remove the closed folders that a run left behind, after a look whether they are whole."""
        there = place.results()
        if self.seal and (place.out / self.seal).exists():
            assert there == whole
            shutil.rmtree(place.out)
        for folder in self.closed:
            path = place.out / folder
            if path.exists() and any(path.iterdir()):
                wanted = {name for name in whole if name.startswith(f"{folder}/")}
                assert {name for name in there if name.startswith(f"{folder}/")} == wanted
                shutil.rmtree(path)


@cache
def _noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def _fat(folder: Path) -> None:
    for name in (FAT, FAT.replace("demo", "more")):
        codes = [entry(arch=arch, code=_noise(1 << 19)) for arch in (80, 90)]
        device = device_library(fatbin(*codes))
        project = name.partition("-")[0]
        wheel(folder, name, {f"{project}/_{number}.so": device for number in range(3)})


def _image(folder: Path) -> None:
    device = device_library(fatbin(*(entry(arch=arch, code=_noise(1 << 19)) for arch in (80, 90))))
    files = everything(FAT, {f"demo/_{number}.so": device for number in range(3)})
    files |= {f"{dist_info_of(FAT)}/RECORD": record_of(files, dist_info_of(FAT)).encode()}
    packages = {f"app/site-packages/{path}": data for path, data in files.items()}
    layout(folder, tar({"etc/noise": _noise(3_000_000)}), tar(packages), how="")


def _bundled(folder: Path) -> None:
    count = library(
        "libcount.so.1", source=f"const char text[] = {{{_numbers(300_000)}}}; int count(void) {{ return 42; }}"
    )
    files: dict[str, bytes | str] = {
        "demo/__init__.py": "from demo import _c\n",
        "demo/_c.so": module("libcount.so.1", source="int count(void); int answer(void) { return count(); }"),
    }
    names = tuple(f"demo-1.0-{python}-{python}-{repaired_wheels.LINUX}.whl" for python in (_VERSION, "cp39"))
    repaired_wheels.release(folder, files, {"libcount.so.1": count}, names=names)


@cache
def _numbers(count: int) -> str:
    return ",".join(map(str, random.Random(count).choices(range(9), k=count)))


def _plain(folder: Path) -> None:
    wheel(folder, hwcaps_wheels.NAME, {f"demo/data{number}.bin": _noise(3_000_000 + number) for number in range(3)})


def _labelled(folder: Path) -> None:
    for number in range(6):
        name = hwcaps_wheels.NAME.replace("1.0", f"1.{number}")
        plain = wheel(folder, name, {"demo/data.bin": _noise(300_000)})
        stamped(plain, folder, variant=V3)


def _levels(folder: Path) -> None:
    hwcaps_wheels.hwcaps_release(folder, {level: hwcaps_wheels.package(level) for level in ("v1", "v3", "v4")})
    shutil.rmtree(folder / "unstamped-v3")
    shutil.rmtree(folder / "unstamped-v4")


def _locked(folder: Path) -> None:
    _fat(folder)
    wheel(folder, "plain-1.0-py3-none-any.whl", {"plain.bin": _noise(300_000)})
    # hard links have the names that the lock has
    text = 'lock-version = "1.0"\ncreated-by = "demo"\n'
    for path in sorted(folder.glob("*.whl")):
        name, version = path.name.split("-")[:2]
        file = f'{{ path = "{path.name}", hashes = {{ sha256 = "{sha256(path)}" }} }}'
        text += f'[[packages]]\nname = "{name}"\nversion = "{version}"\nwheels = [{file}]\n'
    (folder / "pylock.toml").write_text(text)


def _project(folder: Path) -> None:
    tag = f"{_VERSION}-{_VERSION}-linux_{os.uname().machine}"
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    tree(
        folder,
        {
            "demo.toml": _RECIPE,
            "project/pyproject.toml": f'{system}[project]\nname = "demo"\nversion = "1.0"\n',
            "project/backend.py": _BACKEND.replace("TAG", tag),
            "project/demo.c": _C.replace("KERNEL", KERNEL),
        },
    )


WRITING_COMMANDS = (
    WritingCommand("slim", _fat, ("slim", "in", "-o", "out", "--variant", "sm80=80", "--variant", "sm90=90")),
    WritingCommand("slim-image", _image, ("slim", "oci:in", "-o", "out", "--gpu", "90"), seal="index.json"),
    WritingCommand("split", _bundled, ("split", "in", "-o", "out", "--min-size", "0")),
    WritingCommand(
        "stamp",
        _plain,
        ("stamp", f"in/{hwcaps_wheels.NAME}", "-o", "out", "-l", "x86_64_v3", "-p", "x86_64::level::v3"),
    ),
    WritingCommand("index", _labelled, ("index", "out/dist", "--simple", "out/site"), closed=("site",), alongside=True),
    WritingCommand(
        "publish",
        _levels,
        ("publish", "in", "--layout", "hwcaps", "--layout", "local", "-o", "out"),
        closed=("hwcaps", "local"),
    ),
    *(
        WritingCommand(
            f"publish-{layout}",
            _levels,
            ("publish", "in", "--layout", layout, *more, "-o", "out"),
            closed=(layout,),
        )
        for layout, more in (
            ("suffix", ()),
            ("oci", ()),
            ("conda", ()),
            ("variants", ()),
            ("redirect", ("--url", "https://wheels.example/")),
        )
    ),
    WritingCommand(
        "mirror",
        _locked,
        ("mirror", "in/pylock.toml", "-o", "out/site", "--gpu", "90"),
        closed=("site",),
        resumes=".site.mirror",
    ),
    WritingCommand("collect", _levels, ("collect", "in", "-o", "out"), goes_on=True),
    WritingCommand("matrix", _project, ("matrix", "in/demo.toml", "-o", "out"), goes_on=True, takes=2),
)
