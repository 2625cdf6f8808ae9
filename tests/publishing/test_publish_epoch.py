"""SOURCE_DATE_EPOCH means the same to every command that writes archives: each layout of publish, and stamp."""

from pathlib import Path

import pytest

from tests.factories import releases
from tests.factories.variants import variant
from vbuild.errors import VbuildError
from vbuild.files.atomic import LATEST
from vbuild.publishing.check import check_layout
from vbuild.publishing.conda.plan import Conda
from vbuild.publishing.local import Local
from vbuild.publishing.model import PublishLayout
from vbuild.publishing.oci.plan import Oci
from vbuild.publishing.publish import publish
from vbuild.publishing.redirect.plan import Redirect
from vbuild.publishing.suffix import Suffix
from vbuild.publishing.variants import Variants
from vbuild.variants.stamp import stamped

LINUX = "cp311-cp311-manylinux_2_28_x86_64"
LAYOUTS = (Local(), Suffix(), Oci(), Conda(), Variants(), Redirect(url="https://example.org/whl"))
EPOCHS = pytest.mark.parametrize("epoch", ["0", "9000000000", str(LATEST)])


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A release of a plain wheel and a variant, made without SOURCE_DATE_EPOCH."""
    return releases.release(tmp_path_factory.mktemp("dist"), labels=["x86_64_v3"], tag=LINUX)


@pytest.mark.sampled(2)
@EPOCHS
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_every_layout_takes_every_time_until_the_year_9999(
    layout: PublishLayout, epoch: str, wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    publish(wheels, tmp_path, layouts=[layout])
    assert check_layout(tmp_path, layout.name).problems == ()


@pytest.mark.parametrize("epoch", ["soon", "", "-1", "1.5", "٣", str(LATEST + 1), "9" * 5000])
def test_whoever_writes_new_files_refuses_the_same_values(
    epoch: str, wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = f"SOURCE_DATE_EPOCH is {epoch!r}; expected seconds since 1970, a whole number from 0 to {LATEST}"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    for layout in LAYOUTS:
        with pytest.raises(VbuildError) as refusal:
            publish(wheels, tmp_path / layout.name, layouts=[layout])
        assert f"{expected} (year 9999)" in str(refusal.value)
    with pytest.raises(VbuildError) as refusal:
        stamped(wheels[0], tmp_path / "out", variant=variant("x86_64_v2", "x86_64 :: level :: v2"))
    assert str(refusal.value).endswith(f"{expected} (year 9999)")
