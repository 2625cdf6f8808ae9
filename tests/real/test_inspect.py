"""Published wheels, and what other tools say is in them."""

import json
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pefile
import pytest
from jsonschema import Draft202012Validator
from macholib.MachO import MachO

from tests.factories.browser import browsed
from tests.factories.elf import judged_by
from tests.factories.tools import needs
from vbuild.api.repackaging import slim
from vbuild.binary.linkage import Via
from vbuild.binary.outline import Format
from vbuild.files.wording import WIDTH
from vbuild.gpu_code.coverage import Runs
from vbuild.hardware.gpu import GpuList
from vbuild.inspection.inspect import inspect
from vbuild.inspection.model import Contents
from vbuild.inspection.page import page
from vbuild.inspection.text import details, summary

pytestmark = pytest.mark.network

SCHEMA = json.loads((Path(__file__).parents[1] / "inspection/contents.schema.json").read_text())
PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17)), "manylinux2014_x86_64")
SMALL = ("nvidia-nvjpeg-cu12==12.4.0.76", "xformers==0.0.35", "numpy==2.4.*")
LARGE = ("bitsandbytes==0.50.2", "xgboost==3.2.0", "cupy-cuda12x==14.2.0", "cupy-rocm-7-0==14.2.0", "triton==3.9.0")
WHEELS = [*SMALL, *(pytest.param(requirement, marks=pytest.mark.slow) for requirement in LARGE)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheels")


def fetched(cache: Path, requirement: str) -> Path:
    project = requirement.partition("==")[0].replace("-", "_")
    if not (found := [*cache.glob(f"{project}-*.whl")]):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        pip += ["--python-version", "311", *(f"--platform={platform}" for platform in PLATFORMS)]
        subprocess.run([*pip, "--dest", str(cache), requirement], check=True, capture_output=True)
        found = [*cache.glob(f"{project}-*.whl")]
    return found[0]


@needs("chromium")
@pytest.mark.parametrize(
    "requirement",
    [*SMALL[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE[:2])],
)
def test_the_page_says_what_the_command_beside_it_writes(cache: Path, requirement: str, tmp_path: Path) -> None:
    """Of a fat wheel of code that is packed already and host code that is not, sizes say little."""
    path = fetched(cache, requirement)
    shown = browsed(page(inspect(path, densities=True)), tmp_path, "sm_90,packed").elements
    outcome = re.search(r"([\d.]+) MB become <strong>about ([\d.]+) MB", shown)
    assert outcome
    (slimmed,) = slim([path], tmp_path / "out", gpus="90", accept_license=True)
    (planned,) = slim([path], None, gpus="90", accept_license=True)
    before, after = (float(number) * 1e6 for number in outcome.groups())
    assert before == pytest.approx(slimmed.before, abs=5e4)
    # the page rounds to a tenth of a MB
    assert after == pytest.approx(slimmed.packed, abs=0.03 * slimmed.packed + 5e4)
    assert planned.packed == pytest.approx(slimmed.packed, rel=0.03)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("requirement", "gpus"),
    [
        ("ftllm-rocm==0.1.5.1", ("gfx942", "gfx1100")),
        pytest.param("bitsandbytes==0.50.2", ("90", "gfx942"), marks=pytest.mark.slow),
        pytest.param("jax-rocm7-pjrt==0.12.0", ("gfx942", "gfx90a"), marks=pytest.mark.slow),
    ],
)
def test_it_promises_no_more_than_slimming_does(cache: Path, requirement: str, gpus: tuple[str, ...]) -> None:
    """The last two have compressed bundles, of which it says how large they get without compressing them again."""
    wheel = fetched(cache, requirement)
    codes = inspect(wheel).gpu_codes
    for gpu in gpus:
        (device,) = GpuList.asked(gpu).every
        promised = sum(code.size - code.outlook(device).kept for code in codes)
        (slimmed,) = slim(wheel, None, gpus=gpu)
        done = slimmed.unpacked_before - slimmed.unpacked
        # padding between pages aside
        assert 0.95 * done < promised < 1.002 * done, (gpu, promised, done)


