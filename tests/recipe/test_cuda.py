"""From toolkits and groups of GPUs to wheels: labels, properties, and what each build is compiled for."""

from pathlib import Path

from tests.factories.recipes import recipe
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import GpuList
from vbuild.recipe.compiling import (
    Archs,
    Compress,
    CudaSettings,
    FileRule,
    ToolkitSpec,
)
from vbuild.recipe.target import Target

PYTHON = 'python = ["3.12"]\n'
TWO = 'cuda = [{ toolkit = "13.0", gpus = { sm80 = "80", sm90 = "90" } }]\n'
LEVELS = 'cpu = ["x86-64", "x86-64-v3"]\n'


def _rows(targets: tuple[Target, ...]) -> list[tuple[str, str | None, str | None]]:
    """Each target by its name, what its build is compiled for, and what its wheel is cut to."""
    return [
        (str(target), str(target.cuda.archs) if target.cuda else None, str(target.gpus) if target.gpus else None)
        for target in targets
    ]


def test_the_recipe_may_order_the_namespaces_otherwise(tmp_path: Path) -> None:
    priority = 'priority = ["x86_64", "nvidia"]\n'
    assert recipe(tmp_path, "[matrix]\n" + LEVELS + TWO + priority).namespaces() == ("x86_64", "nvidia")


def test_a_plain_wheel_without_cuda_brings_levels_without_cuda(tmp_path: Path) -> None:
    targets = recipe(tmp_path, "[matrix]\n" + PYTHON + LEVELS + TWO + 'plain = "cpu"\n').targets
    assert _rows(targets) == [
        ("plain", None, None),
        ("sm80", "sm_80,sm_90", "sm_80"),
        ("sm90", "sm_80,sm_90", "sm_90"),
        ("x86_64_v3", None, None),
        ("x86_64_v3_sm80", "sm_80,sm_90", "sm_80"),
        ("x86_64_v3_sm90", "sm_80,sm_90", "sm_90"),
    ]
    assert targets[3].properties == ("x86_64 :: level :: v3",)
    assert len({target.build_key for target in targets}) == 4


def test_separate_groups_are_builds_of_their_own_and_the_plain_wheel_is_for_all(tmp_path: Path) -> None:
    text = TWO.replace('"13.0"', '"13.0", strategy = "separate"')
    targets = recipe(tmp_path, "[matrix]\n" + PYTHON + text).targets
    assert _rows(targets) == [
        ("plain", "sm_80,sm_90", None),
        ("sm80", "sm_80", None),
        ("sm90", "sm_90", None),
    ]
    assert len({target.build_key for target in targets}) == 3


def test_an_installed_toolkit_is_named_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    text = '[matrix]\ncuda = [{ toolkit = { path = "cuda", version = "12.4" }, gpus = { sm80 = "80" } }]\n'
    plain = recipe(tmp_path, text + PYTHON).targets[0]
    assert plain.cuda
    assert plain.cuda.toolkit == ToolkitSpec(Dotted(12, 4), (tmp_path / "cuda").resolve())
    assert plain.build_key[-1] == f"CUDA 12.4 {tmp_path.resolve()}/cuda for sm_80"


def test_the_options_of_nvcc_are_read(tmp_path: Path) -> None:
    text = """[build.cuda]
archs = "replace"
compress = "size"
lineinfo = true
files = { "*_sm90.cu" = "90a", "third_party/*" = "keep", "b.cu" = ["80", "9.0+PTX"] }
"""
    assert recipe(tmp_path, "[matrix]\n" + TWO + text).build.cuda == CudaSettings(
        Archs.REPLACE,
        (
            FileRule("*_sm90.cu", GpuList.parse("90a")),
            FileRule("third_party/*", Archs.KEEP),
            FileRule("b.cu", GpuList.parse("80,90+ptx")),
        ),
        Compress.SIZE,
        lineinfo=True,
    )
    assert recipe(tmp_path, "[matrix]\n" + TWO).build.cuda == CudaSettings()
