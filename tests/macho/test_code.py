"""Instruction sets in libraries for macOS: what runs after a test of the processor passes, and nothing else."""

import re
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from tests.factories.macho_files import ARM64, X86_64, fat, macho, macos_library
from tests.factories.wheels import wheel
from vbuild.dispatch.judge import Dispatch, Judged, Reason, scan
from vbuild.errors import BinaryError
from vbuild.hardware.cpu import AARCH64_VERSIONS, Cpu
from vbuild.macho.code import read_codes
from vbuild.verification.verify import verify

_HEAD = """
#define NOINLINE __attribute__((noinline))
int sysctlbyname(const char *, void *, unsigned long *, void *, unsigned long);
#define ASKED(name) ({ int has = 0; unsigned long size = sizeof has; sysctlbyname(name, &has, &size, 0, 0); has; })
NOINLINE static int slow(int x) { __asm__ volatile(""); return x + 2; }
"""
_X86 = (
    _HEAD
    + """
#include <cpuid.h>
NOINLINE static int fast(int x) { __asm__ volatile("vpaddd %ymm0, %ymm1, %ymm2"); return x * 2; }
static int cpuid_bit(void) { unsigned a, b, c, d; return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 5 & 1); }
"""
)
_ARM = _HEAD + 'NOINLINE static int fast(int x) { __asm__ volatile(".inst 0x4e829c20"); return x * 2; }\n'
_RIGHT = {
    "sysctl": 'int run(int x) { return ASKED("hw.optional.avx2_0") ? fast(x) : slow(x); }',
    "cpuid": "int run(int x) { return cpuid_bit() ? fast(x) : slow(x); }",
    "constructor": """static int has; __attribute__((constructor)) static void first(void) { has = cpuid_bit(); }
        int run(int x) { return has ? fast(x) : slow(x); }""",
    "table": """static int (*const table[])(int) = {slow, fast};
        int run(int x) { return table[ASKED("hw.optional.avx2_0") != 0](x); }""",
}
_WRONG = {
    "unguarded": "int run(int x) { return fast(x); }",
    "another-name": 'int run(int x) { return ASKED("hw.optional.avx1_0") ? fast(x) : slow(x); }',
    "no-feature": 'int run(int x) { return ASKED("hw.ncpu") ? fast(x) : slow(x); }',
    "wrong-branch": 'int run(int x) { return ASKED("hw.optional.avx2_0") ? slow(x) : fast(x); }',
    "not-first-zero": """int run(int x) { int has = x; unsigned long size = sizeof has;
        sysctlbyname("hw.optional.avx2_0", &has, &size, 0, 0); return has ? fast(x) : slow(x); }""",
    "name": "int run_avx2(int x) { return cpuid_bit() + fast(x); }",
    "table": """static int (*const table[])(int) = {slow, fast};
        int run(int x) { return table[x & 1](x) + cpuid_bit(); }""",
    "constructor": """static int done;
        __attribute__((constructor)) static void first(void) { done = fast(cpuid_bit()); }
        int run(int x) { return done + slow(x); }""",
}
# chained fixups, and the programs that files for older systems have
_BY_AGE = pytest.mark.parametrize("oldest", ["13.0", pytest.param("10.14", marks=pytest.mark.nightly)])


def judged(data: bytes, level: int = 0) -> tuple[Judged, ...]:
    (image,) = read_codes(data)
    return Dispatch({"demo": (image, scan(image))}, extras=image.given).judged("demo", level)


@_BY_AGE
@pytest.mark.parametrize("way", _RIGHT)
def test_code_behind_a_test_of_the_processor_passes(way: str, oldest: str) -> None:
    assert [one.reason for one in judged(macos_library(_X86 + _RIGHT[way], oldest=oldest))] == [Reason.TESTED]


@_BY_AGE
@pytest.mark.parametrize("way", _WRONG)
def test_code_without_the_right_test_is_a_violation(way: str, oldest: str) -> None:
    (found,) = judged(macos_library(_X86 + _WRONG[way], oldest=oldest))
    assert found.reason is None
    assert "AVX2" in found.features


