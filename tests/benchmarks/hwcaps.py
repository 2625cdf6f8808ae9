"""What a stub costs at import, and what copies for levels cost in bytes.

Import: fresh processes in turn, one with the stub, one with the module where it was built; each times `import _c`
alone. Bytes: a joined wheel of three levels against the plain wheel and what differs in the others, compressed.
"""

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figure import Comparison, Figure, Installed, Made, Measure, Peer, Sample, Setting
from tests.benchmarks.inputs import ran
from tests.benchmarks.measuring import MB, printed
from tests.factories.hwcaps_wheels import hwcaps_release, module, so, unpacked

LEVELS = ("v1", "v3", "v4")
FUNCTIONS = 2000
_TIMED = """
import sys, time
sys.path.insert(0, sys.argv[1])
import demo
begun = time.perf_counter()
import demo._c
ended = time.perf_counter()
assert demo._c.level() == sys.argv[2], demo._c.level()
print((ended - begun) * 1000)
"""


def release(folder: Path, functions: int) -> None:
    """The wheels of three levels with a module of so many *functions* more."""
    code = "".join(
        f"void f{n}(float *a, const float *b) {{ for (int i = 0; i < 64; i++) a[i] = a[i] * {n} + b[i * {n} & 63]; }}"
        for n in range(functions)
    )
    files: dict[str, dict[str, bytes | str]] = {
        level: {"demo/__init__.py": "", f"demo/{so('_c')}": module(level, more=code)} for level in LEVELS
    }
    hwcaps_release(folder / "dist", files)


def joined(folder: Path, vbuild: Installed, made: Path) -> None:
    """The joined wheel of the release in *made*, in *folder*/site/hwcaps, and the plain and the joined one unpacked."""
    ran(vbuild.vbuild, "publish", made / "dist", "--layout", "hwcaps", "-o", folder / "site")
    (wheel,) = (folder / "site" / "hwcaps").glob("*.whl")
    unpacked(wheel, folder / "v4")
    unpacked(next(made.glob("dist/*_x86_64.whl")), folder / "v1")


SMALL, LARGE = (Made(release, (functions,)) for functions in (0, FUNCTIONS))
IMPORTED, SIZED = (Made(joined, others=(one,), by_vbuild=True) for one in (SMALL, LARGE))


def figures() -> Iterator[Figure]:
    yield Figure(
        name="import",
        what="import an extension behind a stub",
        measure=_importing("v4"),
        unit="ms",
        peer=Peer("the extension itself", _importing("v1")),
        comparison=Comparison.DIFFERENCE,
        reach=0.3,
        pairs=401,
        inputs=(IMPORTED,),
        tools=("gcc",),
    )
    yield Figure(
        name="size",
        what="a wheel of three levels by hwcaps",
        measure=_joined_size,
        unit="MB",
        peer=Peer("the plain wheel and what differs in the others", _parts_size),
        reach=1.02,
        pairs=1,
        inputs=(SIZED,),
        tools=("gcc",),
    )


def _importing(level: str) -> Measure:
    return printed(lambda setting: [sys.executable, "-I", "-S", "-c", _TIMED, setting.inputs[IMPORTED] / level, level])


def _joined_size(setting: Setting) -> Sample:
    (wheel,) = (setting.inputs[SIZED] / "site" / "hwcaps").glob("*.whl")
    return Sample(wheel.stat().st_size / MB)


def _parts_size(setting: Setting) -> Sample:
    plain, *others = sorted((setting.inputs[LARGE] / "dist").glob("*.whl"), key=lambda path: len(path.name))
    size = plain.stat().st_size
    for path in others:
        with zipfile.ZipFile(path) as archive:
            size += archive.getinfo(f"demo/{so('_c')}").compress_size
    return Sample(size / MB)
