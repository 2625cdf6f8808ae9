"""A machine as an installer sees it, as a value and as TOML: the choice made there can be computed anywhere.

    python = "3.12.4"
    cpu = "x86-64-v3"
    platforms = ["manylinux_2_39_x86_64", ..., "linux_x86_64"]
    tags = ["cp312-cp312", "cp312-abi3", ..., "py3-none-any"]

    [nvidia]
    driver = "12.8"
    capabilities = ["9.0"]

    [supported.rebellions]
    arch = ["atom_max"]

Of the compatibility tags, which come best first, those of two parts stand for one tag on each of the platforms. In
short they are those of CPython with a glibc:

    python = "3.12"
    cpu = "x86-64-v3"
    glibc = "2.28"
    nvidia = { driver = "580", capabilities = ["9.0"] }
"""

import json
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Self

import archspec.cpu
import packaging
from archspec.cpu.detect import detected_info
from msgspec import Struct, field
from packaging.tags import compatible_tags, cpython_tags, sys_tags
from packaging.version import InvalidVersion, Version

from vbuild.config.table import Table
from vbuild.errors import HardwareError, at
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted, Nvidia, amd_gpus
from vbuild.process.python import isolated

Features = tuple[tuple[str, tuple[str, ...]], ...]

_TAG = re.compile(r"\w+-\w+(-\w+)?", re.ASCII)
_PLATFORM = re.compile(r"\w+", re.ASCII)
_NAME = re.compile(r"[0-9a-z_]+", re.ASCII)
_VALUE = re.compile(r"[0-9a-z_.]+", re.ASCII)
_LINE = 110
_GLIBC = re.compile(r"2\.(?P<minor>\d{1,2})(?:\.\d+)?", re.ASCII)
_SHARED = 17
_LEGACY = {5: "manylinux1", 12: "manylinux2010", _SHARED: "manylinux2014"}  # PEP 600
# the first driver for Linux of each CUDA (CUDA's release notes, table 3)
_DRIVERS = {
    branch: Dotted.parse(version)
    for branch, version in (
        *((450, "11.0"), (455, "11.1"), (460, "11.2"), (465, "11.3"), (470, "11.4"), (495, "11.5"), (510, "11.6")),
        *((515, "11.7"), (520, "11.8"), (525, "12.0"), (530, "12.1"), (535, "12.2"), (545, "12.3"), (550, "12.4")),
        *((555, "12.5"), (560, "12.6"), (565, "12.7"), (570, "12.8"), (575, "12.9"), (580, "13.0"), (590, "13.1")),
    )
}
_HIGHEST = 999  # minor version
_LEAST_DRIVER = 100  # CUDA's versions are lower
_SPELLINGS = {"x86_64": "x86-64", "aarch64": "armv8-a"}
# packaging is pure Python and may be missing in the other interpreter, so it is taken along; packaging 26.4 does not
# run on Python 3.9, and pip has an older one in it
_ASK = """
import json, platform, sys
sys.path.append(sys.argv[1])
try:
    from packaging.tags import sys_tags
except SyntaxError:
    sys.path.insert(0, sys.argv[1])
    from pip._vendor.packaging.tags import sys_tags
print(json.dumps([platform.python_version(), [str(tag) for tag in sys_tags()]]))
"""


