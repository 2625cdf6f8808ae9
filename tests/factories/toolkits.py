"""Component wheels of a CUDA toolkit of a few bytes, the places that have them, and installed toolkits."""

import platform
from collections.abc import Mapping
from pathlib import Path

from tests.factories.sources import sha256
from tests.factories.wheels import wheel
from vbuild.hardware.driver import Dotted
from vbuild.index_client.configuration import Indexes
from vbuild.toolchain.toolkit import Toolkit, ToolkitPin, identity_of
from vbuild.toolchain.toolkit_cache import ToolkitCache

MACHINE = platform.machine()
VERSION = Dotted(13, 0)
NVCC = "#!/bin/sh\necho nvcc\n"
CORE: Mapping[str, Mapping[str, str]] = {
    "nvidia-cuda-nvcc": {
        "nvidia/cu13/bin/nvcc": NVCC,
        "nvidia/cu13/bin/ptxas": "\x7fELF",
        "nvidia/cu13/bin/nvcc.profile": "TOP = $(_HERE_)/..\n",
    },
    "nvidia-nvvm": {"nvidia/cu13/nvvm/bin/cicc": "\x7fELF", "nvidia/cu13/lib/libnvvm.so.4": "\x7fELF nvvm"},
    "nvidia-cuda-runtime": {
        "nvidia/cu13/include/cuda_runtime_api.h": "#define CUDART_VERSION  13000\n",
        "nvidia/cu13/lib/libcudart.so.13": "\x7fELF" * 30_000,
    },
}


def component(folder: Path, project: str, files: Mapping[str, str], *, version: str = "13.0.1") -> ToolkitPin:
    """The pin of a wheel of *project*, written to *folder*, with *files* and a licence."""
    name = f"{project.replace('-', '_')}-{version}"
    licence = {f"{name}.dist-info/licenses/License.txt": f"licence of {project}"}
    path = wheel(folder, f"{name}-py3-none-manylinux_2_17_{MACHINE}.whl", {**files, **licence})
    return ToolkitPin(project, version, path.name, sha256(path))


def core(folder: Path) -> tuple[ToolkitPin, ...]:
    """The pins of the smallest toolkit, whose wheels are in *folder*."""
    return tuple(sorted(component(folder, project, files) for project, files in CORE.items()))


def places(folder: Path) -> Indexes:
    """The wheels in *folder* as all that there is."""
    return Indexes(no_index=True, find_links=(folder.absolute().as_uri(),))


def laid_out(store: Path, pins: tuple[ToolkitPin, ...], indexes: Indexes, *, version: Dotted = VERSION) -> Toolkit:
    """The toolkit of *pins* in *store*."""
    return ToolkitCache.at(store).toolkit(
        version,
        pins,
        identity=identity_of(version, pins),
        machine=MACHINE,
        release=f"{version}.1",
        places=lambda: indexes,
    )


def installed(root: Path, version: int = 13000, *, files: Mapping[str, str] | None = None, without: str = "") -> Path:
    """A folder that looks like an installed toolkit of CUDART_VERSION *version*; *files* are more files by path."""
    everything = {
        "bin/nvcc": NVCC,
        "bin/ptxas": "",
        "bin/fatbinary": "",
        "bin/cudafe++": "",
        "nvvm/bin/cicc": "",
        "include/cuda_runtime.h": "",
        "include/cuda_runtime_api.h": f"#define CUDART_VERSION  {version}\n",
        "include/crt/host_config.h": "#if __GNUC__ > 15\n",
        **(files or {}),
    }
    for path, text in everything.items():
        if path != without:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
            (root / path).chmod(0o755 if "bin/" in path else 0o644)
    return root
