"""`plain = "hwcaps"`: the plain wheel of a release is its builds for all CPU levels, of which each processor picks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from tests.factories.projects import tree
from tests.factories.tools import needs
from tests.factories.wheels import contents
from vbuild.build.init import AskedAxes
from vbuild.elf.linkage import level_of
from vbuild.errors import RecipeError
from vbuild.hardware.machine import Machine
from vbuild.recipe.model import TrialResult
from vbuild.release.cache import BuildCache
from vbuild.release.collect import collect
from vbuild.release.matrix import MatrixRequest, jobs_of, matrix
from vbuild.release.model import ReleaseResult
from vbuild.release.report import schema
from vbuild.verification.level_runs import levels_of

# says which build it is, which no compiler could make of one level's code
MODULE = """
#include <Python.h>
typedef float sixteen __attribute__((vector_size(64), aligned(4)));
void kernel(float *a, const float *b) { *(sixteen *)a += *(const sixteen *)b; }
#if defined(__AVX512F__)
#define LEVEL "v4"
#elif defined(__AVX2__)
#define LEVEL "v3"
#else
#define LEVEL "v1"
#endif
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "demo", LEVEL, -1, 0, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_demo(void) {
    static float a[16], b[16];
    kernel(a, b);
    return PyModule_Create(&definition);
}
"""
SETUP = """
from setuptools import Extension, setup
setup(name="demo", version="1.0", ext_modules=[Extension("demo", ["module.c"], extra_compile_args=["-g0"]{links})])
"""
LEVELS = '[matrix]\ncpu = ["x86-64", "x86-64-v3", "x86-64-v4"]\nplain = "hwcaps"\n'
TEST = "[test]\ncommand = \"python -c 'import demo; print(demo.__doc__)'\"\nemulate = 'never'\n"
VARIANTS = [None, "x86_64_v3", "x86_64_v4"]

here = Machine.here().cpu
pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(not here or here.level != "v4", reason="tests all levels, so it needs a machine of level v4"),
    needs("gcc"),
]


def recipe(folder: Path, text: str = LEVELS + TEST, *, module: str = MODULE, links: str = "") -> Path:
    """A recipe for three levels of a module, joined, beside the project."""
    tree(folder / "project", {"setup.py": SETUP.format(links=links), "module.c": module})
    tree(folder, {"demo.toml": f'name = "demo"\n[source]\npath = "project"\n{text}'})
    return folder / "demo.toml"


def plain_of(release: ReleaseResult) -> Path:
    (plain,) = (product.wheel for product in release.products if product.label is None)
    return plain


def answers(wheels: Path, folder: Path, **levels: str) -> dict[str, str]:
    """What the plain wheel in *wheels*, installed by pip, says that it is where features of the CPU are *masked*."""
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(wheels), "--target", str(folder)]
    subprocess.run([*pip, "demo"], check=True, capture_output=True)
    found = {}
    for level, masked in levels.items():
        variables = {**os.environ, "PYTHONPATH": str(folder), "GLIBC_TUNABLES": f"glibc.cpu.hwcaps={masked}"}
        program = [sys.executable, "-c", "import demo; print(demo.__doc__)"]
        found[level] = subprocess.run(program, env=variables, check=True, capture_output=True, text=True).stdout.strip()
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ReleaseResult, BuildCache]:
    """The recipe, what came of it in one run, and the store that has it."""
    folder = tmp_path_factory.mktemp("whole")
    source, store = recipe(folder), BuildCache(folder / "store")
    return source, matrix(source, folder / "dist", store=store), store


def test_the_plain_wheel_has_all_levels_and_the_variants_stay_beside_it(
    whole: tuple[Path, ReleaseResult, BuildCache],
) -> None:
    _, release, _ = whole
    assert release.failures == ()
    assert [product.label for product in release.products] == VARIANTS
    assert levels_of(plain_of(release)) == ("v1", "v3", "v4")
    plain, *variants = release.products
    assert (plain.verdict.failed, plain.verdict.levels, plain.trial) == (False, ("v3", "v4"), TrialResult.PASSED)
    assert plain.verdict.isa == "ok, with v3, v4"
    assert not any(level_of(path) for product in variants for path in contents(product.wheel))
    assert release.notes == (f"{plain.wheel.name}: joined of v1, v3, v4; its test works as v1, v3, v4",)


def test_pip_installs_it_and_each_processor_loads_its_own(
    whole: tuple[Path, ReleaseResult, BuildCache], tmp_path: Path
) -> None:
    _, release, _ = whole
    found = answers(plain_of(release).parent, tmp_path / "site", v4="", v3="-AVX512F", v1="-AVX512F,-AVX2")
    assert found == {"v4": "v4", "v3": "v3", "v1": "v1"}


def test_the_report_tells_of_the_levels(whole: tuple[Path, ReleaseResult, BuildCache]) -> None:
    _, release, _ = whole
    folder = plain_of(release).parent
    told = json.loads((folder / "report.json").read_text())
    Draft202012Validator(schema()).validate(told)
    assert told["notes"] == list(release.notes)
    members = [library["member"] for library in told["wheels"][0]["verdict"]["libraries"]]
    assert sorted(filter(None, map(level_of, members))) == ["v3", "v4"]
    assert "x86-64, up to v4 by glibc" in (folder / "report.html").read_text()


def test_a_second_run_takes_the_joined_wheel_from_the_store(
    whole: tuple[Path, ReleaseResult, BuildCache], tmp_path: Path
) -> None:
    source, first, store = whole
    steps: list[tuple[str, str]] = []
    again = matrix(source, tmp_path, store=store, on_progress=lambda target, step: steps.append((str(target), step)))
    assert steps[3:] == [("plain", "kept"), ("x86_64_v3", "kept"), ("x86_64_v4", "kept")]
    assert plain_of(again).read_bytes() == plain_of(first).read_bytes()
    assert (again.notes, again.kept_wheels, again.products[0].trial) == (first.notes, 3, TrialResult.PASSED)


def test_a_joined_wheel_in_the_store_is_not_taken_for_the_bare_one(
    whole: tuple[Path, ReleaseResult, BuildCache], tmp_path: Path
) -> None:
    source, first, store = whole
    text = source.read_text().replace('plain = "hwcaps"\n', "")
    bare = source.with_name("bare.toml")
    bare.write_text(text)
    release = matrix(bare, tmp_path, store=store)
    assert (release.kept_wheels, levels_of(plain_of(release)), release.notes) == (3, ("v1",), ())
    assert plain_of(release).name == plain_of(first).name


def test_one_wheel_of_all_levels_comes_alone_whatever_the_recipe_says_of_the_plain_one(
    whole: tuple[Path, ReleaseResult, BuildCache], tmp_path: Path
) -> None:
    source, first, store = whole
    bare = source.with_name("bare.toml")
    bare.write_text(source.read_text().replace('plain = "hwcaps"\n', ""))
    request = MatrixRequest(axes=AskedAxes(is_one_wheel=True))
    release = matrix(bare, tmp_path, request, store=store)
    assert [path.name for path in tmp_path.glob("*.whl")] == [plain_of(first).name]
    assert plain_of(release).read_bytes() == plain_of(first).read_bytes()
    assert not list(tmp_path.glob("*variants.json"))
    with pytest.raises(RecipeError, match="expected the whole release"):
        matrix(bare, tmp_path, replace(request, is_part=True), store=store)


@pytest.mark.nightly
def test_parts_hold_the_bare_wheel_and_collecting_joins_them(
    whole: tuple[Path, ReleaseResult, BuildCache], tmp_path: Path
) -> None:
    source, first, store = whole
    for label in ("plain", "x86_64_v3", "x86_64_v4"):
        part = matrix(source, tmp_path / "parts" / label, MatrixRequest(only=[label], is_part=True), store=store)
        assert not any(level_of(path) for path in contents(part.products[0].wheel))
    release = collect([tmp_path / "parts"], tmp_path / "dist", recipe=source)
    assert release.failures == ()
    assert plain_of(release).read_bytes() == plain_of(first).read_bytes()
    assert (release.notes, release.products[0].trial) == (first.notes, TrialResult.PASSED)
    again = collect([tmp_path / "dist"], tmp_path / "again", recipe=source)
    assert (again.failures, plain_of(again).read_bytes()) == ((), plain_of(first).read_bytes())


def test_a_part_that_lacks_leaves_no_plain_wheel_that_lacks_its_level(
    whole: tuple[Path, ReleaseResult, BuildCache], tmp_path: Path
) -> None:
    source, first, store = whole
    part = tmp_path / "part"
    for label in ("plain", "x86_64_v3"):
        matrix(source, part / label, MatrixRequest(only=[label], is_part=True), store=store)
    release = collect([part], tmp_path / "dist", recipe=source)
    assert [(str(failure.target), failure.error) for failure in release.failures] == [
        ("plain", f"{plain_of(first).name}: no wheel for x86-64-v4 to join the plain one with"),
        ("x86_64_v4", "no part has it"),
    ]
    assert [product.label for product in release.products] == ["x86_64_v3"]


@pytest.mark.nightly
def test_a_level_that_fails_fails_the_plain_wheel_and_leaves_the_others(tmp_path: Path) -> None:
    source = recipe(tmp_path, module=f"#ifdef __AVX512F__\n#error no v4, please\n#endif\n{MODULE}")
    release = matrix(source, tmp_path / "dist")
    plain, v4 = release.failures
    assert plain.error.endswith("no wheel for x86-64-v4 to join the plain one with")
    assert "no v4, please" in v4.error
    assert [product.label for product in release.products] == ["x86_64_v3"]


@pytest.mark.nightly
def test_a_test_that_only_one_level_of_the_joined_wheel_fails_fails_it(tmp_path: Path) -> None:
    # a variant is loaded from its own module, and a copy from a folder of its own
    look = "import demo; maps = open('/proc/self/maps').read(); assert 'x86-64-v3/' not in maps"
    source = recipe(tmp_path, f"{LEVELS}[test]\ncommand = '''python -c \"{look}\"'''\n")
    release = matrix(source, tmp_path / "dist")
    (failure,) = release.failures
    assert failure.target.label is None
    assert "v3 by GLIBC_TUNABLES: test: failed with status 1: AssertionError; its log is" in failure.error
    assert failure.log
    assert "[v3 by GLIBC_TUNABLES] python -c" in failure.log.read_text()
    assert [product.label for product in release.products] == VARIANTS[1:]
    assert not [path for path in (tmp_path / "dist").glob("*.whl") if path.stem.endswith("x86_64")]


@pytest.mark.nightly
def test_only_the_first_values_of_free_axes_are_joined(tmp_path: Path) -> None:
    axes = '[matrix.axes.blas.own]\n[matrix.axes.blas.other]\nproperties = ["blas :: is :: other"]\n'
    provider = '[variant.providers.blas]\nstatic-properties.is = ["other"]\n'
    source = recipe(tmp_path, LEVELS.replace(', "x86-64-v4"', "") + axes + TEST + provider)
    release = matrix(source, tmp_path / "dist")
    assert release.failures == ()
    assert sorted(str(product.label) for product in release.products) == [
        "None",
        "other",
        "x86_64_v3",
        "x86_64_v3_other",
    ]
    assert levels_of(plain_of(release)) == ("v1", "v3")


def test_the_plain_wheel_alone_is_refused_and_its_part_is_not(
    whole: tuple[Path, ReleaseResult, BuildCache], tmp_path: Path
) -> None:
    source, _, _ = whole
    with pytest.raises(RecipeError) as refusal:
        matrix(source, tmp_path, MatrixRequest(only=["plain", "x86_64_v3"]))
    assert str(refusal.value) == (
        f"{source}: matrix.plain: the plain wheel is joined of x86_64_v4 too; choose these as well, or build a part"
    )
    with pytest.raises(RecipeError, match="joined of x86_64_v3, x86_64_v4 too"):
        jobs_of(source, MatrixRequest(only=["plain"]))
    assert [job.target.label for job in jobs_of(source, MatrixRequest(only=["plain"], is_part=True))] == [None]
    release = matrix(source, tmp_path / "v3", MatrixRequest(only=["x86_64_v3"]))
    assert [product.label for product in release.products] == ["x86_64_v3"]
