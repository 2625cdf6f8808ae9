"""Which package has a library that a wheel does not bring, and how it is then required."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.factories.bundle_reader import BundleReader
from tests.factories.cuda_packages import (
    all_packages,
    library_named,
    package_wheel,
    serving_packages,
)
from tests.factories.extensions import module
from tests.factories.tools import needs
from vbuild.splitting.official import Officials
from vbuild.splitting.other_packages import LibraryPackage, PackageFinder
from vbuild.splitting.request import SplitRequest

pytestmark = needs("gcc")

CURAND = "libcurand.so.10"


@pytest.fixture
def look(tmp_path: Path) -> Iterator[BundleReader]:
    with ExitStack() as stack:
        yield BundleReader(tmp_path, stack)


@pytest.fixture
def officials(tmp_path: Path) -> Iterator[Officials]:
    made = all_packages(tmp_path / "made")
    for project in ("nvidia-curand-cu11", "nvidia-curand-cu12"):
        made.append(
            package_wheel(tmp_path / "made", project, "10.3.1", {CURAND: library_named(CURAND)}, place="curand")
        )
    with serving_packages(tmp_path, *made) as server:
        yield Officials("x86_64", indexes=lambda: server.indexes, store=tmp_path / "store")


def find(
    look: BundleReader, officials: Officials, name: str, *, metadata: str = "", **asked: object
) -> LibraryPackage | None:
    """Which package has *name*, for a wheel whose module needs just that."""
    request = SplitRequest(**asked)  # type: ignore[arg-type]
    bundle = look.at({"demo/_c.so": module(name)}, metadata=metadata)
    return PackageFinder(officials, request).find(bundle, name)


def test_what_nobody_knows_has_no_package_and_a_framework_no_release(look: BundleReader, officials: Officials) -> None:
    assert find(look, officials, "libnobody.so.3") is None
    assert find(look, officials, "libtorch_cpu.so") == LibraryPackage("torch", "libtorch_cpu.so", ("torch/lib",))
