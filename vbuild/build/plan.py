"""Flag plans: what a build is given, so that its code is for one CPU level and no other, and for the GPUs of a request.

    recipe, cpu, backend, compilers, interpreter -> environment, config settings, rules for the compiler wrappers

The environment is what every backend reads; the compiler wrappers (`vbuild.build.wrappers`) stand before the compilers,
because a project's own flags come later on the command line than the environment's, and win.
https://gcc.gnu.org/onlinedocs/gcc/x86-Options.html https://doc.rust-lang.org/rustc/codegen-options/

`cross_plan` makes a Python here describe the Python of another machine to backends:

    _PYTHON_HOST_PLATFORM          the platform of the wheel's tag: linux-aarch64
    _PYTHON_SYSCONFIGDATA_NAME     a module of ours, with the other machine in the names of extension modules
    SETUPTOOLS_EXT_SUFFIX          the same for scikit-build-core
    CMAKE_TOOLCHAIN_FILE           CMAKE_SYSTEM_NAME and CMAKE_SYSTEM_PROCESSOR
    setup-args: --cross-file       the machine for Meson, and that its programs do not run here

Headers need no replacement: pyconfig.h is the same on all 64-bit Linux machines with one C library.
https://scikit-build-core.readthedocs.io/en/stable/guide/crosscompile.html https://mesonbuild.com/Cross-compilation.html

`cuda_plan` says the same request in the words of every backend:

    CUDA_HOME, CUDA_PATH …         the toolkit; in the build itself its double, whose nvcc is the compiler wrapper
    CUDACXX                        nvcc by bare name, so that PATH leads to the compiler wrapper
    CUDAARCHS, CMAKE_CUDA_ARCHITECTURES   75-real;90a-real;120-real;120-virtual
    TORCH_CUDA_ARCH_LIST           7.5;9.0a;12.0+PTX
    CUPY_NVCC_GENERATE_CODE        arch=compute_75,code=sm_75;arch=compute_120,code=compute_120

A knob that the environment or the recipe has set stays: the compiler wrapper brings its list to the request.
https://cmake.org/cmake/help/latest/variable/CMAKE_CUDA_ARCHITECTURES.html
https://docs.pytorch.org/docs/stable/cpp_extension.html
"""

import hashlib
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.config.table import Env, Settings
from vbuild.errors import BuildError
from vbuild.files.atomic import OLDEST
from vbuild.files.cache import ELSEWHERE, Cache, Part
from vbuild.hardware.architectures import Arch
from vbuild.hardware.cpu import X86_64_FEATURES, X86_64_LEVELS, Cpu
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import GpuList, GpuRequest
from vbuild.recipe.compiling import COMPRESS_MODES_SINCE, Compress, CudaBuild, CudaSettings, FlagRules, OwnFlags
from vbuild.toolchain.compiler_program import TOOLS, chooses_instructions
from vbuild.toolchain.compilers import CompilerFamily, Compilers, compiler_name, family_of, known_macros, zig_cpu
from vbuild.toolchain.interpreter import Interpreter
from vbuild.toolchain.nvcc_commands import Call, CudaRules, requested

# what else output depends on: language and order of names, time zone, order of sets, times in archives of objects
SETTLED = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0", "ZERO_AR_DATE": "1"}

# CMake links with the path of the folder of the build, and takes it out again when it installs: what is left is the
# room for it, and a build ID made of it
RELATIVE_RPATHS = "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON"

_FLAG_VARIABLES = ("CPPFLAGS", "CFLAGS", "CXXFLAGS", "FFLAGS", "FCFLAGS", "CC", "CXX")

# the features that Rust calls by other names than gcc
_RUST = {"pclmul": "pclmulqdq", "rdrnd": "rdrand"}

_BUILD_FOLDER = "build/vbuild"


class BuildBackend(StrEnum):
    """Build backends by the way they take flags."""

    SETUPTOOLS = "setuptools"
    SCIKIT_BUILD_CORE = "scikit-build-core"
    MESON_PYTHON = "meson-python"
    MATURIN = "maturin"
    OTHER = "other"

    @classmethod
    def named(cls, build_backend: str) -> Self:
        module, _, rest = build_backend.partition(":")[0].partition(".")
        if module == "scikit_build_core" and rest.startswith("setuptools"):
            return cls("other")  # setuptools' config settings, CMake's reading of the environment
        return cls(_MODULES.get(module, "other"))


