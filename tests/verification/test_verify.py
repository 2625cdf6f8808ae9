"""Wheels with real binaries, compared with what their names and metadata promise."""

import ctypes
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.factories.arm import arm_object
from tests.factories.elf import MODULE, SUM, rpath, shared_object
from tests.factories.extensions import library as linked_library
from tests.factories.tools import needs
from tests.factories.variants import document, variant
from tests.factories.wheels import dist_info_of, everything, record_of, wheel
from vbuild.cli.look import verdict_lines
from vbuild.errors import WheelError
from vbuild.hardware.cpu import Cpu
from vbuild.verification.levels import chosen
from vbuild.verification.model import Severity, Verdict, VerifyRule, Violation
from vbuild.verification.verify import claimed_cpu, verify

NAME = "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
MEMBER = "demo/_demo.cpython-311-x86_64-linux-gnu.so"
CLEAN = shared_object(MODULE + SUM)
V2, V3, V4 = (Cpu.parse(f"x86-64-{level}") for level in ("v2", "v3", "v4"))
CALLED = "void *PyInit_demo(void) { void dot(void); dot(); return 0; }"
# 16 KB of code in which no compiler finds use for a vector
MUCH = MODULE + "".join(
    f"int f{i}(int x) {{ return x > {i} ? x / {i + 3} + x % {i + 5} : x * {i + 7}; }}" for i in range(500)
)


def made(
    folder: Path,
    files: Mapping[str, bytes] | bytes = CLEAN,
    name: str = NAME,
    *,
    pure: bool = False,
    metadata: str = "",
    label: str | None = None,
) -> Path:
    """A wheel of these binaries by path, or of this one; stamped as x86-64-v3 under *label*."""
    members: dict[str, bytes | str] = dict({MEMBER: files} if isinstance(files, bytes) else files)
    tag = "-".join(name.removesuffix(".whl").split("-")[2:5])
    wheel_file = f"Wheel-Version: 1.0\nGenerator: demo\nRoot-Is-Purelib: {str(pure).lower()}\nTag: {tag}\n"
    members[f"{dist_info_of(name)}/WHEEL"] = wheel_file
    if label:
        members[f"{dist_info_of(name)}/variant.json"] = document(variant(label, "x86_64 :: level :: v3")).pack()
    return wheel(folder, name, members, metadata=metadata)


def found(verdict: Verdict, *severities: Severity) -> list[tuple[str, str]]:
    """Rule and text of the findings of these *severities*, errors for none."""
    wanted = severities or (Severity.ERROR,)
    return [(str(one.rule), one.what) for one in verdict.findings if one.severity in wanted]


def test_a_plain_wheel_of_baseline_code_has_nothing_wrong(tmp_path: Path) -> None:
    verdict = verify(made(tmp_path))
    assert verdict.findings == ()
    assert (verdict.failed, verdict.isa, str(verdict.cpu), verdict.claimed) == (False, "ok", "x86-64", False)
    assert [(library.member, library.level) for library in verdict.libraries] == [(MEMBER, "v1")]


def test_a_wheel_without_code_is_not_asked_for_a_level(tmp_path: Path) -> None:
    verdict = verify(wheel(tmp_path))
    assert (verdict.findings, verdict.cpu, verdict.isa) == ((), None, "no code")


def test_a_level_without_code_is_an_empty_promise(tmp_path: Path) -> None:
    verdict = verify(wheel(tmp_path), cpu=V3)
    assert found(verdict, Severity.WARNING) == [("isa-flags", "no compiled code: nothing in it is for x86-64-v3")]
    assert not verdict.failed


def test_a_violation_is_named_with_function_and_instruction(tmp_path: Path) -> None:
    source = f'{CALLED} void dot(void) {{ __asm__ volatile("vpaddd %ymm0, %ymm1, %ymm2"); }}'
    verdict = verify(made(tmp_path, shared_object(source)), cpu=V2)
    ((violation,),) = (library.violations for library in verdict.libraries)
    (place,) = violation.instructions
    way = "called without a test by PyInit_demo"
    assert found(verdict) == [
        ("isa-above", f"needs AVX2 (v3), above the claimed x86-64-v2: 1 function: dot ({place}) {way}"),
    ]
    assert place == f"AVX2 at {violation.address}: vpaddd ymm2,ymm1,ymm0"
    assert verdict.findings[0].advice == "if it runs only after a check of the CPU: verify.allow = ['^dot$']"
    assert (verdict.failed, verdict.isa) == (True, "failed")


