"""GPU code summed up, compared with what cutting the same library container by container leaves."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories.bundles import GFX90A, GFX942, HOST, bundle
from tests.factories.fatbins import device_library, entry, fatbin
from tests.gpu_code.test_device_file import OLD, elf
from vbuild.elf.image import ElfImage
from vbuild.files.edited import EditedFile
from vbuild.files.records import Buffer
from vbuild.gpu_code.coverage import Runs
from vbuild.gpu_code.device_file import DeviceFile, container_in
from vbuild.gpu_code.fatbin import FatbinFlag, FatbinKind
from vbuild.gpu_code.model import Container, Vendor
from vbuild.gpu_code.survey import device_code
from vbuild.hardware.architectures import Arch, Device, GpuTarget
from vbuild.hardware.gpu import GpuCodeKind, GpuRequest, Ptx, Service, kept_offers, service
from vbuild.inspection.gpu_code import GpuCode, Outlook, devices

SAMPLES = sorted((Path(__file__).parents[1] / "samples" / "fatbins").glob("*.so"))
SM_75, SM_80, SM_90, SM_103, SM_120 = map(Arch, (75, 80, 90, 103, 120))
HIP = {"section": ".hip_fatbin", "wrapper": (".hipFatBinSegment", 0x48495046, 1), "align": 4096}


def summed(data: Buffer) -> GpuCode:
    return GpuCode.of(device_code(ElfImage.parse(data)))


def left(data: Buffer, container: Container, device: Arch) -> int:
    """The bytes of *container* after slimming to *device*, as its own packing gives them."""
    if not container.movable:
        return len(container.span)
    kept = kept_offers([entry.offer for entry in container.entries], GpuRequest(device), ptx=Ptx.AUTO)
    entries = [entry for place, entry in enumerate(container.entries) if place in kept]
    return EditedFile.of(data, container.keeping(entries or [e for e in (container.smallest,) if e])).size


def left_of(data: bytes, containers: Sequence[Container], device: Arch) -> int:
    """What slimming leaves of *containers*, all of a library: all bytes, if none of them serves *device*."""
    offers = [[entry.offer for entry in container.entries] for container in containers]
    for_gpus = [each for each in offers if any(offer.code is not GpuCodeKind.OTHER for offer in each)]
    if for_gpus and all(service(each, device) is Service.NONE for each in for_gpus):
        return sum(len(container.span) for container in containers)
    return sum(left(data, container, device) for container in containers)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("device", [SM_75, SM_80, SM_90, SM_103], ids=str)
def test_what_a_gpu_needs_of_a_compiled_library_is_what_cutting_it_leaves(sample: Path, device: Arch) -> None:
    data = sample.read_bytes()
    code = device_code(ElfImage.parse(data))
    assert GpuCode.of(code).outlook(device).kept == left_of(data, code.containers, device)


offers = st.tuples(
    st.sampled_from([FatbinKind.CUBIN, FatbinKind.PTX, FatbinKind.LTO_IR]),
    st.sampled_from([75, 80, 86, 87, 90, 100, 103, 120]),
    st.sampled_from([0, FatbinFlag.ARCH_SPECIFIC]),
    st.sampled_from([128, 136, 512]),
)


@settings(max_examples=25)
@given(st.lists(st.lists(offers, max_size=4), min_size=1, max_size=5))
def test_containers_of_any_sort_add_up_to_themselves(
    drawn: Sequence[Sequence[tuple[FatbinKind, int, FatbinFlag, int]]],
) -> None:
    containers = [
        fatbin(*(entry(kind, arch, flags=flags, code=bytes(size)) for kind, arch, flags, size in one)) for one in drawn
    ]
    data = device_library(*containers)
    code = device_code(ElfImage.parse(data))
    gpu = GpuCode.of(code)
    assert gpu.size == sum(map(len, containers))
    assert (gpu.containers, gpu.entries) == (len(drawn), sum(map(len, drawn)))
    assert sum(portion.entries for portion in gpu.portions) == gpu.entries
    for device in (SM_80, SM_103):
        outlook = gpu.outlook(device)
        assert outlook.kept == left_of(data, code.containers, device)
        for_gpus = [one for one in drawn if any(kind is not FatbinKind.LTO_IR for kind, *_ in one)]
        assert outlook.coverage.total.fatbins == len(for_gpus)


def test_amd_s_targets_are_served_by_name() -> None:
    codes = {HOST: b"", GFX90A: bytes(4096), GFX942: bytes(8192)}
    data = device_library(bundle(codes), **HIP)  # type: ignore[arg-type]  # one dictionary for three types
    gpu = summed(data)
    found: dict[Device, Outlook] = {device: gpu.outlook(device) for device in devices([gpu])}
    assert list(map(str, found)) == ["gfx90a", "gfx942"]
    assert [str(portion.sort.arch) for portion in gpu.portions] == ["gfx90a:xnack+", "gfx942"]
    assert {outlook.runs for outlook in found.values()} == {Runs.NATIVELY}
    assert found[GpuTarget("gfx90a")].kept < found[GpuTarget("gfx942")].kept < gpu.size


def alone(arch: Arch, trouble: str | None = None) -> GpuCode:
    return GpuCode.alone(DeviceFile(Vendor.NVIDIA, "cubin", GpuCodeKind.MACHINE, arch, trouble=trouble), 100)


def test_code_of_no_known_gpu_is_called_so() -> None:
    start = elf(0xFF00FF, OLD)
    file = DeviceFile.of("k.cubin", len(start), lambda size: start[:size])
    assert file
    assert [str(portion.sort.arch) for portion in GpuCode.alone(file, len(start)).portions] == ["unknown"]


def test_a_file_that_is_a_container_promises_what_slimming_leaves_of_it() -> None:
    plain = fatbin(entry(arch=80), entry(arch=90))
    framed = zstandard.compress(plain)
    for data, sm_80 in ((plain, len(fatbin(entry(arch=80)))), (framed, len(framed))):
        container = container_in(memoryview(data))
        assert container
        gpu = GpuCode.contained(container, len(data))
        assert (gpu.size, gpu.outlook(SM_80).kept, gpu.outlook(SM_120).kept) == (len(data), sm_80, 0)
