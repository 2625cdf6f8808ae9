"""A machine as an installer sees it, as a value and as TOML.

    python = "3.12.4"
    cpu = "x86-64-v3"
    platforms = ["manylinux_2_39_x86_64", ..., "linux_x86_64"]
    tags = ["cp312-cp312", "cp312-abi3", ..., "py3-none-any"]

    [nvidia]
    driver = "12.8"
    capabilities = ["9.0"]

    [supported.rebellions]
    arch = ["atom_max"]

    [installed]
    torch = "2.11.1"

Tags come best first; one of two parts stands for a tag on each of the platforms. In short, for CPython with a glibc:

    python = "3.12"
    cpu = "x86-64-v3"
    glibc = "2.28"
    nvidia = { driver = "580", capabilities = ["9.0"] }
"""

import platform
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from typing import Self

import archspec.cpu
from archspec.cpu.detect import detected_info
from msgspec import Struct, field
from packaging.tags import compatible_tags, cpython_tags, sys_tags
from packaging.utils import canonicalize_name, is_normalized_name
from packaging.version import InvalidVersion, Version

from vbuild.config.table import Table
from vbuild.errors import HardwareError, at
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted, Nvidia, amd_gpus, has_tpu

Features = tuple[tuple[str, tuple[str, ...]], ...]

_TAG = re.compile(r"\w+-\w+(-\w+)?", re.ASCII)
_PLATFORM = re.compile(r"\w+", re.ASCII)
_NAME = re.compile(r"[0-9a-z_]+", re.ASCII)
_VALUE = re.compile(r"[0-9a-z_.]+", re.ASCII)
_LINE = 110
_GLIBC = re.compile(r"2\.(?P<minor>\d{1,2})(?:\.\d+)?", re.ASCII)
_LEGACY = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}  # PEP 600
# the first driver for Linux of each CUDA (CUDA's release notes, table 3)
_DRIVERS = {
    branch: Dotted.parse(version)
    for branch, version in (
        *((450, "11.0"), (455, "11.1"), (460, "11.2"), (465, "11.3"), (470, "11.4"), (495, "11.5"), (510, "11.6")),
        *((515, "11.7"), (520, "11.8"), (525, "12.0"), (530, "12.1"), (535, "12.2"), (545, "12.3"), (550, "12.4")),
        *((555, "12.5"), (560, "12.6"), (565, "12.7"), (570, "12.8"), (575, "12.9"), (580, "13.0"), (590, "13.1")),
    )
}
# platforms that uv has words for, and manylinux_2_x
_UV_PLATFORM = re.compile(r"(?P<kind>many|musl)linux_(?P<major>\d+)_(?P<minor>\d+)_(?P<machine>x86_64|aarch64)$")
_UV_GLIBCS = (17, 28, *range(31, 41))
_HIGHEST = 999  # minor version
_LEAST_DRIVER = 100  # CUDA's versions are lower
_SPELLINGS = {"x86_64": "x86-64", "aarch64": "armv8-a"}


