"""Which wheels get their libraries from one dependency wheel: near sets are joined, others are not."""

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tests.factories.bundle_reader import BundleReader
from tests.factories.elf import shared_object
from tests.factories.repaired_wheels import LINUX
from tests.factories.tools import needs
from vbuild.splitting.bundle import Bundle
from vbuild.splitting.pools import Owners, Pool, planned_pools

pytestmark = needs("gcc")


@pytest.fixture
def look(tmp_path: Path) -> Iterator[BundleReader]:
    with ExitStack() as stack:
        yield BundleReader(tmp_path, stack)


@cache
def noise(name: str, size: int, seed: int = 0) -> bytes:
    """A library of *size* bytes that cannot be deflated."""
    data = random.Random(f"{name} {seed}").randbytes(size)
    return shared_object(f"const unsigned char data[] = {{{','.join(map(str, data))}}};", f"-Wl,-soname,{name}")


def a_wheel(
    look: BundleReader,
    number: int,
    files: Mapping[str, bytes],
    *,
    project: str = "demo",
    platform: str = LINUX,
    label: str = "",
) -> Bundle:
    return look.at(files, f"{project}-1.0-cp3{number}-cp3{number}-{platform}{label and f'-{label}'}.whl")


def pooled(*bundles: Bundle, smallest: int = 0) -> tuple[Pool, ...]:
    owners = Owners(None, {"demo": "demo"})
    return planned_pools({bundle: bundle.libraries for bundle in bundles}, owners, smallest=smallest)


BIG, LITTLE, LAST = noise("libbig.so", 60_000), noise("liblittle.so", 2_000), noise("liblast.so", 50_000)


def test_variants_whose_sets_differ_a_lot_have_pools_of_their_own(look: BundleReader) -> None:
    both, one = {"demo/libbig.so": BIG, "demo/liblast.so": LAST}, {"demo/liblast.so": LAST}
    wheels = [
        a_wheel(look, number, files, label=label)
        for number, files, label in ((10, both, ""), (11, one, "v3"), (12, both, ""), (13, one, "v3"))
    ]
    first, second = pooled(*wheels)
    assert first.bundles == (wheels[0], wheels[2])
    assert second.bundles == (wheels[1], wheels[3])


def test_wheels_that_differ_a_lot_share_what_all_have_if_that_saves_more(look: BundleReader) -> None:
    both, one = {"demo/libbig.so": BIG, "demo/liblast.so": LAST}, {"demo/libbig.so": BIG}
    wheels = [a_wheel(look, number, files) for number, files in ((10, one), (11, both), (12, one), (13, both))]
    (pool,) = pooled(*wheels)
    assert pool.bundles == tuple(wheels)
    assert list(pool.libraries) == ["libbig.so"]
