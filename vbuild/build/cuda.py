"""The flag plan of a CUDA build: the same request in the words of every backend, and the rules of nvcc's wrapper.

    CUDA_HOME, CUDA_PATH …         the toolkit; in the build itself its double, whose nvcc is the compiler wrapper
    CUDACXX                        nvcc by bare name, so that PATH leads to the compiler wrapper
    CUDAARCHS, CMAKE_CUDA_ARCHITECTURES   75-real;90a-real;120-real;120-virtual
    TORCH_CUDA_ARCH_LIST           7.5;9.0a;12.0+PTX
    CUPY_NVCC_GENERATE_CODE        arch=compute_75,code=sm_75;arch=compute_120,code=compute_120

A knob that the environment or the recipe has set stays as it is: what comes of it is a list like any other, which
the compiler wrapper brings to the request. So are the words that a tool lacks: torch and older CMake know no
``100f``. The compiler wrapper also carries what has no knob, and what CUFLAGS, CUDAFLAGS and NVCC_APPEND_FLAGS could
only add to a list. https://cmake.org/cmake/help/latest/variable/CMAKE_CUDA_ARCHITECTURES.html
https://docs.pytorch.org/docs/stable/cpp_extension.html
"""

import os
import shlex
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from vbuild.build.plan import BuildBackend, CudaPlan
from vbuild.config.table import Settings
from vbuild.errors import BuildError
from vbuild.hardware.architectures import Arch
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import GpuList, GpuRequest
from vbuild.recipe.cuda import COMPRESS_MODES_SINCE, Compress, CudaBuild, CudaSettings
from vbuild.toolchain.compilers import CompilerFamily, Compilers, compiler_name, family_of, known_macros
from vbuild.toolchain.nvcc_options import Call, CudaRules, requested

_ARCHITECTURES = "CMAKE_CUDA_ARCHITECTURES"
_FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
_SEEDS_SINCE = Dotted(13, 0)  # nvcc has -frandom-seed, at the latest

# _get_cuda_arch_flags of torch.utils.cpp_extension, 2.13, refuses all others
_KNOWN_TO_TORCH = frozenset(
    {
        *(Arch(number) for number in (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 110)),
        *(Arch(number) for number in (120, 121)),
        *(Arch(number, "a") for number in (90, 100, 101, 103, 110, 120, 121)),
    }
)


def cuda_plan(
    build: CudaBuild,
    settings: CudaSettings,
    *,
    home: Path,
    backend: BuildBackend,
    compilers: Compilers,
    environment: Mapping[str, str],
    config_settings: Settings = (),
) -> CudaPlan:
    """The plan that adds the request of *build* to what *environment* and *config_settings* say; *home*: CUDA_HOME."""
    knobs = _knobs(build.archs) if build.archs.requests else {}
    variables = {
        **dict.fromkeys(("CUDA_HOME", "CUDA_PATH"), str(home)),
        **dict.fromkeys(("CUDACXX", *(name for name in ("NVCC", "PYTORCH_NVCC") if name in environment)), "nvcc"),
        **{name: value for name, value in knobs.items() if not environment.get(name)},
    }
    more: Settings = ()
    if knobs and not _names_architectures(environment, config_settings):
        cmake = knobs["CUDAARCHS"]
        if backend is BuildBackend.SCIKIT_BUILD_CORE:
            more = ((f"cmake.define.{_ARCHITECTURES}", cmake),)
        elif backend in {BuildBackend.SETUPTOOLS, BuildBackend.OTHER}:
            # without quotes: who reads it splits it at blanks
            given = environment.get("CMAKE_ARGS", "")
            variables["CMAKE_ARGS"] = f"{given} -D{_ARCHITECTURES}={cmake}".strip()
    return CudaPlan(tuple(variables.items()), more, _rules(build, settings, home, compilers))


def _knobs(archs: GpuList) -> dict[str, str]:
    return {
        "CUDAARCHS": ";".join(_for_cmake(archs)),
        "TORCH_CUDA_ARCH_LIST": ";".join(_for_torch(archs)),
        "CUPY_NVCC_GENERATE_CODE": ";".join(
            f"arch={codegen.virtual},code={codegen.code}" for codegen in requested(archs)
        ),
    }


class HostChoice(Struct, frozen=True):
    """The compiler that nvcc hands host code to, and the *setting* that names it."""

    family: CompilerFamily
    version: tuple[int, ...]
    setting: str = "CC"


