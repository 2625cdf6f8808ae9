"""What a recipe may not say, and the words it is refused with."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.recipes import HASH, SOURCE, project, recipe
from vbuild.errors import VbuildError
from vbuild.recipe.model import Recipe

CPU = '[matrix]\ncpu = ["x86-64", "x86-64-v3"]\n'
BLAS = """
[matrix.axes.blas.openblas]
properties = ["blas :: library :: openblas"]
[matrix.axes.blas.mkl]
properties = ["blas :: library :: mkl"]
"""


EVERYTHING = (
    SOURCE
    + """
[matrix]
cpu = ["x86-64", "x86-64-v3"]
python = ["3.12", "3.13"]
exclude = [{ cpu = "x86-64-v3", blas = "mkl" }]
priority = ["nvidia", "x86_64", "blas"]
cuda = [{ toolkit = "13.0", gpus = { sm80 = "80,86", sm120 = "120+ptx" }, libraries = ["nccl==2.28.9"] }]
plain = "cpu"
"""
    + BLAS
    + """
[build]
env = { A = "b" }
config-settings = { a = ["b"] }
requires = ["numpy"]
cache = "none"
[build.cuda]
compress = "size"
files = { "*.cu" = "keep" }
[verify]
allow = ["avx2"]
[repair]
exclude = ["libx.so.1"]
[test]
command = "true"
[variant.default-priorities]
namespace = ["x86_64"]
"""
)
DAMAGE = (
    "cpu = 3",
    "cpu = [[]]",
    'python = ["~nobody-at-all/python", "x/y"]',
    'python = ["3", "\\u0000/"]',
    "exclude = [{}, {a = 1}]",
    "[matrix.axes]",
    "[[matrix.axes]]",
    "[variant]",
    "x = 1979-05-27",
    'sdist = "demo==' + "1" * 5000 + '"',
    'path = "~nobody-at-all"',
    'git = "' + "x" * 5000 + '"',
    'requires = ["a @"]',
    'allow = ["a{99999999999999999999}"]',
    'properties = ["::"]',
    "cuda = [{}, 3]",
    'cuda = [{ toolkit = "99.99", gpus = { a = "\u0669\u0660" } }]',
    'cuda = [{ toolkit = { path = "x", version = 3 }, gpus = [] }]',
    'gpus = { a = [["90"]] }',
    'files = { "" = "" }',
    'plain = "cuda"',
    "properties = {}",
    "[]",
)


def _source(text: str) -> str:
    return f'name = "demo"\n[source]\n{text}\n'


SOURCES = [
    ("", "source: found none; expected exactly one of sdist, path, git"),
    ('path = "."\ngit = "x"', "source: found path and git; expected exactly one of sdist, path, git"),
    (f'sdist = "demo"\nsha256 = "{HASH}"', "source.sdist: 'demo' is not name==version"),
    (f'sdist = "demo>=1"\nsha256 = "{HASH}"', "source.sdist: 'demo>=1' is not name==version"),
    (f'sdist = "demo==x"\nsha256 = "{HASH}"', "source.sdist: 'demo==x': 'x' is not a version (PEP 440)"),
    (f'sdist = "other==1"\nsha256 = "{HASH}"', "source: is of 'other', and the recipe builds 'demo'"),
    ('sdist = "demo==1"', "source.sha256: missing; expected a string"),
    ('sdist = "demo==1"\nsha256 = "abc"', "source.sha256: 'abc' is not a SHA-256; expected 64 hex digits, lower case"),
    ('path = "gone"', "source.path: no folder or sdist 'gone'; paths start where the recipe stands"),
    ('path = "."\nsha256 = ""', "source.sha256: no such key; known here: path, subdirectory"),
    (
        'git = "https://git.example/x"\ncommit = "abc123"',
        "source.commit: 'abc123' is not a full commit hash; expected 40 or 64 hex digits, lower case",
    ),
    (
        'path = "."\nsubdirectory = "../x"',
        "source.subdirectory: '../x' does not stay inside the source; expected a path below it with /",
    ),
]


@pytest.mark.parametrize(("text", "message"), SOURCES)
def test_a_source_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(VbuildError) as refused:
        recipe(tmp_path, CPU, source=_source(text))
    assert str(refused.value) == f"{tmp_path}/demo.toml: {message}"


MATRICES = [
    ("", "matrix: no axis to build along; expected cpu, cuda, requires, or axes"),
    ("[matrix]\ncpu = []", "matrix.cpu: empty; name a value, or leave the key out"),
    ('[matrix]\ncpu = "x86-64"', "matrix.cpu: expected an array, got 'x86-64': write ['x86-64']"),
    (
        '[matrix]\ncpu = ["x86-64", "avx2"]',
        "matrix.cpu[1]: no CPU level 'avx2'; expected x86-64, x86-64-v2, -v3, -v4, or armv8-a, armv8.1-a ...",
    ),
    ('[matrix]\ncpu = ["x86-64-v3", "x86_64_v3"]', "matrix.cpu[1]: 'x86-64-v3' is there twice"),
    (
        '[matrix]\ncpu = ["x86-64-v3", "armv8.2-a"]',
        "matrix.cpu: x86-64-v3 and armv8.2-a are of different machines; expected levels of one",
    ),
    ("[matrix]\npython = []", "matrix.python: empty; name a value, or leave the key out"),
    (
        '[matrix]\npython = ["latest"]',
        "matrix.python[0]: 'latest' is neither a version such as '3.12' nor the path of an interpreter",
    ),
    (
        '[matrix]\npython = ["bin/python"]',
        "matrix.python[0]: no interpreter 'bin/python'; paths start where the recipe stands",
    ),
    ('[matrix]\npython = ["3.12", "3.12"]', "matrix.python[1]: '3.12' is there twice"),
    (
        CPU + 'level = "v3"',
        (
            "matrix.level: no such key; known here: "
            "axes, cpu, cuda, exclude, plain, priority, python, requires, requires-as"
        ),
    ),
    (CPU + "exclude = [{}]", "matrix.exclude[0]: names no axis; expected values of cpu, python"),
    (CPU + 'exclude = [{ blas = "mkl" }]', "matrix.exclude[0].blas: no axis 'blas'; there are cpu, python"),
    (
        CPU + 'exclude = [{ cpu = "x86-64-v4" }]',
        "matrix.exclude[0].cpu: no value 'x86-64-v4'; there are x86-64, x86-64-v3",
    ),
    (CPU + "exclude = [{ cpu = 3 }]", "matrix.exclude[0].cpu: expected an array, got 3"),
    (
        CPU + "exclude = [{ cpu = [] }]",
        "matrix.exclude[0]: matches no point of the matrix: remove it, or correct a value",
    ),
    (
        CPU + 'python = ["3.12", "3.13"]\nexclude = [{ python = "3.12" }]',
        "matrix.exclude: leaves nothing for Python 3.12; take it out of matrix.python",
    ),
    (
        CPU + "".join(f"[matrix.axes.a{axis}.v{value}]\n" for axis in range(9) for value in range(9)),
        "matrix: 774840978 combinations; expected at most 4096: split them between recipes",
    ),
    (
        CPU + "[matrix.axes.label.x]",
        "matrix.axes.label: no name for a free axis; expected a-z, 0-9 and _, and none of cpu, cuda, python, label",
    ),
    (CPU + "[matrix.axes.blas]", "matrix.axes.blas: has no values; expected some, as in one = {}"),
    (
        CPU + "[matrix.axes.blas.MKL]",
        "matrix.axes.blas.MKL: 'MKL' cannot be in a variant label; expected a-z, 0-9, _ and ., and not 'null'",
    ),
    (
        CPU + '[matrix.axes.blas.mkl]\nproperties = ["blas :: mkl"]',
        (
            "matrix.axes.blas.mkl.properties[0]: 'blas :: mkl' is not a variant property; "
            "expected 'namespace :: feature :: value', lower case"
        ),
    ),
    (
        CPU + '[matrix.axes.level.v4]\nproperties = ["x86_64::level::v4"]',
        (
            "matrix.axes.level.v4.properties[0]: 'x86_64 :: level :: v4' is a CPU level; "
            "expected it in matrix.cpu, as 'x86-64-v4'"
        ),
    ),
    (
        CPU + '[matrix.axes.level.v9]\nproperties = ["x86_64::level::v9"]',
        "matrix.axes.level.v9.properties[0]: no CPU level 'v9' of 'x86_64'; expected v1, v2, v3, v4",
    ),
    (
        CPU + '[matrix.axes.blas.x]\nproperties = ["a::b::c", "a :: b :: c"]',
        "matrix.axes.blas.x.properties[1]: 'a :: b :: c' is there twice",
    ),
    (CPU + "[matrix.axes.blas.x]\nenv = { BLAS = 1 }", "matrix.axes.blas.x.env.BLAS: expected a string, got 1"),
    (
        CPU + "[matrix.axes.blas.x]\nconfig-settings = { a = true }",
        "matrix.axes.blas.x.config-settings.a: expected a string or an array of strings, got True",
    ),
    (
        '[matrix]\npython = ["3.12"]\n[matrix.axes.debug.off]\n[matrix.axes.debug.on]',
        (
            "matrix: debug = on, python = 3.12: no property tells this wheel from the plain one; "
            "give a value properties, or take the point out with matrix.exclude"
        ),
    ),
    (
        '[matrix]\npython = ["3.12"]\n[matrix.axes.a.x]\nenv = { V = "1" }\n[matrix.axes.b.x]\nenv = { V = "2" }',
        "matrix: a = x, b = x, python = 3.12: two values set V, to '1' and to '2'",
    ),
    (
        CPU + '[matrix.axes.a.x]\nproperties = ["n :: f :: x"]\n[matrix.axes.a.y]\nproperties = ["n :: f :: x"]',
        "matrix: labels x and y stand for the same properties; leave one out with matrix.exclude",
    ),
    (CPU + 'priority = ["blas"]' + BLAS, "matrix.priority: 'x86_64' is missing; properties of it are in use"),
    (CPU + 'priority = ["blas", "blas"]' + BLAS, "matrix.priority[1]: 'blas' is there twice"),
]


@pytest.mark.parametrize(("text", "message"), MATRICES)
def test_a_matrix_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(VbuildError) as refused:
        recipe(tmp_path, text)
    assert str(refused.value) == f"{tmp_path}/demo.toml: {message}"


SECTIONS = [
    ("[build]\nflags = 'all'", "build.flags: found 'all'; expected 'auto', 'strip' or 'keep'"),
    ("[build]\ndebug = 'split'", "build.debug: found 'split'; expected 'strip' or 'keep'"),
    ("[build]\nstrip-flags = '*.c'", "build.strip-flags: expected an array, got '*.c': write ['*.c']"),
    (
        "[build]\nflag = 1",
        (
            "build.flag: no such key; known here: "
            "before-build, cache, config-settings, cuda, debug, env, flags, glibc, host, isolation, keep-flags, "
            "pass-env, patches, requires, strip-flags; did you mean 'flags'?"
        ),
    ),
    (
        "[build]\npass-env = ['A=1']",
        "build.pass-env[0]: 'A=1' is not the name of a variable; expected a name, or a pattern such as 'DEMO_*'",
    ),
    ("[build]\nenv = { 'A=' = 'x' }", "build.env: 'A=' with 'x' cannot be an environment variable"),
    ('[build]\npatches = ["a\\u0000b"]', r"build.patches[0]: no patch 'a\x00b'; paths start where the recipe stands"),
    (
        '[build]\npatches = ["~nobody-at-all/x"]',
        "build.patches[0]: '~nobody-at-all/x' is not a path: Could not determine home directory.",
    ),
    ('[build]\npatches = ["fix.patch"]', "build.patches[0]: no patch 'fix.patch'; paths start where the recipe stands"),
    ("[build]\nisolation = 1", "build.isolation: expected true or false, got 1"),
    (
        '[build]\nrequires = ["a b"]',
        (
            "build.requires[0]: 'a b' is not a requirement: "
            "Expected semicolon (after name with no version specifier) or end"
        ),
    ),
    (
        '[verify]\nallow = ["("]',
        "verify.allow[0]: '(' is not a regular expression: missing ), unterminated subpattern at position 0",
    ),
    ('[repair]\nskip = true\nplat = "x"', "repair.plat: would have no effect, as skip is true"),
    (
        '[repair]\ncommand = "x"\nexclude = ["y"]',
        "repair.exclude: is for auditwheel; with a command of its own, write it there",
    ),
    ("[test]\ncommand = ['a']", "test.command: expected a string, got ['a']"),
    ("[bench]", "bench: nothing to run; expected command, or script with the path of a Python file"),
    (
        '[bench]\nscript = "none.py"',
        "bench.script: no Python script 'none.py'; paths start where the recipe stands",
    ),
    (
        '[bench]\ncommand = "true"\nscript = "demo.toml"',
        "bench.script: there is a command, too; expected one of the two",
    ),
    ('[bench]\ncommand = "true"\nmin-gain = 3', "bench.min-gain: 3 is not a percentage; expected one such as '3%'"),
    (
        '[bench]\ncommand = "true"\nmin-gain = "-3%"',
        "bench.min-gain: '-3%' is not a percentage; expected one such as '3%'",
    ),
    (
        '[bench]\ncommand = "true"\npython = "3.1"',
        f"bench.python: 3.1 is not in matrix.python; expected one of {sys.executable}",
    ),
    ('[bench]\ncommand = "true"\nrounds = 1', "bench.rounds: found 1; expected 2 or more"),
    (
        '[bench]\ncommand = "true"\nrounds = 4\nmin-gain = "3%"',
        "bench.rounds: found 4; expected 5 or more with min-gain: fewer would leave it to chance",
    ),
    (
        "[tests]",
        (
            "tests: no such key; known here: "
            "bench, build, matrix, name, native, repair, source, split, test, variant, verify; did you mean 'test'?"
        ),
    ),
    (
        "[variant.variants.x]",
        "variant.variants: not what is built; expected values of matrix.axes with these properties",
    ),
    (
        "[variant.default-priorities]\nnamespace = ['blas']",
        "matrix.priority: 'x86_64' is missing; properties of it are in use",
    ),
]


@pytest.mark.parametrize(("text", "message"), SECTIONS)
def test_a_section_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(VbuildError) as refused:
        recipe(tmp_path, CPU + text)
    assert str(refused.value) == f"{tmp_path}/demo.toml: {message}"


PROJECTS = [
    ("", "tool.vbuild.matrix: no axis to build along; expected cpu, cuda, requires, or axes"),
    ("[tool]\nvbuild = 1", "tool.vbuild: expected a table, got 1"),
    ('[tool.vbuild]\nname = "x"', "tool.vbuild.matrix: no axis to build along; expected cpu, cuda, requires, or axes"),
    (
        '[tool.vbuild.source]\npath = "."\n[tool.vbuild.matrix]\ncpu = ["x86-64"]',
        (
            "tool.vbuild.source: no such key; known here: "
            "bench, build, matrix, native, repair, split, test, variant, verify"
        ),
    ),
    (
        "[variant]\n[tool.vbuild.variant]",
        "tool.vbuild.variant: the project has a [variant] table of its own; expected one of the two",
    ),
]


@pytest.mark.parametrize(("text", "message"), PROJECTS)
def test_a_project_is_refused(tmp_path: Path, text: str, message: str) -> None:
    folder = project(tmp_path, text)
    with pytest.raises(VbuildError) as refused:
        Recipe.load(folder)
    assert str(refused.value) == f"{folder}/pyproject.toml: {message}"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(VbuildError, match=r"gone\.toml: cannot be read: No such file or directory"):
        Recipe.load(tmp_path / "gone.toml")
    with pytest.raises(VbuildError, match=r"demo\.toml: not TOML: .*line 5"):
        recipe(tmp_path, "=", source=SOURCE)


@given(data=st.data())
def test_a_damaged_recipe_is_refused_or_read(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    lines = EVERYTHING.splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        line = data.draw(st.integers(0, len(lines) - 1))
        lines[line] = data.draw(st.sampled_from(["", *DAMAGE, lines[data.draw(st.integers(0, len(lines) - 1))]]))
    path = tmp_path_factory.getbasetemp() / "damaged.toml"
    path.write_text("\n".join(lines))
    try:
        Recipe.load(path)
    except VbuildError as error:
        assert str(error).startswith(f"{path}: ")  # noqa: PT017 - the law is that nothing else is raised


def test_an_interpreter_is_found_from_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    found = recipe(tmp_path, CPU + 'python = ["bin/python", "3.13t", "pypy3.10"]')
    assert found.matrix.pythons == (str(tmp_path / "bin" / "python"), "3.13t", "pypy3.10")


def test_a_project_that_nobody_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.vbuild]\n{CPU.replace('[matrix]', '[tool.vbuild.matrix]')}")
    with pytest.raises(VbuildError) as refused:
        Recipe.load(tmp_path)
    expected = 'no [project] table names the project; expected name = "…" in [tool.vbuild]'
    assert str(refused.value) == f"{tmp_path}/pyproject.toml: {expected}"