_MODULES = {
    "setuptools": "setuptools",
    "scikit_build_core": "scikit-build-core",
    "mesonpy": "meson-python",
    "maturin": "maturin",
}

# Python's own configuration without the flags of the compiler that built it
_ZIGS_OPTIMISATION = "-DNDEBUG -fwrapv -O3"

# CMake and Meson choose the optimisation, and cargo takes no C flags
_OWN_OPTIMISATION = frozenset({BuildBackend.SCIKIT_BUILD_CORE, BuildBackend.MESON_PYTHON, BuildBackend.MATURIN})


class WrapperRules(Struct, frozen=True):
    """Which flags the compiler wrappers put last in a command, and which they take out.

    *flags*, an `OwnFlags`, says which of the project's own flags that choose instructions stay, but for sources that
    match *keep* or *strip*. The *implied* ones, which the level has anyway, stay. ``auto`` takes out the *steering*
    ones and those of sources in *leaking*. No wheel may carry the linker arguments *dropped*.
    """

    compile: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    rust: tuple[str, ...] = ()
    implied: tuple[str, ...] = ()
    flags: tuple[str] = (OwnFlags.AUTO.value,)
    keep: tuple[str, ...] = ()
    strip: tuple[str, ...] = ()
    steering: tuple[str, ...] = ()
    leaking: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    zig: tuple[str, ...] = ()


class CudaPlan(Struct, frozen=True):
    environment: Env
    config_settings: Settings
    rules: CudaRules


class FlagPlan(Struct, frozen=True):
    cpu: Cpu
    backend: BuildBackend
    environment: Env
    config_settings: Settings
    wrapper_rules: WrapperRules
    cuda: CudaRules | None = None


def flag_plan(
    cpu: Cpu,
    backend: BuildBackend,
    *,
    compilers: Compilers,
    interpreter: Interpreter,
    environment: Mapping[str, str],
    env: Env = (),
    config_settings: Settings = (),
    flags: FlagRules = FlagRules(),
    cuda: CudaPlan | None = None,
) -> FlagPlan:
    """What adds *cpu*, and *cuda*, to *environment* and to the recipe's *env*, *config_settings* and rules for the
    project's own *flags*; nothing of theirs is lost.
    """
    common = level_rules(cpu, flags)
    compile_flags = (f"-mcpu={zig_cpu(cpu)}",) if compilers.zig_target else common.compile
    variables = {
        **_compiler_variables(backend, compile_flags, compilers, interpreter, environment),
        "SOURCE_DATE_EPOCH": environment.get("SOURCE_DATE_EPOCH") or str(OLDEST),
        **{name: text for name, text in SETTLED.items() if name not in dict(env)},
        **dict(cuda.environment if cuda else ()),
    }
    if backend not in {BuildBackend.MESON_PYTHON, BuildBackend.MATURIN}:
        # in front: a user's own word for it counts
        own_arguments = variables.get("CMAKE_ARGS") or environment.get("CMAKE_ARGS")
        variables["CMAKE_ARGS"] = _joined(RELATIVE_RPATHS, own_arguments)
    if compilers.rust:
        # with an explicit target, build scripts and macros get no flags of the level: they run on this machine, which
        # may be below it
        variables["CARGO_BUILD_TARGET"] = environment.get("CARGO_BUILD_TARGET") or compilers.rust.host
    if backend is BuildBackend.MESON_PYTHON:  # Meson calls rustc itself, without cargo
        variables["RUSTFLAGS"] = _joined(environment.get("RUSTFLAGS"), *common.rust)
    everywhere = {**environment, **dict(env)}
    steering = (word for name in _FLAG_VARIABLES for word in everywhere.get(name, "").split())
    wrapper_rules = replace(
        common,
        compile=compile_flags,
        link=common.link if compilers.marks_levels else (),
        # zig names processors in another way
        implied=tuple(f for f in common.implied if not (compilers.zig_target and f.startswith("-march="))),
        steering=tuple(dict.fromkeys(filter(chooses_instructions, steering))),
        dropped=interpreter.rpaths,
        zig=(compilers.zig_target,) if compilers.zig_target else (),
    )
    settings = (*config_settings, *(cuda.config_settings if cuda else ()))
    has_folder = dict(settings).keys() & {"build-dir", "builddir"}
    if backend in {BuildBackend.SCIKIT_BUILD_CORE, BuildBackend.MESON_PYTHON} and not has_folder:
        settings = (*settings, ("build-dir", _BUILD_FOLDER))  # a random name would end up in the binaries
    return FlagPlan(cpu, backend, tuple(variables.items()), settings, wrapper_rules, cuda.rules if cuda else None)


