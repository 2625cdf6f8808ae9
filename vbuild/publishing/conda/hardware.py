"""Variant properties and compatibility tags as what conda's solver can ask of a machine.

    x86_64 :: level :: v3                          _x86_64-microarch-level >=3
    nvidia :: cuda_version_lower_bound :: 12.6     __cuda >=12.6
    nvidia :: cuda_version_upper_bound :: 13       __cuda <13
    nvidia :: sm_arch :: 90_real                   __cuda_arch >=9.0,<10
    nvidia :: sm_arch :: 90_virtual                __cuda_arch >=9.0

``__archspec`` is matched by its build string alone, so a machine that reports zen4 has no x86_64_v3. conda-forge's
package ``_x86_64-microarch-level`` has one build for each name, of the level that this CPU reaches, and no files; a
channel contains its own. ``__cuda_arch`` is the lowest capability of all GPUs, without letters (CEP 46).

    cp311-cp311-manylinux_2_28_x86_64    linux-64   python >=3.11,<3.12.0a0, python_abi 3.11.* *_cp311
    cp39-abi3-manylinux_2_17_x86_64      linux-64   python, cpython >=3.9, _python_abi3_support 1.*; noarch: python
    py3-none-manylinux_2_17_x86_64       linux-64   python >=3; noarch: python, as its code does not need one Python
    py3-none-any                         noarch     python >=3; noarch: python

CEP 20 defines packages for every Python and one machine. All clients know them: they put the files of
``noarch: python`` where they belong, whichever folder the package came from.
https://github.com/conda/ceps/blob/main/cep-0020.md
"""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from vbuild.errors import HardwareError, RepackageError
from vbuild.hardware.conda import MACHINES, x86_64_cpus
from vbuild.hardware.cpu import X86_64_LEVELS
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import ARCHITECTURES, Arch
from vbuild.publishing.conda.depends import NEWEST
from vbuild.publishing.conda.package import NOARCH, CondaRecord, Independent
from vbuild.variants.model import Property
from vbuild.wheel.name import WheelName

LEVEL_PACKAGE = "_x86_64-microarch-level"

_SM_ARCH = re.compile(r"(?P<number>\d{2,3})(?P<letter>[af])?_(?P<kind>real|virtual)", re.ASCII)
_KNOWN = "x86_64 :: level, nvidia :: cuda_version_lower_bound, cuda_version_upper_bound or sm_arch"
_CUDA_BOUNDS = {"cuda_version_lower_bound": ">=", "cuda_version_upper_bound": "<"}


def condition(prop: Property) -> tuple[str, str] | None:
    """The package that *prop* asks for, and of which version, or None if every machine has it.

    `RepackageError` for a property that conda cannot ask for.
    """
    match prop.namespace, prop.feature:
        case "x86_64", "level" if prop.value in X86_64_LEVELS:
            level = X86_64_LEVELS.index(prop.value) + 1
            return (LEVEL_PACKAGE, f">={level}") if level > 1 else None
        case "nvidia", feature if feature in _CUDA_BOUNDS:
            return "__cuda", f"{_CUDA_BOUNDS[feature]}{_dotted(prop)}"
        case "nvidia", "sm_arch":
            return "__cuda_arch", _capabilities(prop)
        case _:
            raise RepackageError(f"{prop}: no conda equivalent; expected {_KNOWN}: leave the wheels that say so out")


def conditions(alternatives: Sequence[Sequence[Property]]) -> tuple[str, ...]:
    """What conda asks of a machine that has all properties of one of *alternatives*, which differ in one feature."""
    versions: dict[str, list[str]] = {}
    for properties in alternatives:
        for package, version in _joined(properties).items():
            if version not in versions.setdefault(package, []):
                versions[package].append(version)
    # a comma binds closer than a bar
    return tuple(f"{package} {'|'.join(version)}" for package, version in sorted(versions.items()))


def _joined(properties: Sequence[Property]) -> dict[str, str]:
    """The version of each package that all of *properties* together ask for."""
    found: dict[str, str] = {}
    for package, version in filter(None, map(condition, properties)):
        found[package] = f"{found[package]},{version}" if package in found else version
    return found


def level_packages() -> Iterator[CondaRecord]:
    """The packages of CPU levels, one for each name that archspec has."""
    for level, name in x86_64_cpus():
        yield CondaRecord(
            name=LEVEL_PACKAGE,
            version=str(level),
            build=f"0_{name}",
            number=0,
            subdir=NOARCH,
            depends=(f"__archspec 1.* {name}",),
            independent=Independent.GENERIC,
        )


def _dotted(prop: Property) -> Dotted:
    try:
        return Dotted.parse(prop.value)
    except HardwareError as error:
        raise RepackageError(f"{prop}: {error}") from error


