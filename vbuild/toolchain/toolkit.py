"""CUDA toolkits: the wheels of the package index, those that are installed, and the host compilers that an nvcc takes.

toolkit_pins.json lists the toolkits of the package index; `.ci/pin-toolkits` writes that file. Libraries that are not
part of a toolkit are asked of the index once, and pinned by the hash that it states.

    13.0                                 nvcc, crt, nvvm, cudart and cccl, as pinned
    12.9, without kernels                the headers and libraries alone: its nvcc is not on the package index
    cublas, nvidia-cublas                a component of the toolkit, as pinned, with what it needs of the others
    nccl==2.28.9                         the package nvidia-nccl-cu13, pinned by the hash that the index states
    nccl==2.28.9 sha256:4b0d… sha256:…   the same, with the hashes given, one for each machine

The version of an installed toolkit is CUDART_VERSION of its own header, which every compilation with it sees; nothing
is started. The host compilers of an nvcc are in crt/host_config.h; its last condition on clang is that of Linux:

    #if __GNUC__ > 15                                            gcc up to 15
    #if (__clang_major__ >= 21) || (__clang_major__ < 3) || …    clang from 3 to 20
"""

import functools
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, Self

from msgspec import Struct
from packaging.version import Version

from vbuild.errors import BuildError, at
from vbuild.files.hashing import sha256_of
from vbuild.hardware.driver import Dotted
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.located import ListedFile
from vbuild.recipe.compiling import ToolkitSpec
from vbuild.recipe.source import ToolkitLibrary

EULA = "https://docs.nvidia.com/cuda/eula/"


class ToolkitPin(Struct, frozen=True, order=True):
    project: str
    version: str
    file: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.project}=={self.version}"


class Toolkit(Struct, frozen=True):
    """A CUDA toolkit in *root*, a ``CUDA_HOME``, laid out from *pins* if it is vbuild's.

    Builds depend on *identity*. *is_new*: laid out just now, so its licence is pointed out.
    """

    version: Dotted
    root: Path
    identity: str
    pins: tuple[ToolkitPin, ...] = ()
    is_new: bool = False

    @property
    def nvcc(self) -> Path:
        return self.root / "bin" / "nvcc"

    @property
    def wheels(self) -> tuple[tuple[str, str], ...]:
        """Its wheels, with their SHA-256; one that is installed has none."""
        return tuple((pin.file, pin.sha256) for pin in self.pins)

    @property
    def licence(self) -> str:
        where = self.root / "licenses" if self.pins else EULA
        return f"CUDA {self.version} comes under NVIDIA's licence agreement for the CUDA Toolkit: {where}"


_GCC = re.compile(r"^\s*#\s*if\s+__GNUC__\s*>\s*(\d+)", re.MULTILINE)
_CLANG = re.compile(
    r"^\s*#\s*if\s*\(__clang_major__\s*>=\s*(\d+)\)\s*\|\|\s*\(__clang_major__\s*<\s*(\d+)\)", re.MULTILINE
)
_PROGRAMS = {"gcc": ("gcc-{0}", "g++-{0}"), "clang": ("clang-{0}", "clang++-{0}")}


class CompilerRange(Struct, frozen=True):
    """The major versions of a compiler that an nvcc takes; None for no known limit."""

    first: int | None = None
    last: int | None = None


def host_range(toolkit: Toolkit, family: str) -> CompilerRange:
    """The versions of *family* that the nvcc of *toolkit* takes."""
    header = toolkit.root / "include" / "crt" / "host_config.h"
    if not header.is_file():
        header = next(iter(sorted(toolkit.root.glob("targets/*-linux/include/crt/host_config.h"))), header)
    try:
        text = header.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return CompilerRange()
    if family == "gcc":
        match = _GCC.search(text)
        return CompilerRange(last=int(match[1])) if match else CompilerRange()
    conditions = _CLANG.findall(text)
    return CompilerRange(int(conditions[-1][1]), int(conditions[-1][0]) - 1) if conditions else CompilerRange()


