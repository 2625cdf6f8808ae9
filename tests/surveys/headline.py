"""What slimming makes of wheels that many people install: the table of docs/howto/slim.md.

    python -m tests.surveys.headline [REQUIREMENT ...]

prints a row for each wheel, sizes in MB (10^6 bytes): as published, with its GPU code compressed again, for H100 alone,
for H100 with that compression, and as a family of three. Each wheel is fetched, and gone before the next one is.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vbuild
from vbuild.errors import VbuildError

WHEELS = (
    "bitsandbytes==0.50.2",
    "xformers==0.0.35",
    "ctranslate2==4.8.5",
    "catboost==1.2.10",
    "xgboost==3.2.0",
    "cupy-cuda12x==14.2.0",
    "faiss-gpu-cu12==1.14.1.post1",
    "torchvision==0.29.2",
    "onnxruntime-gpu==1.31.1",
    "torch==2.15.0",
)
FAMILY = {"sm8x": "80,86,89", "sm90": "90", "sm120": "120"}
PLATFORMS = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17)] + [
    "--platform=manylinux2014_x86_64"
]
_MB = 10**6


def fetched(requirement: str, folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, *PLATFORMS, "--python-version=3.11", "--dest", str(folder), requirement], check=True)
    return next(folder.glob("*.whl"))


def sizes(wheel: Path, folder: Path, **options: Any) -> str:
    """What comes of *wheel*, packed and in brackets installed; a dash if the wheel has nothing for a GPU."""
    try:
        results = vbuild.slim(wheel, folder, accept_license=True, allow_unsupported=True, **options)
    except VbuildError as error:
        print(f"{wheel.name}: {error}", file=sys.stderr)
        return "-"
    text = " / ".join(f"{result.packed / _MB:.1f}" for result in results)
    for result in results:
        if result.path:
            result.path.unlink()
    return f"{text} ({results[0].unpacked / _MB:.0f})" if len(results) == 1 else text


def main(arguments: Sequence[str]) -> int:
    print("| wheel | as published | `--recompress` | `--gpu H100` | both | family, each |")
    print("|---|---|---|---|---|---|")
    for requirement in arguments or WHEELS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            wheel = fetched(requirement, folder)
            contents = vbuild.inspect(wheel)
            published = f"{contents.packed_size / _MB:.1f} ({contents.size / _MB:.0f})"
            ways: tuple[dict[str, Any], ...] = (
                {"zstd": True},
                {"gpus": "H100"},
                {"gpus": "H100", "zstd": True},
                {"variants": FAMILY},
            )
            found = [sizes(wheel, folder / str(number), **way) for number, way in enumerate(ways)]
            print(f"| {contents.project} {contents.version} |", published, "|", " | ".join(found), "|", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