def test_a_function_of_rust_is_accepted_by_its_name_without_the_hash(tmp_path: Path) -> None:
    name = "_ZN4sha26sha51213compress_avx217hc2c8e649b0edac95E.llvm.15733272040134926488"
    source = f'{CALLED} void dot(void) __asm__("{name}"); void dot(void) {{ __asm__("vpaddd %ymm0, %ymm1, %ymm2"); }}'
    compiled = made(tmp_path, shared_object(source))
    assert verify(compiled, cpu=V2).findings[0].advice.endswith("verify.allow = ['^_ZN4sha26sha51213compress_avx2']")
    assert not verify(compiled, cpu=V2, allow=["^_ZN4sha26sha51213compress_avx2"]).failed


def test_functions_that_virtual_tables_lead_to_have_one_cause_and_one_pattern(tmp_path: Path) -> None:
    functions = "".join(
        f'static void f{i}(void) {{ __asm__ volatile("vpaddd %ymm0, %ymm1, %ymm2"); }}' for i in range(5)
    )
    table = f"void (*const _ZTV4Wide[])(void) = {{{', '.join(f'f{i}' for i in range(5))}}};"
    calls = "void *PyInit_demo(void) { for (int i = 0; i < 5; i++) _ZTV4Wide[i](); return 0; }"
    (error,) = [
        one for one in verify(made(tmp_path, shared_object(functions + table + calls)), cpu=V2).findings if one.is_error
    ]
    assert "5 functions, 5 through virtual tables, _ZTV4Wide: f" in error.what
    assert "; and 4 more" in error.what
    assert error.advice.endswith("verify.allow = ['_demo']")


def test_code_above_the_baseline_is_a_warning_where_nobody_claims_a_level(tmp_path: Path) -> None:
    source = f'{CALLED} void dot(void) {{ __asm__ volatile("vpaddd %ymm0, %ymm1, %ymm2"); }}'
    verdict = verify(made(tmp_path, shared_object(source)))
    assert not verdict.failed
    ((rule, what),) = found(verdict, Severity.WARNING)
    assert rule == "isa-above"
    assert "above x86-64, which is all that its tags promise" in what


def test_tested_code_passes_and_is_counted(tmp_path: Path) -> None:
    source = f"""{MODULE} __attribute__((target_clones("default", "avx2")))
    void add(float *restrict a, const float *restrict b) {{ for (int i = 0; i < 1024; i++) a[i] += b[i]; }}
    """
    verdict = verify(made(tmp_path, shared_object(source)), cpu=V2)
    assert not verdict.failed
    assert verdict.isa == "ok, 1 tested"
    assert [library.accepted for library in verdict.libraries] == [{"runs after a test of the processor": 1}]


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_library_that_python_loads_after_a_question_is_a_warning(tmp_path: Path, *, is_asked: bool) -> None:
    source = 'void dot(void) { __asm__ volatile("vpaddd %ymm0, %ymm1, %ymm2"); }'
    load = "load('demo._dot')"
    text = (
        f"if cpu_features.has_avx2():\n    dot = {load}\n" if is_asked else f"cpu_features.has_avx2()\ndot = {load}\n"
    )
    verdict = verify(made(tmp_path, {"demo/_dot.so": shared_object(source), "demo/__init__.py": text.encode()}), cpu=V2)
    assert verdict.failed is not is_asked
    assert [(one.severity, one.rule) for one in verdict.findings if one.rule is VerifyRule.ISA_ABOVE] == [
        (Severity.WARNING if is_asked else Severity.ERROR, VerifyRule.ISA_ABOVE)
    ]


def test_what_the_baseline_wheel_has_too_is_a_warning(tmp_path: Path) -> None:
    source = f"""{CALLED} int asks(void) {{ return __builtin_cpu_supports("avx2"); }}
    void dot(void) {{ __asm__ volatile("vpaddd %ymm0, %ymm1, %ymm2"); }}"""
    plain = made(tmp_path / "plain", {"demo.libs/libdot-01234567.so": shared_object(source)})
    built = made(tmp_path / "v2", {"demo.libs/libdot-89abcdef.so": shared_object(source, "-march=x86-64-v2")})
    assert verify(built, cpu=V2).failed
    verdict = verify(built, cpu=V2, baseline=plain)
    assert not verdict.failed
    assert "; the baseline build has the same" in "".join(
        what for rule, what in found(verdict, Severity.WARNING) if rule == "isa-above"
    )


