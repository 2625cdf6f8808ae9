"""Requires-Dist lines: spelled as packaging spells them, added once, and compared with what is asked for already."""

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from vbuild.errors import RepackageError
from vbuild.splitting.other_packages import compatible, compatible_alone, conflict, exact, merged, required
from vbuild.wheel.metadata import Metadata

LINUX = 'platform_system == "Linux" and platform_machine == "x86_64"'
CUFFT = f"nvidia-cufft-cu12==11.2.1.3; {LINUX}"


def metadata(*lines: str) -> Metadata:
    required_lines = "".join(f"Requires-Dist: {line}\n" for line in lines)
    return Metadata.parse(f"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n{required_lines}")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (exact("nvidia-cufft-cu12", "11.2.1.3"), CUFFT),
        (exact("Nvidia_cuFFT", "12.0"), f"nvidia-cufft==12.0; {LINUX}"),
        (exact("x", "1", machine="aarch64"), 'x==1; platform_system == "Linux" and platform_machine == "aarch64"'),
        (compatible({"curand", "cufft"}, "12.4"), f"cuda-toolkit[cufft,curand]==12.4.*; {LINUX}"),
        (compatible(["cublas"], "13"), f"cuda-toolkit[cublas]==13.*; {LINUX}"),
        (compatible_alone("nvidia-cudnn-cu12", "9.1.0.70"), f"nvidia-cudnn-cu12<10,>=9.1.0.70; {LINUX}"),
        (compatible_alone("nvidia-cusparselt-cu12", "0.6.3"), f"nvidia-cusparselt-cu12<0.7,>=0.6.3; {LINUX}"),
    ],
)
def test_lines_are_spelled_as_packaging_spells_them(line: str, expected: str) -> None:
    assert line == expected
    assert str(Requirement(line)) == line


def test_new_lines_come_after_those_that_are_there() -> None:
    known = metadata("numpy>=2", 'scipy ; extra == "all"', "not a requirement !!")
    assert merged(known, [CUFFT]) == ("numpy>=2", 'scipy ; extra == "all"', "not a requirement !!", CUFFT)


@pytest.mark.parametrize(
    "there",
    [
        CUFFT,
        CUFFT.replace("; ", " ; ").replace('"', "'"),
        "NVIDIA_cufft.cu12 (==11.2.1.3)",
        "nvidia-cufft-cu12[more]==11.2.1.3",
    ],
)
def test_what_is_said_already_is_not_said_again(there: str) -> None:
    assert merged(metadata(there), [CUFFT, CUFFT]) == (there,)


@pytest.mark.parametrize(
    "there",
    [
        "nvidia-cufft-cu12",
        "nvidia-cufft-cu12>=11",
        'nvidia-cufft-cu12==11.2.1.3; extra == "cuda"',
        'nvidia-cufft-cu12==11.2.1.3; platform_system == "Windows"',
        "nvidia-cufft-cu12 @ https://example.org/x.whl",
    ],
)
def test_what_says_less_is_no_reason_to_leave_it_out(there: str) -> None:
    once = merged(metadata(there), [CUFFT])
    assert once == (there, CUFFT)
    assert merged(metadata(*once), [CUFFT]) == once


def test_more_parts_of_a_toolkit_are_a_line_more() -> None:
    one, two = compatible(["cufft"], "12.4"), compatible(["cufft", "curand"], "12.4")
    assert merged(metadata(one), [two]) == (one, two)
    assert merged(metadata(two), [one]) == (two,)


@pytest.mark.parametrize(
    ("there", "is_in_the_way"),
    [
        ("nvidia-cufft-cu12", False),
        ("nvidia-cufft-cu12>=11,<12", False),
        ("nvidia-cufft-cu12==11.2.1.3", False),
        ("nvidia-cufft-cu12==11.3.0.4", True),
        ("Nvidia.cuFFT_cu12<11", True),
        ('nvidia-cufft-cu12<11; extra == "old"', False),
        ('nvidia-cufft-cu12<11; sys_platform == "win32"', False),
        ('nvidia-cufft-cu12<11; platform_machine == "aarch64"', False),
        ('nvidia-cufft-cu12<11; python_version < "3.10"', True),
        ('nvidia-cufft-cu12<11; python_version < "3"', False),
        ("nvidia-cufft-cu12 @ https://example.org/x.whl", True),
        ("nvidia-cufft-cu11<11", False),
        ("nvidia-cufft-cu12 what", False),
    ],
)
def test_a_requirement_that_excludes_the_version_is_named(there: str, *, is_in_the_way: bool) -> None:
    found = conflict(metadata("numpy", there), "nvidia-cufft-cu12", "11.2.1.3")
    assert found == (there if is_in_the_way else None)


def test_markers_are_those_of_the_machine() -> None:
    there = metadata('x<1; platform_machine == "aarch64"')
    assert conflict(there, "x", "2", machine="aarch64") == 'x<1; platform_machine == "aarch64"'
    assert required(there, "x", machine="aarch64") == SpecifierSet("<1")
    assert required(there, "x") is None


def test_what_is_asked_for_is_all_lines_together() -> None:
    there = metadata("x>=1", 'x<3; sys_platform == "linux"', 'x==7; extra == "seven"', "y")
    assert required(there, "X") == SpecifierSet(">=1,<3")
    assert required(there, "y") == SpecifierSet()
    assert required(there, "z") is None


@pytest.mark.parametrize(
    ("there", "cuda", "expected"),
    [
        ("cuda-toolkit[cufft,curand]==12.*", 12, SpecifierSet()),
        ("cuda-toolkit[cufft]==12.4.1", 12, SpecifierSet()),
        ("cuda-toolkit[cufft]>=12", 13, SpecifierSet()),
        ("cuda-toolkit[cufft]", None, SpecifierSet()),
        ("cuda-toolkit[cufft]==13.*", 12, None),
        ("cuda-toolkit[curand]==12.*", 12, None),
        ("cuda-toolkit==12.*", 12, None),
        ('cuda-toolkit[cufft]==12.*; extra == "ctk"', 12, None),
    ],
)
def test_a_part_of_a_toolkit_is_asked_for_at_no_version_of_its_own(
    there: str, cuda: int | None, expected: SpecifierSet | None
) -> None:
    assert required(metadata(there), "nvidia-cufft-cu12", extra="cufft", cuda=cuda) == expected
    assert required(metadata(there), "nvidia-cufft-cu12") is None


def test_what_is_no_requirement_is_refused() -> None:
    with pytest.raises(RepackageError) as caught:
        exact("x", "one two")
    assert str(caught.value).startswith(f"'x==one two; {LINUX}' is not a requirement: Expected ")
    for call in (compatible_alone, lambda project, version: conflict(metadata(), project, version)):
        with pytest.raises(RepackageError) as caught:
            call("x", "one")
        assert str(caught.value) == "x: version 'one', expected one as PEP 440 writes it"
