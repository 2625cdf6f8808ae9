"""AMD's processors, and what runs on them; LLVM is the judge of names, modes and numbers."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from vbuild.errors import HardwareError
from vbuild.hardware.architectures import GENERIC, PROCESSORS, Arch, GpuTarget
from vbuild.hardware.driver import FORCED_GFX, FORCED_TPU, amd_gpus, has_tpu
from vbuild.hardware.gpu import GpuCodeKind, GpuList, GpuOffer, Ptx, Service, kept_offers, service

_FLAGS = re.compile(r"Flags:\s+(0x[0-9A-Fa-f]+), (gfx[\w-]+)(.*)")
_CPU = re.compile(r"^  (gfx[\w-]+)\s", re.MULTILINE)


def offers(text: str) -> tuple[GpuOffer, ...]:
    """What a bundle offers: targets, ``host``, or ``spirv``."""
    kinds = {"host": GpuCodeKind.OTHER, "spirv": GpuCodeKind.PTX}
    return tuple(
        GpuOffer(kinds.get(word, GpuCodeKind.MACHINE), _target("amdgcnspirv" if word == "spirv" else word))
        for word in text.split()
    )


def _target(text: str) -> GpuTarget:
    processor, *modes = text.split(":")
    return GpuTarget(processor, tuple(modes))


@pytest.mark.parametrize(
    ("bundle", "gpu", "left"),
    [
        ("host gfx90a gfx942 gfx1100", "gfx942", "host gfx942"),
        ("host gfx1100", "gfx1101", "host"),
        ("gfx90a:xnack+ gfx90a:xnack- gfx942", "gfx90a", "gfx90a:xnack+ gfx90a:xnack-"),
        ("gfx90a:xnack+ gfx90a:xnack- gfx90a", "gfx90a:xnack-", "gfx90a:xnack- gfx90a"),
        ("gfx942:sramecc+:xnack- gfx942:sramecc-:xnack-", "gfx942:sramecc+", "gfx942:sramecc+:xnack-"),
        # generic code goes only if the processor has code of its own for each mode
        ("gfx942 gfx9-4-generic", "gfx942", "gfx942"),
        ("gfx942:xnack- gfx9-4-generic", "gfx942", "gfx942:xnack- gfx9-4-generic"),
        ("gfx942:xnack- gfx9-4-generic", "gfx942:xnack-", "gfx942:xnack-"),
        ("gfx9-generic gfx9-4-generic", "gfx950", "gfx9-4-generic"),
        ("gfx9-generic gfx9-4-generic", "gfx90a", ""),
        ("gfx9-generic", "gfx906", "gfx9-generic"),
        ("gfx10-1-generic gfx10-3-generic", "gfx1031", "gfx10-3-generic"),
        ("gfx11-generic gfx12-generic", "gfx1151", "gfx11-generic"),
        ("gfx11-generic gfx12-generic", "gfx1201", "gfx12-generic"),
        # newer than the table
        ("gfx12-5-generic gfx12-generic", "gfx1250", "gfx12-5-generic"),
        ("gfx12-5-generic", "gfx1201", ""),
        ("spirv gfx942", "gfx942", "gfx942"),
        ("spirv gfx942", "gfx1100", "spirv"),
    ],
)
def test_a_gpu_of_amd_needs_its_own_code_else_generic_code_else_spirv(bundle: str, gpu: str, left: str) -> None:
    found, words = offers(bundle), bundle.split()
    kept = kept_offers(found, GpuTarget.parse(gpu), ptx=Ptx.AUTO)
    assert " ".join(words[place] for place in sorted(kept)) == left
    assert service(found, GpuTarget.parse(gpu)) is (
        Service.JIT if left == "spirv" else Service.MACHINE if left.removeprefix("host") else Service.NONE
    )


def test_vendors_run_none_of_the_others_code() -> None:
    assert not Arch(90).runs_on(GpuTarget("gfx900"))
    assert not Arch(90).compiles_on(GpuTarget("gfx900"))
    assert not GpuTarget("gfx900").runs_on(Arch(90))
    assert not GpuTarget("amdgcnspirv").compiles_on(Arch(90))


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("gfx90a,GFX942", "gfx90a,gfx942"),
        ("gfx90a:xnack+ gfx90a-xnack-", "gfx90a:xnack+,gfx90a:xnack-"),
        ("gfx942:xnack-:sramecc+", "gfx942:sramecc+:xnack-"),
        ("MI300X", "gfx942"),
        ("AMD Instinct MI250X; AMD Instinct MI300X OAM", "gfx90a,gfx942"),
        ("Radeon RX 7900 XTX, AMD Radeon PRO W7800", "gfx1100"),
        ("Radeon VII, Radeon 8060S Graphics", "gfx906,gfx1151"),
        ("gfx12-generic", "gfx1200,gfx1201"),
        ("H100, MI300X, 8.0", "sm_80,sm_90,gfx942"),
    ],
)
def test_people_name_gpus_of_both_vendors(text: str, written: str) -> None:
    assert str(GpuList.asked(text)) == written


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gfx94", "there is no GPU architecture 'gfx94'; did you mean gfx940, gfx941 or gfx942?"),
        ("gfx90b", "there is no GPU architecture 'gfx90b'; did you mean"),
        ("gfx1100:xnack+", "'gfx1100:xnack+': expected gfx1100"),
        ("gfx90a:xnack", "'gfx90a:xnack': expected gfx90a, or gfx90a:sramecc+ or gfx90a:xnack+, or with -"),
        ("gfx90a:xnack+:xnack-", "'gfx90a:xnack+:xnack-': expected gfx90a, or"),
        ("MI300Y", "there is no GPU architecture 'MI300Y'; did you mean MI300"),
    ],
)
def test_a_gpu_of_amd_that_does_not_exist_is_refused(text: str, message: str) -> None:
    with pytest.raises(HardwareError) as refused:
        GpuList.asked(text)
    assert str(refused.value).startswith(message)


def test_code_is_compiled_for_no_gpu_of_amd() -> None:
    with pytest.raises(HardwareError, match="'MI300X' is one of AMD's GPUs, for which no code is compiled here"):
        GpuList.parse("90,MI300X")


def test_native_is_what_linux_says_of_amds_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for node, version in enumerate((0, 90402, 90402, 90010, 110501)):
        properties = tmp_path / str(node) / "properties"
        properties.parent.mkdir()
        properties.write_text(f"cpu_cores_count 0\ngfx_target_version {version}\nvendor_id 4098\n")
    assert amd_gpus({}, topology=tmp_path) == ("gfx942", "gfx90a", "gfx1151")
    assert amd_gpus({}, topology=tmp_path / "none") == ()
    monkeypatch.setenv(FORCED_GFX, "gfx1100, gfx942")
    assert str(GpuList.asked("native")) == "gfx942,gfx1100"


@pytest.fixture(scope="module")
def llvm() -> tuple[str, str]:
    """LLVM's compiler and reader of ELF files, of the version that the tables are of."""
    found = tuple(path for name in ("llc", "llvm-readelf") if (path := shutil.which(f"{name}-22")))
    if len(found) < 2:
        pytest.skip("needs llc-22 and llvm-readelf-22")
    return found[0], found[1]


