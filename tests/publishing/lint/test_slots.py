"""Which wheels stand in for which, compared with what packaging would install."""

import pytest

from vbuild.wheel.name import WheelName
from vbuild.wheel.slots import FileSlot, covers, slots

LINUX = "manylinux_2_28_x86_64"


def of(tags: str) -> tuple[FileSlot, ...]:
    return slots(WheelName.parse(f"demo-1.0-{tags}.whl"))


@pytest.mark.parametrize(
    ("offered", "wanted", "expected"),
    [
        (f"cp312-cp312-{LINUX}", f"cp312-cp312-{LINUX}", True),
        ("cp312-cp312-manylinux2014_x86_64", f"cp312-cp312-{LINUX}", True),
        (f"cp39-abi3-{LINUX}", f"cp312-cp312-{LINUX}", True),
        (f"cp313-abi3-{LINUX}", f"cp312-cp312-{LINUX}", False),
        (f"cp39-abi3-{LINUX}", f"cp313-cp313t-{LINUX}", False),
        (f"cp39-abi3-{LINUX}", f"pp310-pypy310_pp73-{LINUX}", False),
        ("py3-none-any", f"cp312-cp312-{LINUX}", True),
        ("py2-none-any", f"cp312-cp312-{LINUX}", False),
        ("py2.py3-none-any", f"cp312-cp312-{LINUX}", True),
        ("py313-none-any", f"cp312-cp312-{LINUX}", False),
        ("py311-none-any", f"cp312-cp312-{LINUX}", True),
        (f"py3-none-{LINUX}", f"cp312-cp312-{LINUX}", True),
        ("py3-none-win_amd64", f"cp312-cp312-{LINUX}", False),
        (f"cp311-cp311-{LINUX}", f"cp312-cp312-{LINUX}", False),
        (f"cp311-none-{LINUX}", f"cp312-cp312-{LINUX}", True),
        ("py3-none-any", "py2.py3-none-any", False),
    ],
)
def test_a_wheel_covers_who_can_install_it(offered: str, wanted: str, expected: bool) -> None:  # noqa: FBT001
    assert covers(of(offered), of(wanted)) is expected
