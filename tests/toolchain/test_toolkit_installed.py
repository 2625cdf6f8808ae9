"""Installed toolkits: where they are looked for, and when they are used."""

import os
from pathlib import Path

import pytest

from tests.factories.toolkits import installed
from vbuild.errors import BuildError
from vbuild.hardware.driver import Dotted
from vbuild.recipe.compiling import ToolkitSpec
from vbuild.toolchain.toolkit import Installed, matching_toolkit, toolkit_at_path
from vbuild.toolchain.toolkit import installed as all_installed
from vbuild.toolchain.toolkit_provision import provided_toolkit

# no CUDA of this version is anywhere in the usual places
OLD = Dotted(7, 5)


def _spec(root: Path | None = None, *libraries: str, version: Dotted = OLD) -> ToolkitSpec:
    return ToolkitSpec(version, root, libraries)


def test_the_toolkit_at_a_path_is_used_and_nothing_is_started(tmp_path: Path) -> None:
    root = installed(tmp_path / "cuda", 7050)
    found = provided_toolkit(_spec(root), environment={})
    assert (found.version, found.root, found.pins, found.is_new) == (OLD, root, (), False)
    assert len(found.identity) == 64


LIBRARIES = {
    "targets/x86_64-linux/lib/libcudart_static.a": "code",
    "targets/x86_64-linux/lib/stubs/libcuda.so": "stub",
    "targets/x86_64-linux/lib/cmake/cccl/cccl-config.cmake": "",
    "targets/x86_64-linux/include/cuda_fp16.h": "struct half;",
    "lib/libcudnn.so.9": "code",
    "include/cudnn_version.h": "#define CUDNN_MAJOR 9\n",
    "nvvm/libdevice/libdevice.10.bc": "bitcode",
}


def _toolkit(root: Path) -> Path:
    """A toolkit with *LIBRARIES*, links as NVIDIA's installer makes them, and all its files of one time."""
    installed(root, 7050, files=LIBRARIES)
    (root / "lib64").symlink_to("targets/x86_64-linux/lib")
    (root / "lib/libcudnn.so").symlink_to("libcudnn.so.9")
    (root / "lib/libgone.so").symlink_to("libgone.so.1")
    (root / "lib/loop").symlink_to("..")
    (root / "nvvm/loop").symlink_to(".")
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (1, 1))
    return root


def test_the_identity_is_not_of_the_place(tmp_path: Path) -> None:
    one, same = (toolkit_at_path(_spec(_toolkit(tmp_path / name))).identity for name in ("one", "same"))
    assert one == same


@pytest.mark.parametrize("path", ["bin/nvcc", "bin/ptxas", "lib/libcudnn.so", *LIBRARIES])
def test_the_identity_follows_the_compiler_its_headers_and_its_libraries(path: str, tmp_path: Path) -> None:
    root = _toolkit(tmp_path / "cuda")
    before = toolkit_at_path(_spec(root)).identity
    with (root / path).open("a") as file:
        file.write("replaced")
    os.utime(root / path, (1, 1))
    longer = toolkit_at_path(_spec(root)).identity
    os.utime(root / path, (2, 2))
    assert len({before, longer, toolkit_at_path(_spec(root)).identity}) == 3


def test_a_compiler_on_path_stands_for_its_toolkit(tmp_path: Path) -> None:
    root = installed(tmp_path / "cuda", 7050)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvcc").symlink_to(root / "bin/nvcc")
    found = matching_toolkit(_spec(), {"PATH": str(tmp_path / "bin")})
    assert found
    assert found.root == root.resolve()
    assert Installed(root.resolve(), OLD) in all_installed({"PATH": str(tmp_path / "bin"), "CUDA_HOME": str(root)})


def test_a_wrapper_script_on_path_is_no_toolkit(tmp_path: Path) -> None:
    wrapper = tmp_path / "bin/nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text("#!/bin/sh\n")
    wrapper.chmod(0o755)
    assert matching_toolkit(_spec(), {"PATH": str(wrapper.parent)}) is None


def test_headers_may_be_in_the_folder_of_the_target(tmp_path: Path) -> None:
    headers = ("cuda_runtime.h", "crt/host_config.h", "cub/cub.cuh")
    target = {f"targets/x86_64-linux/include/{name}": "" for name in headers}
    root = installed(
        tmp_path,
        without="include/cuda_runtime_api.h",
        files={**target, "targets/x86_64-linux/include/cuda_runtime_api.h": "#define CUDART_VERSION 7050\n"},
    )
    assert Installed.at(root) == Installed(root, OLD)
    # a header that says no version is none
    (root / "include/cuda_runtime_api.h").write_text("")
    assert Installed.at(root) == Installed(root, OLD)


@pytest.mark.parametrize(
    ("library", "file", "text"),
    [
        ("cublas", "lib64/libcublas.so", ""),
        ("nvidia-cufft", "lib/libcufft.so", ""),
        ("cccl", "include/cccl/cuda/std/version", ""),
        ("npp", "targets/x86_64-linux/lib/libnppc.so", ""),
        ("nvtx", "include/nvtx3/nvToolsExt.h", ""),
        ("cuobjdump", "bin/cuobjdump", ""),
        ("nvml", "include/nvml.h", ""),
        ("nccl", "include/nccl.h", ""),
        (
            "nccl==2.28.9",
            "include/nccl.h",
            "#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n",
        ),
    ],
    ids=lambda value: value if "." not in value else "",
)
def test_libraries_are_looked_for(tmp_path: Path, library: str, file: str, text: str) -> None:
    assert matching_toolkit(_spec(None, library), {"CUDA_HOME": str(installed(tmp_path / "without", 7050))}) is None
    root = installed(tmp_path / "with", 7050, files={file: text})
    assert matching_toolkit(_spec(None, library), {"CUDA_HOME": str(root)})
    for other in ("nccl==2.29", "cublas==1.0", f"nccl==2.28.9 sha256:{'0' * 64}"):
        assert matching_toolkit(_spec(None, library, other), {"CUDA_HOME": str(root)}) is None


def test_a_path_that_is_not_what_the_recipe_says_is_refused(tmp_path: Path) -> None:
    def refused(root: Path, *libraries: str) -> str:
        with pytest.raises(BuildError) as error:
            provided_toolkit(_spec(root, *libraries))
        return str(error.value).replace(str(tmp_path), "/opt")

    assert (
        refused(tmp_path / "cuda") == "toolkit.path: /opt/cuda: no such folder; expected that of an installed CUDA 7.5"
    )
    (tmp_path / "cuda").mkdir()
    assert (
        refused(tmp_path / "cuda")
        == "toolkit.path: /opt/cuda: no bin/nvcc; expected the folder of an installed CUDA 7.5"
    )
    root = installed(tmp_path / "no-headers", without="include/cuda_runtime_api.h")
    assert refused(root) == (
        "/opt/no-headers: a compiler without cuda_runtime_api.h, or one that may not be run; expected all of CUDA 7.5"
    )
    assert refused(installed(tmp_path / "new", 12090)) == (
        '/opt/new: CUDA 12.9; the recipe says version 7.5: name the folder of that, or write version = "12.9"'
    )
    assert refused(installed(tmp_path / "old", 7050), "cublas", "nccl==2.28.9") == (
        "/opt/old: CUDA 7.5 without cublas, nccl==2.28.9; install them, or leave path out"
    )
