"""Instruction sets in DLLs that mingw compiles: what runs after a test of the processor passes, and nothing else."""

import re
from contextlib import suppress
from pathlib import Path

import pytest

from tests.factories.pe_files import pe_file, windows_library
from tests.factories.wheels import wheel
from tests.factories.windows import needs_mingw
from vbuild.dispatch.judge import Dispatch, Judged, Reason, scan
from vbuild.dispatch.reach import Doubt
from vbuild.errors import BinaryError
from vbuild.hardware.cpu import Cpu
from vbuild.pe.code import read_code
from vbuild.verification.verify import verify

_FAST = """
#include <cpuid.h>
#define EXPORT __declspec(dllexport)
#define NOINLINE __attribute__((noinline, noclone))
__declspec(dllimport) int __stdcall IsProcessorFeaturePresent(unsigned long);
__declspec(dllimport) unsigned long long __stdcall GetEnabledXStateFeatures(void);
NOINLINE static int fast(int x) { __asm__ volatile("vpaddd %ymm0, %ymm1, %ymm2"); return x * 2; }
NOINLINE static int slow(int x) { __asm__ volatile(""); return x + 2; }
static int saves_ymm(void) { unsigned a, b, c, d; return __get_cpuid(1, &a, &b, &c, &d) && (c >> 27 & 1); }
static int cpuid_bit(void) {
    unsigned a, b, c, d;
    return saves_ymm() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 5 & 1);
}
static int cpuid_wrong(void) { unsigned a, b, c, d; return __get_cpuid_count(1, 0, &a, &b, &c, &d) && (c >> 28 & 1); }
"""
_RIGHT = {
    "builtin": 'EXPORT int run(int x) { return __builtin_cpu_supports("avx2") ? fast(x) : slow(x); }',
    "cpuid": "EXPORT int run(int x) { return cpuid_bit() ? fast(x) : slow(x); }",
    "windows": "EXPORT int run(int x) { return IsProcessorFeaturePresent(40) ? fast(x) : slow(x); }",
    "variable": """static int has; EXPORT void first(void) { has = IsProcessorFeaturePresent(40); }
        EXPORT int run(int x) { return has ? fast(x) : slow(x); }""",
    "table": """static int (*const table[])(int) = {slow, fast};
        EXPORT int run(int x) { return table[IsProcessorFeaturePresent(40) != 0](x); }""",
    "constructor": """static int has; __attribute__((constructor)) static void first(void) { has = cpuid_bit(); }
        EXPORT int run(int x) { return has ? fast(x) : slow(x); }""",
    "pointer": """static int (*chosen)(int) = slow;
        __attribute__((constructor)) static void first(void) { if (IsProcessorFeaturePresent(40)) chosen = fast; }
        EXPORT int run(int x) { return chosen(x); }""",
    "argument": """NOINLINE static int choose(int a, int b, int c, int has) { return has ? fast(a) : slow(b + c); }
        EXPORT int run(int x) { return choose(x, 1, 2, IsProcessorFeaturePresent(40)); }""",
}
_WRONG = {
    "unguarded": "EXPORT int run(int x) { return fast(x); }",
    "lesser": 'EXPORT int run(int x) { return __builtin_cpu_supports("sse4.2") ? fast(x) : slow(x); }',
    "wrong-bit": "EXPORT int run(int x) { return cpuid_wrong() ? fast(x) : slow(x); }",
    "wrong-number": "EXPORT int run(int x) { return IsProcessorFeaturePresent(39) ? fast(x) : slow(x); }",
    "wrong-branch": "EXPORT int run(int x) { return IsProcessorFeaturePresent(40) ? slow(x) : fast(x); }",
    "state-alone": "EXPORT int run(int x) { return GetEnabledXStateFeatures() & 4 ? fast(x) : slow(x); }",
    "name": "EXPORT int run_avx2(int x) { return fast(x); }",
    "beside": """EXPORT int run(int x) { return cpuid_bit() ? fast(x) : slow(x); }
        EXPORT int also(int x) { return fast(x); }""",
    "table": """static int (*const table[])(int) = {slow, fast};
        EXPORT int run(int x) { return table[x & 1](x) + cpuid_bit(); }""",
    "constructor": """static int done;
        __attribute__((constructor)) static void first(void) { done = fast(cpuid_bit()); }
        EXPORT int run(int x) { return done + slow(x); }""",
    "overwritten": """static int has; EXPORT void set(void) { has = 1; }
        EXPORT void first(void) { has = IsProcessorFeaturePresent(40); }
        EXPORT int run(int x) { return has ? fast(x) : slow(x); }""",
    "argument": """NOINLINE static int choose(int a, int b, int c, int has) { return has ? fast(a) : slow(b + c); }
        EXPORT int run(int x) { return choose(IsProcessorFeaturePresent(40), x, 2, x); }""",
    "counted-from-the-image": """static int has[4];
        __attribute__((constructor)) static void first(void) { has[2] = cpuid_bit(); }
        EXPORT void set(long long x) { __asm__ volatile(
        "lea __ImageBase(%%rip), %%rdx; .byte 0xc7, 0x84, 0x8a; .rva has; .long 1" :: "c"(x) : "rdx", "memory"); }
        EXPORT int run(int x) { return has[2] ? fast(x) : slow(x); }""",
}

