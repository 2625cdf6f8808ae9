"""A release made in parts: by label, by Python, and what each part leaves to `vbuild collect`."""

import os
from pathlib import Path

import pytest

from tests.factories.projects import KERNEL, c_project, tree
from tests.factories.tools import needs
from vbuild.build.init import AskedAxes
from vbuild.errors import RecipeError
from vbuild.release.cache import BuildCache
from vbuild.release.matrix import MatrixRequest, jobs_of, matrix

LEVELS = '[matrix]\ncpu = ["x86-64", "x86-64-v2"]\n'
# where dot is an illegal instruction
NOT_EMULATED = "[test]\nemulate = 'never'\n"

# the plain build has dot as well, and never calls it; that is what excuses the v2 build, which does
LIKE_THE_BASELINE = """
typedef float sixteen __attribute__((vector_size(64), aligned(4)));
void dot(void) { __asm__ volatile("vpaddd %ymm0, %ymm1, %ymm2"); }
int asks(void) { return __builtin_cpu_supports("avx2"); }
void kernel(float *a, const float *b) {
    *(sixteen *)a += *(const sixteen *)b;
#ifdef __SSE4_2__
    dot();
#endif
}
"""

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64"),
    needs("gcc"),
]


def recipe(folder: Path, text: str, *, kernel: str = KERNEL) -> Path:
    """A recipe for a project, beside the project."""
    c_project(folder / "project", kernel=kernel)
    tree(folder, {"demo.toml": f'name = "demo"\n[source]\npath = "project"\n{text}'})
    return folder / "demo.toml"


def wheels(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.whl"))


def test_a_python_that_the_recipe_does_not_have_is_refused(tmp_path: Path) -> None:
    source = recipe(tmp_path, f'{LEVELS}python = ["3.11", "3.12"]\n')
    for call in (jobs_of, lambda path, options: matrix(path, tmp_path / "dist", options)):
        with pytest.raises(RecipeError) as refusal:
            call(source, MatrixRequest(axes=AskedAxes(pythons=("3.11", "3.99"))))
        assert str(refusal.value) == f"{source}: no Python '3.99'; there are 3.11, 3.12"
    assert not (tmp_path / "dist").exists()


@pytest.mark.nightly
def test_a_part_does_not_judge_what_only_the_baseline_explains(tmp_path: Path) -> None:
    source = recipe(tmp_path, f"{LEVELS}{NOT_EMULATED}", kernel=LIKE_THE_BASELINE)
    whole = matrix(source, tmp_path / "whole", store=BuildCache(tmp_path / "others"))
    assert not whole.failures
    store = BuildCache(tmp_path / "store")
    [alone] = matrix(source, tmp_path / "alone", MatrixRequest(only=["x86_64_v2"]), store=store).failures
    assert "needs AVX2 (v3), above the claimed x86-64-v2: 1 function: dot (" in alone.error
    part = matrix(source, tmp_path / "part", MatrixRequest(only=["x86_64_v2"], is_part=True), store=store)
    [product] = part.products
    assert not part.failures
    assert product.verdict.failed
    assert [product.wheel.name] == wheels(tmp_path / "part")
    assert product.wheel.read_bytes() == whole.products[1].wheel.read_bytes()


@pytest.mark.nightly
def test_a_part_that_is_not_proved_is_not_kept_as_proved(tmp_path: Path) -> None:
    source = recipe(tmp_path, f"{LEVELS}{NOT_EMULATED}", kernel=LIKE_THE_BASELINE)
    store = BuildCache(tmp_path / "store")
    for folder, is_built in (("first", True), ("again", False)):
        [product] = matrix(
            source, tmp_path / folder, MatrixRequest(only=["x86_64_v2"], is_part=True), store=store
        ).products
        # the build is kept, the finished wheel is not
        assert (product.is_built, product.is_kept) == (is_built, False)
    [failure] = matrix(source, tmp_path / "alone", MatrixRequest(only=["x86_64_v2"]), store=store).failures
    assert "above the claimed x86-64-v2" in failure.error


@pytest.mark.nightly
def test_a_part_that_is_proved_is_kept(tmp_path: Path) -> None:
    source = recipe(tmp_path, LEVELS)
    store = BuildCache(tmp_path / "store")
    for folder, is_kept in (("first", False), ("again", True)):
        [product] = matrix(
            source, tmp_path / folder, MatrixRequest(only=["x86_64_v2"], is_part=True), store=store
        ).products
        assert product.is_kept is is_kept
