import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vbuild.dispatch.isa import features_by_code
from vbuild.errors import HardwareError
from vbuild.hardware.cpu import AARCH64_VERSIONS, X86_64_EXTRAS, X86_64_LEVELS, Cpu

cpus = st.sampled_from(
    [Cpu("x86_64", level) for level in X86_64_LEVELS] + [Cpu("aarch64", version) for version in AARCH64_VERSIONS]
)


@given(cpus)
def test_a_cpu_reads_what_it_writes(cpu: Cpu) -> None:
    assert Cpu.parse(str(cpu)) == cpu
    assert Cpu.of_properties(cpu.variant_properties) == cpu


@given(cpus, cpus)
def test_a_cpu_runs_code_of_the_levels_that_it_supports(one: Cpu, other: Cpu) -> None:
    assert one.runs(other) == (one.machine == other.machine and other.level in one.supported_levels)
    assert one.runs(one)


def test_a_cpu_with_extras_asks_for_them_by_the_providers_names() -> None:
    cpu = Cpu.parse("x86-64-v4+avx512_vnni+avx512_bf16")
    assert (str(cpu), cpu.march, cpu.label) == (
        "x86-64-v4+avx512_bf16+avx512_vnni",
        "x86-64-v4",
        "x86_64_v4_avx512_bf16_avx512_vnni",
    )
    assert cpu.variant_properties == (
        "x86_64 :: level :: v4",
        "x86_64 :: avx512_bf16 :: on",
        "x86_64 :: avx512_vnni :: on",
    )
    assert Cpu.of_properties(cpu.variant_properties) == cpu == Cpu.parse(str(cpu))
    assert Cpu.of_properties(["x86_64 :: avx512_bf16 :: on"]) == Cpu.parse("x86-64-v4+avx512_bf16")
    v4 = Cpu.parse("x86-64-v4")
    assert (cpu.runs(v4), v4.runs(cpu), v4.with_extras(["avx512_bf16", "avx2", "avx512_vnni"]) == cpu) == (
        True,
        False,
        True,
    )


def test_every_extra_has_a_name_that_gcc_and_the_disassembler_know(tmp_path: Path) -> None:
    known = {name for names in features_by_code().values() for name in names}
    for level, features in X86_64_EXTRAS.items():
        for feature in features:
            assert feature.name in known or feature.name in {"CLFLUSHOPT", "CLWB"}, feature.name
            options = [f"-march=x86-64-{level}", *(f"-m{option}" for option in feature.gcc)]
            command = ["gcc", *options, "-xc", "-c", os.devnull, "-o", str(tmp_path / "empty.o")]
            subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "zen4",
            "no CPU level 'zen4'; expected x86-64, x86-64-v2, -v3, -v4, or armv8-a, armv8.1-a ...",
        ),
        ("x86-64-v5", "no CPU level 'v5' of 'x86_64'; expected v1, v2, v3, v4"),
        ("x86-64-v3+avx2", "x86-64-v3+avx2: avx2 is part of a level; expected x86-64-v3 or higher instead"),
        (
            "x86-64-v3+avx512_bf16",
            ("x86-64-v3+avx512_bf16: all processors with avx512_bf16 are of x86-64-v4; expected x86-64-v4+avx512_bf16"),
        ),
        ("armv8-a+sve", "armv8-a+sve: single features can be named for x86-64 only"),
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
