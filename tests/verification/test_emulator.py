"""qemu as judge of levels: what its processors have, and where code above a level stops in them."""

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import convert

from tests.factories.extensions import module
from tests.factories.level_copies import NAME, leveled_wheel
from tests.factories.tools import needs
from vbuild.hardware.cpu import X86_64_LEVELS, Cpu
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.model import Check
from vbuild.verification.emulator import Emulator
from vbuild.verification.level_emulation import LevelMethod, LevelReport, LevelRun, with_evidence
from vbuild.verification.level_runs import LevelSettings, run_levels
from vbuild.verification.model import LibraryIsa, Verdict, Violation

pytestmark = [needs("gcc"), needs("qemu-x86_64")]

# of the module _c: importing it, and calling what it exports
UNGUARDED = """
__attribute__((target("avx2"), noinline)) void wide(int *x) { for (int i = 0; i < 8; i++) x[i] += 3; }
__attribute__((constructor)) static void begins(void) { static int x[8]; wide(x); }
"""
GUARDED = UNGUARDED.replace("wide(x); }", '__builtin_cpu_init(); if (__builtin_cpu_supports("avx2")) wide(x); }')
CALLED = UNGUARDED.replace("__attribute__((constructor)) static void begins", "void begins")
# all processors with AVX2 have FMA, unless a hypervisor masks it
FUSED = """
__attribute__((target("avx2,fma"), noinline)) void fused(float *x) {
    for (int i = 0; i < 8; i++) x[i] = x[i] * 3 + x[8 + i];
}
__attribute__((constructor)) static void begins(void) {
    static float x[16]; __builtin_cpu_init(); if (__builtin_cpu_supports("avx2")) fused(x);
}
"""
V2, V3, V4 = (Cpu.parse(f"x86-64-{level}") for level in ("v2", "v3", "v4"))
SOURCE = "#pragma GCC optimize(3)\n"
CALLS = Check("""python -c "
import ctypes, subprocess, sys
from demo import _c
run = 'import ctypes, sys; ctypes.CDLL(sys.argv[1]).begins()'
sys.exit(subprocess.run([sys.executable, '-c', run, _c.__file__]).returncode and 3)
" """)


def ran(
    folder: Path, source: str, level: str, check: Check | None = None, *, package: str = "", metadata: str = ""
) -> LevelReport:
    """What becomes of a wheel with the module demo._c, of *source*, in *package* on a processor of *level*."""
    files: dict[str, bytes | str] = {"demo/__init__.py": package, "demo/_c.so": module(source=SOURCE + source)}
    cpu = Cpu.known("x86_64", level)
    settings = LevelSettings(check=check or Check(), cpu=cpu, methods=(LevelMethod.QEMU,))
    return run_levels(leveled_wheel(folder, files, metadata=metadata), settings, indexes=lambda: Indexes(no_index=True))


@pytest.fixture(scope="module")
def emulator() -> Emulator:
    found = Emulator.on_path()
    assert found
    return found


@pytest.mark.parametrize("level", X86_64_LEVELS[:3])
def test_a_processor_has_what_gcc_says_its_level_has_and_no_more(
    tmp_path: Path, emulator: Emulator, level: str
) -> None:
    if why := emulator.why_not(Cpu.known("x86_64", level)):
        pytest.skip(why)
    asked = ["x86-64-v2", "x86-64-v3", "x86-64-v4", "avx", "fma", "aes", "pclmul", "sse4a"]
    lines = "".join(f'printf("%d", !!__builtin_cpu_supports("{name}"));' for name in asked)
    source = f"#include <stdio.h>\nint main(void) {{ __builtin_cpu_init(); {lines} }}"
    program = tmp_path / "program"
    subprocess.run(["gcc", "-x", "c", "-", "-o", program], input=source, text=True, check=True)
    said = subprocess.run(
        [*emulator.command(Cpu.known("x86_64", level)), program], capture_output=True, text=True, check=True
    )
    rank = X86_64_LEVELS.index(level)
    expected = [rank >= 1, rank >= 2, False, rank >= 2, rank >= 2, False, False, False]
    assert (said.stdout, said.stderr) == ("".join(str(int(one)) for one in expected), "")


def test_single_features_beyond_a_level_are_there_and_no_others(emulator: Emulator) -> None:
    if why := emulator.why_not(V2):
        pytest.skip(why)
    assert emulator.why_not(V2.with_extras(["aes", "pclmulqdq", "rdrand"])) is None
    lacking = emulator.why_not(V2.with_extras(["movdir64b"]))
    assert lacking == f"{emulator} cannot judge x86-64-v2+movdir64b: it does not run MOVDIR64B"


