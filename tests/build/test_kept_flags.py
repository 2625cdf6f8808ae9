"""Which flags of a project's own go after all, with objects of a real compiler."""

import subprocess
from pathlib import Path

from tests.factories.plans import plan
from tests.factories.projects import tree
from vbuild.build.kept_flags import KeptFlags
from vbuild.build.plan import WrapperRules
from vbuild.build.wrappers import CompilerCall, Override

RULES = plan("v1").wrapper_rules
FILES = ("a.c", "b.c", "c.c", "d[1].c")


def project(folder: Path) -> Path:
    """A tree of four files, each compiled, in which a static and a global function are named after the file."""
    names = {name: name[0] for name in FILES}
    code = "static int {0}_inner(int x) {{ return x * 3; }}\nint {0}_outer(int x) {{ return {0}_inner(x) + 1; }}\n"
    source = tree(folder, {name: code.format(letter) for name, letter in names.items()})
    for name in FILES:
        subprocess.run(["gcc", "-O0", "-c", name, "-o", f"{name}.o"], cwd=source, check=True)
    return source


def kept(name: str, flag: str = "-mavx2", *, why: str = "single file") -> Override:
    return Override("gcc", (name,), (), (), (), (flag,), ((flag, why),), f"{name}.o")


def calls(source: Path, *names: str) -> list[CompilerCall]:
    return [CompilerCall("gcc", (str(source / name),)) for name in names or FILES]


def rules_after(
    source: Path, overrides: list[Override], *above: str, rules: WrapperRules = RULES
) -> WrapperRules | None:
    found = KeptFlags.of(overrides, calls(source), source).next_rules(rules, above)
    return found.rules if found else None


def test_the_file_whose_object_has_the_function_loses_its_flag(tmp_path: Path) -> None:
    source = project(tmp_path)
    overrides = [kept("a.c"), kept("b.c")]
    found = KeptFlags.of(overrides, calls(source), source).next_rules(RULES, ["b_inner"])
    assert found
    assert (found.rules.leaking, found.rules.steering) == (("b.c",), ())
    assert found.what == "-mavx2 of b.c: nothing shows that code above the level runs only after a check of the CPU"


def test_names_of_files_are_no_patterns(tmp_path: Path) -> None:
    source = project(tmp_path)
    found = rules_after(source, [kept("a.c"), kept("d[1].c")], "d_outer")
    assert found
    assert found.leaking == ("d[[]1].c",)


def test_a_file_outside_of_the_tree_is_known_by_the_end_of_its_path(tmp_path: Path) -> None:
    source = project(tmp_path)
    away = Override("gcc", ("/tmp/tmp1234/arch/a.c",), (), (), (), ("-mavx2",), (("-mavx2", "single file"),), "")  # noqa: S108 - no file
    found = rules_after(source, [away], "function at 0x1234")
    assert found
    assert found.leaking == ("arch/a.c",)


def test_a_copy_elsewhere_is_known_by_what_its_path_shares_with_the_file_in_the_tree(tmp_path: Path) -> None:
    source = project(tmp_path / "tree")
    tree(source, {"lib/src/arch/x86/a.c": "", "lib/a.c": ""})
    for where, name in (("/tmp/tmp1/arch/x86/a.c", "arch/x86/a.c"), ("/tmp/tmp1/src/arch/x86/a.c", "src/arch/x86/a.c")):  # noqa: S108
        away = Override("gcc", (where,), (), (), (), ("-mavx2",), (("-mavx2", "single file"),), "")
        assert [one.source for one in KeptFlags.of([away], [], source).files] == [name]


def test_where_it_has_to_be_sure_files_without_the_function_keep_their_flags(tmp_path: Path) -> None:
    source = project(tmp_path)
    found = KeptFlags.of([kept("a.c"), kept("b.c")], calls(source), source)
    assert found.next_rules(RULES, ["function at 0x1234"], is_sure=True) is None
    sure = found.next_rules(RULES, ["a_inner"], is_sure=True)
    assert sure
    assert sure.rules.leaking == ("a.c",)


def test_what_a_build_system_asks_is_in_no_library(tmp_path: Path) -> None:
    source = project(tmp_path)
    asked = [kept(name) for name in ("conftest.c", "build/CMakeFiles/CMakeScratch/TryCompile-1/a.c")]
    assert KeptFlags.of(asked, calls(source), source).files == ()


def test_objects_of_another_machine_are_asked_where_they_were_put(tmp_path: Path) -> None:
    source = project(tmp_path / "objects")
    found = KeptFlags.of([kept("a.c"), kept("b.c")], calls(source), tmp_path / "host", objects=source)
    following = found.next_rules(RULES, ["b_inner"])
    assert following
    assert following.rules.leaking == ("b.c",)


def test_what_makes_no_difference_is_not_tried_twice(tmp_path: Path) -> None:
    source = project(tmp_path)
    first = rules_after(source, [kept("a.c")], "a_inner")
    assert first
    assert rules_after(source, [kept("a.c")], "a_inner", rules=first) is None


def test_files_keep_their_flags_if_another_object_has_the_function(tmp_path: Path) -> None:
    source = project(tmp_path)
    assert rules_after(source, [kept("a.c"), kept("b.c")], "c_inner") is None


def test_a_flag_of_nearly_all_files_steers_the_build(tmp_path: Path) -> None:
    source = project(tmp_path)
    found = rules_after(source, [kept(name) for name in FILES], "b_inner")
    assert found
    assert (found.leaking, found.steering) == ((), ("-mavx2",))


def test_files_that_were_only_a_question_do_not_count(tmp_path: Path) -> None:
    source = project(tmp_path)
    asked = calls(source, *FILES, *(f"conftest{number}.c" for number in range(20)))
    overrides = [kept(name) for name in FILES]
    found = KeptFlags.of(overrides, asked, source).next_rules(RULES, ["a_outer"])
    assert found
    assert found.rules.steering == ("-mavx2",)


def test_flags_that_stay_by_a_rule_stay(tmp_path: Path) -> None:
    source = project(tmp_path)
    assert rules_after(source, [kept("a.c", why="rule")], "a_inner") is None
    assert rules_after(source, [kept("a.c", why="assembly")], "a_inner") is None
    assert rules_after(source, [], "a_inner") is None