def test_a_pattern_allows_a_function(tmp_path: Path) -> None:
    source = f'{CALLED} void dot(void) {{ __asm__ volatile("vpaddd %ymm0, %ymm1, %ymm2"); }}'
    assert not verify(made(tmp_path, shared_object(source)), cpu=V2, allow=("^dot$",)).failed
    with pytest.raises(WheelError, match=r"allow: '\(' is not a regular expression"):
        verify(made(tmp_path), allow=("(",))


@pytest.mark.nightly
def test_flags_that_did_not_arrive_are_an_error_where_there_is_enough_code(tmp_path: Path) -> None:
    missing = "the compiler's flags for x86-64-v3 did not arrive"
    much, little = made(tmp_path / "much", shared_object(MUCH)), made(tmp_path / "little")
    ((rule, what),) = found(verify(much, cpu=V3))
    assert rule == "isa-flags"
    assert what.startswith("no VEX instruction in ")
    assert what.endswith(f" bytes of its own code: {missing}")
    assert not verify(little, cpu=V3).failed
    assert any(
        text.endswith(f"{missing}, or made no difference") for _, text in found(verify(little, cpu=V3), Severity.NOTE)
    )
    assert not verify(made(tmp_path / "v3", shared_object(MODULE + SUM, "-march=x86-64-v3")), cpu=V3).failed


@pytest.mark.nightly
def test_the_very_code_of_the_baseline_means_that_flags_did_not_arrive(tmp_path: Path) -> None:
    plain = made(tmp_path / "plain", shared_object(MUCH + SUM))
    v3, v2 = (made(tmp_path / x, shared_object(MUCH + SUM, f"-Wl,-z,x86-64-{x}")) for x in ("v3", "v2"))
    ((rule, what),) = found(verify(v3, cpu=V3, baseline=plain))
    assert rule == "isa-flags"
    assert what.startswith(f"the code of {MEMBER} is that of the baseline build in ")
    # v2 has little to offer a compiler, so that it makes no difference is no proof
    assert not verify(v2, cpu=V2, baseline=plain).failed
    assert [rule for rule, _ in found(verify(v2, cpu=V2, baseline=plain), Severity.NOTE)] == ["isa-flags"]


def test_v4_without_its_vectors_is_worth_a_note(tmp_path: Path) -> None:
    verdict = verify(made(tmp_path, shared_object(MODULE + SUM, "-march=x86-64-v3", "-Wl,-z,x86-64-v4")), cpu=V4)
    assert not verdict.failed
    assert ("isa-flags", "no AVX-512 instruction in its own code: the v3 wheel would do the same") in found(
        verdict, Severity.NOTE
    )


def test_marks_are_held_against_the_claim(tmp_path: Path) -> None:
    marked = made(tmp_path, shared_object(MODULE + SUM, "-march=x86-64-v3", "-Wl,-z,x86-64-v3"))
    assert verify(marked, cpu=V3).findings == ()
    assert ("isa-note", "marked as needing x86-64-v3, above the claimed x86-64-v2: glibc refuses to load it") in found(
        verify(marked, cpu=V2)
    )
    unmarked = found(verify(made(tmp_path), cpu=V2), Severity.NOTE)
    assert any("are not marked with -z x86-64-v2" in what for _, what in unmarked)


def test_a_plain_wheel_that_is_marked_throughout_is_held_against_its_mark(tmp_path: Path) -> None:
    code = shared_object(MODULE + SUM, "-march=x86-64-v2", "-Wl,-z,x86-64-v2")
    verdict = verify(made(tmp_path, {MEMBER: code, "demo.libs/libother.so": CLEAN}))
    what = (
        "marked as x86-64-v2 throughout, which its tags do not say: below that, glibc 2.33 and newer refuse to load it"
    )
    assert found(verdict, Severity.WARNING) == [("isa-note", f"{what}, and others crash")]
    assert (str(verdict.cpu), verdict.failed) == ("x86-64-v2", False)
    above = shared_object(MODULE + SUM, "-march=x86-64-v3", "-Wl,-z,x86-64-v2")
    assert [rule for rule, _ in found(verify(made(tmp_path, above)))] == ["isa-above"]
    # a wheel of which only a part is marked promises nothing
    assert not verify(made(tmp_path, {MEMBER: code, "demo/_other.so": CLEAN})).claimed