def test_an_emulator_that_has_less_or_more_than_a_level_cannot_judge_it(tmp_path: Path, emulator: Emulator) -> None:
    older = tmp_path / "qemu"
    # the real one, of a processor that is always the same
    older.write_text(f'#!/bin/sh\nshift 2\nexec {emulator.path} -cpu qemu64 "$@"\n')
    older.chmod(0o755)
    other = Emulator(older, "6.2")
    said, newer = "qemu-x86_64 6.2 cannot judge x86-64", "; expected qemu 7.2 or newer"
    assert other.why_not(Cpu.parse("x86-64")) == f"{said}: it also runs CMPXCHG16B, LAHF-SAHF, SSE3"
    assert other.why_not(V2) == f"{said}-v2: it does not run POPCNT, SSSE3, SSE4.1, SSE4.2{newer}"
    v3 = other.why_not(Cpu.parse("x86-64-v3"))
    assert v3
    assert v3.startswith(f"{said}-v3: it does not run POPCNT")
    assert v3.endswith(newer)
    older.write_text("#!/bin/sh\nexit 1\n")
    none = Emulator(older, "0.1").why_not(V2)
    assert none == f"qemu-x86_64 0.1 knows no processor with the features of x86-64-v2{newer}"
    none = Emulator(older, "9.0").why_not(Cpu.parse("x86-64-v4"))
    assert none == "qemu-x86_64 9.0 knows no processor with the features of x86-64-v4"


@pytest.mark.skipif("avx2" not in Path("/proc/cpuinfo").read_text(), reason="not a machine of level v3")
def test_code_above_the_level_stops_and_is_named_with_its_function_and_library(tmp_path: Path) -> None:
    report = ran(tmp_path, UNGUARDED, "v2")
    here, emulated = report.runs
    assert (here.failures, report.ok, report.summary) == ((), False, "works on this machine; fails as v2")
    (where,) = emulated.illegal
    assert where.endswith(" in wide of demo/_c.so")
    assert "(AVX" in where
    assert emulated.failures == (f"import: demo._c: the process was ended by SIGILL; SIGILL at {where}",)
    assert emulated.imported == ("demo",)


@pytest.mark.nightly
@pytest.mark.skipif("avx2" not in Path("/proc/cpuinfo").read_text(), reason="not a machine of level v3")
def test_code_that_a_process_of_the_test_runs_stops_there(tmp_path: Path) -> None:
    _, emulated = ran(tmp_path, CALLED, "v1", CALLS).runs
    assert emulated.imported == ("demo", "demo._c")
    (failure,) = emulated.failures
    assert failure.startswith("test: failed with status 3")
    assert failure.endswith(f"; SIGILL at {emulated.illegal[0]}")
    assert " in wide of demo/_c.so" in emulated.illegal[0]


def test_a_module_that_python_code_imports_after_a_question_about_the_cpu_is_left_out(tmp_path: Path) -> None:
    package = 'if "avx2" in open("/proc/cpuinfo").read() and "DEMO_CPU" in globals():\n    from demo import _c\n'
    report = ran(tmp_path, UNGUARDED, "v2", package=package)
    assert (report.ok, report.runs[1].imported) == (True, ("demo",))


@pytest.mark.nightly
def test_verify_runs_a_wheel_on_a_processor_without_what_it_may_not_have_asked_for(
    tmp_path: Path, emulator: Emulator
) -> None:
    if why := emulator.why_not(V3):
        pytest.skip(why)
    files: dict[str, bytes | str] = {"demo/__init__.py": "", "demo/_c.so": module(source=SOURCE + FUSED)}
    wheel = leveled_wheel(tmp_path, files)
    ran = subprocess.run(
        [sys.executable, "-m", "vbuild", "verify", "--run", wheel], capture_output=True, text=True, check=False
    )
    lines = ran.stdout.splitlines()
    first = " ".join(map(str.strip, lines)).partition(" instruction sets: ")[0]
    assert first.startswith(f"{wheel.name}: crashes on qemu-x86_64 -cpu Haswell,-fma: vfmadd")
    assert first.endswith(" (FMA) in fused of demo/_c.so")
    assert "  works on this machine; works as v1; fails on qemu-x86_64 -cpu Haswell,-fma" in lines
    assert (ran.returncode, ran.stderr) == (1, f"vbuild: {wheel.name}: does not work on every CPU that it was run on\n")


def test_a_wheel_of_which_nothing_can_be_imported_is_not_tried(tmp_path: Path) -> None:
    report = ran(tmp_path, GUARDED, "v1", package="import nowhere\n")
    assert report.summary == "not tried"
    assert {run.untried for run in report.runs} == {
        "demo cannot be imported: ModuleNotFoundError: No module named 'nowhere'"
    }


def test_code_behind_a_check_of_the_cpu_works_as_every_level(tmp_path: Path) -> None:
    report = ran(tmp_path, GUARDED, "v1")
    assert (report.ok, report.summary) == (True, "works on this machine; works as v1")


