"""Variant properties, variants, and what the variants of a release share.

    x86_64 :: level :: v3            namespace :: feature :: value
    x86_64_v3 = {x86_64 :: level :: v3}    a variant: its label, and the properties that the label stands for

A wheel fits a machine if, for each feature that it names, the machine supports at least one of the values.
https://peps.python.org/pep-0825/#variant-properties

``variant.json`` and the ``[variant]`` table of a project share these keys:

    default-priorities.namespace   most important first; every namespace that a variant uses
    providers.<namespace>          either static-properties (feature -> values, best first), with feature-order
                                   if there are several features; or requires (packages with a plugin), with
                                   plugin-api if it is not the package's name; optional = off unless asked for

https://peps.python.org/pep-0825/#default-priorities, and the providers and building drafts of wheelnext.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import groupby
from typing import Any, Self

from msgspec import Struct

from vbuild.config.requirements import checked_requirement
from vbuild.config.table import Table
from vbuild.errors import VariantError, at

NULL_LABEL = "null"

_LABEL = re.compile(r"[0-9a-z_.]+", re.ASCII)
_NAME = re.compile(r"[0-9a-z_]+", re.ASCII)
_VALUE = re.compile(r"[0-9a-z_.]+", re.ASCII)
ABI_DEPENDENCY = "abi_dependency"
_PLUGIN_API = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*( *: *[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)?", re.ASCII)
_DISTRIBUTION = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*", re.ASCII)
_RELEASE = re.compile(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){0,2}", re.ASCII)
_PARTS = 3
_HASH_DIGITS = 8


def checked_name(text: str, kind: str) -> str:
    """*text*, a namespace or feature name as *kind* says; `VariantError` if PEP 825 forbids it (V3)."""
    if not _NAME.fullmatch(text):
        raise VariantError(f"{kind} {text!r} may only hold a-z, 0-9 and _ (PEP 825, variant properties)")
    return text


def checked_value(text: str) -> str:
    """*text*, a feature's value; `VariantError` if PEP 825 forbids it (V3)."""
    if not _VALUE.fullmatch(text):
        raise VariantError(f"value {text!r} may only hold a-z, 0-9, _ and . (PEP 825, variant properties)")
    return text


def checked_label(text: str) -> str:
    """*text*, a variant label of any length; `VariantError` if PEP 825 forbids it (V1)."""
    if not _LABEL.fullmatch(text):
        raise VariantError(f"variant label {text!r} may only hold a-z, 0-9, _ and . (PEP 825, variant label)")
    return text


