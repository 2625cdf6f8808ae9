"""What a wheel lacks of the wheel that was published of its version, with modules of a real compiler."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.tags import Tag

from tests.factories.extensions import library
from tests.factories.ranges import serving, simple_index
from tests.factories.wheels import wheel
from vbuild.build.wrappers import FailedCall
from vbuild.errors import FetchError
from vbuild.hardware.cpu import Cpu
from vbuild.verification.model import Severity, VerifyRule
from vbuild.verification.other_builds import Published, file_on_index, likely_cause, lost, unlike
from vbuild.verification.verify import verify

PLAIN = "static int n(int x) { return x + 1; } int PyInit__c(void) { return n(2); } int x[64];"
DISPATCHED = """
__attribute__((target("avx2"), noinline)) static int wide(int *x) {
    int s = 0; for (int i = 0; i < 64; i++) s += x[i]; return s;
}
int x[64];
int PyInit__c(void) { return __builtin_cpu_supports("avx2") ? wide(x) : 0; }
"""
UNGUARDED = DISPATCHED.replace('__builtin_cpu_supports("avx2")', "x[0]")
# a number from memory decides, in a module that asks the CPU something else
IN_DOUBT = DISPATCHED.replace('__builtin_cpu_supports("avx2")', '*more(__builtin_cpu_supports("sse2"))').replace(
    "int PyInit", "int *(*volatile more)(int); int PyInit"
)
CPU = Cpu.parse("x86-64")
NAME = "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
MODULE = "demo/_c.cpython-311-x86_64-linux-gnu.so"


def compiled(source: str, *flags: str) -> bytes:
    return library(None, source=source, flags=("-O3", *flags))


def findings(folder: Path, ours: dict[str, bytes | str], theirs: dict[str, bytes | str]) -> list[tuple[str, str]]:
    found = lost(verify(wheel(folder / "ours", NAME, ours)), Published.of(wheel(folder / "theirs", NAME, theirs), CPU))
    *others, sizes = found
    assert sizes.sentence.startswith(f"compared with {NAME}: ")
    return [(one.severity.value, one.sentence) for one in others]


def test_a_wheel_that_has_everything_lacks_nothing(tmp_path: Path) -> None:
    theirs: dict[str, bytes | str] = {MODULE: compiled(DISPATCHED), "demo/__init__.py": ""}
    assert findings(tmp_path, {**theirs, "demo/more.py": ""}, theirs) == []
    assert findings(tmp_path, theirs, {"demo/_c.abi3.so": compiled(PLAIN)}) == []
    published = Published.of(wheel(tmp_path / "theirs", NAME, {}), CPU)
    assert "0 of 0 modules and 1 more" in lost(verify(wheel(tmp_path / "ours", NAME, theirs)), published)[-1].what


LOST = "1 of 3 compiled modules of the published wheel are missing"
ASKED = "the project asked the CPU of the builder, or the compiler's flags, which modules to build"
ACCEPT = "to go on without it: verify.against = 'none'"


@pytest.mark.parametrize(
    ("plain", "published", "said"),
    [
        (("_none", "_avx2"), ("_avx2", "_none"), []),
        (
            ("_none", "_avx2", "_sse41"),
            None,
            [f"error: _sse41.so: 1 module of the plain wheel of this build missing: {ASKED} [published]"],
        ),
        (
            ("_none",),
            None,
            [f"warning: _avx2.so: 1 module that the plain wheel of this build does not have: {ASKED} [published]"],
        ),
        (
            ("_none", "_avx2"),
            ("_none", "_avx2", "_avx512"),
            [f"error: _avx512.so: {LOST}; {ASKED}; {ACCEPT} [published]"],
        ),
    ],
)
def test_a_variant_wheel_that_has_other_modules_than_the_plain_or_the_published_one_says_so(
    plain: tuple[str, ...], published: tuple[str, ...] | None, said: list[str], tmp_path: Path
) -> None:
    def wheel_of(folder: str, modules: tuple[str, ...], tag: str) -> Path:
        return wheel(tmp_path / folder, NAME, {f"{name}.{tag}.so": compiled(PLAIN) for name in modules})

    ours = wheel_of("ours", ("_none", "_avx2"), "cpython-311-x86_64-linux-gnu")
    other = wheel_of("published", published, "abi3") if published else None
    assert [*map(str, unlike(ours, plain=wheel_of("plain", plain, "abi3"), published=other))] == said


def test_a_module_that_is_here_for_another_cuda_is_not_missing(tmp_path: Path) -> None:
    names = ("hook.so", "hook_cu12.so", "hook_cu13.so", "other_cu12.so", "documented_12.so")
    theirs = {name: compiled(PLAIN) for name in names}
    note, error = findings(tmp_path, {"hook_cu13.abi3.so": compiled(PLAIN)}, dict(theirs))
    what = "the published wheel has 2 modules of this one for another release of CUDA as well"
    assert note == ("note", f"hook.so and 1 more: {what}")
    assert error[0] == "error"
    assert "2 of 5 compiled modules of the published wheel are missing" in error[1]


def test_run_time_dispatch_that_is_gone_is_an_error(tmp_path: Path) -> None:
    ((severity, sentence),) = findings(tmp_path, {MODULE: compiled(PLAIN)}, {MODULE: compiled(DISPATCHED)})
    assert severity == "error"
    assert "has code for AVX" in sentence


@pytest.mark.parametrize("needs", [("libsum-0a1b2c3d.so.1",), ("libmore.so",)])
def test_run_time_dispatch_in_a_library_that_is_bundled_instead_of_linked_in_is_not_lost(
    needs: tuple[str, ...], tmp_path: Path
) -> None:
    bundled: dict[str, bytes | str] = {
        "demo.libs/libsum-0a1b2c3d.so.1": compiled(DISPATCHED),
        "demo.libs/libmore.so": library(None, ("libsum-0a1b2c3d.so.1",), source="int z;"),
    }
    ours = {MODULE: library(None, needs, source=PLAIN), **bundled}
    assert findings(tmp_path, ours, {MODULE: compiled(DISPATCHED)}) == []
    newer = DISPATCHED.replace("avx2", "avx512f")
    ((severity, sentence),) = findings(tmp_path / "newer", ours, {MODULE: compiled(newer)})
    assert severity == "warning"
    assert sentence.endswith(
        "this wheel has none, and a libsum of this machine, which may be older than what is linked in there"
    )


def test_the_bit_instructions_that_another_compiler_chose_are_not_lost(tmp_path: Path) -> None:
    bits = DISPATCHED.replace("avx2", "bmi2").replace("s += x[i]", "s += x[i] << (s & 31)")
    both = bits.replace('target("bmi2")', 'target("bmi,bmi2")').replace("return s;", "return s & ~x[3];")
    assert findings(tmp_path, {MODULE: compiled(bits)}, {MODULE: compiled(both)}) == []
    ((severity, sentence),) = findings(tmp_path / "none", {MODULE: compiled(PLAIN)}, {MODULE: compiled(both)})
    assert severity == "error"
    assert "BMI1, BMI2" in sentence


@pytest.mark.nightly
def test_dispatch_in_a_bundled_library_makes_up_for_no_module_that_does_not_need_it_or_has_it_there_too(
    tmp_path: Path,
) -> None:
    bundled: dict[str, bytes | str] = {"demo.libs/libsum-0a1b2c3d.so.1": compiled(DISPATCHED)}
    theirs: dict[str, bytes | str] = {MODULE: compiled(DISPATCHED)}
    assert findings(tmp_path / "unused", {MODULE: compiled(PLAIN), **bundled}, theirs)[0][0] == "error"
    ours = {MODULE: library(None, ("libsum-0a1b2c3d.so.1",), source=PLAIN), **bundled}
    both = {**theirs, "demo.libs/libsum-ffffffff.so.1.2": compiled(DISPATCHED)}
    assert findings(tmp_path / "both", ours, both)[0][0] == "error"


def test_code_of_theirs_that_everybody_runs_is_their_fault_and_no_loss(tmp_path: Path) -> None:
    assert findings(tmp_path, {MODULE: compiled(PLAIN)}, {MODULE: compiled(UNGUARDED)}) == []


@pytest.mark.nightly
def test_a_wheel_of_theirs_that_is_compiled_for_newer_processors_as_a_whole_chooses_nothing(tmp_path: Path) -> None:
    source = DISPATCHED.replace("PyInit__c(void) {", "PyInit__c(void) { %s")
    whole = compiled(source % "for (int i = 0; i < 64; i++) x[i] += i;", "-mavx2")
    assert findings(tmp_path / "whole", {MODULE: compiled(PLAIN)}, {MODULE: whole}) == []
    part = compiled(source % "x[1] += 1;", "-mavx2")
    assert findings(tmp_path / "part", {MODULE: compiled(PLAIN)}, {MODULE: part})[0][0] == "error"


def test_a_wheel_of_theirs_that_never_asks_the_processor_chooses_nothing(tmp_path: Path) -> None:
    unreached = """
    __attribute__((target("aes"))) void more(void) { __asm__("aesimc %xmm0, %xmm0"); }
    int PyInit__c(void) { return 1; }
    """
    assert (
        findings(
            tmp_path, {MODULE: compiled(unreached.replace("aesimc %xmm0, %xmm0", ""))}, {MODULE: compiled(unreached)}
        )
        == []
    )


def test_a_library_in_lib64_is_the_one_in_lib(tmp_path: Path) -> None:
    names = ("demo-1.0.data/data/lib64/libx.so", "lib64/libz.so", "demo-1.0.data/data/lib64/libx.a", "demo/lib64.so")
    theirs: dict[str, bytes | str] = {name: compiled(PLAIN) if name.endswith(".so") else "" for name in names}
    ours = {name.replace("lib64/", "lib/"): data for name, data in theirs.items()}
    assert findings(tmp_path, ours, theirs) == []


def test_a_module_that_became_python_is_an_error_and_a_missing_file_a_warning(tmp_path: Path) -> None:
    theirs: dict[str, bytes | str] = {MODULE: compiled(PLAIN), "demo/table.bin": b"1"}
    found = findings(tmp_path, {"demo/_c.py": ""}, theirs)
    assert [severity for severity, _ in found] == ["error", "warning"]
    assert "1 of 1 compiled modules of the published wheel are missing; 1 of them became Python" in found[0][1]
    assert "demo/table.bin" in found[1][1]


@pytest.mark.parametrize(
    ("name", "is_found"),
    [
        (NAME, True),
        ("demo-1.0-cp39-abi3-manylinux_2_17_x86_64.whl", True),
        ("demo-1.0-cp312-cp312-manylinux_2_28_x86_64.whl", False),
        ("demo-1.0-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("demo-1.0-cp311-cp311-manylinux_2_28_aarch64.whl", False),
        ("demo-1.1-cp311-cp311-manylinux_2_28_x86_64.whl", False),
    ],
)
def test_the_wheel_of_this_version_python_and_platform_is_taken_from_the_index(
    name: str, *, is_found: bool, tmp_path: Path
) -> None:
    published = wheel(tmp_path / "published", name, {"demo/_c.so": compiled(PLAIN)})
    ours = wheel(tmp_path / "ours", NAME)
    with serving(simple_index(tmp_path / "index", published)) as server:
        try:
            theirs = Published.of(file_on_index(ours, tmp_path / "fetched", lambda: server.indexes), CPU)
        except FetchError as error:
            assert not is_found
            assert "no index has a wheel of demo 1.0 for this Python and platform (cp311-cp311-" in str(error)  # noqa: PT017
            return
    assert is_found
    found = lost(verify(ours), theirs)
    assert found[0].severity is Severity.ERROR
    assert found[-1].what.startswith(f"compared with {name}: 0 of 1 module, ")


def test_another_version_and_the_wheel_for_the_machine_of_a_pure_one_are_found_if_asked_for(tmp_path: Path) -> None:
    published = wheel(tmp_path / "published", NAME, {"demo/_c.so": compiled(PLAIN)})
    pure = verify(wheel(tmp_path / "ours", "demo-2.0-py3-none-any.whl"))
    tag = Tag("cp311", "cp311", "linux_x86_64")
    with serving(simple_index(tmp_path / "index", published)) as server:
        theirs = file_on_index(pure.wheel, tmp_path / "fetched", lambda: server.indexes, version="1.0", tag=tag)
        found = lost(pure, Published.of(theirs, CPU))
    assert found[0].sentence == "demo/_c.so: 1 of 1 compiled modules of the published wheel are missing"


def test_an_index_that_cannot_be_asked_is_an_error(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        indexes = server.indexes
    with pytest.raises(FetchError):
        file_on_index(wheel(tmp_path, NAME), tmp_path / "fetched", lambda: indexes)


def test_c_functions_that_no_library_gives_any_more_and_modules_that_grew_are_warnings(tmp_path: Path) -> None:
    more = PLAIN + "int helper(void) { return 1; } int moved(void) { return 2; } int __cxa_more(void) { return 3; }"
    large = PLAIN + "int moved(void) { return 2; } const char table[100000] = {1};"
    theirs = Published.of(wheel(tmp_path / "theirs", NAME, {MODULE: compiled(more)}), CPU)
    ours = wheel(tmp_path / "ours", NAME, {MODULE: compiled(PLAIN), "demo.libs/lib.so": compiled(large)})
    symbols, sizes = lost(verify(ours), theirs)
    assert (symbols.severity, symbols.what) == (
        Severity.WARNING,
        "1 C symbols of the published wheel's libraries are missing: helper",
    )
    assert sizes.severity is Severity.NOTE
    *_, sizes = lost(verify(wheel(tmp_path / "large", NAME, {MODULE: compiled(large)})), theirs)
    assert (sizes.severity, sizes.advice) == (
        Severity.WARNING,
        "'vbuild inspect' shows how much of it is debug information and symbols",
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ("GCC: (Debian 12.2.0-14) 12.2.0", "GCC: (GNU) 14.2.1 20250110 (Red Hat 14.2.1-7)", "gcc 12 against gcc 14"),
        ("GCC: (GNU) 14.2.1", "GCC: (GNU) 4.8.5\0GCC: (GNU) 10.2.1", ""),
        ("Debian clang version 14.0.6", "GCC: (GNU) 14.2.1", ""),
        ("Debian clang version 14.0.6", "clang version 20.1.0", "clang 14 against clang 20"),
    ],
)
def test_an_older_compiler_than_that_of_the_published_wheel_is_named(
    tmp_path: Path, ours: str, theirs: str, words: str
) -> None:
    def made(name: str, comment: str) -> Path:
        (tmp_path / name).mkdir()
        (tmp_path / name / "comment").write_text(comment, encoding="ascii")
        (tmp_path / name / "demo.so").write_bytes(compiled(PLAIN))
        command = ["objcopy", "-R.comment", "--add-section=.comment=comment", "demo.so"]
        subprocess.run(command, cwd=tmp_path / name, check=True)
        return wheel(tmp_path / name, NAME, {MODULE: (tmp_path / name / "demo.so").read_bytes()})

    published = Published.of(made("theirs", theirs), CPU)
    *_, sizes = lost(verify(made("ours", ours)), published)
    words = words and f"{words}, whose code may be faster"
    assert sizes.what.partition("of code against ")[2].partition(", ")[2] == words


AES = FailedCall("gcc", ("-c", "t1.c"), "t1.c:1: error: target specific option mismatch", "_mm_aesimc()", ("-maes",))
YAML = FailedCall(
    "gcc", ("-c", "t2.c"), "t2.c:1:10: fatal error: yaml.h: No such file or directory", "#include <yaml.h>"
)
OTHER = FailedCall("gcc", ("-c", "t3.c"), "t3.c:1: error: expected ';'", "int x")


@pytest.mark.parametrize(
    ("about", "told"),
    [
        (["Crypto/_raw_aesni.so"], "the likely cause: `gcc -c t1.c` failed: t1.c:1: error: target specific option"),
        (["AES", "AVX2"], "the likely cause: `gcc -c t1.c`"),
        (["yaml/_yaml.so"], "the likely cause: `gcc -c t2.c` failed: t2.c:1:10: fatal error: yaml.h: No such file"),
        (["demo/_speedups.so"], "perhaps because: `gcc -c t2.c` failed"),
    ],
)
def test_the_call_that_has_to_do_with_what_is_lost_is_the_likely_cause(about: list[str], told: str) -> None:
    cause = likely_cause([OTHER, YAML, AES], about)
    assert cause.startswith(told)
    assert cause.endswith("(2 other calls failed, too)")
    assert likely_cause([OTHER], about) == f"perhaps because: {OTHER}"
    assert likely_cause([OTHER], about, guesses=False) == likely_cause([], about) == ""
    assert ("build.keep-flags = ['*t1.c']" in cause) == ("t1.c" in told)


NASM = FailedCall("nasm", (), "looked for on PATH and not found; install it: apt-get install nasm")
HDF5 = FailedCall("hdf5", (), "looked for and not found; install it: apt-get install libhdf5-dev")


def test_what_was_looked_for_in_vain_may_be_the_cause() -> None:
    nasm = "the likely cause: nasm was looked for on PATH and not found; install it: apt-get install nasm"
    assert likely_cause([HDF5, OTHER, NASM], ["AVX2"], guesses=False) == f"{nasm} (2 other calls failed, too)"
    assert likely_cause([HDF5], ["AVX2"], guesses=False) == ""
    assert likely_cause([OTHER, HDF5], ["demo/h5.so"]).startswith("perhaps because: hdf5 was looked for and not found;")


ALWAYS = DISPATCHED.replace('__builtin_cpu_supports("avx2")', '1 || __builtin_cpu_supports("sse2")')
# there is a test, and a number from memory, and the test is of too little
FORGETS = IN_DOUBT.replace("return *more(", 'return __builtin_cpu_supports("avx") && *more(')


@pytest.mark.parametrize(
    ("ours", "published", "severity"),
    [
        (IN_DOUBT, DISPATCHED, Severity.WARNING),
        (IN_DOUBT, IN_DOUBT, Severity.WARNING),
        (IN_DOUBT, PLAIN, Severity.ERROR),
        (IN_DOUBT, UNGUARDED, Severity.ERROR),
        (FORGETS, FORGETS, Severity.ERROR),
        (ALWAYS, DISPATCHED, Severity.ERROR),
    ],
)
def test_a_doubt_about_code_that_the_published_wheel_chooses_too_is_a_warning(
    ours: str, published: str, severity: Severity, tmp_path: Path
) -> None:
    built = wheel(tmp_path / "ours", NAME, {MODULE: compiled(ours)})
    theirs = Published.of(wheel(tmp_path / "theirs", NAME, {MODULE: compiled(published)}), CPU)

    def found(chosen: Callable[[str], frozenset[str]] | None = None) -> list[tuple[Severity, str]]:
        verdict = verify(built, cpu=CPU, published=chosen)
        return [(one.severity, one.what) for one in verdict.findings if one.rule is VerifyRule.ISA_ABOVE]

    assert [each for each, _ in found()] == [Severity.ERROR]
    ((settled, what),) = found(theirs.chosen_in)
    assert (settled, "the published wheel chooses" in what) == (severity, severity is Severity.WARNING)
