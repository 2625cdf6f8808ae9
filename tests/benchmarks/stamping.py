"""Stamping real wheels, against variantlib and against a plain copy of the file.

    python -m tests.benchmarks.stamping [CACHE]

fetches two wheels (132 and 581 MB) into CACHE, or into a folder that is removed at the end, and prints three ratios.
"""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.ratio import Command, paired, verdict

SMALL = ("xgboost==3.2.0", "xgboost-3.2.0-*.whl")
LARGE = ("nvidia-cublas-cu12==12.9.*", "nvidia_cublas_cu12-12.9.*.whl")
PROPERTY = "x86_64 :: level :: v3"
SEED = """
[variant.default-priorities]
namespace = ["x86_64"]
[variant.providers.x86_64]
requires = ["x86-64-variant-provider >=0.2"]
"""
BIN = Path(sys.executable).parent


def main(arguments: Sequence[str]) -> int:
    """0 where both figures are reached."""
    with contextlib.ExitStack() as stack:
        cache = Path(arguments[0]) if arguments else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        small, large = fetched(cache, *SMALL), fetched(cache, *LARGE)
        reached = [
            against_variantlib(small, reach=0.1),
            against_variantlib(small, "--no-verify", reach=0.05),
            against_copying(large),
        ]
        return 0 if all(reached) else 1


def against_variantlib(wheel: Path, *options: str, reach: float) -> bool:
    def theirs(folder: Path) -> list[str | Path]:
        (folder / "pyproject.toml").write_text(SEED)
        command: list[str | Path] = [BIN / "variantlib", "make-variant", "-f", wheel, "-o", folder]
        return [*command, "-p", PROPERTY, "--variant-label", "v3", "--skip-plugin-validation"]

    how = " ".join([f"stamp {wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB)", *options])
    title = f"{how} vs variantlib make-variant"
    return verdict(paired(title, stamping(wheel, *options), theirs), reach=reach, peak=100_000_000)


def against_copying(wheel: Path) -> bool:
    title = f"stamp {wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB) --no-verify vs cp"
    return verdict(
        paired(title, stamping(wheel, "--no-verify"), lambda folder: ["cp", wheel, folder / "copy"], rounds=5), reach=3
    )


def stamping(wheel: Path, *options: str) -> Command:
    return lambda folder: [BIN / "vbuild", "stamp", wheel, "-o", folder, "--label", "v3", "-p", PROPERTY, *options]


def fetched(cache: Path, requirement: str, pattern: str) -> Path:
    """The wheel of *requirement* in *cache*, downloaded if it is not there."""
    if not list(cache.glob(pattern)):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "--dest", str(cache), requirement], check=True)
    return min(cache.glob(pattern)).resolve()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
