"""CUDA toolkits that are installed: where they are, which version they are, and whether they have what is asked for.

Nothing is started to find that out: the version is CUDART_VERSION of the toolkit's own header, which every compilation
with it sees. A compiler without its headers, such as a wrapper script, is no toolkit.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from msgspec import Struct
from packaging.version import Version

from vbuild.errors import BuildError
from vbuild.files.hashing import sha256_of
from vbuild.hardware.driver import Dotted
from vbuild.recipe.cuda import ToolkitSpec
from vbuild.recipe.source import ToolkitLibrary
from vbuild.toolchain.toolkit import Toolkit

VARIABLES = ("CUDA_HOME", "CUDA_PATH")

_USUAL = Path("/usr/local")
_VERSION = re.compile(rb"^\s*#\s*define\s+CUDART_VERSION\s+(?P<number>\d{4,6})", re.MULTILINE)
_NEEDED = ("bin/ptxas", "bin/fatbinary", "bin/cudafe++", "nvvm/bin/cicc")
_NEEDED_HEADERS = ("cuda_runtime.h", "crt/host_config.h")
_FOLDERS = ("bin", "include", "lib", "lib64", "nvvm")
_LIBRARIES = ("/lib", "/lib64")
# other folders there are somebody else's: of a Conda environment, all of it
_AMONG_LIBRARIES = frozenset({"stubs", "cmake"})
# for a library without lib<name>.so or <name>.h: a file that shows that it is there
_SIGN_FILES = {
    "nvcc": "bin/nvcc",
    "crt": "include/crt/host_config.h",
    "nvvm": "nvvm/bin/cicc",
    "cccl": "include/cuda/std/version",
    "npp": "libnppc.so",
    "nvtx": "include/nvtx3/nvToolsExt.h",
    "opencl": "include/CL/cl.h",
    "profiler": "include/cuda_profiler_api.h",
    "culibos": "libculibos.a",
    "nvptxcompiler": "libnvptxcompiler_static.a",
    "cuobjdump": "bin/cuobjdump",
    "nvdisasm": "bin/nvdisasm",
    "cuxxfilt": "bin/cu++filt",
    "tileiras": "bin/tileiras",
}
# headers that say the version of a library that has one of its own
_NUMBERED = {"nccl": ("nccl.h", "NCCL"), "cudnn": ("cudnn_version.h", "CUDNN")}
_PARTS = {"NCCL": ("MAJOR", "MINOR", "PATCH"), "CUDNN": ("MAJOR", "MINOR", "PATCHLEVEL")}


class Installed(Struct, frozen=True):
    """A toolkit in the folder *root*, and its version."""

    root: Path
    version: Dotted

    @classmethod
    def at(cls, root: Path) -> Self | None:
        """The toolkit in *root*, or None if there is no compiler, or none with a known version."""
        version = _version(root)
        return cls(root, version) if version and os.access(root / "bin" / "nvcc", os.X_OK) else None

    def lacks(self, libraries: Iterable[str] = ()) -> tuple[str, ...]:
        """What of the compiler, its headers and *libraries* is not there."""
        programs = [path for path in _NEEDED if not (self.root / path).is_file()]
        headers = [path for path in _NEEDED_HEADERS if not self._find(path, "include")]
        return (*programs, *headers, *(text for text in libraries if not self._has(ToolkitLibrary.parse(text))))

    def toolkit(self) -> Toolkit:
        """It as builds use it; they depend on the compiler, byte by byte, and the size and time of all its files."""
        whole = filter(None, (self.root / "bin" / "nvcc", self._find("cuda_runtime_api.h", "include")))
        lines = [f"installed {self.version}", *map(sha256_of, whole), *_state(self.root)]
        identity = hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()
        return Toolkit(self.version, self.root, identity)

    def _has(self, library: ToolkitLibrary) -> bool:
        short = library.name.removeprefix("nvidia-").removeprefix("cuda-").removesuffix(f"-cu{self.version.major}")
        sign = _SIGN_FILES.get(short, f"lib{short}.so")
        kind, _, rest = sign.partition("/")
        there = self._find(rest, kind) if rest else self._find(sign, "lib64") or self._find(f"{short}.h", "include")
        # which wheel it came in, if in one, nothing says
        is_it = library.version is None or (self._numbered(short) == library.version and not library.hashes)
        return there is not None and is_it

    def _numbered(self, short: str) -> Version | None:
        """The version of a library that its header says, or None if it says none."""
        file, prefix = _NUMBERED.get(short, ("", ""))
        header = self._find(file, "include") if file else None
        text = header.read_text(encoding="utf-8", errors="replace") if header else ""
        found = [re.search(rf"#\s*define\s+{prefix}_{part}\s+(\d+)", text) for part in _PARTS.get(prefix, ())]
        return Version(".".join(match[1] for match in found if match)) if found and all(found) else None

    def _find(self, path: str, kind: str) -> Path | None:
        """The file *path* in the toolkit's folder of that *kind*, or in that of its target."""
        folders = {"include": ("include", "include/cccl"), "lib64": ("lib64", "lib")}.get(kind, (kind,))
        roots = (self.root, *sorted(self.root.glob("targets/*-linux")))
        found = (root / folder / path for root in roots for folder in folders)
        return next((path for path in found if path.exists()), None)


