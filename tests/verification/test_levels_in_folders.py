"""Copies in glibc-hwcaps folders, each checked for the level of its own folder; the rest for the wheel's claim."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.factories.extensions import library
from tests.factories.level_copies import BASE, STUB, level_copy, level_members, level_stub, leveled_wheel
from tests.factories.tools import needs
from vbuild.elf.linkage import at_level
from vbuild.hardware.cpu import Cpu
from vbuild.verification.model import Severity, Verdict, VerifyRule
from vbuild.verification.verify import verify

V3, V4 = at_level(BASE, "v3"), at_level(BASE, "v4")
# 16 KB of code in which no compiler finds use for a vector
MUCH = "".join(f"int f{i}(int x) {{ return x > {i} ? x / {i + 3} + x % {i + 5} : x * {i + 7}; }}" for i in range(500))

pytestmark = needs("gcc")


def verdict(folder: Path, changed: Mapping[str, bytes | str] | None = None, *, without: str = "") -> Verdict:
    """The verdict on the usual wheel with these members *changed*, one left out."""
    files = {**level_members(), **(changed or {})}
    files.pop(without, None)
    return verify(leveled_wheel(folder, files))


def found(verdict: Verdict) -> list[tuple[Severity, str, str, str]]:
    return [(one.severity, one.rule, one.place, one.what) for one in verdict.findings]


def test_each_copy_may_use_its_folder_s_level_and_a_stub_is_no_code(tmp_path: Path) -> None:
    told = verdict(tmp_path)
    assert found(told) == []
    assert [(library.member, library.level) for library in told.libraries] == [
        (STUB, "v1"),
        (BASE, "v1"),
        (V3, "v3"),
        (V4, "v4"),
    ]
    assert (str(told.cpu), told.claimed, told.levels, told.isa) == ("x86-64", False, ("v3", "v4"), "ok, with v3, v4")
    assert Verdict.of_data(json.loads(json.dumps(told.data())), told.wheel) == told


def test_a_copy_that_uses_more_than_its_folder_s_level_is_an_error(tmp_path: Path) -> None:
    told = verdict(tmp_path, {V3: level_copy("v3", march="v4")}, without=V4)
    ((severity, rule, member, what),) = found(told)
    assert (severity, rule, member) == (Severity.ERROR, VerifyRule.ISA_ABOVE, V3)
    assert "AVX512F (v4), above x86-64-v3, whose folder it is in: 2 functions: " in what
    assert (told.failed, told.isa) == (True, "failed")


def test_what_no_level_has_is_too_much_in_every_folder(tmp_path: Path) -> None:
    aes = '__attribute__((constructor)) void aes(void) { __asm__ volatile("aesenc %xmm0, %xmm1"); }'
    told = verdict(tmp_path, {V4: level_copy("v4", more=aes)})
    ((severity, rule, _, what),) = found(told)
    assert (severity, rule) == (Severity.ERROR, VerifyRule.ISA_ABOVE)
    assert what.startswith("needs AES (beyond v4), above x86-64-v4, whose folder it is in: 1 function: aes (")


def test_the_library_for_every_processor_keeps_to_the_wheel_s_own_claim(tmp_path: Path) -> None:
    told = verdict(tmp_path, {BASE: level_copy("v1", march="v3")})
    assert (Severity.WARNING, VerifyRule.ISA_ABOVE, BASE) in {one[:3] for one in found(told)}
    path = leveled_wheel(tmp_path / "claimed", {**level_members(), BASE: level_copy("v1", march="v3")})
    assert verify(path, cpu=Cpu.parse("x86-64")).failed
    assert not verify(path, cpu=Cpu.parse("x86-64-v3")).failed


@pytest.mark.parametrize(
    ("level", "data", "what"),
    [
        (
            "v3",
            level_copy("v3", march="v1"),
            f"the code of {BASE}: the compiler's flags for x86-64-v3 did not arrive, or made no difference",
        ),
        (
            "v4",
            level_copy("v4", march="v3"),
            f"the code of {V3}: the compiler's flags for x86-64-v4 did not arrive, or made no difference",
        ),
        (
            "v4",
            level_copy("v4", march="v3", more="int more;int f(void){return 1;}"),
            "no AVX-512 instruction: v3's would do the same",
        ),
    ],
    ids=["as the baseline", "as the level below", "v4 without its vectors"],
)
def test_a_copy_that_makes_no_difference_is_worth_a_note(tmp_path: Path, level: str, data: bytes, what: str) -> None:
    assert found(verdict(tmp_path, {at_level(BASE, level): data})) == [
        (Severity.NOTE, VerifyRule.ISA_FLAGS, at_level(BASE, level), what)
    ]


def test_a_copy_without_one_for_every_processor_is_an_error(tmp_path: Path) -> None:
    expected = f"no {BASE}; expected one for lesser processors, and for systems that know no levels"
    lost = [one for one in found(verdict(tmp_path, without=BASE)) if one[1] is VerifyRule.HWCAPS]
    assert lost == [(Severity.ERROR, VerifyRule.HWCAPS, path, expected) for path in (V3, V4)]


def test_copies_of_one_library_have_one_soname(tmp_path: Path) -> None:
    told = verdict(tmp_path, {V4: level_copy("v4", soname="libother.so")})
    assert found(told) == [
        (
            Severity.ERROR,
            VerifyRule.HWCAPS,
            V4,
            f"SONAME libother.so, and libvb_demo-01234567.so in {BASE}; expected one for all levels",
        )
    ]


@pytest.mark.nightly
def test_a_mark_above_the_folder_s_level_is_an_error(tmp_path: Path) -> None:
    marked = library("libvb_demo-01234567.so", source=MUCH, flags=("-O2", "-march=x86-64-v3", "-Wl,-z,x86-64-v4"))
    what = "marked as needing x86-64-v4, above x86-64-v3, whose folder it is in: glibc refuses to load it"
    assert (Severity.ERROR, VerifyRule.ISA_NOTE, V3, what) in found(verdict(tmp_path, {V3: marked}))


def test_what_the_library_for_every_processor_has_too_is_accepted_in_its_copy(tmp_path: Path) -> None:
    dispatched = """
    int asks(void) { return __builtin_cpu_supports("avx512f"); }
    void dot(void) { __asm__ volatile("vpaddd %zmm0, %zmm1, %zmm2"); }
    """
    files = {BASE: level_copy("v1", more=dispatched), V3: level_copy("v3", more=dispatched)}
    told = verdict(tmp_path, files, without=V4)
    assert [one for one in found(told) if one[2] == V3] == []
    (v3,) = (library for library in told.libraries if library.member == V3)
    assert v3.accepted == {"reached by no other code": 1}


@pytest.mark.nightly
def test_a_stub_in_the_baseline_s_wheel_stands_for_what_it_loads(tmp_path: Path) -> None:
    same = library("libvb_demo-01234567.so", source=MUCH, flags=("-O2",))
    plain = leveled_wheel(tmp_path / "plain", {STUB: level_stub(), BASE: same})
    v3 = leveled_wheel(tmp_path / "v3", {STUB: library(None, source=MUCH, flags=("-O2",))})
    told = verify(v3, cpu=Cpu.parse("x86-64-v3"), baseline=plain)
    (what,) = (one.what for one in told.findings if one.severity is Severity.ERROR)
    assert what.startswith(f"the code of {STUB} is that of the baseline build in ")


@pytest.mark.parametrize("new", [False, True], ids=["DT_RPATH", "DT_RUNPATH"])
def test_the_rpath_of_what_loads_a_library_serves_its_copies_too(tmp_path: Path, *, new: bool) -> None:
    paths = "$ORIGIN/../demo.libs"
    one = library("libone.so", ("libtwo.so",))
    files: dict[str, bytes | str] = {
        STUB: library(None, ("libone.so",), rpath_="" if new else paths, runpath=paths if new else ""),
        "demo.libs/libone.so": one,
        at_level("demo.libs/libone.so", "v2"): one,
        "demo.libs/libtwo.so": library("libtwo.so"),
    }
    lost = [one.place for one in verify(leveled_wheel(tmp_path, files)).findings if one.rule is VerifyRule.NEEDED]
    assert lost == (["demo.libs/libone.so", at_level("demo.libs/libone.so", "v2")] if new else [])
