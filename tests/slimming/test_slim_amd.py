"""Wheels with code for AMD's GPUs: what goes of plain and of compressed bundles, and what the variants claim."""

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.factories.bundles import HOST, amd_library, bundle, compressed
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.loaded_libraries import in_memory
from tests.factories.wheels import wheel
from vbuild.elf.image import ElfImage
from vbuild.errors import RepackageError
from vbuild.gpu_code.bundle import BundleMethod
from vbuild.gpu_code.survey import device_code
from vbuild.hardware.architectures import GpuTarget
from vbuild.hardware.gpu import GpuList
from vbuild.inspection.inspect import inspect
from vbuild.slimming.request import Share
from vbuild.slimming.results import Slimmed
from vbuild.slimming.slim import slim
from vbuild.variants.document import Document
from vbuild.verification.verify import verify
from vbuild.wheel.archive import open_wheel

NAME = "demo-1.0-py3-none-manylinux_2_28_x86_64.whl"
TARGETS = ("gfx90a:xnack+", "gfx90a:xnack-", "gfx942", "gfx11-generic", "gfx1100")
PLAIN = bundle(
    {HOST: b"", **{f"hipv4-amdgcn-amd-amdhsa--{one}": cubin(number, 1 << 14) for number, one in enumerate(TARGETS)}}
)
OTHER = bundle({HOST: b"", "hipv4-amdgcn-amd-amdhsa--gfx908": cubin(1, 1 << 14)})


AMD = amd_library(PLAIN, compressed(PLAIN), compressed(PLAIN, version=2, method=BundleMethod.ZLIB), OTHER)
NVIDIA = device_library(fatbin(*(entry(arch=arch, code=cubin(arch, 1 << 14)) for arch in (80, 90))))


def slimmed(folder: Path, gpus: str, **files: bytes) -> tuple[Slimmed, Path]:
    """The demo wheel cut to *gpus*, and the folder that its libraries are in."""
    made = wheel(
        folder / "in", NAME, {"demo/__init__.py": b"", **{f"demo/{name}.so": data for name, data in files.items()}}
    )
    (result,) = slim([made], folder / "out", shares=(Share(GpuList.asked(gpus)),))
    assert result.path
    with zipfile.ZipFile(result.path) as archive:
        archive.extractall(folder / "installed")
    return result, folder / "installed" / "demo"


def targets(library: Path) -> list[set[str]]:
    """What the runtime would find in memory behind each wrapper, by a reader of its own."""
    return [{found.split()[0].rpartition("--")[2] for found in each} for each in in_memory(library).values()]


@pytest.mark.parametrize(
    ("gpus", "left"),
    [
        ("gfx942", {"gfx942"}),
        ("gfx90a", {"gfx90a:xnack+", "gfx90a:xnack-"}),
        ("gfx90a:xnack-", {"gfx90a:xnack-"}),
        ("gfx1100", {"gfx1100"}),
        ("gfx1103", {"gfx11-generic"}),
        ("MI300X,gfx1101", {"gfx942", "gfx11-generic"}),
    ],
)
def test_the_runtime_finds_the_code_of_the_gpus_asked_for_and_no_other(
    tmp_path: Path, gpus: str, left: set[str]
) -> None:
    result, folder = slimmed(tmp_path, gpus, amd=AMD)
    assert targets(folder / "amd.so") == [left, left, left, set()]
    (cut,) = result.libraries
    assert (cut.kept, cut.dropped) == (3 * len(left), 3 * (5 - len(left)) + 1)
    assert cut.after < cut.before - (1 << 14)


def test_the_code_of_a_vendor_that_is_not_asked_for_stays(tmp_path: Path) -> None:
    for gpus in ("90", "gfx942"):
        _, folder = slimmed(tmp_path / gpus, gpus, amd=AMD, nvidia=NVIDIA)
        assert ((folder / "amd.so").read_bytes() == AMD) is (gpus == "90")
        assert ((folder / "nvidia.so").read_bytes() == NVIDIA) is (gpus == "gfx942")


def test_a_wheel_for_the_other_vendor_says_for_which_gpus_it_is(tmp_path: Path) -> None:
    result, _ = slimmed(tmp_path, "90", amd=amd_library(OTHER))
    assert result.why_untouched == "nothing in it to cut: its GPU code is for gfx908"


def test_a_family_has_variants_for_the_gpus_of_each_vendor(tmp_path: Path) -> None:
    made = wheel(tmp_path / "in", NAME, {"demo/amd.so": AMD, "demo/nvidia.so": NVIDIA})
    shares = [Share.parse(text) for text in ("h100=90", "mi300=MI300X", "amd=gfx90a,gfx1101")]
    found = slim([made], tmp_path / "out", shares=shares)
    assert [list(map(str, each.properties)) for each in found] == [
        ["nvidia :: sm_arch :: 90_real"],
        ["amd :: gfx_arch :: gfx942"],
        ["amd :: gfx_arch :: gfx1101", "amd :: gfx_arch :: gfx90a"],
    ]
    index = Document.parse((tmp_path / "out/demo-1.0-variants.json").read_bytes())
    assert {variant.label for variant in index.variants} == {"h100", "mi300", "amd"}
    for each in found:
        assert each.path
        verdict = verify(each.path)
        assert not verdict.failed, list(map(str, verdict.findings))


