"""Libraries that nvcc made, as tests/samples/README.md says: the parser sees what the compiler was asked for."""

from pathlib import Path

import pytest

from vbuild.elf.image import ElfImage
from vbuild.gpu_code.model import DeviceCode, GpuEntry
from vbuild.gpu_code.survey import device_code

FATBINS = Path(__file__).parents[1] / "samples" / "fatbins"

CASES = {
    "balance": ["cubin sm_80 raw, cubin sm_90 raw, ptx sm_90 zstd"],
    "size": ["cubin sm_80 zstd, cubin sm_90 zstd, ptx sm_90 zstd"],
    "speed": ["cubin sm_80 raw, cubin sm_90 raw, ptx sm_90 lz4"],
    "none": ["cubin sm_80 raw, cubin sm_90 raw, ptx sm_90 raw"],
    "debug": ["cubin sm_90 zstd"],
    "suffixes": ["cubin sm_90a raw, ptx sm_90a zstd, cubin sm_100f raw, ptx sm_100f zstd"],
    "relocatable": ["cubin sm_80 zstd, cubin sm_90 zstd, ptx sm_90 zstd", "cubin sm_80 raw, cubin sm_90 raw"],
    "packed_relocations": ["cubin sm_80 raw, cubin sm_90 raw, ptx sm_90 zstd"],
}


def sample(name: str) -> tuple[bytes, DeviceCode]:
    data = (FATBINS / f"{name}.so").read_bytes()
    return data, device_code(ElfImage.parse(data))


def entries(code: DeviceCode) -> list[GpuEntry]:
    return [entry for container in code.containers for entry in container.entries]


@pytest.mark.parametrize(("name", "expected"), CASES.items())
def test_every_sample_is_understood_and_all_of_it_is_movable(name: str, expected: list[str]) -> None:
    _, code = sample(name)
    found = [", ".join(f"{one.kind} {one.arch} {one.compression}" for one in each.entries) for each in code.containers]
    assert found == expected
    assert (code.pinned, code.notes) == ((), ())


def test_packed_relocations_lead_to_the_same_container() -> None:
    _, code = sample("packed_relocations")
    assert [pointer.row for container in code.containers for pointer in container.wrappers] == [None]
