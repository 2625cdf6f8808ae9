"""The GPU code of published wheels: what NVIDIA's and LLVM's own tools find in it is what vbuild finds."""

import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from vbuild.elf.image import ElfImage
from vbuild.errors import BinaryError
from vbuild.gpu_code.fatbin import FATBINS, FatbinFlag, decompressed
from vbuild.gpu_code.model import DeviceCode, GpuEntry, Vendor
from vbuild.gpu_code.survey import device_code

pytestmark = pytest.mark.network

_PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux2014")
X86_64 = tuple(f"--platform={platform}_x86_64" for platform in _PLATFORMS)
AARCH64 = tuple(f"--platform={platform}_aarch64" for platform in _PLATFORMS)
SMALL = [("nvidia-nvjpeg-cu12==12.4.0.76", X86_64)]
LARGE = [
    ("bitsandbytes==0.50.2", X86_64),
    ("bitsandbytes==0.50.2", AARCH64),
    ("xgboost==3.2.0", X86_64),
    ("xgboost==3.2.0", AARCH64),
    ("cupy-cuda12x==14.2.0", X86_64),
    ("cupy-cuda13x==14.2.0", X86_64),
    ("nvidia-curand-cu12==10.3.10.19", X86_64),
    ("nvidia-nccl-cu12==2.32.3", X86_64),
]
WHEELS = [*SMALL, *(pytest.param(*each, marks=pytest.mark.slow) for each in LARGE)]
SAMPLES = sorted((Path(__file__).parents[1] / "samples" / "fatbins").glob("*.so"))
_LISTED = re.compile(r"\.(?P<arch>sm_\w+)\.(?P<kind>cubin|ptx)$", re.MULTILINE)


@pytest.fixture(scope="module")
def cuobjdump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuobjdump")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    subprocess.run([*pip, "nvidia-cuda-cuobjdump"], check=True, capture_output=True)
    return next(folder.rglob("bin/cuobjdump"))


def libraries(requirement: str, platforms: tuple[str, ...], folder: Path) -> Iterator[Path]:
    """Every shared library of the wheel, one at a time: some are of hundreds of MB."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", *platforms]
    subprocess.run([*pip, "--dest", str(folder), requirement], check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        for name in archive.namelist():
            if re.search(r"\.so(\.\d+)*$", name):
                path = Path(archive.extract(name, folder))
                yield path
                path.unlink()


def registered(code: DeviceCode) -> list[GpuEntry]:
    """The entries that cuobjdump looks for."""
    return [entry for one in code.containers if one.section in FATBINS.sections for entry in one.entries]


def named(entry: GpuEntry) -> tuple[str, str]:
    """Architecture and kind as cuobjdump writes them: an f is told for PTX only."""
    return str(entry.arch).rstrip("f") if entry.kind == "cubin" else str(entry.arch), entry.kind


def judge(cuobjdump: Path, path: Path) -> tuple[Counter[tuple[str, ...]], bool]:
    """What cuobjdump lists, and whether it went through to the end."""
    result = subprocess.run([cuobjdump, "-all", "-lelf", "-lptx", path], check=False, capture_output=True, text=True)
    return Counter(match.groups() for match in _LISTED.finditer(result.stdout)), "Invalid ELF" not in result.stderr


def check_entry(data: bytes, entry: GpuEntry) -> None:
    code = decompressed(data, entry)
    assert len(code) == entry.uncompressed_size
    if entry.kind == "cubin":
        assert code.startswith(b"\x7fELF\x02\x01")
        assert int.from_bytes(code[18:20], "little") == 190
        flags = int.from_bytes(code[48:52], "little")
        # the machine's number is in the low byte of e_flags, and in the second since version 8 of the ABI
        assert (flags >> 8 if code[8] >= 8 else flags) & 0xFF == getattr(entry.arch, "number", None)
    elif entry.kind == "ptx":
        assert b".version" in code


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_cuobjdump_lists_what_is_found_in_the_samples(sample: Path, cuobjdump: Path) -> None:
    listed, is_whole = judge(cuobjdump, sample)
    assert is_whole
    assert listed == Counter(map(named, registered(device_code(ElfImage.parse(sample.read_bytes())))))


@pytest.mark.parametrize(("requirement", "platforms"), WHEELS)
def test_cuobjdump_lists_what_is_found_and_every_entry_can_be_read(
    requirement: str, platforms: tuple[str, ...], tmp_path: Path, cuobjdump: Path
) -> None:
    entries = 0
    for path in libraries(requirement, platforms, tmp_path):
        data = path.read_bytes()
        code = device_code(ElfImage.parse(data))
        assert code.notes == ()
        if not (found := Counter(map(named, registered(code)))):
            continue
        listed, is_whole = judge(cuobjdump, path)
        # it refuses some cubins that nvlink 12.1 made, and lists nothing behind them
        assert listed == found if is_whole else listed <= found
        for entry in registered(code):
            check_entry(data, entry)
        entries += sum(found.values())
    assert entries > 20


@pytest.mark.slow
def test_fatbins_that_host_code_chooses_from_are_found_and_obfuscated_code_is_named(tmp_path: Path) -> None:
    for path in libraries("nvidia-cufft-cu12==11.4.1.4", X86_64, tmp_path):
        if path.name.startswith("libcufft.so"):
            data = path.read_bytes()
    code = device_code(ElfImage.parse(data))
    found = [container for container in code.containers if container.section == ".ldata"]
    assert len(found) == 24453
    assert not any(container.movable for container in found)
    obfuscated = [entry for container in found for entry in container.entries if entry.flags & FatbinFlag.OBFUSCATED]
    assert len(obfuscated) == 11651
    with pytest.raises(BinaryError, match=r"is obfuscated: only NVIDIA's linker can read it$"):
        decompressed(data, obfuscated[0])


@pytest.mark.slow
@pytest.mark.parametrize("requirement", ["cupy-rocm-7-0==14.2.0", "bitsandbytes==0.50.2"])
def test_clangs_bundler_lists_what_is_found_in_amds_bundles(requirement: str, tmp_path: Path) -> None:
    bundlers = sorted(Path("/usr/lib").glob("llvm-*/bin/clang-offload-bundler"), key=lambda path: path.parts[3])
    if not bundlers:
        pytest.skip("no clang-offload-bundler: apt install clang-tools-22")
    units = 0
    for path in libraries(requirement, X86_64, tmp_path):
        data = path.read_bytes()
        for container in device_code(ElfImage.parse(data)).containers:
            if container.vendor is not Vendor.AMD:
                continue
            unit = tmp_path / "unit"
            unit.write_bytes(data[container.span.start : container.span.stop])
            command: list[str | Path] = [bundlers[-1], "--list", "--type=o", f"--input={unit}"]
            listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            assert sorted(listed) == sorted(entry.ident for entry in container.entries)
            units += 1
    assert units > 2
