"""[[native]]: what a recipe says of native dependencies, and the words in which the rest is refused."""

from pathlib import Path

import pytest

from tests.factories.recipes import HASH, SOURCE, project, recipe
from vbuild.errors import VbuildError
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.model import Recipe
from vbuild.recipe.source import Folder, NativeSystem

CPU = '[matrix]\ncpu = ["x86-64", "x86-64-v3"]\n'
DEBIAN = f'source = {{ debian = "gmp", version = "6.3.0+dfsg", sha256 = "{HASH}" }}'
V1, V3 = Cpu.parse("x86-64"), Cpu.parse("x86-64-v3")


def _step(text: str = "", *, name: str = "gmp", source: str = DEBIAN, build: str = '"autotools"') -> str:
    return f'[[native]]\nname = "{name}"\n{source}\nbuild = {build}\n{text}\n'


def test_steps_are_in_their_order_and_for_each_level_unless_told(tmp_path: Path) -> None:
    script = _step('script = ["make install"]', name="b", build='"script"', source='source = { path = "." }')
    found = recipe(tmp_path, CPU + _step(name="z") + script + _step(name="a", build='"cmake"')).natives
    assert [(native.name, native.system, native.per_level) for native in found] == [
        ("z", NativeSystem.AUTOTOOLS, True),
        ("b", NativeSystem.SCRIPT, True),
        ("a", NativeSystem.CMAKE, True),
    ]
    assert found[1].source == Folder(tmp_path.resolve())


def test_arguments_of_a_level_come_behind_those_for_all(tmp_path: Path) -> None:
    text = _step('configure = { x86-64-v3 = ["--enable-avx2"], all = ["--disable-static"] }')
    (native,) = recipe(tmp_path, CPU + text).natives
    assert native.arguments_for(V1) == ("--disable-static",)
    assert native.arguments_for(V3) == ("--disable-static", "--enable-avx2")


def test_a_project_has_its_steps_in_its_own_table(tmp_path: Path) -> None:
    tables = _step(source='source = { path = "../gmp" }').replace("[[native]]", "[[tool.vbuild.native]]")
    (tmp_path / "gmp").mkdir()
    folder = project(tmp_path, '[tool.vbuild.matrix]\ncpu = ["x86-64"]\n' + tables)
    assert [native.source for native in Recipe.load(folder).natives] == [Folder((tmp_path / "gmp").resolve())]


REFUSALS = [
    (_step(source=""), "native[0].source: missing; expected a table"),
    (_step().replace('name = "gmp"\n', ""), "native[0].name: missing; expected a string"),
    (
        _step(name="../gmp"),
        "native[0].name: '../gmp' is not a name for it; expected a-z, 0-9, +, ., _ and -, a letter or digit first",
    ),
    (_step() + _step(), "native[1].name: 'gmp' is there twice; expected each native dependency once"),
    (_step(build='"bazel"'), "native[0].build: found 'bazel'; expected 'autotools', 'cmake', 'meson' or 'script'"),
    (_step().replace('build = "autotools"', ""), "native[0].build: missing; expected a string"),
    (
        _step("level = true"),
        "native[0].level: no such key; known here: before-build, build, configure, env, flags, keep-flags, name, ",
    ),
    (
        _step(source="source = {}"),
        "native[0].source: found none; expected exactly one of debian, sdist, path, git",
    ),
    (
        _step(source='source = { debian = "gmp", path = "." }'),
        "native[0].source: found debian and path; expected exactly one of debian, sdist, path, git",
    ),
    (_step(source='source = { debian = "gmp" }'), "native[0].source.version: missing; expected a string"),
    (
        _step(source='source = { debian = "gmp", version = "6.3.0" }'),
        "native[0].source.sha256: missing; expected a string",
    ),
    (
        _step(source=f'source = {{ debian = "GMP", version = "6.3.0", sha256 = "{HASH}" }}'),
        "native[0].source.debian: 'GMP' is not the name of a Debian source package",
    ),
    (
        _step(source=f'source = {{ debian = "gmp", version = "2:6.3.0", sha256 = "{HASH}" }}'),
        "native[0].source.version: '2:6.3.0' is not an upstream version; expected it as in 6.3.0+dfsg, without epoch",
    ),
    (
        _step(source='source = { debian = "gmp", version = "6.3.0", sha256 = "beef" }'),
        "native[0].source.sha256: 'beef' is not a SHA-256; expected 64 hex digits, lower case",
    ),
    (
        _step(source=f'source = {{ debian = "gmp", version = "1", sha256 = "{HASH}", subdirectory = "/x" }}'),
        "native[0].source.subdirectory: '/x' does not stay inside the source; expected a path below it with /",
    ),
    (
        _step('script = ["make"]'),
        "native[0].script: would have no effect, as build is 'autotools'; before-build is for what precedes",
    ),
    (_step(build='"script"'), "native[0].script: missing; expected an array"),
    (
        _step("script = []", build='"script"'),
        "native[0].script: found no line; expected the commands that build and install",
    ),
    (
        _step('script = ["make"]\nconfigure = []', build='"script"'),
        "native[0].configure: would have no effect, as build is 'script'; write it into the script",
    ),
    (
        _step('configure = { x = ["--fast"] }'),
        "native[0].configure.x: no CPU level 'x'; expected x86-64, x86-64-v2, -v3, -v4, or armv8-a, armv8.1-a ...",
    ),
    (
        _step('per-level = false\nconfigure = { x86-64-v3 = ["--fast"] }'),
        "native[0].configure.x86-64-v3: would have no effect, as per-level is false; expected an array for all",
    ),
    (
        _step('configure = { x86-64-v4 = ["--fast"] }'),
        "native gmp: configure: no wheel is for x86-64-v4; there are x86-64, x86-64-v3",
    ),
    (_step('configure = "--fast"'), "native[0].configure: expected an array, got '--fast'"),
    (
        _step('env = { "A B" = "1" }'),
        "native[0].env: 'A B' with '1' cannot be an environment variable",
    ),
    (
        _step('requires = ["cmake =="]'),
        "native[0].requires[0]: 'cmake ==' is not a requirement: ",
    ),
    (
        _step('patches = ["gone.patch"]'),
        "native[0].patches[0]: no patch 'gone.patch'; paths start where the recipe stands",
    ),
    ("native = 3\n", "native: expected an array, got 3"),
]


@pytest.mark.parametrize(("text", "message"), REFUSALS, ids=[message[:60] for _, message in REFUSALS])
def test_what_cannot_be_carried_out_is_refused(tmp_path: Path, text: str, message: str) -> None:
    steps = text if text.startswith("[[") else ""
    top = "" if steps else text
    with pytest.raises(VbuildError) as refused:
        recipe(tmp_path, CPU + steps, source=top + SOURCE)
    assert str(refused.value).startswith(f"{tmp_path / 'demo.toml'}: {message}")