@pytest.mark.parametrize(
    ("name", "reason"), [("arm.FEAT_I8MM", Reason.TESTED), ("arm.FEAT_BF16", None), ("arm.FEAT_DotProd", None)]
)
def test_arm_code_is_judged_from_the_m1_on(name: str, reason: Reason | None) -> None:
    source = f'int run(int x) {{ return ASKED("hw.optional.{name}") ? fast(x) : slow(x); }}'
    found = judged(macos_library(_ARM + source, "arm64"), AARCH64_VERSIONS.index("8.4a"))
    assert [one.reason for one in found] == [reason]


def test_what_each_mac_has_is_no_violation(tmp_path: Path) -> None:
    penryn = 'int run(int x) { __asm__ volatile("ptest %xmm0, %xmm1"); return x; }'
    m1 = 'int run(int x) { __asm__ volatile(".inst 0xce608400\\n.inst 0x0e829420"); return x; }'
    made = {"demo/a.so": macos_library(penryn), "demo/b.so": macos_library(m1, "arm64")}
    verdict = verify(wheel(tmp_path, "demo-1.0-py3-none-macosx_13_0_universal2.whl", made))
    assert (verdict.outcome, [one.rule for one in verdict.findings]) == ("ok", ["needed"])
    old = {"demo/a.so": macos_library(penryn, oldest="10.9")}
    verdict = verify(wheel(tmp_path, "demo-1.0-py3-none-macosx_10_9_x86_64.whl", old))
    assert [one.rule for one in verdict.findings] == ["isa-above", "needed"]


def test_halves_are_judged_apart(tmp_path: Path) -> None:
    halves = [macos_library(_X86 + _WRONG["unguarded"]), macos_library(_ARM + _WRONG["unguarded"], "arm64")]
    both = wheel(
        tmp_path,
        "demo-1.0-py3-none-macosx_13_0_universal2.whl",
        {"demo/a.so": fat((X86_64, halves[0]), (ARM64, halves[1]))},
    )
    verdict = verify(both, cpu=Cpu.parse("x86-64-v3"))
    assert verdict.outcome == "ok"
    assert [one.member for one in verdict.libraries] == ["demo/a.so (x86_64)", "demo/a.so (aarch64)"]
    found = [one for one in verdict.findings if one.rule == "isa-above"]
    assert [(one.places, one.severity) for one in found] == [(("demo/a.so (aarch64)",), "warning")]
    assert verify(both, cpu=Cpu.parse("x86-64-v2")).outcome == "failed"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (macho()[:20] + struct.pack("<I", 0xFFFFFF00) + macho()[24:], "load commands end at 0xffffff20, past the end"),
        (macho(cpu=7), "code for machine 0x7, kind 0: expected x86-64 or arm64"),
        (macho(cpu=0x1000012), "code for machine 0x1000012, kind 0"),
        (struct.pack("<8I", 0xFEEDFACF, ARM64, 0, 6, 1, 8, 0, 0) + struct.pack("<II", 2, 4), "load command at 0x20"),
        (
            struct.pack("<8I", 0xFEEDFACF, ARM64, 0, 6, 1, 8, 0, 0) + struct.pack("<II", 2, 8),
            "expected 0x18 up to 0x28",
        ),
    ],
)
def test_what_is_not_understood_is_named_and_not_checked(tmp_path: Path, data: bytes, expected: str) -> None:
    with pytest.raises(BinaryError, match=re.escape(expected)):
        read_codes(data)
    made = wheel(tmp_path, "demo-1.0-py3-none-macosx_13_0_arm64.whl", {"demo/a.so": data})
    assert verify(made).isa == "not checked"
    assert verify(made, cpu=Cpu.parse("armv8.6-a")).outcome == "failed"


@_BY_AGE
def test_damaged_files_are_refused_or_read(oldest: str) -> None:
    whole = macos_library(_X86 + _RIGHT["table"], oldest=oldest)
    for number in range(600):
        place = number * 7919 % 0x600 if number % 2 else number * 7919 % len(whole)
        data = whole[:place] + bytes([whole[place] ^ (1 << number % 8)]) + whole[place + 1 :]
        with suppress(BinaryError):
            read_codes(data[: len(data) - (number % 5) * 64])
