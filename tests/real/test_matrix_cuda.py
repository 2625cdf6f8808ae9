"""Releases of the CUDA projects of tests/projects: what is in each wheel, and that a build of its own is no different.

One build for all groups of GPUs, slimmed, has to give the kernels of a build for each group, at nearly the same size.
NVIDIA's cuobjdump says what is in the wheels; kernels are compared by the bytes of each function.
"""

import io
import os
import re
import subprocess
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests.factories.gpu_projects import COLLATZ, FRESH, GROUPS, HISTO, LEVELS, TALLY, Project, cuda, library
from tests.factories.published_wheels import PublishedWheels
from tests.factories.tools import needs
from vbuild.elf.image import ElfImage
from vbuild.gpu_code.fatbin import decompressed
from vbuild.gpu_code.survey import device_code
from vbuild.hardware.gpu import GpuList
from vbuild.release.model import Product, ReleaseResult

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the levels are those of x86-64"),
    needs("gcc", "g++", "c++filt", "objdump"),
]

PAGE = 4096
NEARLY = 0.01
REACH = 1.02
SEPARATE = 'strategy = "separate"'


_TEXT = ".text."
# nvcc puts this before the mangled name of what only one file sees, in relocatable code
_STATIC = re.compile(r"^__nv_static_\d+__\w*?_(?=_Z)")


@dataclass(frozen=True, slots=True, order=True)
class Kernel:
    """A function's machine code: in which section of the library, for which architecture, and its SHA-256."""

    section: str
    arch: str
    name: str
    digest: str


def kernels(data: bytes) -> Counter[Kernel]:
    """How often each kernel is in the library *data*.

    What stands for an anonymous namespace in a mangled name is made of the file's path, the list of architectures and,
    in relocatable code, nvcc's process id; so names are demangled.
    """
    found = []
    for container in device_code(ElfImage.parse(data)).containers:
        for entry in container.entries:
            if entry.kind == "cubin":
                sections = ELFFile(io.BytesIO(decompressed(data, entry))).iter_sections()
                texts = [section for section in sections if section.name.startswith(_TEXT)]
                found += [(container.section, str(entry.arch), text.name, text.data()) for text in texts]
    names = _demangled([_STATIC.sub("", name.removeprefix(_TEXT)) for _, _, name, _ in found])
    return Counter(
        Kernel(section, arch, name, sha256(code).hexdigest())
        for (section, arch, _, code), name in zip(found, names, strict=True)
    )


def _demangled(names: list[str]) -> list[str]:
    ran = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


@dataclass(frozen=True, slots=True)
class Pair:
    """A project's release by one build for all groups of GPUs, and that by a build for each."""

    project: Project
    fat: ReleaseResult
    separate: ReleaseResult

    @property
    def products(self) -> Iterator[Product]:
        """Every wheel of both."""
        yield from self.fat.products
        yield from self.separate.products

    @property
    def variants(self) -> Iterator[tuple[str, Path, Path]]:
        """Each group's label, its wheel slimmed, and its wheel by a build of its own."""
        slimmed = {product.label: product.wheel for product in self.fat.products}
        for product in self.separate.products:
            if product.label:
                yield product.label, slimmed[product.label], product.wheel


@pytest.fixture(scope="module")
def cuobjdump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return PublishedWheels(tmp_path_factory).tool("cuobjdump", "nvidia-cuda-cuobjdump")


@pytest.fixture(scope="module", params=[TALLY, COLLATZ, HISTO], ids=str)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    project: Project = request.param
    slimmed = f"[matrix]\n{LEVELS}{cuda()}{FRESH}{project.rules}"
    alone = f"{cuda(None, SEPARATE)}{FRESH}{project.rules}"
    fat = project.released(tmp_path_factory.mktemp("fat"), slimmed)
    separate = project.released(tmp_path_factory.mktemp("separate"), alone)
    assert [*fat.failures, *separate.failures] == []
    labels = (None, *GROUPS)
    assert tuple(product.label for product in fat.products) == (*labels, *(f"x86_64_v3_{label}" for label in GROUPS))
    assert tuple(product.label for product in separate.products) == labels
    return Pair(project, fat, separate)


def test_slimming_gives_the_kernels_of_a_build_for_the_group_alone(pair: Pair, tmp_path: Path) -> None:
    for label, slimmed, alone in pair.variants:
        ours, theirs = (kernels(data) for data in libraries(slimmed, alone, tmp_path))
        assert ours == theirs, label
        asked = {str(request.arch) for request in GpuList.parse(GROUPS[label])}
        assert {kernel.arch for kernel in ours} == asked | {code.partition(".")[0] for code in pair.project.always}


def test_slimming_gives_the_size_of_a_build_for_the_group_alone(pair: Pair, tmp_path: Path) -> None:
    for label, slimmed, alone in pair.variants:
        ours, theirs = libraries(slimmed, alone, tmp_path)
        sections = {container.section for container in device_code(ElfImage.parse(ours)).containers}
        # what is cut away goes by whole pages
        assert abs(len(ours) - len(theirs)) <= max(NEARLY * len(theirs), PAGE * len(sections)), label
        deflated = [sum(len(zlib.compress(content, 9)) for content in contents(wheel)) for wheel in (slimmed, alone)]
        assert abs(deflated[0] / deflated[1] - 1) <= NEARLY, label
        ratio = slimmed.stat().st_size / alone.stat().st_size
        print(
            f"{slimmed.name}: {ratio:.4f} of a build for {GROUPS[label]} alone, "
            f"{deflated[0] / deflated[1]:.4f} by one compressor, library {len(ours) / len(theirs):.4f}"
        )
        assert ratio <= REACH, label


def libraries(slimmed: Path, alone: Path, folder: Path) -> tuple[bytes, bytes]:
    """The library of either wheel."""
    return library(slimmed, folder / "slimmed").read_bytes(), library(alone, folder / "alone").read_bytes()


def contents(wheel: Path) -> Iterator[bytes]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            yield archive.read(name)