@pytest.mark.nightly
def test_proc_cpuinfo_is_that_of_the_emulated_processor(tmp_path: Path) -> None:
    package = """
import ctypes
from demo import _c
flags = open("/proc/cpuinfo").read().partition("flags")[2].partition("\\n")[0].split()
if "avx2" in flags or "ssse3" not in flags:
    ctypes.CDLL(_c.__file__).begins()
"""
    assert ran(tmp_path, CALLED, "v2", package=package).summary == "works on this machine; works as v2"


@pytest.mark.nightly
def test_a_variable_that_names_another_processor_is_not_seen_in_the_emulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")  # as in many images of clusters
    told = GUARDED.replace("if (__builtin", 'if (getenv("OPENBLAS_CORETYPE") || __builtin')
    assert ran(tmp_path, f"char *getenv(const char *);\n{told}", "v1").summary == "works on this machine; works as v1"


@pytest.mark.nightly
def test_a_trap_of_the_program_s_own_is_no_instruction_above_the_level(tmp_path: Path) -> None:
    traps = Check('python -c "import ctypes; from demo import _c; ctypes.CDLL(_c.__file__).trap()"')
    _, emulated = ran(tmp_path, "void trap(void) { __builtin_trap(); }", "v2", traps).runs
    assert emulated.illegal == ()
    assert "SIGILL at ud2 at 0x" in emulated.failures[0]


def test_without_an_emulator_the_level_is_not_tried_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = Path(sys.executable).parent
    monkeypatch.setenv("PATH", str(uv))
    report = ran(tmp_path, GUARDED, "v2")
    assert report.runs[1].untried == "qemu-x86_64 is not installed; Debian and Ubuntu have it in qemu-user"
    assert report.summary == "works on this machine; not tried as v2"


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (
            LevelRun("v2", LevelMethod.QEMU, imported=("demo",), is_tested=True),
            "none ran in an emulator of x86-64-v2 (1 module imported, test passed); this is evidence, and no proof",
        ),
        (LevelRun("v2", LevelMethod.QEMU, untried="it is old"), "no emulator shows that none does: it is old"),
        (LevelRun("v3", LevelMethod.QEMU, instead="not as v2"), "no emulator shows that none does: not as v2"),
        (None, "no emulator shows that none does: there is no test"),
    ],
)
def test_a_run_is_evidence_for_functions_in_doubt_and_its_absence_is_said(run: LevelRun | None, said: str) -> None:
    violations = (Violation("f", "0x1", ("AVX",), (), doubt="not followed"), Violation("g", "0x2", ("AVX",), ()))
    library = LibraryIsa("demo/_c.so", "x86_64", 100, "v3", {}, violations)
    verdict = Verdict(Path("demo-1-py3-none-any.whl"), V2, claimed=True, findings=(), libraries=(library,))
    (note,) = with_evidence(verdict, run, why_not="there is no test").findings
    what = "1 function above x86-64-v2 that may run without a check of the CPU"
    assert str(note) == f"note: {what}: {said} [isa-emulated]"


def test_what_fails_in_the_emulator_for_another_reason_is_a_warning() -> None:
    verdict = Verdict(Path("demo-1-py3-none-any.whl"), V2, claimed=True, findings=(), libraries=())
    run = LevelRun("v2", LevelMethod.QEMU, failures=("import: a: OSError: no", "import: b: OSError: no", "test: no"))
    (warning,) = with_evidence(verdict, run).findings
    assert str(warning) == (
        "warning: as x86-64-v2 in the emulator, by no instruction above the level: import: a, b: OSError: no; "
        "test: no; test.emulate = 'never' leaves the emulator out [isa-emulated]"
    )
    assert convert(run.data(), LevelRun) == run


def test_a_level_that_no_emulator_runs_is_not_tried_and_that_is_said(tmp_path: Path, emulator: Emulator) -> None:
    if not emulator.why_not(V4):
        pytest.skip("this emulator knows AVX-512")
    report = ran(tmp_path, GUARDED, "v4")
    assert report.runs[1].untried == (
        f"{emulator} cannot judge x86-64-v4: it does not run AVX512F, AVX512BW, AVX512CD, AVX512DQ, AVX512VL"
    )


def test_what_a_wheel_requires_and_cannot_run_as_the_level_leaves_the_wheel_unjudged(tmp_path: Path) -> None:
    other: dict[str, bytes | str] = {
        "other/__init__.py": "from other import _c\n",
        "other/_c.so": module(source=SOURCE + UNGUARDED),
    }
    leveled_wheel(tmp_path, other, name=NAME.replace("demo", "other"))
    metadata = "Requires-Dist: other\n"
    _, emulated = ran(tmp_path, GUARDED, "v2", package="import other\n", metadata=metadata).runs
    assert emulated.untried
    assert emulated.untried.startswith("SIGILL at ")
    assert emulated.untried.endswith(" in wide of other/_c.so, which is not of the wheel")