FOREIGN = (
    "numpy==2.4.* win_amd64",
    "zstandard==0.25.0 win32",
    "pillow==12.* macosx_11_0_arm64",
    "lxml==5.4.0 macosx_10_9_universal2",
)


@pytest.mark.nightly
@pytest.mark.parametrize("wanted", FOREIGN)
def test_windows_and_macos_libraries_need_what_pefile_and_macholib_read(tmp_path: Path, wanted: str) -> None:
    requirement, platform = wanted.split()
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    pip += ["--python-version", "312", f"--platform={platform}", "--dest", str(tmp_path), requirement]
    subprocess.run(pip, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.whl")
    contents = inspect(path, closure=True)
    assert contents.libraries
    assert contents.damaged == ()
    assert contents.closure
    assert not any(node.via(Via.MISSING) for node in contents.closure.nodes)
    Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(contents.data())))
    with zipfile.ZipFile(path) as archive:
        for library in contents.libraries:
            unpacked = archive.extract(library.path, tmp_path)
            if library.outline.format is Format.PE:
                found = [each.dll.decode() for each in pefile.PE(unpacked).DIRECTORY_ENTRY_IMPORT]
            else:
                found = [name for header in MachO(unpacked).headers for *_, name in header.walkRelocatables()]
            assert library.outline.needed == tuple(dict.fromkeys(found))


@pytest.fixture(params=WHEELS)
def path(cache: Path, request: pytest.FixtureRequest) -> Path:
    return fetched(cache, str(request.param))


@pytest.mark.nightly
def test_sizes_add_up_and_the_schema_describes_them(path: Path) -> None:
    contents = inspect(path)
    data = json.loads(json.dumps(contents.data()))
    Draft202012Validator(SCHEMA).validate(data)
    with zipfile.ZipFile(path) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist() if not info.is_dir()}
        starts = {name: archive.open(name).read(4) for name in sizes}
    assert {library.path for library in contents.libraries} == {
        name for name, start in starts.items() if start == b"\x7fELF"
    }
    assert contents.damaged == ()
    compiled = sum(library.size for library in contents.libraries) + sum(found.size for found in contents.archives)
    assert compiled + sum(others.size for others in contents.others) == contents.size == sum(sizes.values())
    for library in contents.libraries:
        assert sum(section.size for section in library.outline.sections) <= library.size
        assert library.gpu.size <= library.size
    assert max(map(len, lines(contents))) <= WIDTH
    assert contents.project in page(contents)


def lines(contents: Contents) -> list[str]:
    return [
        *summary(contents),
        *(line for library in contents.libraries for line in details(library, contents.devices)),
    ]


@pytest.mark.nightly
def test_the_loader_s_facts_are_readelf_s(path: Path) -> None:
    contents = inspect(path)
    with zipfile.ZipFile(path) as archive:
        for library in contents.libraries[:20]:
            shown = judged_by("readelf", archive.read(library.path), "-dnW")
            for name in library.outline.needed:
                assert f"Shared library: [{name}]" in shown
            assert shown.count("(NEEDED)") == len(library.outline.needed)
            assert (library.outline.soname is None) == ("(SONAME)" not in shown)
            assert library.outline.build_id is None or library.outline.build_id in shown


def test_nvjpeg_runs_on_every_gpu_it_has_code_for(cache: Path) -> None:
    (library,) = inspect(fetched(cache, SMALL[0])).gpu_libraries
    kinds = Counter({portion.sort.kind: 0 for portion in library.gpu.portions})
    for portion in library.gpu.portions:
        kinds[portion.sort.kind] += portion.entries
    assert kinds == {"cubin": 165, "ptx": 10}
    assert library.gpu.pinned == ()  # one that several wrappers share shrinks where it is


@pytest.mark.nightly
def test_xformers_for_a_later_gpu_is_compiled_by_the_driver(cache: Path) -> None:
    contents = inspect(fetched(cache, SMALL[1]))
    runs = {str(outlook.device): outlook.runs for outlook in contents.outlooks}
    assert (runs["sm_80"], runs["sm_120"]) == (Runs.NATIVELY, Runs.JIT)