def _capabilities(prop: Property) -> str:
    """The compute capabilities that code for this *prop* runs on."""
    match = _SM_ARCH.fullmatch(prop.value)
    if not match:
        raise RepackageError(f"{prop}: no conda equivalent; expected a value as in 90_real or 90_virtual")
    number = int(match["number"])
    if match["letter"]:
        raise RepackageError(
            f"{prop}: no conda equivalent: __cuda_arch is a number without letters; "
            f"expected {number}_real or {number}_virtual: leave the wheels that say so out"
        )
    arch = Arch(number)
    lowest = _capability(number)
    if match["kind"] == "virtual":
        return f">={lowest}"
    if arch.is_tegra:
        return f"=={lowest}"
    others = (other for other in sorted(ARCHITECTURES) if arch.is_before(Arch(other)) and not arch.runs_on(Arch(other)))
    return ",".join((f">={lowest}", f"<{arch.major + 1}", *(f"!={_capability(other)}" for other in others)))


def _capability(number: int) -> Dotted:
    return Dotted(number // 10, number % 10)


_PYTHON = re.compile(r"(?P<implementation>py|cp)3(?P<minor>\d*)", re.ASCII)
_ABI = re.compile(r"cp3(?P<minor>\d+)(?P<threads>t?)", re.ASCII)
_PLATFORM = re.compile(r"(manylinux_2_(?P<glibc>\d+)|(?P<alias>manylinux\d+)|linux)_(?P<machine>\w+)", re.ASCII)
_ALIASES = {"manylinux1": 5, "manylinux2010": 12, "manylinux2014": 17}
# what installers take first: wheels of one Python, then of a stable ABI, the newer the better, then of no ABI
_SPECIFIC, _STABLE = 200, 100
_SUBDIRS = {machine: subdir for subdir, machine in MACHINES.items()}


class Tags(Struct, frozen=True):
    """What a wheel's tags say: its *subdir* of a channel, the minor versions *pythons* of Python 3, and what it needs.

    *word* begins the build string. *python* is the one Python whose folder its files are in, or None if any will do.
    *rank* is higher for what installers take first. *glibc* is the minor version of glibc 2.
    """

    subdir: str
    word: str
    pythons: tuple[int, ...]
    rank: int
    python: str | None = None
    glibc: int | None = None
    is_abi3: bool = False

    def depends(self, pythons: Sequence[int], patches: str = "") -> tuple[str, ...]:
        """What a package of these *pythons*, some of its own, needs of Python and the machine.

        *patches* is what else is asked of Python's version.
        """
        lower, upper = min(pythons), max(pythons)
        bounds = [f">=3.{lower}" if lower else ">=3"]
        bounds += [f"<3.{upper + 1}.0a0"] if upper < NEWEST else []
        needs = [f"python {','.join((*bounds, *filter(None, [patches])))}"]
        if self.python:
            abi = f"cp{self.python.replace('.', '')}"
            needs.append(f"python_abi {self.python.removesuffix('t')}.* *_{abi}")
        if self.is_abi3:
            needs += [f"cpython {bounds[0]}", "_python_abi3_support 1.*"]
        if self.glibc is not None:
            needs.append(f"__glibc >=2.{self.glibc}")
        return tuple(needs)


def tags_of(name: WheelName) -> Tags | None:
    """What the tags in *name* say, or None if no conda package for Linux and CPython comes of them."""
    pythons = [match for match in map(_PYTHON.fullmatch, name.python.split(".")) if match]
    place = _place(name.platform)
    if not pythons or place is None:
        return None
    (subdir, glibc), first = place, min(int(match["minor"] or 0) for match in pythons)
    later = tuple(range(first, NEWEST + 1))
    if match := _ABI.fullmatch(name.abi):
        python = f"3.{match['minor']}{match['threads']}"
        return Tags(subdir, f"py{python.replace('.', '')}", (int(match["minor"]),), _SPECIFIC, python, glibc)
    if name.abi == "abi3" and subdir != NOARCH:
        return Tags(subdir, f"py3{first}abi3", later, _STABLE + first, glibc=glibc, is_abi3=True)
    if name.abi == "none" and first and all(match["implementation"] == "cp" for match in pythons):
        return Tags(subdir, f"py3{first}", (first,), _STABLE, glibc=glibc)
    if name.abi == "none":
        return Tags(subdir, "py" if subdir == NOARCH else f"py3{first or ''}", later, first, glibc=glibc)
    return None


def _place(platform: str) -> tuple[str, int | None] | None:
    """The folder of a channel for what has the tag *platform*, and the glibc it needs, or None if there is none."""
    if platform == "any":
        return NOARCH, None
    found = [match for match in map(_PLATFORM.fullmatch, platform.split(".")) if match]
    if not found or found[0]["machine"] not in _SUBDIRS:
        return None
    return _SUBDIRS[found[0]["machine"]], _lowest(found)


def _lowest(platforms: Sequence[re.Match[str]]) -> int | None:
    """The lowest glibc that *platforms*, of which one is enough, ask for, or None if one asks for none."""
    found = [int(match["glibc"]) if match["glibc"] else _ALIASES.get(match["alias"] or "") for match in platforms]
    return None if None in found else min(minor for minor in found if minor is not None)
