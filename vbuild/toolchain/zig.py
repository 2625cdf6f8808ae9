"""Which compiler a build takes, the system's or zig's; and zig under every name by which builds call a compiler.

    host = "system"   CC, the interpreter's own, or what is on PATH
    host = "zig"      zig from the package index: cc -> zig cc -target x86_64-linux-gnu.2.17
    host = "auto"     the system's; zig if it has none

https://andrewkelley.me/post/zig-cc-powerful-drop-in-replacement-gcc-clang.html https://github.com/ziglang/zig-pypi

zig has the headers and start-up code of every glibc it can build for. It compiles libc++, libunwind and glibc's stubs
when a target first needs them, half a minute for C++, and keeps them in its global cache, which its processes share.
"""

import hashlib
import platform
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from vbuild.errors import BuildError, FetchError
from vbuild.files.cache import ELSEWHERE, Cache, Part
from vbuild.hardware.cpu import Cpu
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.flags import NEWEST_GLIBC, OLDEST_GLIBC, HostCompiler, HostSettings
from vbuild.toolchain.compilers import CompilerFamily, Compilers, compiler_name, found_rust
from vbuild.toolchain.interpreter import Interpreter
from vbuild.toolchain.toolkit import ToolkitPin
from vbuild.toolchain.toolkit_cache import OnProgress, ToolkitCache, silently

VERSION = "0.17.1"
CLANG = (22, 1)  # the clang that is in it

_PINS = {
    "x86_64": ToolkitPin(
        "ziglang",
        VERSION,
        f"ziglang-{VERSION}-py3-none-manylinux_2_12_x86_64.manylinux2010_x86_64.musllinux_1_1_x86_64.whl",
        "ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54",
    ),
    "aarch64": ToolkitPin(
        "ziglang",
        VERSION,
        f"ziglang-{VERSION}-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl",
        "b7c5f02fccd40f89b999ee16a1f5ddced56e6182370f8affe494bcf8a28cf07e",
    ),
}

_PROGRAM = Path("ziglang", "zig")
_OTHER_WAY = "with build.host = 'system' the system's compiler is used"


def provided_zig(
    *,
    store: Path | None = None,
    indexes: Indexes | None = None,
    machine: str | None = None,
    on_progress: OnProgress = silently,
) -> Path:
    """The zig executable for *machine*, by default this one; fetched and unpacked unless *store* has it.

    `BuildError`, which names the other way, if it is not to be had.
    """
    pin = _pin(machine or platform.machine())
    try:
        folder = ToolkitCache.at(store).component(
            pin, places=lambda: indexes or Indexes.configured(), on_progress=on_progress
        )
    except (FetchError, BuildError) as error:
        raise BuildError(f"{error}; {_OTHER_WAY}") from error
    return folder / _PROGRAM


def foreseen_zig(*, store: Path | None = None, machine: str | None = None) -> Path:
    """The path that `provided_zig` would give, without fetching anything."""
    return ToolkitCache.at(store).component_folder(_pin(machine or platform.machine())) / _PROGRAM


def _pin(machine: str) -> ToolkitPin:
    if sys.platform != "linux" or machine not in _PINS:
        expected = ", ".join(_PINS)
        raise BuildError(f"no zig for {sys.platform} on {machine}; expected Linux on {expected}; {_OTHER_WAY}")
    return _PINS[machine]


def zig_cache(store: Path | None = None) -> Path:
    """The folder where zig keeps what it compiles of libc++ and the like, next to *store*."""
    return Cache.of(Part.TOOLKITS, store).folder.absolute().with_name(Part.ZIG.value)


_WHY = "no C compiler on PATH: zig from the package index is used"
_MACHINES = ("x86_64", "aarch64")
_C, _CXX = ("cc", "gcc", "clang"), ("c++", "g++", "clang++")
_TOOLS = ("ar", "ranlib")

# zig turns the sanitizer on if a command has no -O; and libc++'s debug information, which it links with the rest,
# is ten times the size of its code and full of this machine's paths
_ALWAYS = ("-fno-sanitize=undefined", "-s")


