"""How long `vbuild matrix --emit` takes for 2,000 variants, for each system, against `vbuild --version`.

python -m tests.benchmarks.emitting
"""

import shutil
import sys
from pathlib import Path

from tests.benchmarks.ratio import Command, paired, verdict
from tests.factories.recipes import SOURCE
from vbuild.release.emit import CiSystem

VARIANTS = 2000
REACH = 1.0  # seconds
RATIO = 8
ROUNDS = 5


def main() -> None:
    vbuild = shutil.which("vbuild", path=Path(sys.executable).parent)
    if vbuild is None:
        sys.exit("vbuild is not installed beside this Python")
    reached, slowest = True, 0.0
    for system in CiSystem:
        result = paired(f"2,000 variants for {system}", emitting(vbuild, system), starting(vbuild), rounds=ROUNDS)
        reached &= verdict(result, reach=RATIO)
        slowest = max(slowest, result.ours.seconds)
    print(f"the slowest took {slowest:.3f} s; reach {REACH} s: {'reached' if slowest <= REACH else 'MISSED'}")
    sys.exit(not reached or slowest > REACH)


def emitting(vbuild: str, system: CiSystem) -> Command:
    def command(folder: Path) -> list[str]:
        (folder / "demo.toml").write_text(recipe())
        return [vbuild, "matrix", "demo.toml", "--emit", system]

    return command


def starting(vbuild: str) -> Command:
    return lambda _folder: [vbuild, "--version"]


def recipe(variants: int = VARIANTS, *, source: str = SOURCE) -> str:
    """Four levels, and axes of 25 values and as many as *variants*, a multiple of 100, need: one is the plain twin."""
    levels = 'cpu = ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"]\n'
    return f"{source}[matrix]\n{levels}{_axis('a', variants // 100)}{_axis('b', 25)}"


def _axis(name: str, values: int) -> str:
    rows = "".join(f'{name}{number} = {{ properties = ["x :: {name} :: v{number}"] }}\n' for number in range(values))
    return f"[matrix.axes.{name}]\n{rows}"


if __name__ == "__main__":
    main()
