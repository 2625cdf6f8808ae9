"""What becomes of bundled libraries, decided for all wheels together; what stays takes with it what cannot go."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.factories.bundle_reader import BundleReader
from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import NAME, hashed, repaired
from tests.factories.tools import needs
from vbuild.errors import RepackageError
from vbuild.splitting.decisions import Decisions, check_drivers, decide
from vbuild.splitting.pools import pools_of
from vbuild.splitting.request import SplitRequest

pytestmark = needs("gcc")

OTHER = NAME.replace("311", "312")
ONE, TWO, THREE = (
    library("libone.so", ("libtwo.so",)),
    library("libtwo.so", ("libthree.so",)),
    library("libthree.so"),
)
CHAIN = {"libone.so": ONE, "libtwo.so": TWO, "libthree.so": THREE}
NAMES = {soname: hashed(soname, data) for soname, data in CHAIN.items()}
FILES = repaired({"demo/_c.so": module("libone.so")}, CHAIN)
ASKED = SplitRequest(smallest=0)


@pytest.fixture
def look(tmp_path: Path) -> Iterator[BundleReader]:
    with ExitStack() as stack:
        yield BundleReader(tmp_path, stack)


def kinds(decision: Decisions) -> list[dict[str, str]]:
    """The kind of fate of each library by its first SONAME, wheel by wheel."""
    plain = {f"demo.libs/{name}": soname for soname, name in NAMES.items()}
    return [
        {plain.get(path, path): str(of.kind) for path, of in by_bundle.items()}
        for by_bundle in decision.by_bundle.values()
    ]


def both(look: BundleReader, files: Mapping[str, bytes | str] = FILES, *, metadata: str = "") -> Decisions:
    bundles = [look.at(files, name, metadata=metadata) for name in (NAME, OTHER)]
    return decide(bundles, ASKED)


def test_a_chain_of_libraries_is_shared_whole(look: BundleReader) -> None:
    decision = both(look)
    assert kinds(decision) == [dict.fromkeys(sorted(CHAIN), "share")] * 2
    (pool,) = decision.pools
    assert len(pool.libraries) == 3
    assert all(pools_of(bundle, decision.pools) == [pool] for bundle in decision.by_bundle)


def test_a_wheel_that_keeps_a_library_leaves_it_to_the_others(look: BundleReader) -> None:
    """Of three wheels one asks whether libthree.so is loaded: that one keeps the chain, two share it."""
    names = (NAME, OTHER, NAME.replace("311", "313"))
    more = [{}, {}, {"demo/a.py": f"CDLL('{NAMES['libthree.so']}', RTLD_NOLOAD)"}]
    bundles = [look.at({**FILES, **extra}, name) for name, extra in zip(names, more, strict=True)]
    assert [set(found.values()) for found in kinds(decide(bundles, ASKED))] == [{"share"}, {"share"}, {"keep"}]


@pytest.mark.parametrize(
    ("path", "is_refused"),
    [
        ("demo.libs/libcuda-1a2b3c4d.so.1", True),
        ("demo/lib/libnvidia-ml.so.1", True),
        ("demo/lib/stubs/libcuda.so.1", False),
        ("demo/lib/libcudart.so.12", False),
    ],
)
def test_libraries_of_the_driver_are_refused_wherever_they_are(
    look: BundleReader, path: str, *, is_refused: bool
) -> None:
    bundle = look.at({path: THREE})
    if is_refused:
        with pytest.raises(RepackageError, match=f"^{NAME}: {path}: bundles lib"):
            check_drivers([bundle])
    else:
        check_drivers([bundle])