def named(spec: ToolkitSpec) -> Toolkit:
    """The toolkit that the recipe's path names; `BuildError` if it is not there, or is not what *spec* says."""
    root = spec.path or Path()
    if not root.is_dir():
        raise BuildError(f"toolkit.path: {root}: no such folder; expected that of an installed CUDA {spec}")
    if not (root / "bin" / "nvcc").exists():
        raise BuildError(f"toolkit.path: {root}: no bin/nvcc; expected the folder of an installed CUDA {spec}")
    if not (found := Installed.at(root)):
        raise BuildError(
            f"{root}: a compiler without cuda_runtime_api.h, or one that may not be run; expected all of CUDA {spec}"
        )
    if found.version != spec.version:
        raise BuildError(
            f"{root}: CUDA {found.version}; the recipe says version {spec}: name the folder of that, "
            f'or write version = "{found.version}"'
        )
    if lacking := found.lacks(spec.libraries):
        raise BuildError(f"{root}: CUDA {found.version} without {', '.join(lacking)}; install them, or leave path out")
    return found.toolkit()


def matching(spec: ToolkitSpec, environment: Mapping[str, str]) -> Toolkit | None:
    """The first installed toolkit of the version that *spec* says and with all that it asks for."""
    for root in places(environment, spec.version):
        found = Installed.at(root)
        if found and found.version == spec.version and not found.lacks(spec.libraries):
            return found.toolkit()
    return None


def passed_over(spec: ToolkitSpec, environment: Mapping[str, str]) -> tuple[str, ...]:
    """What is installed and does not match, each in a few words."""
    return tuple(
        f"CUDA {found.version} in {found.root}"
        + (f" without {', '.join(lacking)}" if (lacking := found.lacks(spec.libraries)) else "")
        for found in installed(environment)
    )


def places(environment: Mapping[str, str], version: Dotted | None = None) -> Iterator[Path]:
    """Where toolkits may be, the most deliberate first; of those in the usual place, that of *version* or all."""
    yield from (Path(environment[name]) for name in VARIABLES if environment.get(name))
    yield from [_USUAL / f"cuda-{version}"] if version else sorted(_USUAL.glob("cuda-*.*"))
    yield _USUAL / "cuda"
    if compiler := shutil.which("nvcc", path=environment.get("PATH", "")):
        yield Path(compiler).resolve().parents[1]


def installed(environment: Mapping[str, str]) -> tuple[Installed, ...]:
    """All toolkits that are installed, each once."""
    roots = dict.fromkeys(root.resolve() for root in places(environment))
    return tuple(found for root in roots if (found := Installed.at(root)))


def _state(root: Path) -> Iterator[str]:
    """Every file of the toolkit in *root*, as far as is known without reading it: thousands, in milliseconds."""
    homes = (root, *sorted(root.glob("targets/*")))
    pending = [os.fspath(home / name) for home in homes for name in reversed(_FOLDERS)][::-1]
    top, seen = len(os.fspath(root)) + 1, set[tuple[int, int]]()
    while pending:
        folder = pending.pop()
        with suppress(OSError):
            here = os.stat(folder)  # noqa: PTH116 - as in scandir
            if (here.st_dev, here.st_ino) in seen:  # lib64 is a link to lib
                continue
            seen.add((here.st_dev, here.st_ino))
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                if not entry.is_dir():
                    try:
                        found = entry.stat()
                        yield f"{entry.path[top:]} {found.st_size} {found.st_mtime_ns}"
                    except OSError:
                        yield f"{entry.path[top:]} leads nowhere"
                elif not folder.endswith(_LIBRARIES) or entry.name in _AMONG_LIBRARIES:
                    pending.append(entry.path)


def _version(root: Path) -> Dotted | None:
    for folder in (root, *sorted(root.glob("targets/*-linux"))):
        try:
            match = _VERSION.search((folder / "include" / "cuda_runtime_api.h").read_bytes())
        except OSError:
            continue
        if match:
            # 13000 is CUDA 13.0
            return Dotted(int(match["number"]) // 1000, int(match["number"]) % 1000 // 10)
    return None
