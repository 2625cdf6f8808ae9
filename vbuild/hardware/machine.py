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

Of the compatibility tags, which come best first, those of two parts stand for one tag on each of the platforms.
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
from packaging.tags import sys_tags
from packaging.version import InvalidVersion, Version

from vbuild.config.table import Table
from vbuild.errors import HardwareError, at
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted, Nvidia

Features = tuple[tuple[str, tuple[str, ...]], ...]

_TAG = re.compile(r"\w+-\w+(-\w+)?", re.ASCII)
_NAME = re.compile(r"[0-9a-z_]+", re.ASCII)
_VALUE = re.compile(r"[0-9a-z_.]+", re.ASCII)
_LINE = 110
_SPELLINGS = {"x86_64": "x86-64", "aarch64": "armv8-a"}
# packaging is pure Python and may be missing in the other interpreter, so it is taken along
_ASK = """
import json, platform, sys
sys.path.append(sys.argv[1])
from packaging.tags import sys_tags
print(json.dumps([platform.python_version(), [str(tag) for tag in sys_tags()]]))
"""


class Machine(Struct, frozen=True):
    """What decides which wheel a machine gets.

    The Python version, its compatibility tags best first, the CPU level (None if it is not known), NVIDIA's
    driver and GPUs, and what the providers of other namespaces support, features and values best first.
    """

    python: str
    tags: tuple[str, ...]
    cpu: Cpu | None = None
    nvidia: Nvidia = field(default_factory=Nvidia)
    supported: tuple[tuple[str, Features], ...] = ()

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
        return cls(version, tuple(ordered), cpu and cpu.with_extras(()), Nvidia.here())

    @classmethod
    def parse(cls, text: str) -> Self:
        """The machine that the TOML *text* describes; `HardwareError` with the key's place for what is wrong."""
        table = Table.parse(text)
        with table.table("nvidia", optional=True) as keys:
            driver = None if keys.optional_text("driver") is None else keys.parsed("driver", Dotted.parse)
            with at(keys.place("capabilities")):
                capabilities = tuple(Dotted.parse(each) for each in keys.texts("capabilities", ()))
        machine = cls(
            python=table.parsed("python", _version),
            tags=tuple(_expanded(table)),
            cpu=None if table.optional_text("cpu") is None else table.parsed("cpu", Cpu.parse),
            nvidia=Nvidia(driver, capabilities),
            supported=tuple(_supported(table)),
        )
        table.finish()
        return machine

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
        if self.nvidia != Nvidia():
            lines += ["", "[nvidia]"]
            if self.nvidia.driver:
                lines.append(f'driver = "{self.nvidia.driver}"')
            lines += _array("capabilities", map(str, self.nvidia.capabilities))
        for namespace, features in self.supported:
            lines += ["", f"[supported.{namespace}]"]
            lines += [line for feature, values in features for line in _array(feature, values)]
        return "\n".join(lines) + "\n"

    def features(self, namespace: str) -> Features | None:
        """What the description lists as supported of *namespace*, best first; None if it lists nothing."""
        return dict(self.supported).get(namespace)


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
        answer = subprocess.run([str(python), "-I", "-c", _ASK, library], capture_output=True, text=True, check=True)
        version, tags = json.loads(answer.stdout)
    except OSError as error:
        raise HardwareError(f"{python}: cannot be run: {error.strerror}") from error
    except (subprocess.CalledProcessError, ValueError) as error:
        raise HardwareError(f"{python}: does not name its compatibility tags; expected a Python interpreter") from error
    return version, tuple(tags)


def _version(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion as error:
        raise HardwareError(f"no Python version {text!r}; expected one as in 3.12.4") from error


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


def _check(rule: re.Pattern[str], text: str, place: str) -> None:
    if not rule.fullmatch(text):
        raise HardwareError(f"{place}: {text!r} is not a name that PEP 825 allows: a-z, 0-9 and _ (in values also .)")


def _expanded(table: Table) -> Iterator[str]:
    """The tags in the keys ``tags`` and ``platforms``, those of two parts put on every platform."""
    platforms = table.texts("platforms", ())
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