def check_host(toolkit: Toolkit, *, family: str, version: tuple[int, ...], setting: str = "CC") -> None:
    """`BuildError` if the nvcc of *toolkit* does not take *family* in *version*, which *setting* has named."""
    limits, nvcc = host_range(toolkit, family), f"nvcc {toolkit.version}"
    compiler = f"{family} {'.'.join(map(str, version))}"
    if limits.last is not None and version[0] > limits.last:
        c, cxx = (text.format(limits.last) for text in _PROGRAMS[family])
        raise BuildError(
            f"{compiler} is too new for {nvcc}, which takes {family} up to {limits.last}; "
            f"install {c} and set {f'CC={c} CXX={cxx}' if setting == 'CC' else f'{setting}={cxx}'}"
        )
    if limits.first is not None and version[0] < limits.first:
        raise BuildError(
            f"{compiler} is too old for {nvcc}, which takes {family} from {limits.first}; install a newer one"
        )


MACHINES = ("aarch64", "x86_64")


class ToolkitRelease(Struct, frozen=True):
    """A CUDA Toolkit: the extras of the package cuda-toolkit, and the wheels of their components by machine."""

    version: Dotted
    name: str
    extras: Mapping[str, tuple[str, ...]]
    components: Mapping[str, Mapping[str, ToolkitPin]]

    def pin(self, project: str, machine: str) -> ToolkitPin | None:
        return self.components.get(project, {}).get(machine)

    @property
    def compiles(self) -> bool:
        """Whether it has a compiler: before CUDA 13 the packages have no nvcc."""
        return "nvvm" in self.extras

    def projects(self, name: str) -> tuple[str, ...]:
        """The components behind *name*, an extra or a component itself."""
        return self.extras.get(name) or ((name,) if name in self.components else ())


@functools.cache
def releases() -> Mapping[Dotted, ToolkitRelease]:
    data = json.loads(files("vbuild.toolchain").joinpath("toolkit_pins.json").read_text(encoding="utf-8"))
    all_releases = (_release(Dotted.parse(version), entry) for version, entry in data["toolkits"].items())
    return {release.version: release for release in sorted(all_releases, key=lambda release: release.version)}


def _release(version: Dotted, entry: Mapping[str, Any]) -> ToolkitRelease:
    return ToolkitRelease(
        version=version,
        name=entry["release"],
        extras={extra: tuple(projects) for extra, projects in entry["extras"].items()},
        components={
            project: {
                machine: ToolkitPin(project, component["version"], *component[machine])
                for machine in MACHINES
                if machine in component
            }
            for project, component in entry["components"].items()
        },
    )


_SHOWN = 5


def pin_of_index(projects: tuple[str, ...], version: Version, machine: str, *, indexes: Indexes) -> ToolkitPin:
    """The wheel of *version* for Linux on *machine*, of the first of *projects* on the package index."""
    from vbuild.index_client.packages import files_of

    for project in projects:
        wheels = [listed for listed in files_of(project, indexes=indexes) if _fits(listed, machine)]
        if not wheels:
            continue
        problem = f"{project}=={version}"
        if not (fitting := [listed for listed in wheels if listed.version == version]):
            raise BuildError(
                f"{problem}: not on the package index; of {project} it has {_versions(wheels)}: name one of these"
            )
        if not fitting[0].sha256:
            raise BuildError(
                f"{problem}: the package index states no SHA-256 for {fitting[0].file}; "
                "expected an index that does, as nothing else pins it"
            )
        return ToolkitPin(project, str(version), fitting[0].file, fitting[0].sha256)
    problem = f"the package index has no wheel for Linux on {machine} of {' or '.join(projects)}"
    raise BuildError(f'{problem}; leave the library out, or build with an installed toolkit: {{ path = "…" }}')


def _fits(listed: ListedFile, machine: str) -> bool:
    """Whether it is a wheel for any Python on *machine*, and no placeholder, which 0.0.0a0 is."""
    name = listed.file
    fits = name.endswith("-any.whl") or ("manylinux" in name and name.endswith(f"_{machine}.whl"))
    return fits and "py3-none-" in name and any(listed.version.release)


def _versions(wheels: Iterable[ListedFile]) -> str:
    versions = list(dict.fromkeys(str(listed.version) for listed in wheels if not listed.version.is_prerelease))
    more = f" and {len(versions) - _SHOWN} older" if len(versions) > _SHOWN else ""
    return f"{', '.join(islice(versions, _SHOWN))}{more}"


# the wheel of a version of one of these projects, for a machine; None if unknown, where allowed
Ask = Callable[[tuple[str, ...], Version, str], ToolkitPin | None]

CORE = ("nvcc", "crt", "nvvm", "cudart", "cccl")
_CORE_WITHOUT_NVCC = ("nvcc", "cudart", "cccl")  # where that has crt's headers

