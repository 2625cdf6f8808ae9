"""Published wheels slimmed: what NVIDIA's tools and a process that loads their libraries find in them afterwards."""

import json
import subprocess
import sys
from collections import Counter
from hashlib import sha256
from itertools import chain
from pathlib import Path

import pytest

from tests.factories.cuobjdump import extracted_code, listed_code
from tests.factories.kept_code import fatbins, kept_digests, kept_entries, kept_names
from tests.factories.loaded_libraries import in_memory
from tests.factories.published_wheels import PIP, Cutting, Published, PublishedWheels
from vbuild.elf.image import ElfImage
from vbuild.gpu_code.fatbin import decompressed
from vbuild.gpu_code.model import Compression
from vbuild.gpu_code.survey import device_code
from vbuild.slimming.request import Cuts

pytestmark = pytest.mark.network

NVJPEG = Published("nvidia-nvjpeg-cu12==12.4.0.76")
CURAND = Published("nvidia-curand-cu12==10.3.10.19")
NCCL = Published("nvidia-nccl-cu12==2.32.3")
XGBOOST = Published("xgboost==3.2.0")
BITSANDBYTES = Published("bitsandbytes==0.50.2")
CUPY_12 = Published("cupy-cuda12x==14.2.0")
SMALL = (
    NVJPEG,
    BITSANDBYTES,
    *map(Published, ("jax-cuda12-plugin==0.10.2", "torchvision==0.29.2", "xformers==0.0.35")),
)
LARGE = (
    CURAND,
    NCCL,
    XGBOOST,
    CUPY_12,
    *map(Published, ("cupy-cuda13x==14.2.0", "ctranslate2==4.8.5", "torch==2.15.0")),
)
# some library of each has nothing for a GPU of 9.0
PARTIAL = tuple(map(Published, ("faiss-gpu-cu12==1.14.1.post1", "vllm==0.33.0")))
WHEELS = [*SMALL, *(pytest.param(each, marks=pytest.mark.slow) for each in (*LARGE, *PARTIAL))]


@pytest.fixture(scope="module")
def published_wheels(tmp_path_factory: pytest.TempPathFactory) -> PublishedWheels:
    return PublishedWheels(tmp_path_factory)


@pytest.fixture
def cutting(published_wheels: PublishedWheels, request: pytest.FixtureRequest) -> Cutting:
    published: Published = request.param
    return published_wheels.cutting(published, "90", Cuts(unsupported=published in PARTIAL))


@pytest.mark.nightly
@pytest.mark.parametrize("cutting", WHEELS, indirect=True, ids=str)
def test_cuobjdump_lists_what_the_rule_keeps(cutting: Cutting, published_wheels: PublishedWheels) -> None:
    cuobjdump = published_wheels.tool("cuobjdump", "nvidia-cuda-cuobjdump")
    assert cutting.pairs
    for pair in cutting.pairs:
        data = pair.fat.read_bytes()
        assert pair.cut.kept == sum(len(kept_entries(container, cutting.gpus)) for container in fatbins(data))
        expected = kept_names(data, cutting.gpus)
        found, is_whole = listed_code(cuobjdump, pair.slim)
        # it refuses some cubins that nvlink 12.1 made, and lists nothing behind them
        assert found == expected if is_whole else found <= expected


@pytest.mark.nightly
@pytest.mark.parametrize("cutting", WHEELS, indirect=True, ids=str)
def test_every_wrapper_of_the_loaded_library_leads_to_what_the_rule_keeps(cutting: Cutting) -> None:
    for pair in cutting.pairs:
        expected = kept_digests(pair.fat.read_bytes(), cutting.gpus)
        assert expected
        assert in_memory(pair.slim) == expected


SLOW = pytest.mark.slow
VERSIONS = [
    (NVJPEG, "nvjpegGetProperty", [0]),
    pytest.param(CURAND, "curandGetVersion", [], marks=SLOW),
    pytest.param(NCCL, "ncclGetVersion", [], marks=SLOW),
    pytest.param(XGBOOST, "XGBoostVersion", [], marks=SLOW),
]
CALL = """
import ctypes, sys
library, function, *given = sys.argv[1:]
numbers = (ctypes.c_int * 3)()
pointers = [ctypes.byref(numbers, 4 * place) for place in range(3)]
print(getattr(ctypes.CDLL(library, mode=2), function)(*map(int, given), *pointers), *numbers)
"""


