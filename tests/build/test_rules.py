"""Rules for single files that no file was compiled by."""

import pytest

from vbuild.build.agreement import unused_globs
from vbuild.recipe.compiling import Archs, FileRule
from vbuild.toolchain.nvcc_commands import Command, NvccOutput


def command(*sources: str) -> Command:
    return Command(sources, NvccOutput.OBJECT, (), "intersect", is_ruled=False, theirs=(), ours=("sm_80",))


COMMANDS = [
    command("src/a_sm90.cu", "src/b.cu"),
    command("top.cu"),
    command("/elsewhere/generated/c.cu"),
    command("build/CMakeFiles/4.1/CMakeCUDACompilerId.cu"),
    command(),
]


@pytest.mark.parametrize(
    ("glob", "is_unused"),
    [
        ("*_sm90.cu", False),
        ("src/*", False),
        ("top.cu", False),
        ("generated/*.cu", False),
        ("*_sm100.cu", True),
        ("rc/b.cu", True),
        ("a_sm90", True),
        ("CMakeCUDACompilerId.cu", True),
    ],
)
def test_a_glob_is_of_use_where_it_matches_a_file_that_was_compiled(glob: str, *, is_unused: bool) -> None:
    rules = (FileRule("b.cu", Archs.KEEP), FileRule(glob, Archs.REPLACE))
    assert unused_globs(rules, COMMANDS) == ((glob,) if is_unused else ())


def test_where_nothing_was_compiled_all_are_unused_in_their_order() -> None:
    assert unused_globs((FileRule("b", Archs.KEEP), FileRule("a", Archs.KEEP)), []) == ("b", "a")
