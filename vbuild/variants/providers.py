"""The providers whose answers vbuild knows: x86-64 levels, Arm versions, NVIDIA drivers and GPUs, AMD's GPUs, TPUs.

    x86_64 :: level                        v4 > v3 > v2 > v1
    aarch64 :: version                     8.4a > ... > 8.1a > 8a; what 8.5a adds (SPECRES) Linux and macOS keep back
    nvidia :: cuda_version_lower_bound     what the driver runs: 12.8 > 12.7 > ... > 12.0 > 12 > 11.20 > ... > 11
    nvidia :: cuda_version_upper_bound     what the driver is older than: 15.20 > ... > 12.9
    nvidia :: sm_arch                      90_real > 90_virtual; of several values one must run
    amd :: gfx_arch                        gfx942; of several values one must be there
    tpu :: present                         true or false
    abi_dependency :: torch                what is installed: 2.8.1 > 2.8 > 2, each >=2.8.dev0,<2.9.dev0 and so on

Installers carry copies of one version each, and use a copy only if ``requires`` is one specifier, without marker or
extra, that admits it. Order and values are those of uv 0.13.9 and of wheelnext/nvidia-variant-provider.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from msgspec import Struct
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from vbuild.config.requirements import checked_requirement
from vbuild.errors import VariantError
from vbuild.hardware.cpu import Cpu, extra_of
from vbuild.hardware.driver import Dotted
from vbuild.hardware.machine import Features, Machine
from vbuild.variants.model import (
    ABI_DEPENDENCY,
    Property,
    Variant,
    VariantMetadata,
    VariantProvider,
    check_abi_dependency,
)

_OLDEST_MAJOR, _NEWEST_MAJOR, _NEWEST_MINOR = 11, 15, 20
_OLDEST_GPU = Dotted(5, 0)
# uv has no answer at all for drivers with more values
_MOST_BOUNDS = 1024
_NEWEST_ARM = "8.4a"
_ARM_ANSWERED = Cpu.known("aarch64", _NEWEST_ARM).supported_levels


class BuiltIn(Struct, frozen=True):
    """A provider that vbuild knows: the version that installers carry, and its answers.

    *several* are the features that may have several values.
    """

    provider: VariantProvider
    version: str
    several: frozenset[str]
    supported: Callable[[Machine], Features]

    def is_meant_by(self, provider: VariantProvider) -> bool:
        """Whether an installer with a copy of this provider uses it for *provider*."""
        if len(provider.requires) != 1 or provider.endpoint != self.provider.endpoint:
            return False
        requirement = checked_requirement(provider.requires[0], VariantError)
        own = checked_requirement(self.provider.requires[0], VariantError)
        return (
            canonicalize_name(requirement.name) == canonicalize_name(own.name)
            and not (requirement.marker or requirement.extras or requirement.url)
            and requirement.specifier.contains(self.version, prereleases=True)
        )


def metadata_for(namespaces: Iterable[str], given: Mapping[str, VariantProvider] | None = None) -> VariantMetadata:
    """The metadata of *namespaces*, most important first, with the providers *given*, else the built-in ones."""
    order = tuple(namespaces)
    built_in = {namespace: BUILT_IN[namespace].provider for namespace in order if namespace in BUILT_IN}
    if ABI_DEPENDENCY in order:
        built_in[ABI_DEPENDENCY] = VariantProvider(builtin=ABI_DEPENDENCY)
    return VariantMetadata.of(order, built_in | dict(given or {}))


def supported(namespace: str, provider: VariantProvider, machine: Machine) -> Features:
    """The features of *namespace* that *machine* supports, each with its values, best first (PEP 850, providers).

    Nothing for an optional provider; else its static list, the machine's description, or the built-in answer.
    """
    if provider.optional:
        return ()
    if provider.static_properties:
        return provider.features
    if (listed := machine.features(namespace)) is not None:
        return listed
    if provider.builtin == ABI_DEPENDENCY:
        return tuple((project.replace("-", "_"), _prefixes(version)) for project, version in machine.installed)
    return BUILT_IN[namespace].supported(machine) if is_answered(namespace, provider) else ()


def _prefixes(version: str) -> tuple[str, ...]:
    """The releases that *version* is one of: 2.8.1, 2.8 and 2 for 2.8.1+cu126; none for what is no version."""
    try:
        numbers = [str(number) for number in (*Version(version).release, 0, 0)[:3]]
    except InvalidVersion:
        return ()
    return tuple(".".join(numbers[:count]) for count in (3, 2, 1))


def is_answered(namespace: str, provider: VariantProvider) -> bool:
    """Whether vbuild knows what a machine supports of *namespace* under *provider*."""
    return namespace in BUILT_IN and BUILT_IN[namespace].is_meant_by(provider)


def check_values(variant: Variant, metadata: VariantMetadata) -> None:
    """Refuse values that the known providers of *variant*'s features do not allow (V8)."""
    for feature in variant.features:
        provider = metadata.provider(feature.namespace)
        if provider is None:
            continue
        if provider.builtin == ABI_DEPENDENCY:
            for prop in feature.properties:
                check_abi_dependency(prop)
            continue
        if provider.builtin:
            raise VariantError(f"{feature}: no built-in provider {provider.builtin!r}; expected {ABI_DEPENDENCY}")
        if provider.static_properties:
            # the building draft forbids a property that they do not list
            listed = dict(provider.static_properties).get(feature.name, ())
            if unlisted := [value for value in feature.values if value not in listed]:
                known = ", ".join(listed) or "no such feature"
                raise VariantError(
                    f"{feature}: {unlisted[0]!r} is not in static-properties, which list {known} (PEP 850)"
                )
            continue
        is_several = len(feature.values) > 1 and is_answered(feature.namespace, provider)
        if is_several and feature.name not in BUILT_IN[feature.namespace].several:
            raise VariantError(f"{feature}: {len(feature.values)} values; expected one (PEP 850, multi_value)")