class Property(Struct, frozen=True, order=True):
    """One thing that a machine must support."""

    namespace: str
    feature: str
    value: str

    @classmethod
    def of(cls, namespace: str, feature: str, value: str) -> Self:
        """The property of these parts; `VariantError` if PEP 825 forbids one."""
        return cls(checked_name(namespace, "namespace"), checked_name(feature, "feature"), checked_value(value))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The property written ``namespace :: feature :: value``, with or without spaces."""
        parts = [part.strip() for part in text.split("::")]
        if len(parts) != _PARTS:
            raise VariantError(f"not a variant property: {text!r}; expected namespace :: feature :: value")
        return cls.of(*parts)

    def __str__(self) -> str:
        return f"{self.namespace} :: {self.feature} :: {self.value}"


class Feature(Struct, frozen=True):
    """The values of one feature that a variant names; a machine needs one of them."""

    namespace: str
    name: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.namespace} :: {self.name} :: {' | '.join(self.values)}"

    @property
    def properties(self) -> tuple[Property, ...]:
        return tuple(Property(self.namespace, self.name, value) for value in self.values)


class Variant(Struct, frozen=True):
    label: str
    properties: tuple[Property, ...]

    @classmethod
    def of(cls, label: str, properties: Iterable[Property]) -> Self:
        """The variant of *label* and *properties*; `VariantError` unless only ``null`` has none (PEP 825, V1)."""
        checked_label(label)
        ordered = tuple(sorted(set(properties)))
        if label == NULL_LABEL and ordered:
            raise VariantError(
                f"variant label 'null' stands for no properties, got {ordered[0]} (PEP 825, variant label)"
            )
        if label != NULL_LABEL and not ordered:
            raise VariantError(
                f"variant {label!r} has no properties; only the label 'null' may (PEP 825, variant label)"
            )
        return cls(label, ordered)

    @classmethod
    def hashed(cls, properties: Iterable[Property]) -> Self:
        """The variant of *properties* labelled by their hash, or the null variant."""
        properties = tuple(properties)
        return cls.of(hash_label(properties) if properties else NULL_LABEL, properties)

    def __str__(self) -> str:
        return f"{self.label} ({', '.join(map(str, self.features)) or 'no properties'})"

    @property
    def namespaces(self) -> frozenset[str]:
        return frozenset(prop.namespace for prop in self.properties)

    @property
    def features(self) -> tuple[Feature, ...]:
        """The properties with the values of each feature gathered, sorted."""
        grouped = groupby(self.properties, lambda prop: (prop.namespace, prop.feature))
        return tuple(Feature(*key, tuple(prop.value for prop in props)) for key, props in grouped)


NULL = Variant(NULL_LABEL, ())


def hash_label(properties: Iterable[Property]) -> str:
    """A label of eight hexadecimal digits, as variantlib's default labels; a newline ends each property, so that no two
    lists of properties are hashed as the same text.
    """
    text = "".join(f"{prop}\n" for prop in sorted(set(properties)))
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]


StaticProperties = tuple[tuple[str, tuple[str, ...]], ...]


class VariantProvider(Struct, frozen=True):
    """What says which properties a machine supports: a static list, a plugin, or what installers have *builtin*."""

    requires: tuple[str, ...] = ()
    plugin_api: str | None = None
    static_properties: StaticProperties = ()
    feature_order: tuple[str, ...] = ()
    optional: bool = False
    builtin: str | None = None

    def __post_init__(self) -> None:
        """Refuse what the providers draft forbids (provider information; V5)."""
        sources = {"requires": self.requires, "static-properties": self.static_properties, "builtin": self.builtin}
        keys = [key for key, value in sources.items() if value]
        if len(keys) != 1:
            raise VariantError(f"has {' and '.join(keys) or 'none'} of {', '.join(sources)}; expected one (PEP 850)")
        for requirement in self.requires:
            _check_requirement(requirement)
        if twice := _first_twice(self.requires):
            raise VariantError(f"requires lists {twice!r} twice (PEP 850)")
        if self.plugin_api is not None:
            if not self.requires:
                raise VariantError(f"plugin-api with {keys[0]}; expected it with requires only (PEP 850)")
            if not _PLUGIN_API.fullmatch(self.plugin_api):
                expected = "expected module[.sub][:object] (PEP 850)"
                raise VariantError(f"plugin-api {self.plugin_api!r} is not an object reference; {expected}")
        for feature, values in self.static_properties:
            checked_name(feature, "feature")
            _check_values(feature, values)
        self._check_feature_order()

    @classmethod
    def static(cls, features: Mapping[str, Iterable[str]], *, optional: bool = False) -> Self:
        listed = tuple((feature, tuple(values)) for feature, values in features.items())
        order = tuple(features) if len(listed) > 1 else ()
        return cls(static_properties=tuple(sorted(listed)), feature_order=order, optional=optional)

    @classmethod
    def read(cls, table: Table) -> Self:
        if "build-requires" in table:
            raise table.refuse("build-requires", "needs the plugin to run; write its values as static-properties")
        with table.table("static-properties", optional=True) as features:
            static = tuple(sorted((feature, features.texts(feature)) for feature in features))
        if "static-properties" in table and not static:
            raise table.refuse("static-properties", "no feature; expected at least one (PEP 850)")
        if "feature-order" in table and not table.texts("feature-order"):
            raise table.refuse("feature-order", "no feature; expected every static feature once (PEP 850)")
        if "requires" in table and not table.texts("requires"):
            raise table.refuse("requires", "no requirement; expected at least one (PEP 850)")
        return cls(
            requires=table.texts("requires", ()),
            plugin_api=table.optional_text("plugin-api"),
            static_properties=static,
            feature_order=table.texts("feature-order", ()),
            optional=table.flag("optional", default=False),
            builtin=table.optional_text("builtin"),
        )

    @property
    def features(self) -> StaticProperties:
        if not self.feature_order:
            return self.static_properties
        values = dict(self.static_properties)
        return tuple((feature, values[feature]) for feature in self.feature_order)

    @property
    def endpoint(self) -> str:
        """The plugin's object reference: as written, or the name of the first required package."""
        if self.plugin_api is not None:
            return self.plugin_api
        name = checked_requirement(self.requires[0], VariantError).name
        return re.sub(r"[-_.]+", "_", name).lower()

    def data(self) -> dict[str, Any]:
        keys: dict[str, Any] = {}
        if self.requires:
            keys["requires"] = list(self.requires)
        if self.plugin_api is not None:
            keys["plugin-api"] = self.plugin_api
        if self.static_properties:
            keys["static-properties"] = {feature: list(values) for feature, values in self.static_properties}
        if self.feature_order:
            keys["feature-order"] = list(self.feature_order)
        if self.builtin:
            keys["builtin"] = self.builtin
        if self.optional:
            keys["optional"] = True
        return keys

    def _check_feature_order(self) -> None:
        features = [feature for feature, _ in self.static_properties]
        if self.feature_order:
            if not self.static_properties:
                raise VariantError("feature-order without static-properties; expected it with these only (PEP 850)")
            if sorted(self.feature_order) != sorted(features):
                found, expected = ", ".join(self.feature_order), ", ".join(sorted(features))
                raise VariantError(
                    f"feature-order lists {found}; expected every static feature once: {expected} (PEP 850)"
                )
        elif len(features) > 1:
            raise VariantError(f"no feature-order for {len(features)} static features; expected one (PEP 850)")


