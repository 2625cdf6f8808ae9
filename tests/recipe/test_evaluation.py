"""From the axes to the wheels: what is built, under which label, with which properties."""

import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.recipes import recipe
from vbuild.errors import RecipeError
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.matrix import Axis, AxisValue, Matrix, MatrixRule
from vbuild.recipe.target import Target, evaluated, merged

LEVELS = tuple(Cpu.known("x86_64", level) for level in ("v1", "v2", "v3", "v4"))
V1, V2, V3, V4 = LEVELS
BLAS = """
[matrix.axes.blas.openblas]
properties = ["blas :: library :: openblas"]
env = { BLAS = "openblas" }
config-settings = { setup-args = ["-Dblas=openblas"], mode = "fast" }
[matrix.axes.blas.mkl]
properties = ["blas :: library :: mkl"]
env = { BLAS = "mkl" }
"""


def _axis(name: str, *values: str) -> Axis:
    return Axis(name, tuple(AxisValue(value, (f"{name} :: is :: {value}",)) for value in values))


def _labels(targets: tuple[Target, ...]) -> list[str]:
    return [str(target) for target in targets]


def test_a_plain_point_with_properties_is_one_build_under_two_names() -> None:
    targets = evaluated(Matrix(cpus=(V1, V3), pythons=("3.12",), axes=(_axis("blas", "openblas", "mkl"),)))
    assert _labels(targets) == ["plain", "openblas", "mkl", "x86_64_v3_openblas", "x86_64_v3_mkl"]
    assert targets[0].build_key == targets[1].build_key
    assert len({target.build_key for target in targets}) == len(targets) - 1


def test_a_value_gives_its_builds_variables_and_settings(tmp_path: Path) -> None:
    build = '[build]\nenv = { BLAS = "any", X = "1" }\nconfig-settings = { setup-args = ["-Da"], mode = "slow" }\n'
    targets = recipe(tmp_path, '[matrix]\npython = ["3.12"]\n' + BLAS + build).targets
    assert _labels(targets) == ["plain", "openblas", "mkl"]
    assert targets[1].env == (("BLAS", "openblas"), ("X", "1"))
    assert targets[1].config_settings == (("setup-args", ("-Da", "-Dblas=openblas")), ("mode", "fast"))
    assert targets[2].config_settings == (("setup-args", ("-Da",)), ("mode", "slow"))


@pytest.mark.parametrize(
    ("before", "later", "both"),
    [
        ("a", "b", "b"),
        (("a",), ("b",), ("a", "b")),
        ("a", ("b",), ("a", "b")),
        (("a",), "b", ("a", "b")),
    ],
)
def test_arrays_of_settings_are_joined_and_strings_replaced(
    before: str | tuple[str, ...], later: str | tuple[str, ...], both: str | tuple[str, ...]
) -> None:
    assert merged((("key", before),), (("key", later),)) == (("key", both),)


def test_levels_of_a_machine_without_levels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(RecipeError, match="no CPU levels are known for 'riscv64'; expected one of x86_64, aarch64"):
        evaluated(Matrix(axes=(_axis("blas", "mkl"),)))


_AXES = st.lists(st.integers(1, 3), max_size=3).map(
    lambda sizes: tuple(_axis(f"a{index}", *(f"v{index}{n}" for n in range(size))) for index, size in enumerate(sizes))
)
_CPUS = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=4, unique=True).map(tuple)
_PYTHONS = st.lists(st.sampled_from(("3.11", "3.12", "3.13")), min_size=1, max_size=2, unique=True).map(tuple)
_MATRICES = st.builds(Matrix, _CPUS, _PYTHONS, _AXES)


def _rule(data: st.DataObject, matrix: Matrix) -> MatrixRule:
    axes = data.draw(st.lists(st.sampled_from(sorted(matrix.names)), min_size=1, unique=True))
    return MatrixRule("rule", tuple((axis, (data.draw(st.sampled_from(matrix.names[axis])),)) for axis in axes))


@given(_MATRICES, st.data())
def test_what_is_excluded_is_gone_and_nothing_else(matrix: Matrix, data: st.DataObject) -> None:
    rule = _rule(data, matrix)
    whole = {target for target in evaluated(matrix) if target.label}
    try:
        rest = {
            target for target in evaluated(Matrix(matrix.cpus, matrix.pythons, matrix.axes, (rule,))) if target.label
        }
    except RecipeError as error:
        assert str(error).startswith("matrix.exclude: leaves nothing for Python ")  # noqa: PT017 - drawn
        return
    assert rest <= whole
    gone = {target for target in whole if rule.matches(_point(target))}
    assert rest == whole - gone


def _point(target: Target) -> dict[str, str]:
    return {"cpu": str(target.cpu), "python": target.python, **dict(target.choices)}
