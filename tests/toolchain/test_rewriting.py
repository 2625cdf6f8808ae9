"""What becomes of a compiler's command, flag by flag."""

import itertools
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.factories.plans import rules
from vbuild.toolchain.compiler_program import rewritten_command, rewritten_rustc

OURS = "-march=x86-64-v2 -mtune=generic"


STRIP = ("strip",)


def changed(command: str, flags: tuple[str, ...] = STRIP, **more: tuple[str, ...]) -> str:
    return " ".join(rewritten_command(command.split(), rules("v2", flags=flags, **more)).arguments)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("-O2 -march=native -c a.c -o a.o", f"-O2 -c a.c -o a.o {OURS}"),
        ("-c a.cpp -march=haswell -mtune=native", f"-c a.cpp {OURS}"),
        (f"-c a.c {OURS} -march=native", f"-c a.c {OURS}"),
        (f"-c {OURS} a.c", f"-c {OURS} a.c {OURS}"),
        (f"-c a.c {OURS}", f"-c a.c {OURS}"),
        ("-mavx2 -mfma -mavx512f -maes -c a.c", f"-c a.c {OURS}"),
        ("-msse4.2 -mpopcnt -mcx16 -c a.c", f"-msse4.2 -mpopcnt -mcx16 -c a.c {OURS}"),
        ("-mno-avx -mfpmath=sse -m64 -c a.c", f"-mno-avx -mfpmath=sse -m64 -c a.c {OURS}"),
        ("-Xarch_x86_64 -mavx2 -c a.c", f"-c a.c {OURS}"),
        ("-Xarch_x86_64 -O3 -c a.c", f"-Xarch_x86_64 -O3 -c a.c {OURS}"),
        ("-E -dM -x c /dev/null", f"-E -dM -x c /dev/null {OURS}"),
        ("-mavx2 -xc input", f"-xc input {OURS}"),
        ("-mavx2 -x none input", f"-x none input {OURS}"),
        ("-x c -x none input", "-x c -x none input"),
        ("-c a.c -Xarch_x86_64", f"{OURS} -c a.c -Xarch_x86_64"),
        ("-mavx2 -x c -", f"-x c - {OURS}"),
        ("-c -Wa,-march=haswell a.c", f"-c -Wa,-march=haswell a.c {OURS}"),
        # the value of an option is neither a flag nor a source
        ("-Xlinker -mavx2 -o a.c b.o", "-Xlinker -mavx2 -o a.c b.o"),
        ("-MF a.c --version", "-MF a.c --version"),
        # a link without sources changes only where it asked for something
        ("a.o b.o -o demo", "a.o b.o -o demo"),
        ("-flto -march=native a.o -o demo", f"-flto a.o -o demo {OURS}"),
        ("-shared a.o -o demo.so", "-shared a.o -o demo.so -Wl,-z,x86-64-v2"),
        ("-shared -c a.c", f"-shared -c a.c {OURS}"),
        ("-shared -Wl,-rpath,/opt/python/lib a.o", "-shared a.o -Wl,-z,x86-64-v2"),
        # questions stay questions
        ("--version", "--version"),
        ("-dumpmachine", "-dumpmachine"),
        ("-v", "-v"),
        # assembly is its author's choice; only the building machine's own processor is not
        ("-march=armv8.2-a+sve -c a.S", f"{OURS} -march=armv8.2-a+sve -c a.S"),
        ("-march=native -mavx2 -c a.s", f"{OURS} -mavx2 -c a.s"),
        ("-x assembler-with-cpp -mavx2 -c a.txt", f"{OURS} -x assembler-with-cpp -mavx2 -c a.txt"),
    ],
)
def test_the_projects_flags_go_and_ours_come_last(command: str, expected: str) -> None:
    assert changed(command) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("-mavx2 -c src/sum_avx2.c", f"{OURS} -mavx2 -c src/sum_avx2.c"),
        ("-march=haswell -c src/sum_avx2.c", f"{OURS} -march=haswell -c src/sum_avx2.c"),
        ("-march=native -mavx2 -c src/sum_avx2.c", f"{OURS} -mavx2 -c src/sum_avx2.c"),
        ("-mavx2 -c src/sum.c", f"-c src/sum.c {OURS}"),
        ("-mavx2 -c src/sum_avx2.c src/sum.c", f"-c src/sum_avx2.c src/sum.c {OURS}"),
        ("-mavx2 a.o -o demo", f"a.o -o demo {OURS}"),
        ("-mavx2 -c ../simd/any.c", f"{OURS} -mavx2 -c ../simd/any.c"),
    ],
)
def test_a_source_the_recipe_names_keeps_its_own_flags(command: str, expected: str) -> None:
    assert changed(command, keep=("*_avx2.c", "simd/*.c")) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("-maes -c src/aes.c -o aes.o", f"{OURS} -maes -c src/aes.c -o aes.o"),
        (f"{OURS} -march=haswell -c src/aes.c", f"{OURS} -march=haswell -c src/aes.c"),
        (f"-march=haswell {OURS} -c src/aes.c", f"{OURS} -march=haswell -c src/aes.c"),
        ("-march=native -maes -mavx -c src/aes.c", f"{OURS} -maes -c src/aes.c"),
        ("-msse4.2 -c src/crc.c", f"-msse4.2 -c src/crc.c {OURS}"),
        ("-O2 -c src/main.c", f"-O2 -c src/main.c {OURS}"),
        ("-maes -c old/aes.c", f"-c old/aes.c {OURS}"),
        ("-maes -c leaks/aes.c", f"-c leaks/aes.c {OURS}"),
        ("-maes -flto a.o -o demo", f"-flto a.o -o demo {OURS}"),
    ],
)
def test_flags_of_single_files_stay_behind_ours_and_those_that_steer_the_build_go(command: str, expected: str) -> None:
    assert changed(command, ("auto",), strip=("old/*",), leaking=("leaks/aes.c",), steering=("-mavx",)) == expected


