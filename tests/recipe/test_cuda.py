"""From toolkits and groups of GPUs to wheels: labels, properties, and what each build is compiled for."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.recipes import recipe
from vbuild.hardware.architectures import Arch
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import GpuList, GpuRequest
from vbuild.recipe.compiling import (
    NEWEST_GLIBC,
    Archs,
    Compress,
    CudaSettings,
    FileRule,
    HostCompiler,
    HostSettings,
    Strategy,
    ToolkitSpec,
)
from vbuild.recipe.matrix import Axis, AxisValue, GpuGroup, Matrix, MatrixEntry, MatrixRule, Plain
from vbuild.recipe.target import Target, evaluated

PYTHON = 'python = ["3.12"]\n'
TOOLKIT = (
    'cuda = [{ toolkit = "13.0", gpus = { sm75 = "75", sm80 = "80,86,89", sm90 = "90,90a", sm120 = "120+ptx" } }]\n'
)
TWO = 'cuda = [{ toolkit = "13.0", gpus = { sm80 = "80", sm90 = "90" } }]\n'
LEVELS = 'cpu = ["x86-64", "x86-64-v3"]\n'
ALL = "sm_75,sm_80,sm_86,sm_89,sm_90,sm_90a,sm_120+PTX"
BOUND = "nvidia :: cuda_version_lower_bound :: "


def _rows(targets: tuple[Target, ...]) -> list[tuple[str, str | None, str | None]]:
    """Each target by its name, what its build is compiled for, and what its wheel is cut to."""
    return [
        (str(target), str(target.cuda.archs) if target.cuda else None, str(target.gpus) if target.gpus else None)
        for target in targets
    ]


def _claims(target: Target) -> list[str]:
    """The values that *target* claims of NVIDIA's features, the lower bound last."""
    return [text.split(" :: ")[2] for text in target.properties if text.startswith("nvidia ::")]


def test_one_build_serves_all_groups_of_a_toolkit(tmp_path: Path) -> None:
    targets = recipe(tmp_path, "[matrix]\n" + PYTHON + TOOLKIT).targets
    assert _rows(targets) == [
        ("plain", ALL, None),
        ("sm75", ALL, "sm_75"),
        ("sm80", ALL, "sm_80,sm_86,sm_89"),
        ("sm90", ALL, "sm_90,sm_90a"),
        ("sm120", ALL, "sm_120+PTX"),
    ]
    assert {target.build_key for target in targets} == {("3.12", "x86-64", f"CUDA 13.0 for {ALL}")}
    assert targets[0].properties == ()
    assert targets[2].properties == (
        "nvidia :: sm_arch :: 80_real",
        "nvidia :: sm_arch :: 86_real",
        "nvidia :: sm_arch :: 89_real",
        BOUND + "13.0",
    )


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


@pytest.mark.parametrize(
    ("gpus", "toolkit", "compress", "claims"),
    [
        ("75", "13.0", "default", ["75_real", "13.0"]),
        ("90,90a", "13.4", "default", ["90_real", "13.0"]),
        ("90a", "12.9", "default", ["90_real", "12.0"]),
        ("100f", "12.9", "size", ["100_real", "12.4"]),
        ("120+ptx", "13.4", "default", ["120_real", "13.0"]),
        ("compute_80,90", "13.4", "default", ["90_real", "80_virtual", "13.4"]),
        ("80-virtual", "12.9", "balance", ["80_virtual", "12.9"]),
        ("80-virtual", "12.3", "none", ["80_virtual", "12.3"]),
        ("90a,compute_90", "13.0", "default", ["90_real", "13.0"]),
        ("86,compute_80,compute_89", "13.0", "speed", ["86_real", "80_virtual", "13.0"]),
        ("89+ptx", "13.0", "default", ["89_real", "13.0"]),
        ("87,90", "13.0", "default", ["87_real", "90_real", "13.0"]),
        ("80", "12.8", "speed", ["80_real", "12.0"]),
        ("80", "12.8", "balance", ["80_real", "12.4"]),
        ("80", "13.0", "size", ["80_real", "13.0"]),
    ],
)
def test_a_group_claims_what_gpus_and_drivers_ask_for(
    tmp_path: Path, gpus: str, toolkit: str, compress: str, claims: list[str]
) -> None:
    text = f'[matrix]\ncuda = [{{ toolkit = "{toolkit}", gpus = {{ x = "{gpus}" }} }}]\n'
    targets = recipe(tmp_path, f'{text}[build.cuda]\ncompress = "{compress}"\n').targets
    assert [_claims(target) for target in targets] == [[], claims]


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


def test_the_host_compiler_and_the_cache_are_read(tmp_path: Path) -> None:
    text = '[matrix]\ncpu = ["armv8-a", "armv8.2-a"]\n[build]\n'
    found = recipe(tmp_path, text + 'host = "zig"\nglibc = "2.28"\ncache = "ccache"\n')
    assert (found.build.host, found.build.cache) == (HostSettings(HostCompiler.ZIG, (2, 28)), "ccache")
    assert [str(target.cpu) for target in found.targets] == ["armv8-a", "armv8.2-a"]
    assert recipe(tmp_path, text).build.host == HostSettings()
    assert recipe(tmp_path, text + 'host = "zig"\nglibc = "2.44"\n').build.host.glibc == NEWEST_GLIBC


_ARCHS = st.sampled_from([Arch(75), Arch(80), Arch(86), Arch(90), Arch(90, "a"), Arch(100, "f"), Arch(120)])
_LISTS = st.lists(_ARCHS.map(GpuRequest), min_size=1, max_size=3).map(GpuList.of)
_GROUPS = st.lists(_LISTS, min_size=1, max_size=4, unique_by=lambda gpus: gpus.native)


@st.composite
def _matrices(draw: st.DrawFn) -> Matrix:
    entries = tuple(
        MatrixEntry(
            ToolkitSpec(Dotted(major, 9)),
            tuple(GpuGroup(f"c{major}_{index}", gpus) for index, gpus in enumerate(draw(_GROUPS))),
            draw(st.sampled_from(Strategy)),
        )
        for major in (13, 12)
    )
    axes = (Axis("a", tuple(AxisValue(name, (f"a :: is :: {name}",)) for name in ("x", "y"))),)
    plain = draw(st.sampled_from([Plain.CUDA, Plain.CPU]))
    matrix = Matrix(pythons=("3.12", "3.13"), axes=axes, cuda=entries, plain=plain)
    gone = tuple((axis, (draw(st.sampled_from(matrix.names[axis])),)) for axis in ("cuda", "a"))
    return Matrix(matrix.cpus, matrix.pythons, axes, (MatrixRule("rule", gone),), cuda=entries, plain=plain)


@given(_matrices())
def test_a_build_has_what_its_wheels_are_cut_to_and_no_more(matrix: Matrix) -> None:
    targets = evaluated(matrix)
    builds: dict[tuple[str, ...], list[Target]] = {}
    for target in targets:
        builds.setdefault(target.build_key, []).append(target)
    for same in builds.values():
        assert len({(target.python, target.cpu, target.choices, target.cuda, target.env) for target in same}) == 1
        if same[0].cuda and all(target.gpus for target in same):
            assert same[0].cuda.archs == GpuList.of(request for target in same for request in target.gpus or ())
    for target in targets:
        if target.gpus:
            assert target.cuda
            assert set(target.gpus) <= set(target.cuda.archs)
        if target.label is None:
            assert (target.cuda is None) == (matrix.plain is Plain.CPU)
