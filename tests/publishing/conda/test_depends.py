"""Requires-Dist as dependencies of conda packages."""

import pytest

from vbuild.errors import RepackageError, WheelError
from vbuild.publishing.conda.plan import (
    CondaNames,
    resolved,
)
from vbuild.wheel.metadata import Metadata


def metadata(*lines: str) -> Metadata:
    return Metadata.parse("\n".join(["Metadata-Version: 2.1", "Name: demo", "Version: 1.0", *lines, ""]))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            ["Requires-Dist: numpy @ https://example.org/numpy.whl"],
            "Requires-Dist numpy @ https://example.org/numpy.whl: conda has no equivalent of a URL; expected a version",
        ),
        (
            ["Requires-Dist: n===nightly"],
            "Requires-Dist n===nightly: ===nightly: conda has no equivalent; expected a version as PEP 440 writes it",
        ),
        (
            ['Requires-Dist: n; sys_platform ~= "linux"'],
            'Requires-Dist n; sys_platform ~= "linux": its marker cannot be decided',
        ),
        (["Requires-Python: <3"], "Requires-Python is <3; expected one that some Python 3 fits"),
        (["Requires-Python: three"], "Requires-Python 'three': expected version specifiers"),
        (["Requires-Dist: numpy (>"], "Requires-Dist: 'numpy (>' is not a requirement: Expected "),
    ],
)
def test_what_conda_cannot_say_is_refused(lines: list[str], said: str) -> None:
    with pytest.raises((RepackageError, WheelError)) as refusal:
        resolved(metadata(*lines), range(25), machine="x86_64", names=CondaNames())
    assert str(refusal.value).startswith(said)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            (("torch", "PyTorch GPU"),),
            "torch=PyTorch GPU: no name of a conda package; expected a-z, 0-9, _, . and -",
        ),
        (
            (("torch", "pytorch"), ("Torch", "libtorch")),
            "Torch=libtorch: it is called pytorch already; expected one name for it",
        ),
    ],
)
def test_names_that_conda_does_not_take_or_that_contradict_each_other_are_refused(
    names: tuple[tuple[str, str], ...], said: str
) -> None:
    with pytest.raises(RepackageError) as refusal:
        CondaNames(names)
    assert str(refusal.value) == said