def host_of(compilers: Compilers, environment: Mapping[str, str]) -> HostChoice | None:
    """What nvcc has to take as its host compiler: that of *environment*'s NVCC_CCBIN or ``-ccbin``, or *compilers*.

    None if nvcc is to take any, and if the one that is named cannot be asked: nvcc will report why.
    `BuildError` if its variables cannot be split into words.
    """
    call = Call.parse([word for name in _FLAGS for word in _words(name, environment)])
    if call.has("-allow-unsupported-compiler", "--allow-unsupported-compiler"):
        return None
    given, setting = next(iter(call.values("-ccbin")), ""), "-ccbin"
    if not given:
        given, setting = environment.get("NVCC_CCBIN", ""), "NVCC_CCBIN"
    if not given:
        return HostChoice(compilers.family, compilers.version)
    named = f"{given}/gcc" if Path(given).is_dir() else given  # nvcc's rule for a folder
    program = shutil.which(named, path=environment.get("PATH", os.defpath))
    with suppress(BuildError):
        return HostChoice(*family_of(known_macros((program,), environment)), setting) if program else None
    return None


def _words(name: str, environment: Mapping[str, str]) -> list[str]:
    try:
        return shlex.split(environment.get(name, ""))
    except ValueError as error:
        raise BuildError(f"{name}={environment[name]}: {error}") from error


def _names_architectures(environment: Mapping[str, str], config_settings: Settings) -> bool:
    """Whether CMake gets a list already."""
    texts = [environment.get(name, "") for name in ("CMAKE_ARGS", "SKBUILD_CMAKE_ARGS", "SKBUILD_CMAKE_DEFINE")]
    for key, value in config_settings:
        texts += [key, *([value] if isinstance(value, str) else value)]
    return any(_ARCHITECTURES in text for text in texts)


def _rules(build: CudaBuild, settings: CudaSettings, home: Path, compilers: Compilers) -> CudaRules:
    exact = {codegen.code for codegen in requested(build.archs)}
    aliases = (_codes(_plain(build.archs)), _codes(_torch_list(build.archs)))
    return CudaRules(
        nvcc=home / "bin" / "nvcc",
        archs=build.archs,
        mode=settings.archs,
        files=settings.files,
        aliases=tuple(dict.fromkeys(alias for alias in aliases if set(alias) != exact)),
        append=(
            *_compressing(settings.compress, build.toolkit.version),
            *(("-lineinfo",) if settings.lineinfo else ()),
        ),
        host=_host(compilers),
        seeds=build.toolkit.version >= _SEEDS_SINCE,
    )


def _codes(requests: Iterable[GpuRequest]) -> tuple[str, ...]:
    return tuple(codegen.code for codegen in requested(GpuList.of(requests)))


def _plain(archs: GpuList) -> list[GpuRequest]:
    """*archs* in words that all of CMake's releases have: without the forms for a family."""
    return [GpuRequest(_without_family(request.arch), request.ptx, request.real) for request in archs]


def _without_family(arch: Arch) -> Arch:
    return arch.device if arch.suffix == "f" else arch


def _for_cmake(archs: GpuList) -> list[str]:
    words = []
    for request in GpuList.of(_plain(archs)):
        form = f"{request.arch.number}{request.arch.suffix}"
        words += [f"{form}-real"] if request.real else []
        words += [f"{form}-virtual"] if request.ptx else []
    return words


def _torch_list(archs: GpuList) -> list[GpuRequest]:
    """*archs* in torch's words, which have no PTX alone; all of them if torch knows none, so that torch reports it."""
    words = [GpuRequest(_without_family(request.arch), request.ptx) for request in archs]
    return [request for request in words if request.arch in _KNOWN_TO_TORCH] or words


def _for_torch(archs: GpuList) -> list[str]:
    return [
        f"{arch.major}.{arch.number % 10}{arch.suffix}{'+PTX' if request.ptx else ''}"
        for request in GpuList.of(_torch_list(archs))
        for arch in (request.arch,)
    ]


def _compressing(mode: Compress, toolkit: Dotted) -> tuple[str, ...]:
    """The options of *toolkit*'s nvcc for *mode*; older ones know two modes, and a recipe asks them for no other."""
    if mode is Compress.DEFAULT:
        return ()
    if toolkit < COMPRESS_MODES_SINCE:
        return ("--no-compress",)
    return (f"--compress-mode={mode}",)


def _host(compilers: Compilers) -> str:
    """The compiler of host code, or empty if it is gcc, which nvcc takes by itself."""
    name = compiler_name(compilers.c)
    takes_gcc = name == "gcc" or (name == "cc" and compilers.family is CompilerFamily.GCC)
    if (takes_gcc and "gcc" in dict(compilers.programs)) or compilers.cxx is None:
        return ""
    return compiler_name(compilers.cxx) or ""