# version of the layout of components, so that no build takes one for another
_LAYOUT = 1


def resolved_pins(spec: ToolkitSpec, *, machine: str, ask: Ask) -> tuple[ToolkitPin, ...]:
    """The wheels of *spec* for Linux on *machine*.

    *ask* is for those that toolkit_pins.json lacks, and may not know.
    """
    release = release_of(spec)
    with at(f"CUDA {spec.version}"):
        core = CORE if release.compiles else _CORE_WITHOUT_NVCC
        pins = {pin.project: pin for name in core for pin in _pinned(release, name, machine)}
        for library in map(ToolkitLibrary.parse, spec.libraries):
            pins |= {pin.project: pin for pin in _library(library, release, machine, ask)}
    return tuple(sorted(pins.values()))


def release_of(spec: ToolkitSpec, *, instead: Iterable[str] = ()) -> ToolkitRelease:
    version = spec.version
    there = {number: release for number, release in releases().items() if release.compiles or not spec.has_kernels}
    if release := there.get(version):
        return release
    oldest, newest = min(there), max(there)
    missing = "nvcc" if spec.has_kernels else "toolkit"
    why = f"no {missing} for CUDA before {oldest}" if version < oldest else "nothing for it that this vbuild knows of"
    raise BuildError(
        f"CUDA {version}: the package index has {why}, only {oldest} to {newest}; "
        f'install CUDA {version} and set CUDA_HOME, or write toolkit = {{ path = "…", version = "{version}" }}'
        + "".join(f"; there is {other}" for other in instead)
    )


def identity_of(version: Dotted, pins: Iterable[ToolkitPin]) -> str:
    lines = (f"toolkit {_LAYOUT}", str(version), *(f"{pin} {pin.sha256}" for pin in sorted(pins)))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _library(library: ToolkitLibrary, release: ToolkitRelease, machine: str, ask: Ask) -> Iterator[ToolkitPin]:
    projects = release.projects(library.name)
    if not projects and library.version is None:
        raise BuildError(
            f"{library}: not one of its components, which are {', '.join(sorted(release.extras))}; "
            f"expected one of them, or a version, as in {library}==VERSION"
        )
    if library.version is None:
        yield from _pinned(release, library.name, machine)
        return
    # the project whose version is that of the extra
    main = next((project for project in projects if project.endswith(f"-{library.name}")), next(iter(projects), None))
    candidates = (main,) if main else _candidates(library.name, release.version)
    own = release.pin(main, machine) if main else None
    published = own if own and Version(own.version) == library.version else ask(candidates, library.version, machine)
    if published and library.hashes and published.sha256 not in library.hashes:
        raise BuildError(
            f"{library.release}: the package index states sha256 {published.sha256} for {published.file}; "
            f"expected {' or '.join(sorted(library.hashes))}"
        )
    yield from (pin for project in projects if project != main and (pin := release.pin(project, machine)))
    if published:
        yield published


def _pinned(release: ToolkitRelease, name: str, machine: str) -> Iterator[ToolkitPin]:
    for project in release.projects(name):
        if not (pin := release.pin(project, machine)):
            message = f"{name}: {project} is not there for Linux on {machine}"
            raise BuildError(f'{message}; leave {name} out, or build with an installed toolkit: {{ path = "…" }}')
        yield pin


def _candidates(name: str, version: Dotted) -> tuple[str, ...]:
    if name.startswith("nvidia-"):
        return (name,)
    return (f"nvidia-{name}-cu{version.major}", f"nvidia-{name}")


VARIABLES = ("CUDA_HOME", "CUDA_PATH")