def level_rules(cpu: Cpu, flags: FlagRules = FlagRules()) -> WrapperRules:
    """The rules for *cpu* of any gcc or clang whose linker knows the mark of the level."""
    extras = tuple(f"-m{option}" for feature in cpu.extra_features for option in feature.gcc)
    implied: tuple[str, ...] = ()
    if cpu.machine == "x86_64":
        levels = X86_64_LEVELS[: cpu.rank + 1]
        features = (feature for level in levels for feature in X86_64_FEATURES[level])
        implied = (
            *("-march=x86-64", *(f"-march=x86-64-{level}" for level in levels[1:])),
            *(f"-m{option}" for feature in features for option in feature.gcc),
            *extras,
        )
    # with the mark the loader refuses a library on a lower CPU
    is_marked = cpu.machine == "x86_64" and cpu.rank
    return WrapperRules(
        compile=(f"-march={cpu.march}", *extras, "-mtune=generic"),
        link=(f"-Wl,-z,{cpu.march}",) if is_marked else (),
        rust=_rust(cpu),
        implied=implied,
        flags=(flags.default.value,),
        keep=flags.keep,
        strip=flags.strip,
    )


def _compiler_variables(
    backend: BuildBackend,
    flags: tuple[str, ...],
    compilers: Compilers,
    interpreter: Interpreter,
    environment: Mapping[str, str],
) -> dict[str, str]:
    """CC and CXX by bare name, so that PATH leads to the compiler wrappers; and the flags of each language.

    setuptools takes CFLAGS instead of sysconfig's flags, -O3 -DNDEBUG -fwrapv included, so those come first.
    """
    own = _ZIGS_OPTIMISATION if compilers.zig_target else interpreter.cflags
    base = "" if backend in _OWN_OPTIMISATION else own
    variables = {name: _joined(base, environment.get(name), *flags) for name in ("CFLAGS", "CXXFLAGS")}
    if compilers.zig_target:  # which has no Fortran
        variables |= {name.upper(): name for name in TOOLS}
    else:
        variables["FFLAGS"] = _joined(environment.get("FFLAGS"), *flags)
    return {"CC": compilers.c, **({"CXX": compilers.cxx} if compilers.cxx else {}), **variables}


def _rust(cpu: Cpu) -> tuple[str, ...]:
    if cpu.machine == "x86_64":
        extras = ",".join(f"+{_RUST.get(name, name)}" for extra in cpu.extra_features for name in extra.gcc)
        return ("-C", f"target-cpu={cpu.march}", *(("-C", f"target-feature={extras}") if extras else ()))
    return () if cpu.is_baseline else ("-C", f"target-feature=+v{cpu.level}")


def _joined(*flags: str | None) -> str:
    return " ".join(text for text in flags if text)


_CROSSING = (BuildBackend.SETUPTOOLS, BuildBackend.SCIKIT_BUILD_CORE, BuildBackend.MESON_PYTHON)
_DATA = "_sysconfigdata_vbuild"

# the names in a configuration that have the machine in them
_OF_MACHINE = ("EXT_SUFFIX", "SOABI", "MULTIARCH", "HOST_GNU_TYPE")

_SYSCONFIG = '''"""The configuration of this Python for {machine}, as vbuild builds for it."""

import sys
from importlib import import_module

_own = f"_sysconfigdata_{{sys.abiflags}}_{{sys.platform}}_{{sys.implementation._multiarch}}"
build_time_vars = dict(import_module(_own).build_time_vars)
for _name in {names}:
    build_time_vars[_name] = str(build_time_vars.get(_name, "")).replace("{here}", "{machine}")
build_time_vars |= {tools}
'''