BF16 = """
#include <immintrin.h>
__m512 dots(__m512 s, __m512bh a, __m512bh b) { return _mm512_dpbf16_ps(s, a, b); }
"""


@pytest.mark.parametrize(
    ("claim", "errors"),
    [
        ("x86-64-v4+avx512_bf16", []),
        ("x86-64-v4+avx512_bf16+avx512_vnni", []),
        ("x86-64-v4+avx512_vnni", ["isa-above"]),
        ("x86-64-v4", ["isa-above"]),
    ],
)
def test_code_may_use_the_single_features_that_the_wheel_claims(tmp_path: Path, claim: str, errors: list[str]) -> None:
    cpu = Cpu.parse(claim)
    code = shared_object(MODULE + BF16, "-march=x86-64-v4", "-mavx512bf16", "-Wl,-z,x86-64-v4")
    members = {
        MEMBER: code,
        f"{dist_info_of(NAME)}/variant.json": document(variant("x", *cpu.variant_properties)).pack(),
    }
    path = wheel(tmp_path, NAME.replace(".whl", "-x.whl"), members)
    verdict = verify(path)
    assert claimed_cpu(path) == cpu
    assert (verdict.cpu, [rule for rule, _ in found(verdict)]) == (cpu, errors)
    unused = [what for rule, what in found(verdict, Severity.WARNING) if rule == "isa-gain"]
    what = "no gain from this feature: no AVX512_VNNI instruction in its own code"
    assert unused == [what] * ("vnni" in claim)


@pytest.mark.parametrize(
    ("path", "severity", "why"),
    [
        ("$ORIGIN/../demo.libs", None, None),
        ("${ORIGIN}", None, None),
        ("/opt/python/lib", Severity.WARNING, "a path of the machine it was built on"),
        ("/tmp/build", Severity.ERROR, "on another machine anybody can put a library there"),  # noqa: S108 - a mistake
        ("lib", Severity.ERROR, "the loader takes this one from the working directory"),
    ],
)
def test_paths_of_the_building_machine_are_found(
    tmp_path: Path, path: str, severity: Severity | None, why: str | None
) -> None:
    verdict = verify(made(tmp_path, shared_object(MODULE, *rpath(path))))
    what = f"RUNPATH {path!r}; expected a path relative to the library, $ORIGIN/...: {why}"
    expected = [(severity, VerifyRule.RPATH, what)] if severity else []
    assert [(one.severity, one.rule, one.what) for one in verdict.findings] == expected


def test_a_needed_library_must_be_in_the_wheel_or_on_the_platform(tmp_path: Path) -> None:
    module = shared_object(MODULE, *rpath("$ORIGIN/../demo.libs"), needs="libother.so.1")
    missing = "needs libother.so.1: neither in the wheel nor part of manylinux_2_17_x86_64"
    assert found(verify(made(tmp_path, module))) == [
        ("needed", f"{missing}; bundle them (auditwheel repair), or require the packages that have them")
    ]
    elsewhere = made(tmp_path, module, metadata="Requires-Dist: other\n")
    assert found(verify(elsewhere), Severity.WARNING) == [("needed", f"{missing}; expected from other packages")]
    cuda = made(tmp_path, shared_object(MODULE, needs="libcudart.so.13"))
    cudart = missing.replace("libother.so.1", "libcudart.so.13")
    assert found(verify(cuda), Severity.ERROR)[0][1].startswith(cudart)
    assert found(verify(cuda, is_split=True), Severity.WARNING) == [
        ("needed", f"{cudart}; expected from other packages")
    ]
    driver = made(tmp_path, shared_object(MODULE, needs="libcuda.so.1"))
    nowhere = missing.replace("libother.so.1", "libcuda.so.1")
    assert found(verify(driver), Severity.WARNING) == [("needed", f"{nowhere}; expected from the driver")]
    bundled = {MEMBER: module, "demo.libs/libother.so.1": shared_object("int x;")}
    assert verify(made(tmp_path, bundled)).findings == ()
    astray = {MEMBER: module, "demo/lib/libother.so.1": shared_object("int x;")}
    what = "needs libother.so.1, which the wheel has in 'demo/lib', but no RPATH leads there"
    assert found(verify(made(tmp_path, astray)), Severity.WARNING) == [("needed", what)]