class Machine(Struct, frozen=True):
    """What decides which wheel a machine gets.

    *tags* come best first, and so do features and values in *supported*, the answers of other providers. *cpu* is None
    if it is not known. *without* and *namespace_order* are the user's policy: namespaces to ignore, and those that come
    first. *installed* are distributions with their versions, for variants built against one of them.
    """

    python: str
    tags: tuple[str, ...]
    cpu: Cpu | None = None
    nvidia: Nvidia = field(default_factory=Nvidia)
    supported: tuple[tuple[str, Features], ...] = ()
    without: tuple[str, ...] = ()
    namespace_order: tuple[str, ...] = ()
    installed: tuple[tuple[str, str], ...] = ()

    @classmethod
    def here(cls) -> Self:
        # as uv orders them: packaging puts linux_x86_64 before the manylinux platforms, uv after them
        tags = [
            f"{start}-{platform_tag}"
            for start, platforms in _grouped(tuple(map(str, sys_tags())))
            for platform_tag in sorted(platforms, key=lambda platform_tag: platform_tag.startswith("linux_"))
        ]
        cpu = cpu_here()
        # installers ask for the level alone
        level = cpu and cpu.with_extras(())
        tpu = (("tpu", (("present", ("true",)),)),) if has_tpu() else ()
        return cls(platform.python_version(), tuple(tags), level, Nvidia.here(), (*_of_amd(amd_gpus()), *tpu))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The machine that the TOML *text* describes; `HardwareError` names the key that is wrong."""
        table = Table.parse(text)
        with table.table("nvidia", optional=True) as keys:
            driver = None if keys.optional_text("driver") is None else keys.parsed("driver", cuda_of_driver)
            with at(keys.place("capabilities")):
                capabilities = tuple(map(Dotted.parse, keys.texts("capabilities", ())))
        cpu = None if table.optional_text("cpu") is None else table.parsed("cpu", Cpu.parse)
        python = table.parsed("python", _version)
        if "glibc" in table:
            for key in ("platforms", "tags"):
                if key in table:
                    raise table.refuse(key, "would have no effect, as glibc stands for the tags of CPython with it")
            tags = linux_tags(python, cpu.machine if cpu else platform.machine(), table.parsed("glibc", _glibc))
        else:
            tags = tuple(_expanded(table))
        machine = cls(
            python=python,
            tags=tags,
            cpu=cpu,
            nvidia=Nvidia(driver, capabilities),
            supported=tuple(_supported(table)),
            without=_namespaces(table, "without"),
            namespace_order=_namespaces(table, "namespace-order"),
            installed=tuple(_installed(table)),
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

        *processors* are AMD's GPUs. By default glibc and Python are this machine's, and the driver runs every known
        CUDA. `HardwareError` for an unknown version.
        """
        capabilities = tuple(sorted(set(gpus), reverse=True))
        newest = max(_DRIVERS.values()) if capabilities else None
        version = _version(python or platform.python_version())
        return cls(
            version,
            linux_tags(version, cpu.machine, _glibc(glibc or platform.libc_ver()[1])),
            cpu,
            Nvidia(cuda_of_driver(driver) if driver else newest, capabilities),
            _of_amd(processors),
        )

    def __str__(self) -> str:
        """The machine as TOML."""
        groups = tuple(_grouped(self.tags))
        # the longest list of platforms is written once
        platforms = max((group for _, group in groups), key=len, default=())
        if len(platforms) == 1:
            platforms = ()
        tags: list[str] = []
        for start, group in groups:
            tags += [start] if group == platforms else [f"{start}-{platform_tag}" for platform_tag in group]
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
        if self.installed:
            lines += ["", "[installed]", *(f'{project} = "{version}"' for project, version in self.installed)]
        return "\n".join(lines) + "\n"

    def ordered(self, namespaces: Iterable[str]) -> tuple[str, ...]:
        rank = {name: place for place, name in enumerate(self.namespace_order)}
        return tuple(sorted(namespaces, key=lambda name: rank.get(name, len(rank))))

    def features(self, namespace: str) -> Features | None:
        return dict(self.supported).get(namespace)


def _of_amd(processors: Iterable[str]) -> tuple[tuple[str, Features], ...]:
    """What AMD's provider says about a machine with *processors*."""
    processors = tuple(processors)
    return (("amd", (("gfx_arch", processors),)),) if processors else ()


def cuda_of_driver(text: str) -> Dotted:
    """The newest CUDA that NVIDIA's driver *text* runs: 13.0 for 580 and 580.65.06; *text* itself if it is CUDA's.

    `HardwareError` for other texts, and for drivers from before CUDA 11.0.
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
    if not (match := _GLIBC.fullmatch(text.strip())):
        raise HardwareError(f"{text!r} is not a glibc; expected a version as in 2.28")
    return int(match["minor"])


def linux_tags(python: str, machine: str, glibc: int) -> tuple[str, ...]:
    """The tags of CPython *python* on Linux for *machine*, with glibc 2.*glibc*, in uv's order."""
    platforms = glibc_platforms(machine, glibc)
    version = Version(python).release[:2]
    name = f"cp{version[0]}{version[1]}"
    tags = (*cpython_tags(version, [name], platforms), *compatible_tags(version, name, platforms))
    return tuple(map(str, tags))


