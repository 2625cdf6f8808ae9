"""Libraries that nvcc made, as tests/samples/README.md says: the parser sees what the compiler was asked for."""

from pathlib import Path

import pytest

from vbuild.elf.image import ElfImage
from vbuild.files.edited import EditedFile
from vbuild.gpu_code.fatbin import FatbinFlag, decompressed, recompressed
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


@pytest.mark.parametrize("name", CASES)
def test_every_entry_of_a_sample_holds_a_cubin_or_ptx(name: str) -> None:
    data, code = sample(name)
    for entry in entries(code):
        inside = decompressed(data, entry)
        assert len(inside) == entry.uncompressed_size
        assert inside.startswith(b"\x7fELF") if entry.kind == "cubin" else b".version" in inside


@pytest.mark.parametrize("name", CASES)
def test_keeping_all_changes_nothing_and_keeping_none_leaves_sixteen_bytes(name: str) -> None:
    data, code = sample(name)
    for container in code.containers:
        assert container.keeping(container.entries) == (container.span,)
        whole = bytes(EditedFile.of(data, container.packing(container.entries, lambda entry: entry.span)))
        assert whole == data[container.span.start : container.span.stop]
        assert [len(part) for part in container.keeping(())] == [16]


def test_the_flags_say_what_nvcc_was_asked_for() -> None:
    _, debug = sample("debug")
    (entry,) = entries(debug)
    assert entry.flags & FatbinFlag.DEBUG
    assert entry.ident == "kernel.cu"
    _, suffixes = sample("suffixes")
    assert [str(one.arch) for one in entries(suffixes) if one.flags & FatbinFlag.SECOND_CHOICE] == ["sm_100f"]


def test_relocatable_ptx_has_options() -> None:
    _, code = sample("relocatable")
    assert [one.options for one in entries(code) if one.kind == "ptx"] == ["--compile-only"]


def test_packed_relocations_lead_to_the_same_container() -> None:
    _, code = sample("packed_relocations")
    assert [pointer.row for container in code.containers for pointer in container.wrappers] == [None]


@pytest.mark.parametrize("name", ["none", "speed", "suffixes"])
def test_recompressed_entries_hold_the_same_code(name: str) -> None:
    data, code = sample(name)
    for container in code.containers:
        parts = container.keeping(container.entries, written=lambda entry: recompressed(data, entry))
        smaller = bytes(EditedFile.of(data, parts))
        assert len(smaller) < len(container.span)