def test_the_same_of_several_libraries_is_said_once_and_named_of_each_in_the_data(tmp_path: Path) -> None:
    module = shared_object(MODULE, needs="libcuda.so.1")
    verdict = verify(made(tmp_path, {MEMBER: module, "demo/_more.so": module}))
    lines = " ".join(map(str.strip, verdict_lines(verdict)))
    assert f"warning: {MEMBER} and 1 more: needs libcuda.so.1: neither in the wheel nor part of " in lines
    assert lines.count("libcuda.so.1") == 1
    members = [one["member"] for one in verdict.data()["findings"] if one["rule"] == "needed"]
    assert members == [MEMBER, "demo/_more.so"]


def test_a_module_with_a_symbol_that_nothing_defines_cannot_be_imported(tmp_path: Path) -> None:
    module = shared_object(f"extern int lost, given; int use(void) {{ return lost + given; }} {MODULE}")
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "_demo.so").write_bytes(module)
    with pytest.raises(OSError, match="undefined symbol"):
        ctypes.CDLL(str(folder / "_demo.so"))
    what = "needs symbols that no library of the wheel or of the platform has: "
    files = {MEMBER: module, "demo/libgiven.so": shared_object("int given;")}
    assert found(verify(made(tmp_path, files))) == [("undefined", f"{what}lost")]
    elsewhere = made(tmp_path, module, metadata="Requires-Dist: other\n")
    assert found(verify(elsewhere), Severity.WARNING) == [("undefined", f"{what}given, lost")]


@pytest.mark.parametrize(
    "source",
    [
        "extern int lost __attribute__((weak)); int *use(void) { return &lost; }",
        "double floor(double); double use(double x) { return floor(x); }",
        "extern void *PyExc_OSError; void *_Py_New(void); void *use(void) { return PyExc_OSError ? _Py_New() : 0; }",
        "extern __thread int local; int use(void) { return local; }",
    ],
    ids=["weak", "of libraries that Python is linked with", "of Python", "of another library in the wheel"],
)
def test_a_symbol_that_may_be_missing_or_that_something_brings_is_no_finding(tmp_path: Path, source: str) -> None:
    files = {
        MEMBER: shared_object(f"{source} {MODULE}", "-O0"),
        "demo/liblocal.so": shared_object("__thread int local;"),
    }
    assert verify(made(tmp_path, files)).findings == ()


@pytest.mark.parametrize("new", [False, True], ids=["DT_RPATH", "DT_RUNPATH"])
def test_only_the_path_of_what_loads_a_library_serves_it_and_only_as_dt_rpath(tmp_path: Path, *, new: bool) -> None:
    files = {
        MEMBER: shared_object(MODULE, *rpath("$ORIGIN/../demo.libs", new=new), needs="libone.so"),
        "demo.libs/libone.so": shared_object("int one;", needs="libtwo.so"),
        "demo.libs/libtwo.so": shared_object("int two;"),
        # leads to the folder, but loads nothing
        "demo/_other.so": shared_object("int other;", *rpath("$ORIGIN/../demo.libs", new=False)),
    }
    what = "needs libtwo.so, which the wheel has in 'demo.libs', but no RPATH leads there"
    assert found(verify(made(tmp_path, files)), Severity.WARNING) == ([("needed", what)] if new else [])


def test_symbols_newer_than_the_tag_are_an_error(tmp_path: Path) -> None:
    source = (
        "long getrandom(void *, unsigned long, int); void *PyInit_demo(void) { return (void *)getrandom(0, 0, 0); }"
    )
    assert found(verify(made(tmp_path, shared_object(source)))) == [
        ("symbol-version", "needs symbols that are newer than manylinux_2_17_x86_64: GLIBC_2.25 (getrandom)")
    ]
    newer = "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert verify(made(tmp_path, shared_object(source), newer)).findings == ()


@pytest.mark.parametrize(
    ("name", "severity", "rule", "what"),
    [
        (
            "demo-1.0-cp311-cp311-manylinux_2_17_aarch64.whl",
            Severity.ERROR,
            "machine",
            "code for x86_64 in a wheel for aarch64",
        ),
        (
            "demo-1.0-py3-none-any.whl",
            Severity.ERROR,
            "pure",
            f"1 binaries, {MEMBER} first, in a wheel for any platform; expected a platform tag",
        ),
        (
            "demo-1.0-cp312-cp312-manylinux_2_17_x86_64.whl",
            Severity.ERROR,
            "extension",
            "an extension module of CPython 311 only, in a wheel for cp312-cp312, which does not look for it",
        ),
        (
            "demo-1.0-cp39-abi3-manylinux_2_17_x86_64.whl",
            Severity.WARNING,
            "extension",
            "an extension module of CPython 311 only, in a wheel for cp39-abi3; expected .abi3.so, or a copy for each",
        ),
    ],
)
def test_binaries_that_the_tags_do_not_tell_of_are_found(
    tmp_path: Path, name: str, severity: Severity, rule: str, what: str
) -> None:
    assert (rule, what) in found(verify(made(tmp_path, name=name)), severity)


