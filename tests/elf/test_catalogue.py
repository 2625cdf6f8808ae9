"""The catalogue of official libraries is what NVIDIA's own one says, and what is in their wheels."""

import zipfile
from importlib import import_module
from typing import Any

import pytest

from vbuild.elf.catalogue import CatalogueEntry, by_soname, by_stem, cuda_of, is_driver
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.packages import files_of
from vbuild.index_client.ranged import ranged
from vbuild.toolchain.toolkit import releases

# no types, and not its public face
DESCRIPTOR_CATALOG = import_module("cuda.pathfinder._dynamic_libs.descriptor_catalog").DESCRIPTOR_CATALOG
OURS = [spec for spec in DESCRIPTOR_CATALOG if spec.packaged_with != "driver"]
CUFFT = CatalogueEntry("libcufft.so.11", "nvidia-cufft-cu12", 12, "cufft", "cufft", "nvidia/cufft/lib")


def entries() -> list[CatalogueEntry]:
    """Every library in the catalogue, through the names that cuda-pathfinder and the toolkits have for them."""
    return [entry for spec in OURS for soname in spec.linux_sonames for entry in by_soname(soname)]


def test_a_soname_says_the_package() -> None:
    assert by_soname("libcufft.so.11") == (CUFFT,)
    assert [entry.project for entry in by_soname("libcurand.so.10")] == [
        "nvidia-curand-cu11",
        "nvidia-curand-cu12",
        "nvidia-curand",
    ]
    assert [(entry.project, entry.extra) for entry in by_soname("libnvToolsExt.so.1")] == [
        ("nvidia-nvtx-cu11", None),
        ("nvidia-nvtx-cu12", "nvtx"),
    ]
    assert by_soname("libcufft.so") == by_soname("libz.so.1") == ()


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("libcufft-f3921c41.so.11.2.1.3", "nvidia-cufft-cu12"),
        ("libcufft.so.10.9.0.58", "nvidia-cufft-cu11"),
        ("libcudart.3eda8113.so.13", "nvidia-cuda-runtime"),
        ("libcudart.so.11.8.89", "nvidia-cuda-runtime-cu11"),
        ("libnvrtc-builtins.so.12.6", "nvidia-cuda-nvrtc-cu12"),
        ("libcufft.so", "nvidia-cufft-cu11"),
    ],
)
def test_a_file_name_says_the_nearest_package_first(name: str, first: str) -> None:
    assert by_stem(name)[0].project == first


def test_a_file_name_says_the_packages_of_all_majors() -> None:
    assert [entry.cuda for entry in by_stem("libcufft-f3921c41.so.11.2.1.3")] == [12, 11, 13]
    assert by_stem("libcufftish.so.1") == by_stem("libz") == by_stem("") == ()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["libcudart.so.12"], 12),
        (["libcudart.so.12", "libcurand.so.10", "libz.so.1"], 12),
        (["libcufft-f3921c41.so.11.2.1.3"], 12),
        (["libcudart.so.11.8.89"], 11),
        (["libcusolver.so.11", "libcusparse.so.12"], 12),
        (["libcurand.so.10"], None),
        (["libcudart.so.12", "libcublas.so.13"], None),
        (["libcudart.so"], None),
        (["libcudart.so.99"], None),
        (["libnvpl_fftw.so.0"], None),
        ([], None),
    ],
)
def test_names_say_the_cuda_major_unless_they_disagree(names: list[str], expected: int | None) -> None:
    assert cuda_of(names) == expected


@pytest.mark.parametrize("spec", OURS, ids=lambda spec: spec.name)
def test_cuda_pathfinder_knows_the_same_libraries(spec: Any) -> None:
    found = [entry for soname in spec.linux_sonames for entry in by_soname(soname)]
    assert {entry.pathfinder for entry in found} == {spec.name}
    newest = [entry for entry in found if entry.cuda != 11]
    assert {entry.folder for entry in newest} <= set(spec.site_packages_linux)
    # its curand.so.11 is of a CUDA that is not there yet
    assert set(spec.linux_sonames) - {entry.soname for entry in newest} <= {"libcurand.so.11"}


def test_cuda_pathfinder_knows_the_same_drivers_libraries() -> None:
    names = [name for spec in DESCRIPTOR_CATALOG if spec.packaged_with == "driver" for name in spec.linux_sonames]
    assert names
    assert all(map(is_driver, names))


def test_the_toolkits_extras_bring_the_packages() -> None:
    toolkits = [release.extras for release in releases().values()]
    found = [entry for entry in entries() if entry.cuda == 13 and entry.extra]
    assert len({entry.project for entry in found}) >= 12
    for entry in found:
        assert any(entry.project in extras.get(entry.extra or "", ()) for extras in toolkits), entry


@pytest.mark.nightly
@pytest.mark.network
@pytest.mark.parametrize("soname", ["libcufft.so.11", "libnvJitLink.so.13", "libcudnn_graph.so.9"])
def test_the_official_wheels_have_the_libraries(soname: str) -> None:
    for entry in by_soname(soname):
        listed = [
            file for file in files_of(entry.project, indexes=Indexes.configured()) if not file.version.is_prerelease
        ]
        wheel = next(file for file in listed if file.file.endswith("x86_64.whl") and "linux" in file.file)
        with ranged(wheel, indexes=Indexes.configured()) as source, zipfile.ZipFile(source) as archive:
            assert f"{entry.folder}/{soname}" in archive.namelist()