def test_a_variant_that_claims_a_processor_without_code_fails(tmp_path: Path) -> None:
    made = wheel(tmp_path / "in", NAME, {"demo/amd.so": AMD})
    (found,) = slim([made], tmp_path / "out", shares=[Share.parse("mi300=gfx942")])
    assert found.path
    with open_wheel(found.path) as opened:
        document = opened.read("demo-1.0.dist-info/variant.json").decode()
    lying = {"demo/amd.so": AMD, "demo-1.0.dist-info/variant.json": document.replace("gfx942", "gfx1201").encode()}
    verdict = verify(wheel(tmp_path / "lie", found.name, lying))
    assert verdict.failed
    assert "gfx1201 is claimed, but none of its bundles (4) has code for gfx1201" in str(verdict.findings[0])


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        (
            "a=gfx1201",
            "demo/amd.so: nothing for gfx1201 in any of its bundles (4), which have gfx908, gfx90a:xnack+",
        ),
        ("a=90", "a=sm_90: no GPU code is for such GPUs; it is for gfx908, gfx90a:xnack+"),
    ],
)
def test_a_variant_for_gpus_that_nothing_serves_is_refused(tmp_path: Path, gpus: str, message: str) -> None:
    made = wheel(tmp_path / "in", NAME, {"demo/amd.so": AMD})
    with pytest.raises(RepackageError) as refused:
        slim([made], tmp_path / "out", shares=[Share.parse(gpus)])
    assert message in str(refused.value)
    assert not list((tmp_path / "out").glob("*"))


def test_inspect_promises_what_slim_does(tmp_path: Path) -> None:
    files = {"amd": amd_library(PLAIN, OTHER), "rest": amd_library(OTHER), "nvidia": NVIDIA}
    made = wheel(tmp_path, NAME, {f"demo/{name}.so": data for name, data in files.items()})
    promised = {outlook.device: outlook.kept for outlook in inspect(made).outlooks}
    assert {GpuTarget("gfx942"), GpuTarget("gfx1102")} < promised.keys()
    for device, kept in promised.items():
        (result,) = slim([made], tmp_path / str(device), shares=(Share(GpuList.asked(str(device))),))
        assert result.path
        # of the padding to pages in each bundle it says nothing
        assert kept - (10 << 12) < inspect(result.path).gpu_size <= kept, device


_KERNELS = """
typedef __SIZE_TYPE__ size_t;
struct dim3 { unsigned x, y, z; dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {} };
typedef struct ihipStream_t *hipStream_t;
extern "C" int __hipPushCallConfiguration(dim3, dim3, size_t = 0, hipStream_t = 0);
extern "C" int __hipPopCallConfiguration(dim3 *, dim3 *, size_t *, hipStream_t *);
extern "C" int hipLaunchKernel(const void *, dim3, dim3, void **, size_t, hipStream_t);
__attribute__((global)) void add(float *a) { a[0] += 1.0f; }
void launch(float *a) { add<<<1, 1>>>(a); }
"""


@pytest.mark.nightly
@pytest.mark.parametrize("packing", ["--no-offload-compress", "--offload-compress"])
def test_what_clang_compiles_from_hip_is_cut_as_its_bundler_reads_it(tmp_path: Path, packing: str) -> None:
    clang, bundler = (shutil.which(f"{name}-22") for name in ("clang", "clang-offload-bundler"))
    if not (clang and bundler and shutil.which("ld.lld-22")):
        pytest.skip("needs clang-22, clang-tools-22 and lld-22")
    source, built, library = (tmp_path / name for name in ("k.hip", "k.o", "k.so"))
    source.write_text(_KERNELS)
    archs = [f"--offload-arch={target}" for target in TARGETS]
    command: list[str | Path] = [
        clang,
        "-x",
        "hip",
        *archs,
        packing,
        "-nogpuinc",
        "-nogpulib",
        "-fPIC",
        "-c",
        source,
        "-o",
        built,
    ]
    subprocess.run(command, check=True)
    subprocess.run(["gcc", "-shared", built, "-o", library], check=True)
    _, folder = slimmed(tmp_path, "gfx942,gfx1101", k=library.read_bytes())
    # start-up code hands the stand-in runtime a wrapper, which leads to these
    assert targets(folder / "k.so") == [{"gfx942", "gfx11-generic"}]
    (container,) = device_code(ElfImage.parse((folder / "k.so").read_bytes())).containers
    unit = tmp_path / "unit"
    unit.write_bytes((folder / "k.so").read_bytes()[container.span.start : container.span.stop])
    listed = subprocess.run(
        [bundler, "--list", "--type=o", f"--input={unit}"], check=True, capture_output=True, text=True
    ).stdout.split()
    assert {one.rpartition("--")[2] for one in listed if not one.startswith("host")} == {"gfx942", "gfx11-generic"}
