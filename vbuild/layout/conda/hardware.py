"""Variant properties as what conda's solver can ask of a machine, its virtual packages.

    x86_64 :: level :: v3                          _x86_64-microarch-level >=3
    nvidia :: cuda_version_lower_bound :: 12.6     __cuda >=12.6
    nvidia :: cuda_version_upper_bound :: 13       __cuda <13
    nvidia :: sm_arch :: 90_real                   __cuda_arch >=9.0,<10
    nvidia :: sm_arch :: 90_virtual                __cuda_arch >=9.0

``__archspec`` is matched by its build string alone, so a machine that says zen4 has no x86_64_v3. The package
``_x86_64-microarch-level``, conda-forge's, has one build for each name, of the level that this CPU reaches, and nothing
in it; a channel brings its own. ``__cuda_arch`` is the lowest capability of all GPUs, without letters (CEP 46).
"""

import re
from collections.abc import Iterator, Sequence

from vbuild.errors import HardwareError, LayoutError
from vbuild.hardware.architectures import ARCHITECTURES
from vbuild.hardware.conda import x86_64_cpus
from vbuild.hardware.cpu import X86_64_LEVELS
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import Arch
from vbuild.layout.conda.record import NOARCH, CondaRecord, Independent
from vbuild.variant.model import Property

LEVEL_PACKAGE = "_x86_64-microarch-level"

_SM_ARCH = re.compile(r"(?P<number>\d{2,3})(?P<letter>[af])?_(?P<kind>real|virtual)", re.ASCII)
_KNOWN = "x86_64 :: level, nvidia :: cuda_version_lower_bound, cuda_version_upper_bound or sm_arch"
_CUDA_BOUNDS = {"cuda_version_lower_bound": ">=", "cuda_version_upper_bound": "<"}


def condition(prop: Property) -> tuple[str, str] | None:
    """The package that *prop* asks for, and of which version; None where every machine has it.

    `LayoutError` for a property that conda cannot ask for.
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
            raise LayoutError(f"{prop}: no conda equivalent; expected {_KNOWN}: leave the wheels that say so out")


def conditions(alternatives: Sequence[Sequence[Property]]) -> tuple[str, ...]:
    """What conda asks of a machine that has all properties of one of *alternatives*, which differ in one feature."""
    versions: dict[str, list[str]] = {}
    for properties in alternatives:
        for package, said in _joined(properties).items():
            if said not in versions.setdefault(package, []):
                versions[package].append(said)
    # a comma binds closer than a bar
    return tuple(f"{package} {'|'.join(said)}" for package, said in sorted(versions.items()))


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
        raise LayoutError(f"{prop}: {error}") from error


def _capabilities(prop: Property) -> str:
    """The compute capabilities that code for this *prop* runs on."""
    match = _SM_ARCH.fullmatch(prop.value)
    if not match:
        raise LayoutError(f"{prop}: no conda equivalent; expected a value as in 90_real or 90_virtual")
    number = int(match["number"])
    if match["letter"]:
        raise LayoutError(
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