@pytest.mark.nightly
def test_llvm_knows_the_same_processors_by_the_same_numbers_and_modes(llvm: tuple[str, str], tmp_path: Path) -> None:
    llc, readelf = llvm
    command = [llc, "-mtriple=amdgcn-amd-amdhsa"]
    listed = subprocess.run([*command, "-mcpu=help"], capture_output=True, text=True, check=True, input="").stderr
    names = set(_CPU.findall(listed.partition("features")[0]))
    gone = {"gfx940", "gfx941"}  # of LLVM 19
    assert {name for name in names if not name.startswith("gfx6")} == {*PROCESSORS, *GENERIC} - gone
    source = tmp_path / "empty.ll"
    source.write_text("define void @f() { ret void }")
    for name in sorted(names & {*PROCESSORS, *GENERIC}):
        subprocess.run([*command, f"-mcpu={name}", "-filetype=obj", source, "-o", tmp_path / "o"], check=True)
        said = subprocess.run([readelf, "-h", tmp_path / "o"], capture_output=True, text=True, check=True).stdout
        match = _FLAGS.search(said)
        assert match
        assert match[2] == name
        modes = {"xnack", "sramecc"} & {word.strip() for word in match[3].split(",")}
        if name in PROCESSORS:
            assert modes == set(PROCESSORS[name].modes)
        assert GpuTarget.of_flags(int(match[1], 16), 4) == GpuTarget(name)


@pytest.mark.parametrize(
    ("vendor", "device", "expected"),
    [("0x1ae0", "0x0063", True), ("0x1ae0", "0x001f", False), ("0x10de", "0x0063", False)],
)
def test_a_tpu_is_a_device_of_googles_on_the_bus_unless_the_variable_says(
    *, vendor: str, device: str, expected: bool, tmp_path: Path
) -> None:
    (tmp_path / "0000:00:00.0").mkdir()  # whose files cannot be read
    bus = tmp_path / "0000:00:05.0"
    bus.mkdir()
    (bus / "vendor").write_text(f"{vendor}\n")
    (bus / "device").write_text(f"{device}\n")
    assert has_tpu({}, devices=tmp_path) is expected
    assert has_tpu({FORCED_TPU: "Yes"}, devices=tmp_path)
    assert not has_tpu({FORCED_TPU: ""}, devices=tmp_path)
