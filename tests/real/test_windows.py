"""Published Windows wheels, slimmed: wine's loader finds the kernels that were kept, and xgboost trains as before."""

from pathlib import Path

import pytest

from tests.factories.published_wheels import Published, PublishedWheels
from tests.factories.windows import needs_mingw, run_on_wine, walked

pytestmark = [pytest.mark.network, pytest.mark.slow, needs_mingw]

XGBOOST = Published("xgboost==3.2.0", "amd64", platforms=("win",))
WHEELS = (
    XGBOOST,
    Published("bitsandbytes==0.50.2", "amd64", platforms=("win",)),
    Published("catboost==1.2.10", "amd64", "3.13", platforms=("win",)),
    Published("ctranslate2==4.8.5", "amd64", "3.13", platforms=("win",)),
)


@pytest.fixture(scope="module")
def published_wheels(tmp_path_factory: pytest.TempPathFactory) -> PublishedWheels:
    return PublishedWheels(tmp_path_factory)


@pytest.mark.parametrize("published", WHEELS, ids=str)
def test_wine_finds_the_kernels_for_the_gpu_and_none_that_were_not_there(
    published_wheels: PublishedWheels, published: Published, tmp_path: Path
) -> None:
    pairs = published_wheels.cutting(published).pairs
    assert pairs
    for pair in pairs:
        fat, slim = walked(pair.fat.read_bytes(), tmp_path), walked(pair.slim.read_bytes(), tmp_path)
        assert not set(slim) - set(fat)
        assert [line for line in slim if "kind 2 arch 90 " in line] == [
            line for line in fat if "kind 2 arch 90 " in line
        ]
        assert pair.slim.stat().st_size < 0.85 * pair.fat.stat().st_size


def test_code_for_other_gpus_of_amd_goes_and_wine_loads_what_is_left(
    published_wheels: PublishedWheels, tmp_path: Path
) -> None:
    bitsandbytes = WHEELS[1]
    pairs = published_wheels.cutting(bitsandbytes, "gfx1201").pairs
    assert {pair.slim.name for pair in pairs} == {f"libbitsandbytes_rocm{release}.dll" for release in (714, 715, 72)}
    for pair in pairs:
        assert pair.cut.gpus == ("gfx1201",)
        assert pair.slim.stat().st_size < 0.62 * pair.fat.stat().st_size
        # none of AMD's wrappers are known to the program: it says that the DLL is loaded
        assert walked(pair.slim.read_bytes(), tmp_path) == ["0 wrappers"]


def test_slim_xgboost_predicts_the_same_bytes(published_wheels: PublishedWheels) -> None:
    (pair,) = published_wheels.cutting(XGBOOST).pairs
    fat, slim = (run_on_wine("trained_xgboost.c", path.name, folder=path.parent) for path in (pair.fat, pair.slim))
    assert fat.startswith("2000 predictions")
    assert slim == fat