def test_a_wheel_with_binaries_is_no_pure_one(tmp_path: Path) -> None:
    ((rule, what),) = found(verify(made(tmp_path, pure=True)), Severity.WARNING)
    assert rule == "pure"
    assert what.startswith("Root-Is-Purelib is true in a wheel with binaries")


def test_the_claim_is_the_one_in_variant_json(tmp_path: Path) -> None:
    v3 = shared_object(MODULE + SUM, "-march=x86-64-v3")
    name = NAME.replace(".whl", "-x86_64_v3.whl")
    verdict = verify(made(tmp_path, v3, name, label="x86_64_v3"))
    assert (str(verdict.cpu), verdict.claimed, verdict.failed) == ("x86-64-v3", True, False)
    wrong = verify(made(tmp_path, v3, name, label="x86_64_v3"), cpu=V2)
    assert found(wrong) == [("claim", "claims x86-64-v3 in its variant.json, expected x86-64-v2")]


@pytest.mark.parametrize(
    ("platform", "cpu", "claim", "machine"),
    [
        ("manylinux_2_17_x86_64", "armv8.2-a", "aarch64", "x86_64"),
        ("manylinux_2_17_aarch64", "x86-64-v2", "x86_64", "aarch64"),
    ],
)
def test_a_level_of_another_machine_than_the_tags_is_an_error(
    tmp_path: Path, platform: str, cpu: str, claim: str, machine: str
) -> None:
    name = NAME.replace("manylinux_2_17_x86_64", platform)
    what = f"the claimed {cpu} is of {claim}, and the wheel for {machine}: no machine has both"
    assert ("claim", what) in found(verify(made(tmp_path, name=name), cpu=Cpu.parse(cpu)), Severity.ERROR)


@pytest.mark.parametrize(
    ("stamp", "label", "what"),
    [
        ("-other", "x86_64_v3", "describes 'x86_64_v3'; expected only 'other', as in the file name (PEP 825)"),
        ("-v3", None, "missing; expected it to describe the variant 'v3' of the file name (PEP 825)"),
        ("", "x86_64_v3", "in a wheel whose file name has no variant label; expected none (PEP 825)"),
    ],
)
def test_variant_json_and_the_file_name_say_the_same(tmp_path: Path, stamp: str, label: str | None, what: str) -> None:
    name = NAME.replace(".whl", f"{stamp}.whl")
    assert ("variant", what) in found(verify(made(tmp_path, CLEAN, name, label=label)))


@pytest.mark.parametrize(("cpu", "level"), [(None, "x86-64"), (V3, "x86-64-v3")])
def test_code_that_is_not_understood_is_never_ok(tmp_path: Path, cpu: Cpu | None, level: str) -> None:
    newer = '__asm__ volatile(".byte 0xd5, 0x58, 0x89, 0xc1")'  # movq %r16, %r17
    verdict = verify(
        made(tmp_path, shared_object(f"__attribute__((noipa)) void dot(void) {{ {newer}; }} {CALLED}")), cpu=cpu
    )
    (what,) = [what for rule, what in found(verdict, Severity.WARNING) if rule == "isa-unchecked"]
    assert re.fullmatch(
        r"instruction sets: not understood: 0x[0-9a-f]+ in dot: 4 bytes, d5 58 89 c1, may be APX \(REX2\)", what
    )
    assert (verdict.outcome, verdict.isa, verdict.failed) == ("not checked", "not understood", False)
    assert verdict.summary == f"cannot tell: {MEMBER}: {what}"
    lines = " ".join(map(str.strip, verdict_lines(verdict)))
    assert lines.startswith(
        f"{NAME}: {verdict.summary} instruction sets: not understood, compared with {level} {MEMBER}"
    )
    assert "MB of x86_64 code, beyond v4 at most" in lines


