"""Published libraries that were slimmed and then edited by other tools, as packagers do: they load as before."""

import shutil
import subprocess

import pytest

from tests.factories.devices import AARCH64, AARCH64_LARGE_PAGES, Toolchain
from tests.factories.elf import PATCHELF, complaints
from tests.factories.kept_code import kept_digests
from tests.factories.loaded_libraries import in_memory
from tests.factories.published_wheels import Published, PublishedWheels
from tests.factories.tools import needs
from vbuild.binary.edits import Strip
from vbuild.slimming.request import Cuts

pytestmark = pytest.mark.network

SLOW = pytest.mark.slow
NVJPEG = Published("nvidia-nvjpeg-cu12==12.4.0.76")
XGBOOST = Published("xgboost==3.2.0")
LARGE = (Published("nvidia-curand-cu12==10.3.10.19"), XGBOOST, Published("bitsandbytes==0.50.2"))
WHEELS = [NVJPEG, *(pytest.param(each, marks=SLOW) for each in LARGE)]
EDITS = {
    "strip": ["strip"],
    "objcopy": ["objcopy", "--strip-debug"],
    "eu-strip": ["eu-strip"],
    "rpath": [PATCHELF, "--set-rpath", "$ORIGIN/" + "a/long/path/" * 60],
    "needed": [PATCHELF, "--add-needed", "libm.so.6"],
    # what auditwheel does to a library that it grafts
    "renamed": [PATCHELF, "--set-soname", "libgrafted-0a1b2c3d.so.12"],
}
CUTS = {"slim": Cuts(), "slim and stripped": Cuts(strip=Strip.UNNEEDED)}


@pytest.fixture(scope="module")
def published_wheels(tmp_path_factory: pytest.TempPathFactory) -> PublishedWheels:
    return PublishedWheels(tmp_path_factory)


@pytest.mark.nightly
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("published", WHEELS, ids=str)
def test_readelf_has_no_new_complaint(published: Published, cuts: Cuts, published_wheels: PublishedWheels) -> None:
    for pair in published_wheels.cutting(published, "90", cuts).pairs:
        before = complaints("readelf", pair.fat.read_bytes(), "-aW")
        assert complaints("readelf", pair.slim.read_bytes(), "-aW") <= before


@pytest.mark.nightly
@pytest.mark.parametrize(
    "edit", [pytest.param(command, id=name, marks=needs(command[0])) for name, command in EDITS.items()]
)
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("published", WHEELS, ids=str)
def test_an_edited_library_still_leads_to_what_was_kept(
    published: Published, cuts: Cuts, edit: list[str], published_wheels: PublishedWheels
) -> None:
    for pair in published_wheels.cutting(published, "90", cuts).pairs:
        # beside the libraries that its wheel brings along
        edited = pair.slim.with_name("libgrafted-0a1b2c3d.so.12")
        shutil.copy(pair.slim, edited)
        try:
            run = subprocess.run([*edit, edited], capture_output=True, text=True, check=False)
            assert (run.returncode, run.stderr) == (0, "")
            # patchelf appends a copy of what it changes; the hole does not come back
            assert edited.stat().st_size < pair.slim.stat().st_size + (1 << 17)
            assert in_memory(edited) == kept_digests(pair.fat.read_bytes(), "90")
        finally:
            edited.unlink()


@pytest.mark.nightly
@needs(AARCH64.run[0], f"{AARCH64.prefix}gcc")
@pytest.mark.parametrize("toolchain", [AARCH64, AARCH64_LARGE_PAGES], ids=["4 KB pages", "64 KB pages"])
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("published", [NVJPEG, pytest.param(XGBOOST, marks=SLOW)], ids=str)
def test_a_library_for_aarch64_leads_to_what_was_kept(
    published: Published, cuts: Cuts, toolchain: Toolchain, published_wheels: PublishedWheels
) -> None:
    (pair,) = published_wheels.cutting(published.on("aarch64"), "90", cuts).pairs
    assert in_memory(pair.slim, toolchain=toolchain) == kept_digests(pair.fat.read_bytes(), "90")