class Machine(Struct, frozen=True):
    """What decides which wheel a machine gets.

    The Python version, its compatibility tags best first, the CPU level (None if it is not known), NVIDIA's
    driver and GPUs, and what the providers of other namespaces support, features and values best first. The policy of
    who installs: namespaces to do *without*, and those that come first, whatever a release says.
    """

    python: str
    tags: tuple[str, ...]
    cpu: Cpu | None = None
    nvidia: Nvidia = field(default_factory=Nvidia)
    supported: tuple[tuple[str, Features], ...] = ()
    without: tuple[str, ...] = ()
    namespace_order: tuple[str, ...] = ()

    @classmethod
    def here(cls, python: Path | None = None) -> Self:
        """The machine we are on, with the interpreter *python* or the running one; `HardwareError` if it is none."""
        if python is None:
            version, tags = platform.python_version(), tuple(str(tag) for tag in sys_tags())
        else:
            version, tags = _asked(python)
        # as uv orders them: packaging puts linux_x86_64 before the manylinux platforms, uv after them
        ordered: list[str] = []
        for start, platforms in _grouped(tags):
            ordered += (f"{start}-{found}" for found in sorted(platforms, key=lambda found: found.startswith("linux_")))
        cpu = cpu_here()
        # installers ask for the level alone
        return cls(version, tuple(ordered), cpu and cpu.with_extras(()), Nvidia.here(), _of_amd(amd_gpus()))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The machine that the TOML *text* describes; `HardwareError` with the key's place for what is wrong."""
        table = Table.parse(text)
        with table.table("nvidia", optional=True) as keys:
            driver = None if keys.optional_text("driver") is None else keys.parsed("driver", cuda_of_driver)
            with at(keys.place("capabilities")):
                capabilities = tuple(Dotted.parse(each) for each in keys.texts("capabilities", ()))
        cpu = None if table.optional_text("cpu") is None else table.parsed("cpu", Cpu.parse)
        python = table.parsed("python", _version)
        machine = cls(
            python=python,
            tags=_short_tags(table, python, cpu) if "glibc" in table else tuple(_expanded(table)),
            cpu=cpu,
            nvidia=Nvidia(driver, capabilities),
            supported=tuple(_supported(table)),
            without=_namespaces(table, "without"),
            namespace_order=_namespaces(table, "namespace-order"),
        )
        table.finish()
        return machine

    @classmethod
    def described(
        cls,
        cpu: Cpu,
        gpus: Iterable[Dotted] = (),
        *,
        driver: str | None = None,
        glibc: str | None = None,
        python: str | None = None,
        processors: Iterable[str] = (),
    ) -> Self:
        """The Linux machine with *cpu*, *gpus*, NVIDIA's *driver* by its own number or CUDA's, *glibc* and *python*.

        *processors* are those of AMD's GPUs. The glibc and the Python are by default those of this machine, and the
        driver, where there are GPUs of NVIDIA, one that runs every known CUDA. `HardwareError` for what is no version.
        """
        capabilities = tuple(sorted(set(gpus), reverse=True))
        newest = max(_DRIVERS.values()) if capabilities else None
        version = _version(python or platform.python_version())
        return cls(
            version,
            _tags(version, cpu.machine, _glibc(glibc or platform.libc_ver()[1])),
            cpu,
            Nvidia(cuda_of_driver(driver) if driver else newest, capabilities),
            _of_amd(processors),
        )

    def __str__(self) -> str:
        """The machine as TOML."""
        groups = tuple(_grouped(self.tags))
        # the platforms worth writing once: the longest list that some Python and ABI tag has
        platforms = max((found for _, found in groups), key=len, default=())
        if len(platforms) == 1:
            platforms = ()
        tags: list[str] = []
        for start, found in groups:
            tags += [start] if found == platforms else [f"{start}-{platform_tag}" for platform_tag in found]
        lines = [f'python = "{self.python}"']
        if self.cpu:
            lines.append(f'cpu = "{self.cpu}"')
        lines += _array("platforms", platforms) + _array("tags", tags)
        lines += _array("without", self.without) if self.without else []
        lines += _array("namespace-order", self.namespace_order) if self.namespace_order else []
        if self.nvidia != Nvidia():
            lines += ["", "[nvidia]"]
            if self.nvidia.driver:
                lines.append(f'driver = "{self.nvidia.driver}"')
            lines += _array("capabilities", map(str, self.nvidia.capabilities))
        for namespace, features in self.supported:
            lines += ["", f"[supported.{namespace}]"]
            lines += [line for feature, values in features for line in _array(feature, values)]
        return "\n".join(lines) + "\n"

    def ordered(self, namespaces: Iterable[str]) -> tuple[str, ...]:
        """The *namespaces* of a release, best first on this machine."""
        named = {name: place for place, name in enumerate(self.namespace_order)}
        return tuple(sorted(namespaces, key=lambda name: named.get(name, len(named))))

    def features(self, namespace: str) -> Features | None:
        """What the description lists as supported of *namespace*, best first; None if it lists nothing."""
        return dict(self.supported).get(namespace)