_CMAKE = """set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR {machine})

# FindPython asks no interpreter when cross-compiling, and takes python-config's word, which is for this machine; ours
# gives the right answers. Programs for {machine} do not run here, and checks that try to run one see that.
set(CMAKE_CROSSCOMPILING FALSE)
"""

_MESON = """[binaries]
c = {c}
cpp = {cxx}
ar = 'ar'

[host_machine]
system = 'linux'
cpu_family = '{machine}'
cpu = '{machine}'
endian = 'little'

[properties]
needs_exe_wrapper = true
"""


def cross_plan(
    plan: FlagPlan, *, compilers: Compilers, interpreter: Interpreter, folder: Path | None = None, writes: bool = True
) -> FlagPlan:
    """*plan* with what a build for another machine than *interpreter*'s needs.

    Without *writes* files are only named.
    """
    machine, here = plan.cpu.machine, os.uname().machine
    if machine == here:
        return plan
    if interpreter.implementation != "cpython" or f"-{here}-linux-gnu" not in interpreter.ext_suffix:
        raise BuildError(
            f"{interpreter.path}: cannot build for {machine} with a {interpreter.implementation} whose modules end in "
            f"{interpreter.ext_suffix}; expected a CPython's -{here}-linux-gnu.so"
        )
    if plan.backend not in _CROSSING:
        expected = ", ".join(_CROSSING)
        raise BuildError(
            f"{plan.backend}: cannot build for {machine} on {here}; expected one of {expected}, or such a machine"
        )
    suffix = interpreter.ext_suffix.replace(here, machine)
    files = _crossing_files(plan, compilers, here)
    name = hashlib.sha256("\0".join(files.values()).encode()).hexdigest()[:16]
    folder_of_files = Cache.of(Part.CROSS, folder).folder / f"{machine}-{name}"
    if writes:
        _write_crossing(files, folder_of_files)
    environment = {
        **dict(plan.environment),
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        "_PYTHON_SYSCONFIGDATA_NAME": _DATA,
        "PYTHONPATH": str(folder_of_files),
        "SETUPTOOLS_EXT_SUFFIX": suffix,
        "CMAKE_TOOLCHAIN_FILE": str(folder_of_files / "toolchain.cmake"),
    }
    settings = plan.config_settings
    if plan.backend is BuildBackend.MESON_PYTHON:
        own = dict(settings).get("setup-args", ())
        arguments = (*((own,) if isinstance(own, str) else own), f"--cross-file={folder_of_files / 'cross.ini'}")
        settings = (*(entry for entry in settings if entry[0] != "setup-args"), ("setup-args", arguments))
    return replace(plan, environment=tuple(environment.items()), config_settings=settings)


def _crossing_files(plan: FlagPlan, compilers: Compilers, here: str) -> dict[str, str]:
    machine, c, cxx = plan.cpu.machine, compilers.c, compilers.cxx or compilers.c
    tools = {"CC": c, "CXX": cxx, "LDSHARED": f"{c} -shared", "LDCXXSHARED": f"{cxx} -shared", "AR": "ar"}
    cflags = dict(plan.environment).get("CFLAGS", "")
    tools |= {"CFLAGS": cflags, "OPT": "", "LDFLAGS": "", "CCSHARED": "-fPIC"}
    return {
        f"{_DATA}.py": _SYSCONFIG.format(machine=machine, here=here, names=_OF_MACHINE, tools=tools),
        "toolchain.cmake": _CMAKE.format(machine=machine),
        "cross.ini": _MESON.format(machine=machine, c=c.split(), cxx=cxx.split()),
    }


