"""Which variants a machine supports, and which of them it gets first.

A variant is supported when, for each of its features, the machine supports one of the values. Then, for each
feature, its best value has a place: (of the namespace, of the feature, of the value), counted from the best. A
variant's rank is the list of these places, sorted; the lower list wins, and a list that goes on beats the same
list cut short. Equal ranks fall to the label. The null variant comes after every other one, and a wheel that is no
variant after the null variant.
https://peps.python.org/pep-0825/#variant-ordering
"""

from msgspec import Struct

from vbuild.hardware.cpu import extra_of
from vbuild.hardware.machine import Features, Machine
from vbuild.variants.document import Document
from vbuild.variants.metadata import ABI_DEPENDENCY, VariantMetadata
from vbuild.variants.model import Feature, Variant
from vbuild.variants.providers import is_answered, supported

Place = tuple[int, int, int]

_SHOWN = 6
# after every place there is, so that of two lists that begin alike the longer one is the lower
_END: Place = (1 << 30, 0, 0)


class Ranked(Struct, frozen=True):
    """A variant with its rank on a machine, or with the reasons why the machine does not support it."""

    variant: Variant
    rank: tuple[Place, ...]
    best: tuple[str, ...]
    missing: tuple[str, ...] = ()

    @property
    def is_supported(self) -> bool:
        return not self.missing

    @property
    def why(self) -> str:
        """One line that says what places the variant where it is."""
        if not self.variant.properties:
            return "null variant: fits every machine, after all others"
        return "; ".join(self.missing or self.best)

    @property
    def key(self) -> tuple[bool, tuple[Place, ...], str]:
        """What variants are sorted by: the supported first, the lowest rank first, then the label."""
        return bool(self.missing), (*self.rank, _END), self.variant.label


def ranked(document: Document, machine: Machine) -> tuple[Ranked, ...]:
    """The variants of *document*, the best for *machine* first, those that it does not support last."""
    namespaces = machine.ordered(document.metadata.namespaces)
    lists = [supported_features(document.metadata, namespace, machine) for namespace in namespaces]
    places = dict(zip(namespaces, enumerate(lists), strict=True))
    found = (_ranked(variant, document.metadata, places, machine) for variant in document.variants)
    return tuple(sorted(found, key=lambda item: item.key))


def supported_features(metadata: VariantMetadata, namespace: str, machine: Machine) -> Features:
    """Returns the features of *namespace* that *machine* supports, best first; none without a provider."""
    provider = None if namespace in machine.without else metadata.provider(namespace)
    return supported(namespace, provider, machine) if provider else ()


def _ranked(
    variant: Variant, metadata: VariantMetadata, places: dict[str, tuple[int, Features]], machine: Machine
) -> Ranked:
    found: list[tuple[Place, str]] = []
    missing: list[str] = []
    for feature in variant.features:
        number, features = places.get(feature.namespace, (0, ()))
        names = [name for name, _ in features]
        values = dict(features).get(feature.name, ())
        known = [value for value in values if value in feature.values]
        if known:
            place = number, names.index(feature.name), values.index(known[0])
            text = f"{feature.namespace} :: {feature.name} :: {known[0]}"
            found.append((place, f"{text} is number {place[2] + 1} of {len(values)} that the machine supports"))
        else:
            is_unwanted = feature.namespace in machine.without
            reason = "left out, as asked" if is_unwanted else _reason(feature, metadata, features, machine)
            missing.append(f"{feature} is not supported: {reason}")
    found.sort()
    return Ranked(variant, tuple(place for place, _ in found), tuple(text for _, text in found), tuple(missing))


def _reason(feature: Feature, metadata: VariantMetadata, features: Features, machine: Machine) -> str:
    """Why *machine* supports no value of *feature*, where it has these *features* of its namespace."""
    is_listed = machine.features(feature.namespace) is not None
    if values := dict(features).get(feature.name):
        return f"the machine has {', '.join(values[:_SHOWN])}{', ...' if len(values) > _SHOWN else ''}"
    if feature.namespace == ABI_DEPENDENCY:
        return "installers do not match ABI dependencies yet"
    provider = metadata.provider(feature.namespace)
    if provider is None:
        return "no provider says what a machine supports"
    if provider.optional:
        return "its provider is optional, so off unless asked for"
    if features or is_listed or is_answered(feature.namespace, provider):
        is_unasked = not is_listed and extra_of(f"{feature.namespace} :: {feature.name} :: {feature.values[0]}")
        unasked = f"installers' own {' '.join(provider.requires)} answers for levels only"
        return unasked if is_unasked else f"the machine has no {feature.namespace} :: {feature.name}"
    told = f"[supported.{feature.namespace}] with {feature.name} = ['{feature.values[0]}'] to the file of --machine"
    unknown = f"vbuild does not know what a machine has of {feature.namespace}, and does not run its provider"
    return f"{unknown}, {', '.join(provider.requires)}; if the machine has it, add {told}"
