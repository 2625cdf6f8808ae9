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
from vbuild.splitting.decisions import Pool, planned_pools

pytestmark = needs("gcc")

ARM = "manylinux_2_17_aarch64"


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
    return planned_pools({bundle: bundle.libraries for bundle in bundles}, smallest=smallest)


BIG, LITTLE, LAST = noise("libbig.so", 60_000), noise("liblittle.so", 2_000), noise("liblast.so", 50_000)


def test_what_two_wheels_have_is_pooled_and_what_one_has_is_not(look: BundleReader) -> None:
    first = a_wheel(look, 10, {"demo/libbig.so": BIG, "demo/liblast.so": LAST})
    second = a_wheel(look, 11, {"demo/libbig.so": BIG})
    (pool,) = pooled(first, second)
    assert pool.bundles == (first, second)
    assert list(pool.libraries) == ["libbig.so"]
    assert pool.projects == ("demo",)
    assert pool.platform == LINUX
    assert pool.source(pool.libraries["libbig.so"]) is first
    packed = first.binaries["demo/libbig.so"].member.compressed_size
    assert pool.saved == packed


@pytest.mark.parametrize("extra", [0, 1])
def test_a_pool_has_to_save_enough(look: BundleReader, extra: int) -> None:
    wheels = [a_wheel(look, number, {"demo/libbig.so": BIG}) for number in (10, 11, 12)]
    saved = 2 * wheels[0].binaries["demo/libbig.so"].member.compressed_size
    assert len(pooled(*wheels, smallest=saved + extra)) == 1 - extra


def test_sets_that_differ_a_little_are_one_pool(look: BundleReader) -> None:
    both, one = {"demo/libbig.so": BIG, "demo/liblittle.so": LITTLE}, {"demo/libbig.so": BIG}
    wheels = [a_wheel(look, number, files) for number, files in ((10, both), (11, both), (12, one))]
    (pool,) = pooled(*wheels)
    assert pool.bundles == tuple(wheels)
    assert list(pool.libraries) == ["libbig.so", "liblittle.so"]


def test_variants_whose_sets_differ_a_lot_have_pools_of_their_own(look: BundleReader) -> None:
    both, one = {"demo/libbig.so": BIG, "demo/liblast.so": LAST}, {"demo/liblast.so": LAST}
    wheels = [
        a_wheel(look, number, files, label=label)
        for number, files, label in ((10, both, ""), (11, one, "v3"), (12, both, ""), (13, one, "v3"))
    ]
    first, second = pooled(*wheels)
    assert first.bundles == (wheels[0], wheels[2])
    assert second.bundles == (wheels[1], wheels[3])


def test_wheels_of_one_release_have_one_pool_that_which_saves_most(look: BundleReader) -> None:
    # two would be two versions of one requirement, and METADATA of one wheel is taken for that of all
    other = noise("libbig.so", 60_000, seed=1)
    wheels = [
        a_wheel(look, number, {"demo/libbig.so": data, **more})
        for number, data, more in (
            (10, other, {}),
            (11, BIG, {"demo/liblast.so": LAST}),
            (12, other, {}),
            (13, BIG, {"demo/liblast.so": LAST}),
        )
    ]
    (pool,) = pooled(*wheels)
    assert pool.bundles == (wheels[1], wheels[3])


def test_wheels_that_differ_a_lot_share_what_all_have_if_that_saves_more(look: BundleReader) -> None:
    both, one = {"demo/libbig.so": BIG, "demo/liblast.so": LAST}, {"demo/libbig.so": BIG}
    wheels = [a_wheel(look, number, files) for number, files in ((10, one), (11, both), (12, one), (13, both))]
    (pool,) = pooled(*wheels)
    assert pool.bundles == tuple(wheels)
    assert list(pool.libraries) == ["libbig.so"]


def test_flavours_of_projects_share_what_all_have(look: BundleReader) -> None:
    """One wheel each, as of opencv-python and opencv-python-headless: what has windows has more."""
    both, one = {"cv/libbig.so": BIG, "cv/liblast.so": LAST}, {"cv/libbig.so": BIG}
    flavours = {"gui": both, "contrib": both, "headless": one, "contrib_headless": one}
    wheels = [a_wheel(look, 10, files, project=project) for project, files in flavours.items()]
    unrelated = [
        a_wheel(look, number, {"x/liblast.so": noise("liblast.so", 50_000, seed=2)}, project="x") for number in (10, 11)
    ]
    pool, other = pooled(*wheels, *unrelated)
    assert (pool.bundles, list(pool.libraries)) == (tuple(wheels), ["libbig.so"])
    assert other.bundles == tuple(unrelated)


NEWER = LINUX.replace("2_17", "2_28")


def test_a_newer_libc_gets_no_other_libraries_than_its_wheels_need(look: BundleReader) -> None:
    """An installer takes the libraries for the newer glibc, and the wheel for the older one if there is no other."""
    older = [a_wheel(look, number, {"demo/libbig.so": BIG}) for number in (10, 11)]
    newer = [a_wheel(look, number, {"demo/liblast.so": LAST}, platform=NEWER) for number in (12, 13)]
    assert [pool.platform for pool in pooled(*older, *newer)] == [LINUX]
    same = [a_wheel(look, number, {"demo/liblast.so": LAST}, platform=NEWER) for number in (10, 11)]
    assert [pool.platform for pool in pooled(*older, *same)] == [LINUX, NEWER]
    musl = [a_wheel(look, number, {"demo/liblast.so": LAST}, platform="musllinux_1_2_x86_64") for number in (12, 13)]
    assert len(pooled(*older, *musl)) == 2


def test_libraries_of_one_name_cannot_be_in_one_folder(look: BundleReader) -> None:
    other = noise("libbig.so", 60_000, seed=1)
    wheels = [
        a_wheel(look, number, {"demo/libbig.so": data}, label=label)
        for number, data, label in ((10, BIG, ""), (11, BIG, ""), (12, other, "v3"), (13, other, "v3"))
    ]
    assert [pool.bundles for pool in pooled(*wheels)] == [(wheels[0], wheels[1]), (wheels[2], wheels[3])]
    # nor two of the same wheel
    twice = {"demo/a/libbig.so": BIG, "demo/b/libbig.so": other, "demo/liblast.so": LAST}
    again = [a_wheel(look, number, twice) for number in (14, 15)]
    (pool,) = pooled(*again)
    assert list(pool.libraries) == ["liblast.so"]


def test_platforms_are_apart(look: BundleReader) -> None:
    files = {"demo/libbig.so": BIG}
    wheels = [a_wheel(look, 10, files), a_wheel(look, 10, files, platform=ARM), a_wheel(look, 11, files, platform=ARM)]
    (pool,) = pooled(*wheels)
    assert pool.platform == ARM


def test_the_order_of_wheels_changes_nothing_but_the_order(look: BundleReader) -> None:
    both, one = {"demo/libbig.so": BIG, "demo/liblittle.so": LITTLE}, {"demo/libbig.so": BIG}
    wheels = [a_wheel(look, number, files) for number, files in ((10, one), (11, both), (12, one), (13, both))]
    expected = {(frozenset(pool.bundles), tuple(pool.libraries)) for pool in pooled(*wheels)}
    rng = random.Random(5)
    for _ in range(6):
        rng.shuffle(wheels)
        assert {(frozenset(pool.bundles), tuple(pool.libraries)) for pool in pooled(*wheels)} == expected
