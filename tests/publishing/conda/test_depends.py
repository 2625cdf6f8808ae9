"""Requires-Dist as dependencies of conda packages."""

import pytest

from vbuild.errors import RepackageError, WheelError
from vbuild.publishing.conda.plan import (
    CondaNames,
    DependencyRun,
    resolved,
)
from vbuild.wheel.metadata import Metadata


def metadata(*lines: str) -> Metadata:
    return Metadata.parse("\n".join(["Metadata-Version: 2.1", "Name: demo", "Version: 1.0", *lines, ""]))


def requiring(*requirements: str) -> Metadata:
    return metadata(*(f"Requires-Dist: {line}" for line in requirements))


def depends(
    found: Metadata, *, python: int = 11, machine: str = "x86_64", names: CondaNames | None = None
) -> tuple[str, ...]:
    [one] = resolved(found, [python], machine=machine, names=names or CondaNames())
    return one.depends


def test_markers_are_decided_for_the_python_and_linux() -> None:
    found = requiring(
        'tomli>=2; python_version < "3.11"',
        'numpy>=1.26; python_version >= "3.11"',
        'colorama; sys_platform == "win32"',
        'uvloop; platform_python_implementation == "CPython" and os_name == "posix"',
        'special; platform_machine == "aarch64"',
        'async-timeout; python_full_version < "3.11.3"',
    )
    assert depends(found) == ("async-timeout", "numpy >=1.26", "uvloop")
    assert depends(found, python=10) == ("async-timeout", "tomli >=2", "uvloop")
    assert depends(found, python=12, machine="aarch64") == ("numpy >=1.26", "special", "uvloop")


def test_names_are_mapped_and_lines_of_one_project_joined() -> None:
    names = CondaNames((("Torch", "pytorch"), ("torch", "pytorch")))
    assert depends(requiring("torch>=2", "TORCH<3", "Typing_Extensions"), names=names) == (
        "pytorch >=2,<3a0",
        "typing-extensions",
    )


def test_a_run_of_pythons_that_ask_for_the_same_is_one_package() -> None:
    found = requiring('numpy<2; python_version < "3.9"', 'numpy>=2; python_version >= "3.9"', "six")
    assert resolved(found, range(7, 12), machine="x86_64", names=CondaNames()) == (
        DependencyRun((7, 8), ("numpy <2a0", "six")),
        DependencyRun((9, 10, 11), ("numpy >=2", "six")),
    )


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
