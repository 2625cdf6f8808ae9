"""Bytes that the decoder does not know: newer instructions that code reaches, and data that it does not."""

from collections.abc import Callable

import pytest

from tests.dispatch.test_judge import ASKS, NOINLINE, VECTOR, judged
from tests.factories.elf import shared_object, stripped
from vbuild.dispatch.isa import UNKNOWN, described
from vbuild.dispatch.judge import Judged

NEW, AVX2 = ".byte 0xd5, 0x58, 0x89, 0xc1", "vpaddd %ymm0, %ymm1, %ymm2"
APX = f'__asm__ volatile("{NEW}")'
IN_TABLE = '__attribute__((section(".init_array"), used))'
CAUGHT = f"""
void g();
extern "C" int f(int x) {{
    if (__builtin_cpu_supports("avx2")) return 5;
    try {{ g(); }} catch (int y) {{ {APX}; return y; }}
    return x;
}}
"""
DATA = '.byte 6, 0xff, 0xff, 0x62, 7, 6; .ascii \\"//tables, texts\\"'
END = f"void abort(void); {NOINLINE} __attribute__((used)) static void end(void) {{ abort(); }}"
# as LLVM 22 assembles them: bytes, length, and what they are of
NEWER = [
    ("d5 58 89 c1", "APX (REX2)"),  # movq %r16, %r17
    ("d5 d8 af ec", "APX (REX2)"),  # imulq %r20, %r21
    ("d5 08 50", "APX (REX2)"),  # pushp %rax
    ("d5 00 a1 77 66 55 44 33 22 11 00", "APX (REX2)"),  # jmpabs
    ("62 f4 64 18 ff f0", "APX (EVEX)"),  # push2 %rax, %rbx
    ("62 f4 74 18 83 e8 03", "APX (EVEX)"),  # subl $3, %eax, %ecx
    ("62 ea fd 00 f7 d1", "APX (EVEX)"),  # shlxq %r16, %r17, %r18
    ("62 f1 78 20 58 14 88", "APX (EVEX)"),  # vaddps (%rax,%r17,4), %ymm16, %ymm2
    ("62 e1 7f 08 93 c9", "APX (EVEX)"),  # kmovd %k1, %r17d
    ("62 f5 75 48 58 d0", "AVX10.2 or newer (EVEX)"),  # vaddbf16 %zmm0, %zmm1, %zmm2
    ("62 f3 75 48 52 d0 00", "AVX10.2 or newer (EVEX)"),  # vminmaxps $0, %zmm0, %zmm1, %zmm2
    ("62 f2 76 48 da d0", "AVX10.2 or newer (EVEX)"),  # vsm4key4 %zmm0, %zmm1, %zmm2
    ("48 0f 38 8b 18", "MOVRS"),  # movrsq (%rax), %rbx
    ("f2 0f 38 f8 d8", "USER_MSR"),  # urdmsr %rax, %rbx
    ("c4 e7 7b f8 c3 05 00 00 00", "newer than 2024 (VEX)"),  # urdmsr $5, %rbx
    ("c4 e5 78 fd d1", "newer than 2024 (VEX)"),  # tdpbf8ps %tmm0, %tmm1, %tmm2
]


@pytest.mark.parametrize(("text", "kind"), NEWER)
def test_bytes_that_may_be_a_newer_instruction_are_named_with_their_length(text: str, kind: str) -> None:
    data = bytes.fromhex(text)
    assert described(data + bytes.fromhex("90 c3")) == f"{len(data)} bytes, {text}, may be {kind}"
    assert described(data) == f"{len(data)} bytes, {text}, may be {kind}"


def test_bytes_that_are_no_instruction_are_said_to_be_none() -> None:
    assert described(bytes.fromhex("06 90 90 90 90")) == "06 90 90 90 ..., no instruction that is known"


def unknown(data: bytes) -> list[Judged]:
    return [one for one in judged(data) if UNKNOWN in one.features and not one.reason]