_USUAL = Path("/usr/local")
_VERSION = re.compile(rb"^\s*#\s*define\s+CUDART_VERSION\s+(?P<number>\d{4,6})", re.MULTILINE)
_NEEDED = ("bin/ptxas", "bin/fatbinary", "bin/cudafe++", "nvvm/bin/cicc")
_NEEDED_HEADERS = ("cuda_runtime.h", "crt/host_config.h")
_FOLDERS = ("bin", "include", "lib", "lib64", "nvvm")
_LIBRARIES = ("/lib", "/lib64")
# other folders there belong to somebody else, as in a Conda environment
_AMONG_LIBRARIES = frozenset({"stubs", "cmake"})
# files that show a library without lib<name>.so or <name>.h
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
    root: Path
    version: Dotted

    @classmethod
    def at(cls, root: Path) -> Self | None:
        """The toolkit in *root*, or None without a compiler, or with an unknown version."""
        version = _version(root)
        return cls(root, version) if version and os.access(root / "bin" / "nvcc", os.X_OK) else None

    def lacks(self, libraries: Iterable[str] = ()) -> tuple[str, ...]:
        """What is missing of the compiler, its headers and *libraries*."""
        programs = [path for path in _NEEDED if not (self.root / path).is_file()]
        headers = [path for path in _NEEDED_HEADERS if not self._find(path, "include")]
        return (*programs, *headers, *(text for text in libraries if not self._has(ToolkitLibrary.parse(text))))

    def toolkit(self) -> Toolkit:
        """Builds depend on its compiler, byte by byte, and on the size and time of all its files."""
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
        file, prefix = _NUMBERED.get(short, ("", ""))
        header = self._find(file, "include") if file else None
        text = header.read_text(encoding="utf-8", errors="replace") if header else ""
        matches = [re.search(rf"#\s*define\s+{prefix}_{part}\s+(\d+)", text) for part in _PARTS.get(prefix, ())]
        return Version(".".join(match[1] for match in matches if match)) if matches and all(matches) else None

    def _find(self, path: str, kind: str) -> Path | None:
        folders = {"include": ("include", "include/cccl"), "lib64": ("lib64", "lib")}.get(kind, (kind,))
        roots = (self.root, *sorted(self.root.glob("targets/*-linux")))
        paths = (root / folder / path for root in roots for folder in folders)
        return next((path for path in paths if path.exists()), None)


def toolkit_at_path(spec: ToolkitSpec) -> Toolkit:
    root = spec.path or Path()
    if not root.is_dir():
        raise BuildError(f"toolkit.path: {root}: no such folder; expected that of an installed CUDA {spec}")
    if not (root / "bin" / "nvcc").exists():
        raise BuildError(f"toolkit.path: {root}: no bin/nvcc; expected the folder of an installed CUDA {spec}")
    if not (toolkit := Installed.at(root)):
        raise BuildError(
            f"{root}: a compiler without cuda_runtime_api.h, or one that may not be run; expected all of CUDA {spec}"
        )
    if toolkit.version != spec.version:
        raise BuildError(
            f"{root}: CUDA {toolkit.version}; the recipe says version {spec}: name the folder of that, "
            f'or write version = "{toolkit.version}"'
        )
    if lacking := toolkit.lacks(spec.libraries):
        raise BuildError(
            f"{root}: CUDA {toolkit.version} without {', '.join(lacking)}; install them, or leave path out"
        )
    return toolkit.toolkit()


def matching_toolkit(spec: ToolkitSpec, environment: Mapping[str, str]) -> Toolkit | None:
    for root in toolkit_folders(environment, spec.version):
        toolkit = Installed.at(root)
        if toolkit and toolkit.version == spec.version and not toolkit.lacks(spec.libraries):
            return toolkit.toolkit()
    return None


def passed_over(spec: ToolkitSpec, environment: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        f"CUDA {toolkit.version} in {toolkit.root}"
        + (f" without {', '.join(lacking)}" if (lacking := toolkit.lacks(spec.libraries)) else "")
        for toolkit in installed(environment)
    )


def toolkit_folders(environment: Mapping[str, str], version: Dotted | None = None) -> Iterator[Path]:
    """Where toolkits may be, the most deliberate first."""
    yield from (Path(environment[name]) for name in VARIABLES if environment.get(name))
    yield from [_USUAL / f"cuda-{version}"] if version else sorted(_USUAL.glob("cuda-*.*"))
    yield _USUAL / "cuda"
    if compiler := shutil.which("nvcc", path=environment.get("PATH", "")):
        yield Path(compiler).resolve().parents[1]


def installed(environment: Mapping[str, str]) -> tuple[Installed, ...]:
    roots = dict.fromkeys(root.resolve() for root in toolkit_folders(environment))
    return tuple(toolkit for root in roots if (toolkit := Installed.at(root)))


def _state(root: Path) -> Iterator[str]:
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
                        status = entry.stat()
                        yield f"{entry.path[top:]} {status.st_size} {status.st_mtime_ns}"
                    except OSError:
                        yield f"{entry.path[top:]} is a broken link"
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