def _of_amd(processors: Iterable[str]) -> tuple[tuple[str, Features], ...]:
    """What AMD's provider says of a machine with *processors*."""
    found = tuple(processors)
    return (("amd", (("gfx_arch", found),)),) if found else ()


def cuda_of_driver(text: str) -> Dotted:
    """The newest CUDA that NVIDIA's driver *text* runs: 13.0 for 580 and 580.65.06; *text* itself if it is CUDA's.

    `HardwareError` for what is neither, and for drivers of before CUDA 11.0.
    """
    major = text.strip().partition(".")[0]
    if not major.isdigit() or int(major) < _LEAST_DRIVER:
        return Dotted.parse(text)
    known = [branch for branch in _DRIVERS if branch <= int(major)]
    if not known:
        raise HardwareError(
            f"no driver {text!r} is known; expected {min(_DRIVERS)} or newer, or a CUDA version as in 13.0"
        )
    return _DRIVERS[max(known)]


def _glibc(text: str) -> int:
    """The minor version of the glibc *text*."""
    if not (match := _GLIBC.fullmatch(text.strip())):
        raise HardwareError(f"{text!r} is no glibc; expected a version as in 2.28")
    return int(match["minor"])


def _tags(python: str, machine: str, glibc: int) -> tuple[str, ...]:
    """The tags of CPython *python* on Linux for *machine*, with glibc 2.*glibc*, best first, as uv orders them."""
    oldest = 5 if machine == "x86_64" else 17
    platforms: list[str] = []
    for minor in range(glibc, oldest - 1, -1):
        platforms.append(f"manylinux_2_{minor}_{machine}")
        if (alias := _LEGACY.get(minor)) and (minor == _SHARED or machine == "x86_64"):
            platforms.append(f"{alias}_{machine}")
    platforms.append(f"linux_{machine}")
    version = Version(python).release[:2]
    name = f"cp{version[0]}{version[1]}"
    found = (*cpython_tags(version, [name], platforms), *compatible_tags(version, name, platforms))
    return tuple(map(str, found))


def _short_tags(table: Table, python: str, cpu: Cpu | None) -> tuple[str, ...]:
    for key in ("platforms", "tags"):
        if key in table:
            raise table.refuse(key, "would have no effect, as glibc stands for the tags of CPython with it")
    minor = table.parsed("glibc", _glibc)
    return _tags(python, cpu.machine if cpu else platform.machine(), minor)


def cpu_here() -> Cpu | None:
    """The CPU of this machine as archspec finds it, in /proc/cpuinfo on Linux, with its extras; None for others."""
    name = archspec.cpu.host().generic.name
    try:
        cpu = Cpu.parse(_SPELLINGS.get(name, name))
    except HardwareError:
        return None
    # the host is the nearest of those that archspec knows, which may lack what this one has
    return cpu.with_extras(detected_info().features)


def cpus_asked(text: str) -> tuple[Cpu, ...]:
    """The CPUs listed in *text* with commas or spaces, each once; ``v3`` is short for ``x86-64-v3``.

    ``native`` is the level of this machine. `HardwareError` for another name, and if there is none.
    """
    found = dict.fromkeys(_cpu_asked(item) for item in re.split(r"[,;\s]+", text.strip().lower()) if item)
    if not found:
        raise HardwareError("no CPU level in the list; expected at least one, as in v3 or x86-64-v2,x86-64-v3")
    return tuple(found)