@pytest.mark.parametrize(
    ("command", "kept", "why"),
    [
        ("-maes -march=native -c a.c", ["-maes"], [("-maes", "single file"), ("-march=native", "native")]),
        ("-mavx -c a.c", [], [("-mavx", "whole build")]),
        ("-mavx2 -c old/a.c", [], [("-mavx2", "rule")]),
        ("-mavx2 -c leaks/a.c", [], [("-mavx2", "leak")]),
        ("-mavx2 -c new/a.c", ["-mavx2"], [("-mavx2", "rule")]),
        ("-mavx2 -c a.S", ["-mavx2"], [("-mavx2", "assembly")]),
        ("-mavx2 a.o", [], [("-mavx2", "whole build")]),
        ("-msse4.2 -c a.c", [], []),
    ],
)
def test_each_flag_that_stays_or_goes_has_a_reason(command: str, kept: list[str], why: list[tuple[str, str]]) -> None:
    more = {"strip": ("old/*",), "keep": ("new/*",), "leaking": ("leaks/*",), "steering": ("-mavx",)}
    result = rewritten_command(command.split(), rules("v2", **more))
    assert (result.kept, result.why) == (kept, why)


def test_a_recipe_can_keep_all_flags_but_those_for_the_building_machine() -> None:
    assert changed("-mavx2 -march=native -c a.c", ("keep",)) == f"{OURS} -mavx2 -c a.c"
    assert changed("-mavx2 -c a.c", ("keep",), strip=("a.c",)) == f"-c a.c {OURS}"


def test_flags_in_a_response_file_are_seen(tmp_path: Path) -> None:
    (tmp_path / "inner").write_text("-mavx2", encoding="utf-8")
    words = f'-c \'a file.c\' -D\\"x\\" @{tmp_path / "inner"}\n -march=native "-I a\\\\b"\n'
    (tmp_path / "flags").write_text(words, encoding="utf-8")
    result = rewritten_command([f"@{tmp_path / 'flags'}", "-O2"], rules("v2", flags=STRIP))
    assert result.arguments == ["-c", "a file.c", '-D"x"', "-I a\\b", "-O2", *OURS.split()]
    assert result.removed == ["-mavx2", "-march=native"]


def test_a_response_file_that_is_not_there_is_left_to_the_compiler() -> None:
    assert changed("-c a.c @nowhere") == f"-c a.c @nowhere {OURS}"