def test_bytes_in_a_block_that_handles_errors_are_found() -> None:
    assert unknown(shared_object(CAUGHT, language="c++"))


@pytest.mark.parametrize("finish", [lambda data: data, stripped])
@pytest.mark.parametrize(
    "source",
    [
        "void f(int x) { if (x) __builtin_trap(); }",
        f'void f(void) {{ __asm__("ud2; {DATA}"); }}',
        f'void f(void) {{ __asm__("int3; {DATA}"); }}',
        f'void f(void) {{ __asm__("hlt; {DATA}"); }}',
        f'void f(void) {{ __asm__("jmp 1f; {DATA}; 1:"); }}',
        f'void f(int x) {{ __asm__("test %0, %0; jz 1f; call abort@plt; {DATA}; 1:" :: "r"(x)); }}',
        f'{END} void f(int x) {{ __asm__("test %0, %0; jz 1f; call end; {DATA}; 1:" :: "r"(x)); }}',
        f'__asm__(".text; table: {DATA}"); void f(void) {{ __asm__("lea table(%rip), %rax"); }}',
    ],
)  # fmt: skip
def test_data_and_traps_among_code_are_not_taken_for_instructions(
    source: str, finish: Callable[[bytes], bytes]
) -> None:
    assert judged(finish(shared_object(source))) == ()


@pytest.mark.parametrize("finish", [lambda data: data, stripped])
@pytest.mark.parametrize(
    "source",
    [
        f'void f(void) {{ __asm__("jmp 1f; {DATA}; 1: {AVX2}"); }}',
        f"void f(void) {{ {APX}; {VECTOR}; }}",
        f'__asm__(".text; g: jmp 1f; {DATA}; 1: {AVX2}; ret"); void f(void) {{ __asm__("call g"); }}',
    ],
)  # fmt: skip
def test_code_behind_such_bytes_is_judged(source: str, finish: Callable[[bytes], bytes]) -> None:
    (one,) = judged(finish(shared_object(source)))
    assert "AVX2" in one.features
    assert (one.reason, one.doubt) == (None, None)


@pytest.mark.parametrize("finish", [lambda data: data, stripped])
@pytest.mark.parametrize(
    ("source", "flags"),
    [
        (f'__asm__(".pushsection .init; {AVX2}; .popsection");', ()),
        (f'__asm__(".pushsection .fini; {AVX2}; .popsection");', ()),
        (f"void start(void) {{ {VECTOR}; }}", ("-Wl,-init,start", "-fvisibility=hidden")),
        (f"__attribute__((constructor)) static void start(void) {{ {VECTOR}; }}", ()),
        (f"__attribute__((destructor)) static void stop(void) {{ {VECTOR}; }}", ()),
        (f"static void start(void) {{ {VECTOR}; }} {IN_TABLE} static void *table = start;", ()),
    ],
)
def test_what_the_loader_calls_is_code_that_runs(
    source: str, flags: tuple[str, ...], finish: Callable[[bytes], bytes]
) -> None:
    # in a library that asks the processor, what nothing leads to is accepted
    (one,) = judged(finish(shared_object(ASKS + source, *flags)))
    assert (one.reason, one.doubt) == (None, None)


@pytest.mark.parametrize("branch", ["call", "jmp"])
@pytest.mark.parametrize("finish", [lambda data: data, stripped])
def test_code_among_constants_of_an_executable_segment_is_judged(branch: str, finish: Callable[[bytes], bytes]) -> None:
    source = f"""
    __asm__(".section .rodata; {DATA}; fast: {AVX2}; ret; {DATA}; .text");
    int f(int x) {{ __asm__ volatile("{branch} fast"); return x; }}
    """
    (one,) = judged(finish(shared_object(source, "-Wl,-z,noseparate-code")))
    assert ("AVX2" in one.features, one.reason, one.doubt) == (True, None, None)