def _x86_64(machine: Machine) -> Features:
    cpu = machine.cpu
    return (("level", cpu.supported_levels),) if cpu and cpu.machine == "x86_64" else ()


def _aarch64(machine: Machine) -> Features:
    cpu = machine.cpu
    if cpu is None or cpu.machine != "aarch64":
        return ()
    levels = cpu.supported_levels
    return (("version", levels[levels.index(_NEWEST_ARM) :] if _NEWEST_ARM in levels else levels),)


def unanswered(values: Iterable[Property]) -> str:
    """Why installers have none of the *values* of a feature, whatever the processor; "" if they may have one."""
    values = tuple(values)
    if any(extra_of(str(value)) for value in values):
        return "their provider answers for levels only"
    versions = [Cpu.of_property(str(value)) for value in values]
    if all(cpu and cpu.machine == "aarch64" and cpu.level not in _ARM_ANSWERED for cpu in versions):
        return f"their provider answers {_NEWEST_ARM} at most, as systems keep back what 8.5a adds (SPECRES)"
    return ""


def _nvidia(machine: Machine) -> Features:
    driver, capabilities = machine.nvidia.driver, machine.nvidia.capabilities
    if driver is None:
        return ()
    lower_bounds = tuple(islice(_lower_bounds(driver), _MOST_BOUNDS + 1))
    if len(lower_bounds) > _MOST_BOUNDS:
        return ()
    features = (
        ("cuda_version_lower_bound", lower_bounds),
        ("cuda_version_upper_bound", tuple(_upper_bounds(driver))),
        ("sm_arch", tuple(_sm_archs(max(capabilities, default=Dotted(0, 0))))),
    )
    return tuple((feature, values) for feature, values in features if values)


def _lower_bounds(driver: Dotted) -> Iterator[str]:
    for major in range(driver.major, _OLDEST_MAJOR - 1, -1):
        newest = driver.minor if major == driver.major else _NEWEST_MINOR
        yield from (f"{major}.{minor}" for minor in range(newest, -1, -1))
        yield str(major)


def _upper_bounds(driver: Dotted) -> Iterator[str]:
    """The versions that the driver is older than, up to CUDA 15.20."""
    for major in range(_NEWEST_MAJOR, driver.major, -1):
        yield from (f"{major}.{minor}" for minor in range(_NEWEST_MINOR, -1, -1))
        yield str(major)
    if driver.major <= _NEWEST_MAJOR:
        yield from (f"{driver.major}.{minor}" for minor in range(_NEWEST_MINOR, driver.minor, -1))


def _sm_archs(capability: Dotted) -> Iterator[str]:
    """What a GPU runs: real code of its major version up to its minor one, and PTX of the major's first."""
    if capability >= _OLDEST_GPU:
        yield from (f"{capability.major}{minor}_real" for minor in range(capability.minor, -1, -1))
        yield f"{capability.major}0_virtual"


BUILT_IN: Mapping[str, BuiltIn] = {
    "x86_64": BuiltIn(
        VariantProvider(requires=("x86-64-variant-provider >=0.2,<1",)),
        "0.2.1",
        frozenset(),
        _x86_64,
    ),
    "aarch64": BuiltIn(
        VariantProvider(requires=("aarch64-variant-provider >=0.2,<1",)),
        "0.2.0",
        frozenset(),
        _aarch64,
    ),
    "nvidia": BuiltIn(
        VariantProvider(
            requires=("nvidia-variant-provider >=0.0.1,<1",),
            plugin_api="nvidia_variant_provider.plugin:NvidiaVariantPlugin",
        ),
        "0.0.1",
        frozenset({"sm_arch"}),
        _nvidia,
    ),
    "amd": BuiltIn(
        VariantProvider(
            requires=("rocm-bootstrap >=0.3,<1",),
            plugin_api="rocm_bootstrap.variant_provider:AMDVariantPlugin",
        ),
        "0.3.0",
        frozenset({"gfx_arch"}),
        # a machine's description lists AMD's GPUs
        lambda _machine: (),
    ),
    "tpu": BuiltIn(
        VariantProvider(
            requires=("tpu-variant-provider >=0.1,<1",),
            plugin_api="tpu_variant_provider.plugin:TpuVariantPlugin",
        ),
        "0.1.0",
        frozenset(),
        # a machine's description says that there is one
        lambda _machine: (("present", ("false",)),),
    ),
}
