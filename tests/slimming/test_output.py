"""The wheels that come of one: their names, and what they say of themselves."""

from pathlib import Path

import pytest

from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.variants import variant
from tests.factories.wheels import wheel
from vbuild.errors import RepackageError
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.slim import SlimOutput, slim_outputs, slim_plan
from vbuild.variants.stamp import stamped
from vbuild.wheel.archive import open_wheel

NAME = "Demo_x-1.0-py3-none-manylinux_2_28_x86_64.whl"
FAT = device_library(fatbin(*(entry(arch=arch, code=cubin(arch, 1 << 13)) for arch in (80, 90))))
PLAIN = Share(Share.parse("any=90").gpus)


def found(path: Path, *shares: Share) -> list[SlimOutput]:
    with open_wheel(path) as source, slim_plan(source, shares, Cuts()) as plan:
        return list(slim_outputs(source, plan, shares))


def test_only_the_variants_own_document_is_made_anew(tmp_path: Path) -> None:
    v3 = stamped(wheel(tmp_path, NAME, {"a.so": FAT}), tmp_path / "v3", variant=variant("v3", "x86_64 :: level :: v3"))
    share = Share.parse("a=90")
    with open_wheel(v3) as source, slim_plan(source, (share,), Cuts()) as plan:
        (output,) = slim_outputs(source, plan, (share,))
        paths = [member.path for member in source.members]
        assert [path for path in paths if output.remakes(source, path)] == [f"{source.dist_info}/variant.json"]
        (kept,) = slim_outputs(source, plan, (PLAIN,))
        assert not any(kept.remakes(source, path) for path in paths)


def test_a_variant_for_gpus_needs_a_label_to_be_one_for_fewer(tmp_path: Path) -> None:
    claimed = variant("wide", "nvidia :: sm_arch :: 80_real", "nvidia :: sm_arch :: 90_real")
    wide = stamped(wheel(tmp_path, NAME, {"a.so": FAT}), tmp_path / "wide", variant=claimed)
    with pytest.raises(RepackageError) as caught:
        found(wide, PLAIN)
    assert str(caught.value) == (
        "is a variant for NVIDIA GPUs already (wide), and would be one for sm_90 only; give it a label of its own with "
        "--variant LABEL=sm_90"
    )
    (narrow,) = found(wide, Share.parse("sm90=90"))
    assert list(map(str, narrow.properties)) == ["nvidia :: sm_arch :: 90_real"]