WIDE = "typedef int wide __attribute__((vector_size(32)));"
DOT = f'{WIDE} wide total; __attribute__((noipa, target("avx2"))) void dot(void) {{ total += total; }}'
ASKING = 'void *PyInit_demo(void) { if (__builtin_cpu_supports("avx2")) dot(); return 0; }'
NEWER = '__attribute__((noipa)) void dot(void) { __asm__ volatile(".byte 0xd5, 0x58, 0x89, 0xc1"); }'


@pytest.mark.parametrize(
    ("source", "flags", "answer"),
    [
        (MODULE + SUM, (), "runs on x86-64-v2; functions above that: none"),
        (f"{DOT} {ASKING}", (), "runs on x86-64-v2; functions above that: 1 tested"),
        (
            f"{DOT} {CALLED}",
            (),
            "crashes on x86-64-v2 at dot of {} (AVX at 0x: vmovdqu ymm1,[rax]) called without a test by PyInit_demo{}",
        ),
        (
            f"{NEWER} {CALLED}",
            (),
            "cannot tell: {}: instruction sets: not understood: 0x in dot: 4 bytes, d5 58 89 c1, may be APX (REX2)",
        ),
        (
            MODULE + SUM,
            ("-Wl,-z,x86-64-v3",),
            "does not load on x86-64-v2: {}: marked as needing x86-64-v3, above x86-64-v2: glibc refuses to load it",
        ),
    ],
)
def test_whether_a_wheel_runs_on_an_older_processor_is_its_first_line(
    tmp_path: Path, source: str, flags: tuple[str, ...], answer: str
) -> None:
    verdict = verify(made(tmp_path, shared_object(source, *flags)), cpu=V2, is_question=True)
    assert re.sub("0x[0-9a-f]+", "0x", verdict.summary) == answer.format(MEMBER, "; try: qemu-x86_64 -cpu Westmere")
    assert verdict.failed is answer.startswith(("crashes", "does not load"))


def test_the_lower_of_two_levels_is_asked_about(tmp_path: Path) -> None:
    v3 = made(
        tmp_path,
        shared_object(f"{DOT} {CALLED}", "-march=x86-64-v3"),
        NAME.replace(".whl", "-x86_64_v3.whl"),
        label="x86_64_v3",
    )
    older, newer = (verify(v3, cpu=cpu, is_question=True) for cpu in (V2, V4))
    assert older.summary.startswith("crashes on x86-64-v2 at ")
    assert newer.summary == "runs on x86-64-v3; functions above that: none; failed for another reason"
    assert [rule for rule, _ in found(newer)] == ["claim"]


def test_other_machines_are_said_to_be_unchecked(tmp_path: Path) -> None:
    riscv = CLEAN[:18] + (243).to_bytes(2, "little") + CLEAN[20:]
    name = "demo-1.0-cp311-cp311-linux_riscv64.whl"
    verdict = verify(made(tmp_path, {"demo/_demo.so": riscv}, name))
    assert found(verdict, Severity.NOTE) == [
        ("isa-unchecked", "code for riscv64: instruction sets were checked for x86_64 only")
    ]
    assert (verdict.isa, verdict.failed) == ("not checked", False)


@needs("aarch64-linux-gnu-gcc")
def test_an_aarch64_wheel_is_held_against_its_version(tmp_path: Path) -> None:
    source = "int add(int *p) { return __atomic_fetch_add(p, 1, __ATOMIC_SEQ_CST); }"
    made_for = {"demo/_demo.so": arm_object(source, "-march=armv8.1-a")}
    wheel = made(tmp_path, made_for, "demo-1.0-cp311-cp311-linux_aarch64.whl")
    plain, claimed, kept = (verify(wheel, cpu=Cpu.parse(cpu) if cpu else None) for cpu in ("", "armv8-a", "armv8.2-a"))
    assert (str(plain.cpu), plain.failed, claimed.failed, kept.failed) == ("armv8-a", False, True, False)
    (what,) = [what for rule, what in found(claimed, Severity.ERROR) if rule == "isa-above"]
    assert what.startswith("needs LSE (armv8.1-a), above the claimed armv8-a: 1 function: add (LSE at 0x")


def test_damage_is_told_apart_from_a_file_that_is_no_library(tmp_path: Path) -> None:
    verdict = verify(made(tmp_path, {"demo/_demo.so": CLEAN[:100], "demo/data.bin": CLEAN[:100]}))
    assert [(one.severity, one.rule, one.place) for one in verdict.findings] == [
        (Severity.ERROR, VerifyRule.ELF, "demo/_demo.so"),
        (Severity.WARNING, VerifyRule.ELF, "demo/data.bin"),
    ]


