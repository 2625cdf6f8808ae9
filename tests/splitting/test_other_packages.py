"""Which package has a library that a wheel does not bring, and how it is then required."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.factories.bundle_reader import BundleReader
from tests.factories.cuda_packages import (
    VERSION,
    all_packages,
    library_named,
    package_wheel,
    serving_packages,
)
from tests.factories.extensions import module
from tests.factories.official_wheels import FFT
from tests.factories.tools import needs
from vbuild.errors import RepackageError
from vbuild.splitting.official import Officials
from vbuild.splitting.other_packages import LibraryPackage, PackageFinder, RequirementWriter
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


def test_the_release_that_is_required_counts(look: BundleReader, officials: Officials) -> None:
    for number, (metadata, asked) in enumerate(
        ((f"Requires-Dist: {FFT}=={VERSION}\n", {}), (f"Requires-Dist: {FFT}<11.3\n", {}), ("", {"cuda": (12, 4)}))
    ):
        look.folder = look.folder / str(number)
        found = find(look, officials, "libcufft.so.11", metadata=metadata, **asked)
        assert found
        assert found.wheel
        assert found.wheel.version == VERSION


def test_what_nobody_knows_has_no_package_and_a_framework_no_release(look: BundleReader, officials: Officials) -> None:
    assert find(look, officials, "libnobody.so.3") is None
    assert find(look, officials, "libtorch_cpu.so") == LibraryPackage("torch", "libtorch_cpu.so", ("torch/lib",))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("metadata", ["", f"Requires-Dist: {FFT}\nRequires-Dist: nvidia-cublas-cu11\n"])
def test_a_major_that_nothing_or_too_much_tells_is_asked_for(
    look: BundleReader, officials: Officials, metadata: str
) -> None:
    with pytest.raises(
        RepackageError, match=r"needs libcurand\.so\.10, which CUDA 11 and 12 and 13 have; say which one"
    ):
        find(look, officials, CURAND, metadata=metadata)


def test_a_package_is_required_once_whoever_needs_it(look: BundleReader, officials: Officials) -> None:
    """A module that is replaced into it and one that is led to it: one line, extras of a toolkit together."""
    bundle = look.at({"demo/_c.so": module("libcufft.so.11")})
    request = SplitRequest(rpath=True)
    packages = PackageFinder(officials, request)
    both = [packages.find(bundle, name) for name in ("libcufft.so.11", "libnvJitLink.so.12")]
    found = tuple(package for package in both if package)
    (line,) = RequirementWriter(request, "x86_64").lines((), (*found, *found), bundle.wheel.metadata())
    marker = 'platform_system == "Linux" and platform_machine == "x86_64"'
    assert line == f"cuda-toolkit[cufft,nvjitlink]==12.*; {marker}"
