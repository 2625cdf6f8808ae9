"""Index 1,000 variant wheels: vbuild against `variantlib generate-index-json`, each in a process of its own, in turns.

    python tests/benchmarks/indexing.py [wheels]

Prints the best seconds of each and their ratio. tests/variants/test_index.py shows that it reads
no member but variant.json.
"""

import os
import subprocess
import sys
import tempfile
import time
from itertools import islice, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.factories.variants import document, metadata, variant
from tests.factories.wheels import dist_info_of, wheel
from vbuild.variants.metadata import VariantProvider

WHEELS, ROUNDS, REACH = 1000, 3, 1.5
VARIANTLIB = str(Path(sys.executable).with_name("variantlib"))
VBUILD = "import sys; from pathlib import Path; from vbuild.variants.index import index; index(Path(sys.argv[1]))"
MODULE = 1 << 16


def write_release(folder: Path, wheels: int) -> None:
    """A release of *wheels* variants of three features, 64 KiB a wheel."""
    digits = tuple("0123456789")
    shared = metadata("demo", demo=VariantProvider.static({"a": digits, "b": digits, "c": digits}))
    for a, b, c in islice(product(digits, repeat=3), wheels):
        label = f"v{a}{b}{c}"
        name = f"demo-1.0-py3-none-any-{label}.whl"
        found = document(variant(label, f"demo :: a :: {a}", f"demo :: b :: {b}", f"demo :: c :: {c}"), metadata=shared)
        members: dict[str, Any] = {"demo.py": os.urandom(MODULE), f"{dist_info_of(name)}/variant.json": found.pack()}
        wheel(folder, name, **members)


def timed(command: list[str], folder: Path) -> float:
    """Seconds that *command* takes to index *folder*, where no index is there yet."""
    index = folder / "demo-1.0-variants.json"
    index.unlink(missing_ok=True)
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.perf_counter() - start
    if not index.is_file():
        sys.exit(f"{command[0]} wrote no index")
    return seconds


def main(wheels: int = WHEELS) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_release(folder, wheels)
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(timed([sys.executable, "-c", VBUILD, name], folder))
            theirs.append(timed([VARIANTLIB, "generate-index-json", "-d", name], folder))
    print(f"index {wheels} variant wheels: vbuild {min(ours):.2f} s (reach: {REACH} s for {WHEELS})")
    print(f"variantlib {min(theirs):.2f} s; ratio {min(ours) / min(theirs):.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
