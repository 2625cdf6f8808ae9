"""Shares as they are written, and the members that globs name."""

from pathlib import Path

import pytest

from tests.factories.wheels import wheel
from vbuild.errors import RepackageError, VbuildError
from vbuild.slimming.request import Cuts, Share
from vbuild.wheel.archive import open_wheel

NO_VARIANT = "expected a label and GPUs, as in sm90=90,90a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"no variant ''; {NO_VARIANT}"),
        ("90", f"no variant '90'; {NO_VARIANT}"),
        ("=90", f"no variant '=90'; {NO_VARIANT}"),
        ("sm90=", "no GPU in the list; expected at least one, as in sm_90 or 8.0,9.0+PTX"),
        ("sm90=,", "no GPU in the list; expected at least one, as in sm_90 or 8.0,9.0+PTX"),
        ("a=85", "there is no GPU architecture '85'; did you mean sm_86, sm_87, sm_88 or sm_89?"),
        ("a=sm_9", "there is no GPU architecture 'sm_9'; did you mean sm_90?"),
        ("a=89a", "there is no GPU architecture '89a', only sm_89"),
        ("a=90-real+PTX", "'90-real+PTX' is real and virtual at once; expected as in 90-real or 90-virtual"),
        (
            "a=90,gfx942",
            (
                "installers take such a variant only where there are GPUs of both vendors; "
                "expected one for NVIDIA's and another for AMD's"
            ),
        ),
        ("a=gfx90b", "there is no GPU architecture 'gfx90b'; did you mean gfx950, gfx940, gfx90c or gfx90a?"),
        (
            "a=gfx90a:xnack-",
            "variant 'a=gfx90a:xnack-': no property of a variant says xnack-; expected gfx90a",
        ),
        ("a=" + "9" * 5000, "expected one as in sm_90, 9.0, 90a, 90-real, 9.0+PTX or H100"),
    ],
)
def test_a_share_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(VbuildError) as caught:
        Share.parse(text)
    assert str(caught.value).endswith(message)


@pytest.mark.parametrize("glob", ["*", "*.dist-info/*", "*RECORD", "demo-1.0.dist-info/METADATA"])
def test_what_describes_the_wheel_is_not_dropped(tmp_path: Path, glob: str) -> None:
    with open_wheel(wheel(tmp_path)) as source, pytest.raises(RepackageError, match="which describes the wheel"):
        Cuts(drop=(glob,)).dropped(source)
