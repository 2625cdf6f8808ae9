"""Requires-Dist lines: spelled as packaging spells them, added once, and compared with what is asked for already."""

import pytest
from packaging.specifiers import SpecifierSet

from vbuild.errors import RepackageError
from vbuild.splitting.other_packages import RequirementWriter, compatible_alone, conflict, required
from vbuild.splitting.request import SplitRequest
from vbuild.wheel.metadata import Metadata

LINUX = 'platform_system == "Linux" and platform_machine == "x86_64"'


def metadata(*lines: str) -> Metadata:
    required_lines = "".join(f"Requires-Dist: {line}\n" for line in lines)
    return Metadata.parse(f"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n{required_lines}")


def test_markers_are_those_of_the_machine() -> None:
    there = metadata('x<1; platform_machine == "aarch64"')
    assert conflict(there, "x", "2", machine="aarch64") == 'x<1; platform_machine == "aarch64"'
    assert required(there, "x", machine="aarch64") == SpecifierSet("<1")
    assert required(there, "x") is None


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
        RequirementWriter(SplitRequest(), "x86_64").exactly("x", "one two")
    assert str(caught.value).startswith(f"'x==one two; {LINUX}' is not a requirement: Expected ")
    for call in (compatible_alone, lambda project, version: conflict(metadata(), project, version)):
        with pytest.raises(RepackageError) as caught:
            call("x", "one")
        assert str(caught.value) == "x: version 'one', expected one as PEP 440 writes it"
