"""Slimming real wheels: time against `wheel unpack` and `wheel pack`, sizes, resident memory, and families.

    python -m tests.benchmarks.slimming [CACHE] [NAME ...]

fetches the wheels (130 to 350 MB each) into CACHE, or into a folder that is removed at the end, and prints one line for
each figure. With names, only the wheels of those projects.
"""

import contextlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.ratio import Command, paired, verdict
from tests.benchmarks.stamping import BIN, fetched

MB = 1_000_000
FAMILY = ("sm80=80,86,89", "sm90=90,90a", "sm100=100", "sm120=120")
ACCEPTED = ("--allow-unsupported", "--accept-license")


@dataclass(frozen=True, slots=True)
class Figure:
    """What one wheel should reach: ratios to unpacking and packing it, and bytes of the wheel for sm_90."""

    requirement: str
    options: tuple[str, ...] = ("--gpu", "90")
    ratio: float | None = None
    fast: float | None = None
    family: float | None = None
    size: int | None = None

    @property
    def project(self) -> str:
        return self.requirement.partition("==")[0]

    @property
    def pattern(self) -> str:
        name, _, version = self.requirement.partition("==")
        return f"{name.replace('-', '_')}-{version}-*.whl"


FIGURES = (
    Figure("xgboost==3.2.0", ratio=0.16, fast=0.11, family=1.7, size=36 * MB),
    Figure("vllm==0.33.0", ratio=0.17),
    Figure("bitsandbytes==0.50.2", size=11_300_000),
    Figure("nvidia-nccl-cu12==2.32.3", size=82_500_000),
    Figure("cupy-cuda12x==14.2.0", size=51 * MB),
    Figure("ctranslate2==4.8.5", options=("--strip", "unneeded"), size=24_600_000),
    Figure("triton==3.9.0", options=("--strip", "unneeded"), size=192 * MB),
)


def main(arguments: Sequence[str]) -> int:
    """0 where every figure is reached."""
    with contextlib.ExitStack() as stack:
        cache = Path(arguments[0]) if arguments else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        chosen = [figure for figure in FIGURES if not arguments[1:] or figure.project in arguments]
        reached = [one for figure in chosen for one in measured(figure, cache)]
        return 0 if all(reached) else 1


def measured(figure: Figure, cache: Path) -> Iterator[bool]:
    """Whether each thing asked of one wheel is reached."""
    wheel = fetched(cache, figure.requirement, figure.pattern)
    peak = _largest(wheel) * 13 // 10 + 150 * MB
    title = f"slim {wheel.name} ({wheel.stat().st_size / MB:.1f} MB) {' '.join(figure.options)}"
    ours = slimming(wheel, *figure.options)
    if figure.ratio:
        yield verdict(paired(f"{title} vs wheel unpack + pack", ours, repacking(wheel)), reach=figure.ratio, peak=peak)
    if figure.fast:
        fast = slimming(wheel, *figure.options, "--fast")
        yield verdict(paired(f"{title} --fast vs wheel unpack + pack", fast, repacking(wheel)), reach=figure.fast)
    if figure.family:
        variants = [option for share in FAMILY for option in ("--variant", share)]
        family = slimming(wheel, *variants)
        yield verdict(paired(f"{title}: family of 4 vs one", family, ours), reach=figure.family, peak=peak)
    if figure.size:
        yield sized(title, ours, reach=figure.size)


def sized(title: str, ours: Command, *, reach: int) -> bool:
    """Print the size of the wheel that *ours* writes, and whether it is small enough."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([str(argument) for argument in ours(Path(folder))], cwd=folder, check=True, capture_output=True)
        size = sum(wheel.stat().st_size for wheel in Path(folder).rglob("*.whl"))
    print(f"{title}: {size / MB:.1f} MB; reach {reach / MB:.1f} MB: {'reached' if size <= reach else 'MISSED'}")
    return size <= reach


def slimming(wheel: Path, *options: str) -> Command:
    return lambda folder: [BIN / "vbuild", "slim", wheel, "-o", folder / "out", *options, *ACCEPTED]


def repacking(wheel: Path) -> Command:
    """What a release script would do: everything inflated to disk, and deflated again."""
    script = '"$0" unpack -d unpacked "$1" && mkdir packed && "$0" pack -d packed unpacked/*'
    return lambda _folder: ["bash", "-c", script, BIN / "wheel", wheel]


def _largest(wheel: Path) -> int:
    with zipfile.ZipFile(wheel) as archive:
        return max(info.file_size for info in archive.infolist())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
