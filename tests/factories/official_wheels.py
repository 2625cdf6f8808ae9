"""NVIDIA's wheels as an index has them, whose libraries differ in one word; and bundled copies of these libraries."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.factories.elf import patchelfed, rpath, shared_object
from tests.factories.ranges import Serving, serving, simple_index
from tests.factories.wheels import wheel
from vbuild.elf.catalogue import CatalogueEntry
from vbuild.elf.read import Loading
from vbuild.splitting.official import Officials, Provenance, Unproved

LINUX, ARM = "manylinux2014_x86_64.manylinux_2_17_x86_64", "manylinux_2_17_aarch64"
FFT = "nvidia-cufft-cu12"
PATH = "nvidia/cufft/lib/libcufft.so.11"
SOURCE = "const char table[400000] = {1, 2}; int numbers[4000] = {%d}; int fft(int x) { return numbers[x] + table[x]; }"


@cache
def cufft(number: int) -> bytes:
    """A library that is as large as it is interesting: other versions differ in one word."""
    return shared_object(SOURCE % number, "-Wl,-soname,libcufft.so.11", *rpath("$ORIGIN"), "-lm")


def official_wheel(
    folder: Path,
    project: str = FFT,
    version: str = "11.2.1.3",
    files: dict[str, bytes | str] | None = None,
    *,
    platform: str = LINUX,
    requires: Sequence[str] = (),
) -> Path:
    """A wheel as NVIDIA makes them."""
    metadata = "".join(f"Requires-Dist: {line}\n" for line in requires)
    name = f"{project.replace('-', '_')}-{version}-py3-none-{platform}.whl"
    return wheel(folder, name, {PATH: cufft(1)} if files is None else files, metadata=metadata)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def name_of(data: bytes, version: str = "11.2.1.3") -> str:
    return f"libcufft-{digest(data)[:8]}.so.{version}"


def bundled_copy(data: bytes) -> bytes:
    """*data* as auditwheel bundles it."""
    return patchelfed(data, "--set-soname", name_of(data), "--remove-rpath")


def entries_of(*projects: str) -> tuple[CatalogueEntry, ...]:
    return tuple(
        CatalogueEntry("libcufft.so.11", project, 12, "cufft", "cufft", "nvidia/cufft/lib") for project in projects
    )


@contextmanager
def officials_of(
    folder: Path, *wheels: Path, mood: str = "sound", stated: bool = True
) -> Iterator[tuple[Officials, Serving]]:
    with serving(simple_index(folder / "index", *wheels, stated=stated), mood) as server:
        yield Officials("x86_64", indexes=lambda: server.indexes, store=folder / "store"), server


def origin_of(officials: Officials, name: str, data: bytes, *projects: str) -> Provenance | Unproved:
    entries = entries_of(*(projects or (FFT,)))
    loading = Loading.parse(data)
    return officials.provenance(name, loading, memoryview(data), sha256=digest(data), entries=entries)