def _cpu_asked(text: str) -> Cpu:
    if text != "native":
        return Cpu.parse(f"x86-64-{text}" if re.match(r"v\d", text) else text)
    if here := cpu_here():
        return Cpu.known(here.machine, here.level)
    raise HardwareError("native: no CPU level of this machine is known; expected one by name, as in v3")


def _asked(python: Path) -> tuple[str, tuple[str, ...]]:
    library = str(Path(packaging.__file__).parents[1])
    try:
        answer = subprocess.run(
            isolated("-c", _ASK, library, python=python), capture_output=True, text=True, check=True
        )
        version, tags = json.loads(answer.stdout)
    except OSError as error:
        raise HardwareError(f"{python}: cannot be run: {error.strerror}") from error
    except (subprocess.CalledProcessError, ValueError) as error:
        raise HardwareError(f"{python}: does not name its compatibility tags; expected a Python interpreter") from error
    return version, tuple(tags)


def _version(text: str) -> str:
    try:
        version = Version(text)
    except InvalidVersion as error:
        raise HardwareError(f"no Python version {text!r}; expected one as in 3.12.4") from error
    # each older minor version has tags, too
    if len(version.release) == 1 or max(version.release[:2]) > _HIGHEST:
        raise HardwareError(f"no Python version {text!r}; expected one as in 3.12.4")
    return str(version)


def _supported(table: Table) -> Iterator[tuple[str, Features]]:
    """Each namespace in the table ``supported``, with its features and their values."""
    with table.table("supported", optional=True) as namespaces:
        for namespace in namespaces:
            _check(_NAME, namespace, namespaces.place(namespace))
            found = []
            with namespaces.table(namespace) as features:
                for feature in features:
                    _check(_NAME, feature, features.place(feature))
                    found.append((feature, features.texts(feature)))
                    for value in found[-1][1]:
                        _check(_VALUE, value, features.place(feature))
            yield namespace, tuple(found)


def _namespaces(table: Table, key: str) -> tuple[str, ...]:
    for place, name in enumerate(found := table.texts(key, ())):
        _check(_NAME, name, table.place(f"{key}[{place}]"))
    return found


def _check(rule: re.Pattern[str], text: str, place: str) -> None:
    if not rule.fullmatch(text):
        raise HardwareError(f"{place}: {text!r} is not a name that PEP 825 allows: a-z, 0-9 and _ (in values also .)")


def _expanded(table: Table) -> Iterator[str]:
    """The tags in the keys ``tags`` and ``platforms``, those of two parts put on every platform."""
    platforms = table.texts("platforms", ())
    if strange := [platform_tag for platform_tag in platforms if not _PLATFORM.fullmatch(platform_tag)]:
        raise table.refuse("platforms", f"no platform tag {strange[0]!r}; expected one as manylinux_2_28_x86_64 or any")
    for tag in table.texts("tags"):
        if not (match := _TAG.fullmatch(tag)):
            raise table.refuse("tags", f"no compatibility tag {tag!r}; expected python-abi or python-abi-platform")
        if match[1]:
            yield tag
        else:
            yield from (f"{tag}-{platform_tag}" for platform_tag in platforms)


def _grouped(tags: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each Python and ABI tag with the platforms that follow it."""
    split = (tag.rpartition("-") for tag in tags)
    for start, group in groupby(split, lambda parts: parts[0]):
        yield start, tuple(platform_tag for _, _, platform_tag in group)


def _array(key: str, texts: Iterable[str]) -> list[str]:
    """The lines of an array: one if it fits, else one for each text."""
    quoted = [f'"{text}"' for text in texts]
    line = f"{key} = [{', '.join(quoted)}]"
    if len(line) <= _LINE:
        return [line]
    return [f"{key} = [", *(f"    {text}," for text in quoted), "]"]