def test_a_member_that_does_not_match_record_is_found(tmp_path: Path) -> None:
    path = "demo/data.txt"
    rows = record_of({path: b"said", **everything(NAME)}, dist_info_of(NAME))
    verdict = verify(wheel(tmp_path, NAME, {path: b"done"}, record=rows))
    assert [(one.rule, one.place, one.what) for one in verdict.findings] == [
        (VerifyRule.ARCHIVE, path, f"{NAME}: {path}: does not match its hash in RECORD")
    ]


def with_gpu_code(byte: int, start: int) -> bytes:
    """A library with dispatch, and with GPU code of this *byte* to which a pointer leads at *start*."""
    return shared_object(f"""{MODULE} __attribute__((target_clones("default", "avx2")))
    void add(float *restrict a, const float *restrict b) {{ for (int i = 0; i < 1024; i++) a[i] += b[i]; }}
    __asm__(".pushsection .nv_fatbin,\\"a\\"; gpu: .fill 4096, 1, {byte}; .popsection;"
            ".pushsection .nvFatBinSegment,\\"aw\\"; .quad gpu + {start}; .popsection");""")


def test_wheels_that_differ_in_gpu_code_alone_are_judged_once(tmp_path: Path) -> None:
    libraries = with_gpu_code(1, 0), with_gpu_code(2, 64)
    assert libraries[0] != libraries[1]
    verdicts = [verify(made(tmp_path / str(number), data), cpu=V2) for number, data in enumerate(libraries)]
    one, other = (verdict.libraries[0].accepted for verdict in verdicts)
    assert one == {"runs after a test of the processor": 1}
    assert one is other


def test_what_changes_how_code_is_judged_has_it_judged_again(tmp_path: Path) -> None:
    called = f'{CALLED} void dot(void) {{ __asm__ volatile("vpaddd %ymm0, %ymm1, %ymm2"); }}'
    guarded = called.replace("dot(); return", '__builtin_cpu_init(); if (__builtin_cpu_supports("avx2")) dot(); return')
    first = made(tmp_path / "1", shared_object(called))
    assert verify(first, cpu=V2).failed
    assert not verify(first, cpu=V2, allow=["^dot$"]).failed
    assert not verify(first, cpu=V3).libraries[0].violations
    assert not verify(made(tmp_path / "2", shared_object(guarded)), cpu=V2).failed
    grafted = verify(made(tmp_path / "3", {"demo.libs/_demo.so": shared_object(called)}), cpu=V2)
    assert "vbuild did not compile this library" in str(grafted.findings)
    assert verify(first, cpu=V2).failed


@pytest.mark.parametrize(
    ("shown", "doubted", "found"),
    [
        ((), ("AVX2",), {"AVX2"}),
        (("SSE3", "SSSE3"), ("SSE3", "LAHF-SAHF"), set()),
        (("SSE3",), ("AVX2", "AES"), {"AVX2", "AES"}),
        (("AES",), ("AES", "SSE3"), {"SSE3"}),
    ],
    ids=["nothing shown", "all of the level that is shown", "above what is shown", "of no level"],
)
def test_what_other_code_of_a_library_needs_without_a_test_is_no_choice(
    shown: tuple[str, ...], doubted: tuple[str, ...], found: set[str]
) -> None:
    assert chosen([Violation("f", "0x1", shown, ()), Violation("g", "0x2", doubted, (), doubt="not followed")]) == found


def test_libraries_that_record_does_not_list_are_judged_too(tmp_path: Path) -> None:
    """As 18 of FMPy 0.3.15: their hashes are made of what the archive has."""
    files = {
        "demo/_user.so": linked_library(None, ("libdeep.so.1",), source="int user;", runpath="$ORIGIN"),
        "demo/libdeep.so.1": linked_library("libdeep.so.1", source="int deep;"),
    }
    verdict = verify(wheel(tmp_path, NAME, files, record=""), jobs=1)
    assert [finding.what for finding in verdict.findings if finding.rule is VerifyRule.ARCHIVE] == [
        "does not list demo/_user.so and 4 others"
    ]
    assert [library.path for library in verdict.shared] == ["demo/libdeep.so.1"]
