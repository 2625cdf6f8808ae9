"""Published libraries with GPU code, cut to one architecture, loaded, and read through every pointer in memory."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.factories import elf
from tests.factories.devices import AARCH64, AARCH64_LARGE_PAGES, Toolchain
from vbuild.binary.image import Image
from vbuild.device.survey import device_code
from vbuild.hardware.gpu import Arch, Ptx, Request, needed
from vbuild.surgery.cutting import Replacement, Strip, operated

pytestmark = [pytest.mark.network, pytest.mark.slow]

PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux2014")
LIBRARIES = {
    "nvidia-nvjpeg-cu12==12.4.0.76": "libnvjpeg.so.12",
    "nvidia-curand-cu12==10.3.10.19": "libcurand.so.10",
    "xgboost==3.2.0": "libxgboost.so",
}

_READER = r"""
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
int main(int count, char **argv) {
  struct link_map *map = dlopen(argv[1], RTLD_NOW);
  if (!map) { puts(dlerror()); return 1; }
  while (scanf("%d", &count) == 1) {
    unsigned long place, size;
    if (scanf("%lx %lx", &place, &size) != 2) return 2;
    const unsigned char *data = *(const unsigned char **)(map->l_addr + place);
    uint64_t sum = 14695981039346656037u;
    for (unsigned long at = 0; at < size; at++) sum = (sum ^ data[at]) * 1099511628211u;
    printf("%llx\n", (unsigned long long)sum);
  }
  fflush(stdout);
  _Exit(0);
}
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The unpacked wheel of a requirement for a machine, fetched once."""
    cache = tmp_path_factory.mktemp("wheels")

    def unpacked(requirement: str, machine: str) -> Path:
        folder = cache / f"{requirement}-{machine}"
        if not folder.exists():
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
            platforms = [f"--platform={platform}_{machine}" for platform in PLATFORMS]
            subprocess.run([*pip, *platforms, "--dest", str(folder), requirement], check=True, capture_output=True)
            for wheel in folder.glob("*.whl"):
                zipfile.ZipFile(wheel).extractall(folder)
        return folder

    return unpacked


def orders(image: Image, arch: str) -> Iterator[Replacement]:
    request = Request(Arch.parse(arch))
    for container in device_code(image).containers:
        if container.movable:
            kept = needed([entry.offer for entry in container.entries], request, ptx=Ptx.AUTO)
            chosen = [entry for number, entry in enumerate(container.entries) if number in kept]
            smallest = [container.smallest] if container.smallest else []
            yield Replacement(container.span, container.keeping(chosen or smallest), container.wrappers)


def fingerprint(data: bytes) -> str:
    total = 14695981039346656037
    for byte in data:
        total = (total ^ byte) * 1099511628211 & 0xFFFF_FFFF_FFFF_FFFF
    return f"{total:x}"


def read(library: Path, wanted: list[tuple[int, int]], toolchain: Toolchain) -> list[str]:
    """The fingerprints of so many bytes behind each pointer, as a program sees them that has loaded *library*."""
    with tempfile.TemporaryDirectory() as folder:
        reader = Path(folder) / "reader"
        compiler: list[str | Path] = [f"{toolchain.prefix}gcc", "-O2", "-o", reader, "-x", "c", "-", "-ldl"]
        subprocess.run(compiler, input=_READER.encode(), check=True, capture_output=True)
        told = "".join(f"1 {place:x} {size:x}\n" for place, size in wanted)
        command: list[str | Path] = [*toolchain.run, reader, library]
        run = subprocess.run(command, input=told, capture_output=True, text=True, check=False, timeout=600)
        return run.stdout.splitlines()


def cut_in_place(path: Path, *, strip: Strip) -> tuple[list[tuple[int, int]], list[str]]:
    """Cut the library *path*; what is to be read of it, up to 64 KiB behind each pointer, and what that must be."""
    image = Image.parse(path.read_bytes())
    wanted = list(orders(image, "sm_90"))
    rope = operated(image, wanted, strip=strip).rope
    path.write_bytes(bytes(rope))
    assert rope.size < 0.5 * image.size
    reading, expected = [], []
    for each in wanted:
        data = b"".join(bytes(image.view(part)) if isinstance(part, range) else part for part in each.parts)[:65536]
        reading += [(pointer.place, len(data)) for pointer in each.pointers]
        expected += [fingerprint(data)] * len(each.pointers)
    return reading, expected


def copied(folder: Path, requirement: str, to: Path) -> Path:
    """The library of *requirement* in a copy of its unpacked wheel, beside the libraries it brings along."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*.whl"))
    return next(to.rglob(LIBRARIES[requirement]))


@pytest.mark.parametrize("strip", [Strip.NOTHING, Strip.UNNEEDED])
@pytest.mark.parametrize("requirement", LIBRARIES)
def test_every_pointer_of_the_loaded_library_leads_to_what_was_kept(
    requirement: str, strip: Strip, wheels: Callable[[str, str], Path], tmp_path: Path
) -> None:
    library = copied(wheels(requirement, "x86_64"), requirement, tmp_path / "wheel")
    before = library.read_bytes()
    reading, expected = cut_in_place(library, strip=strip)
    assert reading
    assert read(library, reading, Toolchain()) == expected
    assert elf.complaints("readelf", library.read_bytes(), "-aW") <= elf.complaints("readelf", before, "-aW")
    small = library.read_bytes()
    for edited in (
        elf.stripped(small),
        elf.objcopied(small, "--strip-debug"),
        elf.patchelfed(small, "--add-rpath", "/" + "x" * 600),
    ):
        library.write_bytes(edited)
        assert read(library, reading, Toolchain()) == expected


@pytest.mark.skipif(not AARCH64.is_there, reason="needs a cross compiler for aarch64 and qemu")
@pytest.mark.parametrize("toolchain", [AARCH64, AARCH64_LARGE_PAGES], ids=["4 KB pages", "64 KB pages"])
@pytest.mark.parametrize("requirement", ["nvidia-nvjpeg-cu12==12.4.0.76", "xgboost==3.2.0"])
def test_so_it_is_on_aarch64(
    requirement: str, toolchain: Toolchain, wheels: Callable[[str, str], Path], tmp_path: Path
) -> None:
    library = copied(wheels(requirement, "aarch64"), requirement, tmp_path / "wheel")
    reading, expected = cut_in_place(library, strip=Strip.NOTHING)
    assert reading
    assert read(library, reading, toolchain) == expected
