"""Instruction sets of real compilers' output, and of bytes no compiler writes."""

import pytest

from tests.factories.elf import SUM, shared_object, stripped
from vbuild.dispatch.isa import Isa, processes
from vbuild.elf.code import Elf
from vbuild.hardware.cpu import level_of_features


def isa(source: str, *flags: str, language: str = "c") -> Isa:
    return Isa.scan(Elf.parse(shared_object(source, *flags, language=language)))


@pytest.mark.parametrize("march", ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_the_level_found_is_the_level_compiled_for(march: str) -> None:
    # each line only becomes one instruction where the level has it
    source = f"""{SUM}
    int ones(unsigned long x) {{ return __builtin_popcountl(x); }}
    double fused(double a, double b, double c) {{ return a * b + c; }}
    void add(double *restrict a, const double *restrict b) {{ for (int i = 0; i < 1024; i++) a[i] += b[i]; }}
    """
    found = isa(source, f"-march={march}", "-mprefer-vector-width=512", "-ffast-math")
    assert level_of_features(found.features) == ("v1" if march == "x86-64" else march.rpartition("-")[2])


@pytest.mark.parametrize(
    ("assembly", "features"),
    [
        ("tzcnt %eax, %eax; endbr64; pause; rdtsc; cpuid; xgetbv; nopw 0(%rax)", set()),
        ("rdtscp", {"RDTSCP"}),
        # prefetchwt1 (%rax) and bnd jmp, which newer binutils do not know
        ("prefetchw (%rax); .byte 0x0f, 0x0d, 0x10, 0xf2, 0xeb, 0; cldemote (%rax)", set()),
        ("lzcnt %eax, %eax", {"LZCNT"}),
        ("lahf", {"LAHF-SAHF"}),
        ("cmpxchg16b (%rax)", {"CMPXCHG16B"}),
        ("pcmpistri $0, %xmm0, %xmm1", {"SSE4.2"}),
        ("xsave (%rax)", {"OSXSAVE"}),
        ("andn %eax, %eax, %eax; shlx %eax, %eax, %eax", {"BMI1", "BMI2"}),
        ("vaesenc %ymm0, %ymm1, %ymm2", {"VAES"}),
        ("vpaddd %xmm0, %xmm1, %xmm16", {"AVX512F", "AVX512VL"}),
    ],
)
def test_each_instruction_needs_its_features(assembly: str, features: set[str]) -> None:
    assert isa(f'void f(void) {{ __asm__("{assembly}"); }}').features == features


def test_the_first_instruction_of_each_feature_is_shown() -> None:
    found = isa('void f(void) { __asm__("nop; vaddps %ymm0, %ymm1, %ymm2; vpaddd %ymm0, %ymm1, %ymm2"); }')
    (region,) = found.regions
    start = region.region.address
    assert str(region.region) == "f"
    assert list(map(str, region.uses(region.features))) == [
        f"AVX at {start + 1:#x}: vaddps ymm2,ymm1,ymm0",
        f"AVX2 at {start + 5:#x}: vpaddd ymm2,ymm1,ymm0",
    ]


def test_code_without_any_symbol_is_judged_as_outside_functions() -> None:
    source = ".text\nnop\nvaddps %ymm0, %ymm1, %ymm2\nret\n"
    found = Isa.scan(Elf.parse(stripped(shared_object(source, "-nostdlib", language="assembler"))))
    (region,) = found.regions
    assert str(region.region) == f"{region.region.address:#x}, outside any known function"
    assert region.features == {"AVX"}


@pytest.mark.nightly
def test_several_processes_find_what_one_finds() -> None:
    # 5 MB of code: less is not spread
    many = "\n".join(f".globl f{i}\n.type f{i}, @function\nf{i}: .fill 5000, 1, 0x90\nvaddps %ymm0, %ymm1, %ymm2\nret\n"
                     f".size f{i}, .-f{i}" for i in range(1000))  # fmt: skip
    elf = Elf.parse(shared_object(f".text\n{many}", "-nostdlib", language="assembler"))
    with processes(2) as executor:
        assert Isa.scan(elf, executor) == Isa.scan(elf)
    with processes(1) as executor:
        assert executor is None