def chosen(
    host: HostSettings,
    cpu: Cpu,
    *,
    interpreter: Interpreter,
    environment: Mapping[str, str],
    zig: Callable[[], Path] = provided_zig,
    writes: bool = True,
) -> Compilers:
    """The compilers that *host* asks for, to build for *cpu*; *zig* is called if they are zig's.

    `BuildError` if there is none, if zig cannot build for that machine or glibc, or is not to be had. Without
    *writes* what zig needs in the user's cache need not be there.
    """
    made = partial(zig_compilers, zig, cpu, interpreter=interpreter, environment=environment, writes=writes)
    if host.compiler is HostCompiler.ZIG:
        return made(host.glibc or OLDEST_GLIBC)
    found = Compilers.sought(interpreter, environment)
    if found is None and host.compiler is HostCompiler.AUTO and sys.platform == "linux":
        return made(OLDEST_GLIBC, why=_WHY)
    return found or Compilers.found(interpreter, environment)


def zig_compilers(
    zig: Callable[[], Path],
    cpu: Cpu,
    glibc: tuple[int, int],
    *,
    interpreter: Interpreter,
    environment: Mapping[str, str],
    why: str = "",
    writes: bool = True,
) -> Compilers:
    """Zig for *cpu*'s machine and the version *glibc*, under every name that a build may know."""
    version = ".".join(map(str, glibc))
    if cpu.machine not in _MACHINES or not OLDEST_GLIBC <= glibc <= NEWEST_GLIBC:
        first, last = (".".join(map(str, known)) for known in (OLDEST_GLIBC, NEWEST_GLIBC))
        raise BuildError(f"build.glibc: zig has no glibc {version} for {cpu.machine}; expected {first} to {last}")
    if interpreter.ext_suffix and "-linux-gnu" not in interpreter.ext_suffix:
        raise BuildError(
            f"{interpreter.path}: its modules end in {interpreter.ext_suffix}, and zig builds those for glibc "
            f"(-linux-gnu.so); with build.host = 'system' the system's compiler is used"
        )
    target = f"{cpu.machine}-linux-gnu.{version}"
    program, own = str(zig()), Cache(Part.ZIG, zig_cache())
    own.mark(own.folder)
    always = (*_ALWAYS, *_headers(interpreter, cpu.machine, writes=writes))
    commands = {
        **dict.fromkeys(_names(_C, interpreter.cc, cpu), (program, "cc", "-target", target, *always)),
        **dict.fromkeys(_names(_CXX, interpreter.cxx, cpu), (program, "c++", "-target", target, *always)),
        **{name: (program, name) for name in _TOOLS},
    }
    return Compilers(
        family=CompilerFamily.CLANG,
        version=CLANG,
        machine=cpu.machine,
        c="cc",
        cxx="c++",
        programs=tuple(sorted(commands.items())),
        rust=found_rust(environment),
        variables=(("ZIG_GLOBAL_CACHE_DIR", str(own.folder)),),
        zig_target=target,
        why=why,
    )


def zig_cpu(cpu: Cpu) -> str:
    """The name of *cpu* that zig's ``-mcpu=`` takes."""
    if cpu.machine == "x86_64":
        options = (option for feature in cpu.extra_features for option in feature.gcc)
        return "+".join((cpu.march.replace("-", "_"), *options))
    return "generic" if cpu.is_baseline else f"generic+v{cpu.level.replace('.', '_').replace('_0a', 'a')}"


def _headers(interpreter: Interpreter, machine: str, *, writes: bool) -> tuple[str, ...]:
    """What leads zig to the part of pyconfig.h that Debian has in a folder for each machine, where zig does not
    look.

    The folder around it is the system's, whose headers are of another C library than zig builds for.
    """
    own = interpreter.include.parent / interpreter.multiarch / interpreter.include.name
    if not interpreter.multiarch or not (own / "pyconfig.h").is_file():
        return ()
    name = hashlib.sha256(f"{own} {machine}".encode()).hexdigest()[:16]
    cache = Cache.of(Part.CROSS)
    place = cache.folder / f"headers-{name}"
    if writes:
        _link(place / f"{machine}-linux-gnu" / interpreter.include.name, own)
        cache.mark(place)
    return ("-idirafter", str(place))


def _link(link: Path, target: Path) -> None:
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            link.symlink_to(target)
    except OSError as error:
        raise BuildError(f"{link.parent}: cannot be written to: {error.strerror}; {ELSEWHERE}") from error


def _names(common: tuple[str, ...], own: str, cpu: Cpu) -> tuple[str, ...]:
    """*common* names, those with the machine before them, and the one in the interpreter's *own* command."""
    name = compiler_name(own)
    return (*common, *(f"{cpu.machine}-linux-gnu-{known}" for known in common[1:]), *([name] if name else []))