def glibc_platforms(machine: str, glibc: int) -> list[str]:
    platforms = []
    for minor in range(glibc, 4 if machine == "x86_64" else 16, -1):
        platforms.append(f"manylinux_2_{minor}_{machine}")
        if alias := _LEGACY.get(minor):
            platforms.append(f"{alias}_{machine}")
    return [*platforms, f"linux_{machine}"]


def cpu_here() -> Cpu | None:
    name = archspec.cpu.host().generic.name
    try:
        cpu = Cpu.parse(_SPELLINGS.get(name, name))
    except HardwareError:
        return None
    # archspec's host is the nearest known one, which may lack extras
    return cpu.with_extras(detected_info().features)


def cpus_asked(text: str) -> tuple[Cpu, ...]:
    """The CPUs in the list *text*, each once; ``v3`` is short for ``x86-64-v3``, ``native`` is this machine's level.

    `HardwareError` for another name, and for an empty list.
    """
    cpus = []
    for item in re.split(r"[,;\s]+", text.strip().lower()):
        if item == "native":
            if (here := cpu_here()) is None:
                raise HardwareError("native: no CPU level of this machine is known; expected one by name, as in v3")
            cpus.append(here.with_extras(()))
        elif item:
            cpus.append(Cpu.parse(item))
    if not cpus:
        raise HardwareError("no CPU level in the list; expected at least one, as in v3 or x86-64-v2,x86-64-v3")
    return tuple(dict.fromkeys(cpus))


def _version(text: str) -> str:
    with suppress(InvalidVersion):
        version = Version(text)
        # more would make a tag for each older minor version
        if len(version.release) > 1 and max(version.release[:2]) <= _HIGHEST:
            return str(version)
    raise HardwareError(f"no Python version {text!r}; expected one as in 3.12.4")


def _supported(table: Table) -> Iterator[tuple[str, Features]]:
    with table.table("supported", optional=True) as namespaces:
        for namespace in namespaces:
            _check(_NAME, namespace, namespaces.place(namespace))
            supported = []
            with namespaces.table(namespace) as features:
                for feature in features:
                    _check(_NAME, feature, features.place(feature))
                    values = features.texts(feature)
                    for value in values:
                        _check(_VALUE, value, features.place(feature))
                    supported.append((feature, values))
            yield namespace, tuple(supported)


def _installed(table: Table) -> Iterator[tuple[str, str]]:
    with table.table("installed", optional=True) as projects:
        for project in sorted(projects):
            yield canonicalize_name(project), projects.parsed(project, _release)


def pinned(text: str) -> tuple[str, str]:
    """The project and the version in *text*, as in torch==2.11.1; `HardwareError` if it is something else."""
    project, equals, version = text.partition("==")
    if not equals or not is_normalized_name(name := canonicalize_name(project.strip())):
        raise HardwareError(f"{text!r}: expected a project and its version, as in torch==2.11.1")
    return name, _release(version)


def _release(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion as error:
        raise HardwareError(f"no version {text!r}; expected one as in 2.11.1") from error


def _namespaces(table: Table, key: str) -> tuple[str, ...]:
    names = table.texts(key, ())
    for index, name in enumerate(names):
        _check(_NAME, name, table.place(f"{key}[{index}]"))
    return names


def _check(rule: re.Pattern[str], text: str, place: str) -> None:
    if not rule.fullmatch(text):
        raise HardwareError(f"{place}: {text!r} is not a name that PEP 825 allows: a-z, 0-9 and _ (in values also .)")


def _expanded(table: Table) -> Iterator[str]:
    """The tags in the keys ``tags`` and ``platforms``, those of two parts with every platform."""
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


def python_of(machine: Machine) -> str:
    return ".".join(machine.python.split(".")[:2])


def uv_platform(machine: Machine) -> str:
    """The platform of *machine*, of its best Linux tag, in uv's words; `HardwareError` if it has none."""
    for tag in machine.tags:
        if match := _UV_PLATFORM.search(tag):
            if match["kind"] == "musl":
                return f"{match['machine']}-unknown-linux-musl"
            fitting = [minor for minor in _UV_GLIBCS if minor <= int(match["minor"])]
            return f"{match['machine']}-manylinux_2_{max(fitting)}" if fitting else f"{match['machine']}-manylinux2014"
    raise HardwareError(f"no tag of Linux among {', '.join(machine.tags[:3])}; locks are for machines with Linux")