_THROWING = (
    *(".text", ".globl thrower", ".seh_proc thrower", "thrower:", ".seh_handler catcher, @except", ".seh_endprologue"),
    *("mov $1, %eax", "ret", ".seh_handlerdata", ".long 0", ".text", ".seh_endproc", ".seh_proc catcher", "catcher:"),
    *(".seh_endprologue", "vpaddd %ymm0, %ymm1, %ymm2", "mov $1, %eax", "ret", ".seh_endproc"),
)

pytestmark = needs_mingw


def judged(source: str, *flags: str) -> tuple[Judged, ...]:
    image = read_code(windows_library(_FAST + source, *flags))
    return Dispatch({"demo.dll": (image, scan(image))}).judged("demo.dll", 0)


@pytest.mark.parametrize("way", _RIGHT)
def test_code_behind_a_test_of_the_processor_passes(way: str) -> None:
    assert [one.reason for one in judged(_RIGHT[way])] == [Reason.TESTED]


@pytest.mark.parametrize("way", _WRONG)
def test_code_without_the_right_test_is_a_violation(way: str) -> None:
    (found,) = judged(_WRONG[way], "-Wl,--strip-all")
    assert found.reason is None
    assert "AVX2" in found.features


def test_functions_that_handle_errors_are_led_to_by_what_throws() -> None:
    source = "__asm__(" + "".join(f'"{line}\\n"' for line in _THROWING) + ");extern int thrower(void);"
    source += "EXPORT int run(int x) { return cpuid_bit() ? fast(x) : thrower(); }"
    found = [one for one in judged(source) if one.reason is None]
    assert [one.doubt for one in found] == [Doubt.UNCLEAR]


def windows_wheel(folder: Path, data: bytes) -> Path:
    return wheel(folder, "demo-1.0-cp313-cp313-win_amd64.whl", {"demo/fast.pyd": data})


def test_wheel_is_held_to_its_level_by_evidence(tmp_path: Path) -> None:
    right = windows_wheel(tmp_path / "right", windows_library(_FAST + _RIGHT["cpuid"]))
    assert verify(right, cpu=Cpu.parse("x86-64-v2")).isa == "ok, 1 tested"
    wrong = windows_wheel(tmp_path / "wrong", windows_library(_FAST + _WRONG["lesser"]))
    verdict = verify(wrong, cpu=Cpu.parse("x86-64-v2"))
    assert (verdict.outcome, verdict.isa) == ("failed", "failed")
    assert verify(wrong, cpu=Cpu.parse("x86-64-v3")).outcome == "ok"
    assert verify(wrong).outcome == "not shown"
    assert "AVX2" in next(one.what for one in verify(wrong).findings if one.rule == "isa-above")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (pe_file(machine=0x14C), "expected 0x20b (64-bit, PE32+)"),
        (pe_file(machine=0xAA64), "code for machine 0xaa64"),
        (pe_file(sections=[(b"UPX0", 0)]), "packed by UPX"),
        (pe_file(more={14: (0x1000, 72)}), ".NET assembly"),
        (pe_file(more={3: (0x900000, 12)}), "table of 1 rows at RVA 0x900000 runs out of its section"),
    ],
)
def test_what_is_not_understood_is_named_and_not_checked(tmp_path: Path, data: bytes, expected: str) -> None:
    with pytest.raises(BinaryError, match=re.escape(expected)):
        read_code(data)
    verdict = verify(windows_wheel(tmp_path, data))
    assert verdict.isa == "not checked"
    assert verify(windows_wheel(tmp_path, data), cpu=Cpu.parse("x86-64-v3")).outcome == "failed"


def test_damaged_files_are_refused_or_read() -> None:
    whole = windows_library(_FAST + _RIGHT["table"])
    for number in range(400):
        place = number * 7919 % 0x600 if number % 2 else number * 7919 % len(whole)
        data = whole[:place] + bytes([whole[place] ^ (1 << number % 8)]) + whole[place + 1 :]
        with suppress(BinaryError):
            read_code(data[: len(data) - (number % 5) * 64])
