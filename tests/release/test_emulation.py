"""`vbuild matrix` with an emulator of each wheel's level: what runs above it fails, whatever else let it pass."""

import sys
from pathlib import Path

import pytest

from tests.factories.projects import KERNEL, c_project, tree
from tests.factories.tools import needs
from vbuild.cli.render import release_lines
from vbuild.errors import BuildError
from vbuild.release.cache import BuildCache
from vbuild.release.matrix import MatrixRequest, matrix
from vbuild.release.model import ReleaseResult

# the module's own initialisation runs it
WIDE = KERNEL.replace("void kernel", '__attribute__((target("avx2"))) void kernel')
ALLOWED = "[verify]\nallow = ['kernel']\nagainst = 'none'\n"
TEST = '[test]\ncommand = "true"\n'

pytestmark = pytest.mark.network


def released(folder: Path, more: str, kernel: str = WIDE) -> ReleaseResult:
    c_project(folder / "project", flags=(), kernel=kernel)
    recipe = f'name = "demo"\n[source]\npath = "project"\n[matrix]\ncpu = ["x86-64"]\n{more}'
    tree(folder, {"demo.toml": recipe})
    return matrix(folder / "demo.toml", folder / "dist", MatrixRequest(), store=BuildCache(fresh=True))


@needs("qemu-x86_64")
def test_code_above_the_level_that_was_allowed_and_runs_fails_and_is_named(tmp_path: Path) -> None:
    (failure,) = released(tmp_path, ALLOWED + TEST).failures
    assert "code above x86-64 runs on a processor without it, as qemu-x86_64 " in failure.error
    assert "import: demo: the process was ended by SIGILL; SIGILL at " in failure.error
    assert "(AVX) in kernel of demo.cpython-3" in failure.error
    assert "test.emulate = 'never' leaves the emulator out" in failure.error
    assert failure.log


@needs("qemu-x86_64")
def test_a_wheel_without_a_test_is_imported_as_its_level(tmp_path: Path) -> None:
    release = released(tmp_path, "", KERNEL)
    assert next(line for line in release_lines(release) if line.startswith("plain")).endswith(" imported as v1")


@pytest.mark.nightly
@needs("qemu-x86_64")
@pytest.mark.parametrize(
    ("more", "is_run"), [("", True), ("[test]\nemulate = 'never'\n", False), ("[test]\nemulate = 'always'\n", True)]
)
def test_a_recipe_says_whether_the_emulator_judges(tmp_path: Path, more: str, *, is_run: bool) -> None:
    release = released(tmp_path, ALLOWED + more)
    assert bool(release.failures) is is_run


def test_a_missing_emulator_on_which_a_recipe_insists_is_refused_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    with pytest.raises(BuildError) as refusal:
        released(tmp_path, "[test]\nemulate = 'always'\n")
    assert str(refusal.value) == (
        "test.emulate is 'always', and qemu-x86_64 is not installed; Debian and Ubuntu have it in qemu-user"
    )
    assert not (tmp_path / "dist").exists()
