"""What the plain wheel of a matrix is asked to be, and where that is refused."""

from pathlib import Path

import pytest

from tests.factories.recipes import recipe
from vbuild.errors import VbuildError
from vbuild.release.matrix import baseline_of

LEVELS = '[matrix]\npython = ["3.12", "3.13"]\ncpu = ["x86-64", "x86-64-v3", "x86-64-v4"]\n'
HWCAPS = 'plain = "hwcaps"\n'
AXES = '[matrix.axes.blas.own]\n[matrix.axes.blas.other]\nproperties = ["blas :: is :: other"]\n'


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(VbuildError) as refused:
        recipe(folder, text)
    return str(refused.value).removeprefix(f"{folder / 'demo.toml'}: ")


def test_a_plain_wheel_of_a_level_has_no_properties_and_others_are_for_more(tmp_path: Path) -> None:
    text = '[matrix]\npython = ["3.12"]\nplain = "x86-64-v2"\ncpu = ["x86-64-v3", "x86-64-v4+avx512_bf16"]\n'
    plain, v3, bf16 = recipe(tmp_path, text).targets
    assert (plain.label, str(plain.cpu), plain.properties, plain.asks_for_cpu) == (None, "x86-64-v2", (), False)
    assert (v3.label, v3.properties) == ("x86_64_v3", ("x86_64 :: level :: v3",))
    assert (bf16.label, bf16.properties) == (
        "x86_64_v4_avx512_bf16",
        ("x86_64 :: level :: v4", "x86_64 :: avx512_bf16 :: on"),
    )
    assert not bf16.is_level_of(plain)
    assert baseline_of(bf16, (v3, plain)) == plain
    assert baseline_of(plain, (v3, plain)) is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            '[matrix]\nplain = "x86-64-v3"\ncpu = ["x86-64-v4", "x86-64-v2"]\n',
            "matrix.cpu[1]: x86-64-v2 is not above the plain wheel, which is for x86-64-v3: remove it",
        ),
        (
            '[matrix]\nplain = "armv8.2-a"\ncpu = ["x86-64-v4"]\n',
            "matrix.plain: armv8.2-a and x86-64-v4 are of different machines; expected a level of one",
        ),
        (
            '[matrix]\nplain = "x86-64-v2+aes"\ncpu = ["x86-64-v4"]\n',
            "matrix.plain: 'x86-64-v2+aes': expected a level alone, 'x86-64-v2': features are for variants",
        ),
        (
            '[matrix]\n[matrix.axes.dots.bf16]\nproperties = ["x86_64 :: avx512_bf16 :: on"]\n',
            (
                "matrix.axes.dots.bf16.properties[0]: 'x86_64 :: avx512_bf16 :: on' is a CPU feature; expected it in "
                "matrix.cpu, as 'x86-64-v4+avx512_bf16'"
            ),
        ),
    ],
    ids=["level below", "machine", "feature", "feature as an axis"],
)
def test_levels_that_contradict_the_plain_wheel_are_refused(tmp_path: Path, text: str, what: str) -> None:
    assert refusal(tmp_path, text) == what


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            LEVELS + HWCAPS + 'cuda = [{ toolkit = "13.0", gpus = { sm90 = "90" } }]\n',
            "matrix.plain: 'hwcaps' is for CPU levels alone; with matrix.cuda expected 'cuda' or 'cpu'",
        ),
        (
            '[matrix]\ncpu = ["x86-64"]\n' + HWCAPS,
            "matrix.plain: 'hwcaps' joins builds for CPU levels; expected some above x86-64 in matrix.cpu",
        ),
        (
            "[matrix]\n" + HWCAPS + AXES,
            "matrix.plain: 'hwcaps' joins builds for CPU levels; expected some above x86-64 in matrix.cpu",
        ),
        (
            '[matrix]\ncpu = ["armv8-a", "armv8.2-a"]\n' + HWCAPS,
            "matrix.plain: 'hwcaps' needs levels that glibc knows; it has none for aarch64",
        ),
        (
            LEVELS + HWCAPS + 'exclude = [{ cpu = ["x86-64-v3", "x86-64-v4"], python = "3.13" }]\n',
            (
                "matrix.plain: 'hwcaps' has nothing to join for Python 3.13; expected a point that differs from the "
                "plain wheel's in its CPU level alone"
            ),
        ),
        (
            LEVELS + 'plain = "none"\n',
            "matrix.plain: found 'none'; expected 'cuda', 'cpu', 'hwcaps', or a CPU level as in 'x86-64-v2'",
        ),
    ],
    ids=["cuda", "baseline only", "no cpu", "aarch64", "a Python without levels", "no such word"],
)
def test_what_there_is_nothing_to_join_for_is_refused(tmp_path: Path, text: str, what: str) -> None:
    assert refusal(tmp_path, text) == what