def _write_crossing(files: dict[str, str], folder: Path) -> None:
    cache = Cache(Part.CROSS, folder.parent)
    with suppress(OSError):
        if all((folder / name).read_bytes() == text.encode() for name, text in files.items()):
            cache.mark(folder)
            return
    try:
        with cache.locked(folder.name), cache.replacing(folder.name) as part:
            part.mkdir()
            for name, text in files.items():
                (part / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{folder.parent}: cannot be written to: {error.strerror}; {ELSEWHERE}") from error


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
    knobs: dict[str, str] = {}
    if build.archs.requests:
        codegens = (f"arch={codegen.virtual},code={codegen.code}" for codegen in requested(build.archs))
        knobs = {
            "CUDAARCHS": ";".join(_for_cmake(build.archs)),
            "TORCH_CUDA_ARCH_LIST": ";".join(_for_torch(build.archs)),
            "CUPY_NVCC_GENERATE_CODE": ";".join(codegens),
        }
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
            own = environment.get("CMAKE_ARGS", "")
            variables["CMAKE_ARGS"] = f"{own} -D{_ARCHITECTURES}={cmake}".strip()
    return CudaPlan(tuple(variables.items()), more, _cuda_rules(build, settings, home, compilers))


class HostChoice(Struct, frozen=True):
    """Nvcc's compiler of host code, and the *setting* that names it."""

    family: CompilerFamily
    version: tuple[int, ...]
    setting: str = "CC"


def host_of(compilers: Compilers, environment: Mapping[str, str]) -> HostChoice | None:
    """Nvcc's host compiler: NVCC_CCBIN's, that of ``-ccbin``, or *compilers*; None if it cannot be asked."""
    call = Call.parse([word for name in _FLAGS for word in _words(name, environment)])
    if call.has("-allow-unsupported-compiler", "--allow-unsupported-compiler"):
        return None
    command, setting = next(iter(call.values("-ccbin")), ""), "-ccbin"
    if not command:
        command, setting = environment.get("NVCC_CCBIN", ""), "NVCC_CCBIN"
    if not command:
        return HostChoice(compilers.family, compilers.version)
    named = f"{command}/gcc" if Path(command).is_dir() else command  # nvcc's rule for a folder
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
    texts = [environment.get(name, "") for name in ("CMAKE_ARGS", "SKBUILD_CMAKE_ARGS", "SKBUILD_CMAKE_DEFINE")]
    for key, value in config_settings:
        texts += [key, *([value] if isinstance(value, str) else value)]
    return any(_ARCHITECTURES in text for text in texts)


def _cuda_rules(build: CudaBuild, settings: CudaSettings, home: Path, compilers: Compilers) -> CudaRules:
    exact = {codegen.code for codegen in requested(build.archs)}
    aliases = (_codes(_plain(build.archs)), _codes(_torch_list(build.archs)))
    compression = () if settings.compress is Compress.DEFAULT else (f"--compress-mode={settings.compress}",)
    if compression and build.toolkit.version < COMPRESS_MODES_SINCE:  # which knows two modes
        compression = ("--no-compress",)
    return CudaRules(
        nvcc=home / "bin" / "nvcc",
        archs=build.archs,
        mode=settings.archs,
        files=settings.files,
        aliases=tuple(dict.fromkeys(alias for alias in aliases if set(alias) != exact)),
        append=(*compression, *(("-lineinfo",) if settings.lineinfo else ())),
        host=_host(compilers),
        seeds=build.toolkit.version >= _SEEDS_SINCE,
    )


def _codes(requests: Iterable[GpuRequest]) -> tuple[str, ...]:
    return tuple(codegen.code for codegen in requested(GpuList.of(requests)))


def _plain(archs: GpuList) -> list[GpuRequest]:
    """*archs* without the forms for a family, which older CMake lacks."""
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
    """*archs* in torch's words, without PTX alone; all if torch knows none, so that torch reports it."""
    requests = [GpuRequest(_without_family(request.arch), request.ptx) for request in archs]
    return [request for request in requests if request.arch in _KNOWN_TO_TORCH] or requests


def _for_torch(archs: GpuList) -> list[str]:
    return [
        f"{arch.major}.{arch.number % 10}{arch.suffix}{'+PTX' if request.ptx else ''}"
        for request in GpuList.of(_torch_list(archs))
        for arch in (request.arch,)
    ]


def _host(compilers: Compilers) -> str:
    """The compiler of host code, or "" for gcc, which nvcc takes by itself."""
    name = compiler_name(compilers.c)
    takes_gcc = name == "gcc" or (name == "cc" and compilers.family is CompilerFamily.GCC)
    if (takes_gcc and "gcc" in dict(compilers.programs)) or compilers.cxx is None:
        return ""
    return compiler_name(compilers.cxx) or ""
