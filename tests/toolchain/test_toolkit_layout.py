"""How component wheels become a CUDA_HOME."""

import json
import tempfile
from pathlib import Path

import pytest

from vbuild.errors import BuildError
from vbuild.toolchain.toolkit import ToolkitPin
from vbuild.toolchain.toolkit_cache import lay_out


def _unpacked(folder: Path, project: str, **files: str) -> tuple[ToolkitPin, Path]:
    root = folder / project
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return ToolkitPin(project, "1.0", f"{project}.whl", "0" * 64), root


def _laid_out(tmp_path: Path, *components: tuple[ToolkitPin, Path], machine: str = "x86_64") -> Path:
    root = tmp_path / "root"
    lay_out(root, dict(components), machine=machine, release="13.0.1")
    return root


def _tree(root: Path) -> dict[str, str]:
    """Files by path, links by what they point to."""
    return {
        path.relative_to(root).as_posix(): f"-> {path.readlink()}" if path.is_symlink() else path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def test_wheels_merge_and_the_links_that_builds_look_for_are_there(tmp_path: Path) -> None:
    runtime = _unpacked(
        tmp_path,
        "runtime",
        **{
            "nvidia/cu13/include/driver.h": "cuda",
            "nvidia/cu13/lib/libcudart.so.13": "cudart",
            "nvidia/cu13/nvvm/bin/cicc": "cicc",
            "nvidia/cu13/.metadata/sizes.txt": "notes",
            "nvidia/__init__.py": "",
            "runtime-1.0.dist-info/licenses/License.txt": "EULA",
            "runtime-1.0.dist-info/RECORD": "record",
            ".vbuild.json": "{}",
        },
    )
    nccl = _unpacked(
        tmp_path,
        "nccl",
        **{
            "nvidia/nccl/include/nccl.h": "nccl",
            "nvidia/nccl/lib/libnccl.so.2": "nccl",
            "nvidia/nccl/lib/__init__.py": "",
            "nccl-1.0.dist-info/License.txt": "BSD",
        },
    )
    root = _laid_out(tmp_path, runtime, nccl)
    tree = _tree(root)
    versions = json.loads(tree.pop("version.json"))
    assert tree == {
        "include/driver.h": "cuda",
        "include/nccl.h": "nccl",
        "lib/libcudart.so": "-> libcudart.so.13",
        "lib/libcudart.so.13": "cudart",
        "lib/libnccl.so": "-> libnccl.so.2",
        "lib/libnccl.so.2": "nccl",
        "lib64": "-> lib",
        "licenses/nccl/License.txt": "BSD",
        "licenses/runtime/License.txt": "EULA",
        "nvvm/bin/cicc": "cicc",
        "nvvm/lib64": "-> ../lib",
        "targets/x86_64-linux/include": "-> ../../include",
        "targets/x86_64-linux/lib": "-> ../../lib",
        "targets/x86_64-linux/lib64": "-> ../../lib",
    }
    assert versions["cuda"] == {"name": "CUDA SDK", "version": "13.0.1"}
    assert versions["nccl"] == {"name": "nccl", "version": "1.0"}
    assert (root / "targets/x86_64-linux/lib64/libcudart.so").read_text() == "cudart"
    # no second copy on disk
    assert (root / "include/driver.h").samefile(tmp_path / "runtime/nvidia/cu13/include/driver.h")


@pytest.mark.parametrize("folder", ["lib", "cccl/lib", "cuda_cccl/lib"])
def test_the_cmake_files_of_cccl_are_where_they_find_its_headers(tmp_path: Path, folder: str) -> None:
    cccl = _unpacked(
        tmp_path,
        "cccl",
        **{
            f"nvidia/cu13/{folder}/cmake/cub/cub-config.cmake": "cub",
            "nvidia/cu13/include/cccl/cub/cub.cuh": "cub",
            "nvidia/cu13/cccl/LICENSE": "Apache",
        },
    )
    tree = _tree(_laid_out(tmp_path, cccl, machine="aarch64"))
    assert tree["lib/cmake/cub/cub-config.cmake"] == "cub"
    assert tree["include/cccl/cub/cub.cuh"] == "cub"
    assert tree["licenses/cccl/LICENSE"] == "Apache"
    assert tree["targets/sbsa-linux/lib"] == "-> ../../lib"


def test_the_same_file_in_two_components_is_one(tmp_path: Path) -> None:
    both = [_unpacked(tmp_path, name, **{"nvidia/cu13/include/a.h": "a"}) for name in ("one", "two")]
    assert _tree(_laid_out(tmp_path, *both))["include/a.h"] == "a"


def test_on_another_file_system_files_are_copied(tmp_path: Path) -> None:
    memory = Path("/dev/shm")  # noqa: S108 - a folder of our own is made there
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        nvcc = _unpacked(Path(folder), "nvcc", **{"nvidia/cu13/bin/nvcc": "nvcc"})
        (nvcc[1] / "nvidia/cu13/bin/nvcc").chmod(0o555)
        root = _laid_out(tmp_path, nvcc)
    assert (root / "bin/nvcc").read_text() == "nvcc"
    assert (root / "bin/nvcc").stat().st_mode & 0o777 == 0o555


def test_different_files_of_one_name_are_refused(tmp_path: Path) -> None:
    both = [_unpacked(tmp_path, name, **{"nvidia/cu13/include/a.h": name}) for name in ("one", "two")]
    with pytest.raises(BuildError) as refused:
        _laid_out(tmp_path, *both)
    assert str(refused.value) == (
        "two==1.0: include/a.h is another file in one==1.0; name versions that fit in libraries"
    )


def test_a_component_with_nothing_for_a_toolkit_is_refused(tmp_path: Path) -> None:
    package = _unpacked(tmp_path, "demo", **{"demo/__init__.py": "", "demo-1.0.dist-info/LICENSE": "MIT"})
    with pytest.raises(BuildError) as refused:
        _laid_out(tmp_path, package)
    assert str(refused.value) == "demo==1.0: nothing in it for a toolkit; expected files below nvidia/"
