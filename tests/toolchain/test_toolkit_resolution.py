"""From a recipe's words to pinned wheels."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.version import Version

from vbuild.errors import BuildError
from vbuild.hardware.driver import Dotted
from vbuild.recipe.compiling import ToolkitSpec
from vbuild.toolchain.toolkit import Toolkit, ToolkitPin, identity_of, resolved_pins

NCCL = "5" * 64
NEWEST = Dotted(13, 5)


def _asked(projects: tuple[str, ...], version: Version, machine: str) -> ToolkitPin:
    return ToolkitPin(projects[0], str(version), f"{projects[0]}-{version}-{machine}.whl", NCCL)


def _pins(version: Dotted, *libraries: str, machine: str = "x86_64") -> Sequence[ToolkitPin]:
    return resolved_pins(ToolkitSpec(version, libraries=libraries), machine=machine, ask=_asked)


def _names(version: Dotted, *libraries: str) -> list[str]:
    return [str(pin) for pin in _pins(version, *libraries)]


CORE_13_0 = [
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-nvvm==13.0.88",
]


def test_a_component_may_have_another_version_than_the_toolkit() -> None:
    more = set(_names(Dotted(13, 0), "cublas==13.0.2.14")) - set(CORE_13_0)
    assert more == {"nvidia-cublas==13.0.2.14", "nvidia-cuda-nvrtc==13.0.88"}
    assert "nvidia-cuda-runtime==13.0.48" in _names(Dotted(13, 0), "cudart==13.0.48")
    same = _pins(Dotted(13, 0), "cublas==13.1.1.3")
    assert next(pin for pin in same if pin.project == "nvidia-cublas").sha256 != NCCL


def test_what_is_outside_the_toolkit_is_asked_for_by_its_version() -> None:
    for library in ("nccl==2.28.9", "nvidia-nccl-cu13==2.28.9", f"nccl == 2.28.9 sha256:{'0' * 64} sha256:{NCCL}"):
        assert set(_names(Dotted(13, 0), library)) - set(CORE_13_0) == {"nvidia-nccl-cu13==2.28.9"}


TOO_OLD = (
    "CUDA {0}: the package index has no nvcc for CUDA before 13.0, only 13.0 to 13.5; "
    'install CUDA {0} and set CUDA_HOME, or write toolkit = {{ path = "…", version = "{0}" }}'
)


@pytest.mark.parametrize(
    ("version", "libraries", "message"),
    [
        (Dotted(12, 8), (), TOO_OLD.format("12.8")),
        (Dotted(11, 8), (), TOO_OLD.format("11.8")),
        (
            Dotted(14, 0),
            (),
            (
                "CUDA 14.0: the package index has nothing for it that this vbuild knows of, only 13.0 to 13.5; "
                'install CUDA 14.0 and set CUDA_HOME, or write toolkit = { path = "…", version = "14.0" }'
            ),
        ),
        (
            Dotted(13, 0),
            ("nccl",),
            (
                "CUDA 13.0: nccl: not one of its components, which are cccl, crt, cublas, cudart, cufft, cufile, "
                "culibos, "
                "cupti, curand, cusolver, cusparse, cuxxfilt, npp, nvcc, nvfatbin, nvjitlink, nvjpeg, nvml, "
                "nvptxcompiler, nvrtc, nvtx, nvvm, opencl, profiler, sanitizer; "
                "expected one of them, or a version, as in nccl==VERSION"
            ),
        ),
        (
            Dotted(13, 0),
            (f"nccl==2.28.9 sha256:{'0' * 64}",),
            (
                f"CUDA 13.0: nccl==2.28.9: the package index states sha256 {NCCL} for "
                f"nvidia-nccl-cu13-2.28.9-x86_64.whl; expected {'0' * 64}"
            ),
        ),
    ],
    ids=["12.8", "11.8", "14.0", "no version", "another hash"],
)
def test_what_cannot_be_had_is_refused(version: Dotted, libraries: tuple[str, ...], message: str) -> None:
    with pytest.raises(BuildError) as refused:
        _pins(version, *libraries)
    assert str(refused.value) == message


def test_a_component_that_a_machine_lacks_is_refused() -> None:
    with pytest.raises(BuildError) as refused:
        _pins(Dotted(13, 0), "opencl", machine="aarch64")
    assert str(refused.value) == (
        "CUDA 13.0: opencl: nvidia-cuda-opencl is not there for Linux on aarch64; "
        'leave opencl out, or build with an installed toolkit: { path = "…" }'
    )


def test_the_identity_is_of_versions_and_hashes_in_any_order() -> None:
    pins = tuple(_pins(Dotted(13, 0), "nccl==2.28.9"))
    identity = identity_of(Dotted(13, 0), pins)
    assert len(identity) == 64
    assert identity == identity_of(Dotted(13, 0), reversed(pins))
    assert identity != identity_of(Dotted(13, 1), pins)
    assert identity != identity_of(Dotted(13, 0), pins[1:])


def test_a_toolkit_says_where_its_licence_is() -> None:
    pins = tuple(_pins(NEWEST))
    kept = Toolkit(NEWEST, Path("/kept"), "0" * 64, pins)
    assert kept.nvcc == Path("/kept/bin/nvcc")
    assert kept.licence == "CUDA 13.5 comes under NVIDIA's licence agreement for the CUDA Toolkit: /kept/licenses"
    installed = Toolkit(NEWEST, Path("/usr/local/cuda"), "0" * 64)
    assert installed.licence.endswith(": https://docs.nvidia.com/cuda/eula/")