@pytest.mark.parametrize(("published", "function", "given"), VERSIONS, ids=str)
def test_host_code_says_the_same_version(
    published: Published, function: str, given: list[int], published_wheels: PublishedWheels
) -> None:
    (pair,) = published_wheels.cutting(published).pairs
    said = [
        subprocess.run(
            [sys.executable, "-c", CALL, str(library), function, *map(str, given)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for library in (pair.fat, pair.slim)
    ]
    assert said[0] == said[1]
    assert any(map(int, said[0].split()))


@pytest.mark.nightly
@pytest.mark.parametrize("published", [BITSANDBYTES, pytest.param(XGBOOST, marks=SLOW)], ids=str)
def test_code_compressed_again_is_the_same_code_in_fewer_bytes(
    published: Published, published_wheels: PublishedWheels
) -> None:
    cuobjdump = published_wheels.tool("cuobjdump", "nvidia-cuda-cuobjdump")
    plain, zstd = published_wheels.cutting(published), published_wheels.cutting(published, "90", Cuts(zstd=True))
    assert zstd.wheel.stat().st_size < plain.wheel.stat().st_size
    compressions: Counter[Compression] = Counter()
    for before, after in zip(plain.pairs, zstd.pairs, strict=True):
        assert after.cut.after <= before.cut.after
        expected, found = code(before.slim), code(after.slim)
        assert [content for content, _ in found] == [content for content, _ in expected]
        compressions.update(compression for _, compression in found)
        assert {place: len(found) for place, found in in_memory(after.slim).items()} == {
            place: len(found) for place, found in kept_digests(before.fat.read_bytes(), "90").items()
        }
        assert extracted_code(cuobjdump, after.slim) == extracted_code(cuobjdump, before.slim)
    assert compressions[Compression.ZSTD] > 0.9 * compressions.total()


def code(library: Path) -> list[tuple[str, Compression]]:
    """What each entry of *library* holds, and how it is stored."""
    data = library.read_bytes()
    entries = chain.from_iterable(container.entries for container in device_code(ElfImage.parse(data)).containers)
    return [(sha256(decompressed(data, entry)).hexdigest(), entry.compression) for entry in entries]


@pytest.mark.nightly
def test_what_is_installed_is_smaller_by_as_many_bytes_as_were_told(
    published_wheels: PublishedWheels, tmp_path: Path
) -> None:
    fat = published_wheels.wheel(NVJPEG)
    command = [sys.executable, "-m", "vbuild", "slim", str(fat), "--gpu", "sm_90", "-o", str(tmp_path)]
    told = subprocess.run(
        [*command, "--accept-license", "*", "--json"], check=True, capture_output=True, text=True
    ).stdout
    (account,) = json.loads(told)
    before, after = installed(fat, tmp_path / "fat"), installed(Path(account["path"]), tmp_path / "slim")
    (library,) = (each for each in account["libraries"] if each["dropped"])
    member = Path(library["member"])
    assert (before[member], after[member]) == (library["before"], library["after"])
    gone = account["unpacked"]["before"] - account["unpacked"]["after"]
    assert sum(before.values()) - sum(after.values()) == gone == library["before"] - library["after"]


_SAYING = {"RECORD", "direct_url.json", "vbuild.cdx.json"}


def installed(wheel: Path, folder: Path) -> dict[Path, int]:
    """The files that pip makes of *wheel* in *folder*, and their sizes, without what only says what the others are."""
    subprocess.run([*PIP, "install", "--no-deps", "--no-compile", "--target", str(folder), str(wheel)], check=True)
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in _SAYING)
    return {path.relative_to(folder): path.stat().st_size for path in files}


# packed and unpacked, in MB
SIZES = [
    (BITSANDBYTES, 11.3, 25.6),
    pytest.param(XGBOOST, 36.0, 107.1, marks=SLOW),
    pytest.param(NCCL, 82.5, 143.1, marks=SLOW),
    pytest.param(Published("cupy-cuda12x==14.2.0", python="3.11"), 51.0, 180.4, marks=SLOW),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("published", "packed", "unpacked"), SIZES, ids=str)
def test_wheels_become_as_small_as_was_promised(
    published: Published, packed: float, unpacked: float, published_wheels: PublishedWheels
) -> None:
    cutting = published_wheels.cutting(published)
    assert cutting.wheel.stat().st_size <= packed * 1e6
    assert sum(path.stat().st_size for path in cutting.after.rglob("*") if path.is_file()) <= unpacked * 1e6
