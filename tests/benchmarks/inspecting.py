"""Inspecting a large wheel, and merely inflating its shared libraries with zlib in one thread.

    python -m tests.benchmarks.inspecting [WHEEL]

prints the ratio of the two from one run, and the peak memory; without WHEEL torch 2.15.0 (539 MB) is fetched first.
"""

import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.ratio import Command, paired, verdict

REQUIREMENT = ["torch==2.15.0", "--python-version=311", "--platform=manylinux_2_28_x86_64"]
REACH = 1.3
CHUNK = 1 << 20
LOCAL_HEADER = 30


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(arguments[0]).resolve() if arguments else fetched(Path(folder))
        title = f"{wheel.name}: inspect vs inflating its .so members"
        found = paired(title, running("inspected", wheel), running("inflated", wheel), rounds=3)
    return 0 if verdict(found, reach=REACH) else 1


def inspected(wheel: Path) -> None:
    from vbuild.inspection.inspect import inspect  # noqa: PLC0415 - the other side is not to pay for it

    inspect(wheel).data()


def inflated(wheel: Path) -> None:
    with wheel.open("rb") as file, zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if ".so" not in Path(info.filename).suffixes:
                continue
            file.seek(info.header_offset + LOCAL_HEADER - 4)
            name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
            file.seek(name + extra, 1)
            inflater, left = zlib.decompressobj(-zlib.MAX_WBITS), info.compress_size
            while left:
                piece = file.read(min(left, CHUNK))
                left -= len(piece)
                inflater.decompress(piece)


def running(name: str, wheel: Path) -> Command:
    code = f"import sys, pathlib; from tests.benchmarks.inspecting import {name}; {name}(pathlib.Path(sys.argv[1]))"
    return lambda _: ["env", f"PYTHONPATH={Path(__file__).parents[2]}", sys.executable, "-c", code, wheel]


def fetched(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", *REQUIREMENT]
    subprocess.run([*pip, "--dest", str(folder)], check=True)
    return next(folder.glob("*.whl"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