class VariantMetadata(Struct, frozen=True):
    """The namespaces of a release, most important first, and their providers in that order."""

    namespaces: tuple[str, ...]
    providers: tuple[tuple[str, VariantProvider], ...]

    def __post_init__(self) -> None:
        """Refuse namespaces that PEP 825 forbids, and providers that are not theirs (V4)."""
        if not self.namespaces:
            raise VariantError("default-priorities.namespace is empty; expected every namespace in use (PEP 825)")
        for namespace in self.namespaces:
            checked_name(namespace, "namespace")
        if twice := _first_twice(self.namespaces):
            raise VariantError(f"default-priorities.namespace lists {twice!r} twice (PEP 825, default priorities)")
        if self.providers and sorted(namespace for namespace, _ in self.providers) != sorted(self.namespaces):
            found, expected = ", ".join(namespace for namespace, _ in self.providers), ", ".join(self.namespaces)
            raise VariantError(f"providers of {found}; expected those of default-priorities: {expected} (PEP 850)")

    @classmethod
    def of(cls, namespaces: Iterable[str], providers: Mapping[str, VariantProvider]) -> Self:
        """The metadata of *namespaces*, with *providers* in their order; none mean PEP 825 alone."""
        order = tuple(namespaces)
        rank = {namespace: place for place, namespace in enumerate(order)}
        ordered = sorted(providers.items(), key=lambda item: (rank.get(item[0], len(rank)), item[0]))
        return cls(order, tuple(ordered))

    @classmethod
    def read(cls, table: Table) -> Self:
        return cls.of(read_namespaces(table), read_providers(table))

    def provider(self, namespace: str) -> VariantProvider | None:
        return dict(self.providers).get(namespace)

    def is_abi(self, namespace: str) -> bool:
        """Whether its features are distributions that a variant was built against (PEP 850, ABI dependencies)."""
        provider = self.provider(namespace)
        return provider is not None and provider.builtin == ABI_DEPENDENCY

    def data(self) -> dict[str, Any]:
        keys: dict[str, Any] = {"default-priorities": {"namespace": list(self.namespaces)}}
        if self.providers:
            keys["providers"] = {namespace: provider.data() for namespace, provider in self.providers}
        return keys

    def check(self, variant: Variant) -> None:
        """Refuse a *variant* whose namespaces are not listed (V4)."""
        for prop in variant.properties:
            if prop.namespace not in self.namespaces:
                listed = ", ".join(self.namespaces)
                raise VariantError(f"{prop}: namespace missing from default-priorities, which lists {listed} (PEP 825)")


def check_abi_dependency(prop: Property) -> None:
    """Refuse a property that no release of a distribution can have (PEP 850, ABI dependencies).

    ``torch :: 2.8`` means torch>=2.8.dev0,<2.9.dev0.
    """
    if not _DISTRIBUTION.fullmatch(prop.feature):
        raise VariantError(f"{prop}: feature {prop.feature!r} is not a normalised name such as my_runtime")
    if not _RELEASE.fullmatch(prop.value):
        raise VariantError(f"{prop}: {prop.value!r} is not a release prefix of one to three numbers, as in 2.8")


def read_namespaces(table: Table) -> tuple[str, ...]:
    with table.table("default-priorities") as priorities:
        return priorities.texts("namespace")


def read_providers(table: Table) -> dict[str, VariantProvider]:
    providers = {}
    with table.table("providers", optional=True) as namespaces:
        for namespace in namespaces:
            with namespaces.table(namespace) as keys, placed(namespaces.place(namespace)):
                providers[namespace] = VariantProvider.read(keys)
    return providers


@contextmanager
def placed(place: str) -> Iterator[None]:
    """Put *place* in front of a `VariantError` raised inside; a `RecipeError` has its own place already."""
    try:
        yield
    except VariantError as error:
        raise VariantError(f"{place}: {error}") from error


def _check_values(feature: str, values: tuple[str, ...]) -> None:
    if not values:
        raise VariantError(f"feature {feature!r} has no values; expected at least one (PEP 850)")
    for value in values:
        checked_value(value)
    if twice := _first_twice(values):
        raise VariantError(f"feature {feature!r} lists {twice!r} twice (PEP 850)")


def _first_twice(texts: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for text in texts:
        if text in seen:
            return text
        seen.add(text)
    return None


@lru_cache(maxsize=256)
def _check_requirement(text: str) -> None:
    with at("requires"):
        checked_requirement(text, VariantError)
