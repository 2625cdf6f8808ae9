"""The variants of a release in one order for all machines: a machine gets the first that it supports.

    variants.json of the release -> a choice for each set of single values -> sorted as PEP 825 ranks them

Which of two variants is better depends on the machine only where one names several values of a feature: such a
variant stands in the list once for each of them. The order of values is that of `vbuild.variant.providers`.
https://peps.python.org/pep-0825/#variant-ordering
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from vbuild.hardware.cpu import AARCH64_VERSIONS, X86_64_LEVELS
from vbuild.layout.offer import Offer
from vbuild.variant.document import Document, combine
from vbuild.variant.metadata import Metadata
from vbuild.variant.model import Property, Variant
from vbuild.variant.providers import is_answered

Place = tuple[int, int, int]

# the features that installers know, best first, and what is to be read of a value that redirecthardware.py can check
_FEATURES = {
    "x86_64": ("level",),
    "aarch64": ("version",),
    "nvidia": ("cuda_version_lower_bound", "cuda_version_upper_bound", "sm_arch"),
}
_LEVELS = (*X86_64_LEVELS, *AARCH64_VERSIONS)
_CUDA = re.compile(r"(?P<major>\d{1,4})(\.(?P<minor>\d{1,4}))?")
_GPU = re.compile(r"(?P<major>\d{1,3})(?P<minor>\d)_(?P<kind>real|virtual)")
_CHECKED = {"x86_64": re.compile("|".join(X86_64_LEVELS)), "nvidia": re.compile(f"{_CUDA.pattern}|\\d+_(real|virtual)")}
# a namespace that no property has: the backend asks its user
_UNKNOWN = "unknown "
_END: Place = (1 << 30, 0, 0)


@dataclass(frozen=True, slots=True)
class Choice:
    """The variant *label* for machines with all of *properties*; one that begins with ``unknown`` cannot be checked."""

    label: str
    properties: tuple[str, ...]

    def data(self) -> list[object]:
        return [self.label, list(self.properties)]


def order(offer: Offer) -> tuple[Choice, ...]:
    """The variants of *offer*, best first; those of an optional provider are left out, as they are off (PEP 850).

    `VariantError` where the documents in its wheels contradict each other.
    """
    documents = [(str(wheel.name), wheel.document) for wheel in offer.variants if wheel.document]
    return order_of(combine(documents)) if documents else ()


def order_of(document: Document) -> tuple[Choice, ...]:
    """The same for the variants of *document*."""
    metadata = document.metadata
    ranked = [
        ((*sorted(_place(prop, metadata) for prop in properties), _END), variant.label, properties)
        for variant in document.variants
        for properties in _singles(variant)
        if all(_may_be(prop, metadata) for prop in properties)
    ]
    return tuple(Choice(label, tuple(_needed(properties, metadata))) for _, label, properties in sorted(ranked))


def _singles(variant: Variant) -> Iterator[tuple[Property, ...]]:
    """The properties of *variant* with one value for each feature, in every way."""
    return product(*([Property(one.namespace, one.name, value) for value in one.values] for one in variant.features))


def _may_be(prop: Property, metadata: Metadata) -> bool:
    """Whether some machine supports *prop*: no optional provider's, and none that static properties do not list."""
    provider = metadata.provider(prop.namespace)
    if provider is None or not provider.static_properties:
        return provider is None or not provider.optional
    return not provider.optional and prop.value in dict(provider.features).get(prop.feature, ())


def _needed(properties: tuple[Property, ...], metadata: Metadata) -> Iterator[str]:
    """What a machine must be asked about: nothing that static properties have settled."""
    for prop in properties:
        provider = metadata.provider(prop.namespace)
        if provider is None or not provider.static_properties:
            yield str(prop) if _is_checked(prop, metadata) else f"{_UNKNOWN}{prop}"


def _is_checked(prop: Property, metadata: Metadata) -> bool:
    provider, values = metadata.provider(prop.namespace), _CHECKED.get(prop.namespace)
    return bool(
        provider
        and values
        and is_answered(prop.namespace, provider)
        and prop.feature in _FEATURES[prop.namespace]
        and values.fullmatch(prop.value)
    )


def _place(prop: Property, metadata: Metadata) -> Place:
    """Where *prop* stands: its namespace, its feature, its value, each less the better."""
    names = metadata.namespaces
    namespace = names.index(prop.namespace) if prop.namespace in names else len(names)
    provider = metadata.provider(prop.namespace)
    if provider and provider.static_properties:
        features = dict(provider.features)
        return namespace, list(features).index(prop.feature), features[prop.feature].index(prop.value)
    known = _FEATURES.get(prop.namespace, ())
    return namespace, known.index(prop.feature) if prop.feature in known else len(known), -_worth(prop.value)


def _worth(value: str) -> int:
    """A number that is higher for better values of one feature."""
    if value in _LEVELS:
        return _LEVELS.index(value)
    if gpu := _GPU.fullmatch(value):
        return int(gpu["major"]) * 100 + (int(gpu["minor"]) + 1 if gpu["kind"] == "real" else 0)
    if cuda := _CUDA.fullmatch(value):
        return int(cuda["major"]) * 10000 + (int(cuda["minor"]) + 1 if cuda["minor"] else 0)
    return 0
