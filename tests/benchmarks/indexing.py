"""Index 1,000 variant wheels: vbuild against `variantlib generate-index-json`.

tests/variants/test_index.py shows that it reads no member but variant.json.
"""

import os
from collections.abc import Iterator, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any

from tests.benchmarks.figure import Figure, Made, Peer, Setting
from tests.benchmarks.measuring import BIN, Command, command, inside, timed
from tests.factories.variants import document, metadata, variant
from tests.factories.wheels import dist_info_of, wheel
from vbuild.variants.model import VariantProvider

WHEELS, LIMIT = 1000, 1.5
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


RELEASE = Made(write_release, (WHEELS,))


def figures() -> Iterator[Figure]:
    yield Figure(
        name="release",
        what="index 1,000 variant wheels",
        measure=timed(_anew(inside("indexed", RELEASE))),
        peer=Peer(
            "`variantlib generate-index-json`",
            timed(_anew(command(BIN / "variantlib", "generate-index-json", "-d", RELEASE))),
        ),
        limit=LIMIT,
        inputs=(RELEASE,),
    )


def _anew(indexing: Command) -> Command:
    """*indexing*, where no index is there yet."""

    def removed(setting: Setting) -> Sequence[str | Path]:
        (setting.inputs[RELEASE] / "demo-1.0-variants.json").unlink(missing_ok=True)
        return indexing(setting)

    return removed