@pytest.mark.parametrize("text", ["int main(void) { return 0; }\n", "extern int i;\nint i;\n", ""])
def test_a_question_whether_the_compiler_takes_a_flag_is_answered_with_no(text: str, tmp_path: Path) -> None:
    (tmp_path / "check.c").write_text(text, encoding="utf-8")
    command = ["-mavx2", "-msse3", "-march=native", "-c", str(tmp_path / "check.c")]
    assert rewritten_command(command, rules("v2", flags=STRIP)).refused == ["-mavx2"]
    assert rewritten_command(command, rules("v2", steering=("-mavx2",))).refused == ["-mavx2"]
    assert rewritten_command(command, rules("v2")).refused == []
    assert rewritten_command(command, rules("v3", flags=STRIP)).refused == []
    assert rewritten_command(command, rules("v2", flags=STRIP, keep=("*_avx2.c",))).refused == []


@pytest.mark.parametrize("text", ["#include <math.h>\nint main(void) { return 0; }\n", "\n" * 300])
def test_a_check_of_something_else_is_compiled(text: str, tmp_path: Path) -> None:
    (tmp_path / "check.c").write_text(text, encoding="utf-8")
    assert rewritten_command(["-mavx2", "-c", str(tmp_path / "check.c")], rules("v2")).refused == []


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("--target T a.rs", "--target T a.rs -C target-cpu=x86-64-v2"),
        ("--target T - -C target-cpu=native", "--target T - -C target-cpu=x86-64-v2"),
        ("--target T a.rs -C target-cpu=native", "--target T a.rs -C target-cpu=x86-64-v2"),
        (
            "--target=T a.rs -Ctarget-cpu=native -C opt-level=3",
            "--target=T a.rs -C opt-level=3 -C target-cpu=x86-64-v2",
        ),
        ("--target T a.rs --codegen=target-cpu=native", "--target T a.rs -C target-cpu=x86-64-v2"),
        (
            "--target T a.rs -C target-feature=+avx2,+sse4.2,+crt-static,-avx",
            "--target T a.rs -C target-feature=+sse4.2,+crt-static,-avx -C target-cpu=x86-64-v2",
        ),
        ("--target T a.rs --codegen target-feature=+fma", "--target T a.rs -C target-cpu=x86-64-v2"),
        # build scripts and procedural macros run on the building machine
        ("--crate-name build_script_build build.rs", "--crate-name build_script_build build.rs"),
    ],
)
def test_rust_code_for_the_target_gets_the_level(command: str, expected: str) -> None:
    assert " ".join(rewritten_rustc(command.split(), rules("v2")).arguments) == expected


FLAGS = (
    "-O2",
    "-c",
    "-E",
    "-shared",
    "-march=native",
    "-march=x86-64-v2",
    "-mavx2",
    "-msse3",
    "-mtune=generic",
    "-mno-avx",
)
WORDS = st.sampled_from((*FLAGS, "-o", "-x", "c", "a.c", "b.cpp", "a.S", "a.o", "-lm", "-Xlinker", "-DX", "-I"))


@example(["a.S", "-o", "-march=x86-64-v2", "-o", "-march=native"])
@example(["a.c", "-o"])
@example(["a.S", "-Xarch_host", "-march=x86-64-v2", "-march=native"])
@given(st.lists(WORDS, max_size=8))
def test_a_rewritten_command_is_not_rewritten_again(words: list[str]) -> None:
    once = rewritten_command(words, rules("v2"))
    again = rewritten_command(once.arguments, rules("v2", link=()))
    assert again.removed == []
    assert again.added == []


@given(st.lists(WORDS, max_size=8))
def test_nothing_but_flags_that_choose_instructions_is_lost(words: list[str]) -> None:
    result = rewritten_command(words, rules("v2"))
    ours = {*OURS.split(), "-Wl,-z,x86-64-v2", *result.removed}
    others = [[word for word in command if word not in ours] for command in (words, result.arguments)]
    assert others[0] == others[1]
    assert set(result.removed) <= {"-march=native", "-mavx2"}


def test_words_of_a_response_file_follow_gcc(tmp_path: Path) -> None:
    file = tmp_path / "flags"
    for quote, inside in itertools.product("'\"", (" ", "\\'", '\\"', "")):
        file.write_text(f"{quote}a{inside}b{quote}", encoding="utf-8")
        expected = "a" + inside.removeprefix("\\") + "b"
        assert rewritten_command([f"@{file}"], rules("v2")).arguments == [expected]
