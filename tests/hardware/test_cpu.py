import pytest
from hypothesis import given
from hypothesis import strategies as st

from vbuild.errors import HardwareError
from vbuild.hardware.cpu import AARCH64_VERSIONS, X86_64_LEVELS, Cpu

cpus = st.sampled_from(
    [Cpu("x86_64", level) for level in X86_64_LEVELS] + [Cpu("aarch64", version) for version in AARCH64_VERSIONS]
)


@given(cpus)
def test_a_cpu_reads_what_it_writes(cpu: Cpu) -> None:
    assert Cpu.parse(str(cpu)) == cpu
    assert Cpu.of_property(cpu.variant_property) == cpu


@given(cpus, cpus)
def test_a_cpu_runs_code_of_the_levels_that_it_supports(one: Cpu, other: Cpu) -> None:
    assert one.runs(other) == (one.machine == other.machine and other.level in one.supported_levels)
    assert one.runs(one)


@pytest.mark.parametrize("text", ["x86-64-v3", "x86_64_v3", " X86-64-V3 "])
def test_a_level_is_read_in_the_spellings_people_use(text: str) -> None:
    assert Cpu.parse(text) == Cpu("x86_64", "v3")


def test_a_property_of_something_else_is_no_cpu() -> None:
    assert Cpu.of_property("nvidia :: sm_arch :: 90_real") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zen4", "no CPU level 'zen4'; expected x86-64, x86-64-v2, -v3, -v4, or armv8-a, armv8.1-a ..."),
        ("x86-64-v5", "no CPU level 'v5' of 'x86_64'; expected v1, v2, v3, v4"),
        (
            "armv7-a",
            f"no CPU level '7a' of 'aarch64'; expected {', '.join(AARCH64_VERSIONS)}",
        ),
    ],
)
def test_a_cpu_that_is_not_known_is_refused(text: str, message: str) -> None:
    with pytest.raises(HardwareError) as refusal:
        Cpu.parse(text)
    assert str(refusal.value) == message
