"""``variant.json`` of a wheel, ``{name}-{version}-variants.json`` of a release, ``[variant]`` of a project.

    $schema              which version of the format; 850/0.2.0 has providers, 825/0.1.1 has none
    default-priorities   {"namespace": [...]}
    providers            {namespace: provider}
    variants             {label: {namespace: {feature: [values, sorted]}}}; in a wheel exactly one label

The format is a draft. In pyproject.toml, or in a ``variant.toml``, a project declares what its variants may be:

    [variant.default-priorities]
    namespace = ["x86_64", "blas_lapack"]
    [variant.providers.blas_lapack]
    static-properties.library = ["openblas", "mkl"]
    [variant.variants.v3_openblas]
    x86_64.level = ["v3"]
    blas_lapack.library = ["openblas"]

Providers that vbuild knows (x86_64, aarch64, nvidia) may be left out.
https://peps.python.org/pep-0825/#variant-metadata
The building draft of wheelnext: https://github.com/wheelnext/peps/blob/HEAD/peps/pep-9998.rst

Documents of other tools, of earlier and of later drafts are read with a note, never written:

    …/v0.0.3.json    PEP 817, and variantlib up to 0.2.1
    any other        as 850/0.2.0 if it has providers, else as 825/0.1.1, as uv does; variantlib 0.2.2 has …/v0.2.0.json

What 0.0.3 has and 0.2.0 has not:

    default-priorities.feature      {namespace: [features]}: the order of static properties, else of a plugin
    default-priorities.property     {namespace: {feature: [values]}}: the same for values
    static-properties               {namespace: {feature: [values]}} at the top; now in providers
    providers.*.enable-if           a marker: the plugin is for machines where it holds
    providers.*.install-time        false: no plugin at all, the static properties count
    any other key                   to be ignored (PEP 817); lists of values in any order

Since 0.2.0 a plugin itself says the order of its properties, so a document's order of these is left out.
https://peps.python.org/pep-0817/
"""

import json
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Self

from msgspec import Struct

from vbuild.config.table import Table
from vbuild.errors import RecipeError, VariantError, at
from vbuild.files.reading import json_object
from vbuild.variants.model import (
    Property,
    Variant,
    VariantMetadata,
    checked_name,
    checked_value,
    placed,
    read_namespaces,
    read_providers,
)
from vbuild.variants.providers import check_values, metadata_for

# bytes: four thousand variants; JSON takes twenty times its size in memory
_LARGEST = 1 << 21

_SITE = "https://variants-schema.wheelnext.dev"
_OLDER = f"{_SITE}/v0.0.3.json"
_PRIORITIES, _STATIC, _ORDER = "default-priorities", "static-properties", "feature-order"
_TOP = ("$schema", _PRIORITIES, "providers", "variants")
_KNOWN = ("requires", "plugin-api", _STATIC, _ORDER, "optional")


class Schema(Enum):
    PEP_825 = f"{_SITE}/peps/825/v0.1.1.json"
    PEP_850 = f"{_SITE}/peps/850/v0.2.0.json"

    @classmethod
    def parse(cls, url: str) -> Self:
        for schema in cls:
            if schema.value == url:
                return schema
        known = " or ".join(schema.value for schema in cls)
        raise VariantError(f"unknown variant schema {url!r}; expected {known}")

    @property
    def version(self) -> str:
        """Its PEP and version: ``850/0.2.0``."""
        return self.value.removeprefix(f"{_SITE}/peps/").removesuffix(".json").replace("v", "")

    @property
    def has_providers(self) -> bool:
        return self is Schema.PEP_850


class Document(Struct, frozen=True):
    """Variants and the metadata they share; *notes* say how an earlier draft, or what PEP 825 forbids, was read.

    Two labels may stand for the same properties: installers take the one that sorts first. `combine` writes none.
    """

    schema: Schema
    metadata: VariantMetadata
    variants: tuple[Variant, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse variants that contradict the metadata (V4), or a schema without its providers."""
        for variant in self.variants:
            with at(f"variant {variant.label!r}"):
                self.metadata.check(variant)
        if self.schema.has_providers and not self.metadata.providers:
            lacking = ", ".join(self.metadata.namespaces)
            raise VariantError(f"no provider of {lacking}; give static-properties or requires (PEP 850)")
        if not self.schema.has_providers and self.metadata.providers:
            raise VariantError("providers in a document of PEP 825; expected none, or the schema of PEP 850")

    @classmethod
    def of(cls, variant: Variant, metadata: VariantMetadata) -> Self:
        """The document in a wheel of *variant*; `VariantError` if no installer takes such a wheel."""
        check_values(variant, metadata)
        return cls(Schema.PEP_850, metadata, (variant,))

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The document in *data*; `VariantError` names the place that breaks the PEPs."""
        if len(data) > _LARGEST:
            raise VariantError(f"{len(data)} bytes of JSON; expected {_LARGEST} at most")
        values, notes = _current(json_object(data, VariantError))
        table = Table(values)
        try:
            schema = table.parsed("$schema", Schema.parse)
            metadata = VariantMetadata.read(table)
            variants = read_variants(table)
            table.finish()
        except (RecipeError, VariantError) as error:
            raise VariantError("; ".join((str(error), *notes))) from error
        return cls(schema, metadata, variants, notes)

    @classmethod
    def of_wheel(cls, label: str | None, data: bytes | None) -> "Document | None":
        """The document in *data*, the variant.json of a wheel, or None for a plain wheel, which has none.

        *label* is the variant label in the wheel's file name. `VariantError` if only one of the two is there, or if
        they disagree (PEP 825, variant wheel).
        """
        if label is None:
            if data is not None:
                raise VariantError("in a wheel whose file name has no variant label; expected none (PEP 825)")
            return None
        if data is None:
            raise VariantError(f"missing; expected it to describe the variant {label!r} of the file name (PEP 825)")
        document = _parsed(data)
        document.only(label)
        return document

    def pack(self) -> bytes:
        variants: dict[str, dict[str, dict[str, list[str]]]] = {}
        for variant in sorted(self.variants, key=lambda variant: variant.label):
            namespaces = variants.setdefault(variant.label, {})
            for feature in variant.features:
                namespaces.setdefault(feature.namespace, {})[feature.name] = list(feature.values)
        values = {"$schema": self.schema.value, **self.metadata.data(), "variants": variants}
        return json.dumps(values, indent=2).encode() + b"\n"

    def only(self, label: str) -> Variant:
        """The one variant of a wheel whose file name says *label* (V2); `VariantError` if there is another."""
        labels = [variant.label for variant in self.variants]
        if labels != [label]:
            described = ", ".join(map(repr, labels)) or "none"
            raise VariantError(f"describes {described}; expected only {label!r}, as in the file name (PEP 825)")
        return self.variants[0]


def read_variants(table: Table) -> tuple[Variant, ...]:
    variants = []
    with table.table("variants") as labels:
        for label in labels:
            with labels.table(label) as namespaces, placed(labels.place(label)):
                variants.append(Variant.of(label, _read_properties(namespaces)))
    return tuple(sorted(variants, key=lambda variant: variant.label))


def combine(documents: Iterable[tuple[object, Document]]) -> Document:
    """One document for a release, of its wheels' pairs of place and document, in any order (V6).

    The namespace lists must begin alike, and the longest wins; a label must mean the same everywhere, and a namespace
    must have the same provider everywhere (PEP 825, consistency; PEP 850, provider information).
    """
    pairs = sorted(documents, key=lambda pair: str(pair[0]))
    if not pairs:
        raise VariantError("no variant to combine; expected at least one")
    longest_place, longest = max(pairs, key=lambda pair: len(pair[1].metadata.namespaces))
    # with their first place
    by_label: dict[str, tuple[object, Variant]] = {}
    by_properties: dict[tuple[Property, ...], tuple[object, str]] = {}
    for place, document in pairs:
        with at(f"{place} and {longest_place}"):
            _check_alike(document, longest)
        for variant in document.variants:
            first, known = by_label.setdefault(variant.label, (place, variant))
            if known != variant:
                raise VariantError(
                    f"{first} and {place}: the label {variant.label!r} stands for different properties: "
                    f"{_listed(known)} and {_listed(variant)} (PEP 825, variant label)"
                )
            first, label = by_properties.setdefault(variant.properties, (place, variant.label))
            if label != variant.label:
                raise VariantError(
                    f"{first} and {place}: the labels {label!r} and {variant.label!r} stand for the same properties: "
                    f"{_listed(variant)} (PEP 825, variant label)"
                )
    variants = tuple(variant for _, (_, variant) in sorted(by_label.items()))
    return Document(longest.schema, longest.metadata, variants)


def _check_alike(document: Document, longest: Document) -> None:
    """Refuse *document* if it contradicts *longest*."""
    if document.schema is not longest.schema:
        raise VariantError(f"different schemas: {document.schema.value} and {longest.schema.value}")
    mine, theirs = document.metadata.namespaces, longest.metadata.namespaces
    if theirs[: len(mine)] != mine:
        raise VariantError(
            f"different namespace priorities: {', '.join(mine)} and {', '.join(theirs)}; "
            f"expected one to begin with the other (PEP 825, consistency)"
        )
    expected = dict(longest.metadata.providers)
    for namespace, provider in document.metadata.providers:
        if expected[namespace] != provider:
            raise VariantError(
                f"different providers of {namespace!r}; expected the same (PEP 850, provider information)"
            )


# the wheels of a release have few different documents
_parsed = lru_cache(maxsize=1024)(Document.parse)


def _read_properties(namespaces: Table) -> list[Property]:
    properties = []
    for namespace in namespaces:
        checked_name(namespace, "namespace")
        with namespaces.table(namespace) as features:
            if not list(features):
                raise VariantError(f"namespace {namespace!r} has no features; expected at least one (PEP 825)")
            for feature in features:
                checked_name(feature, "feature")
                values = features.texts(feature)
                _check_values(f"{namespace} :: {feature}", values)
                properties += [Property(namespace, feature, value) for value in values]
    return properties


def _check_values(feature: str, values: tuple[str, ...]) -> None:
    """Refuse a list of values that is empty, has one twice, or is not sorted (PEP 825, variants; V3)."""
    if not values:
        raise VariantError(f"{feature} has no values; expected at least one (PEP 825)")
    for value in values:
        checked_value(value)
    if len(set(values)) < len(values):
        raise VariantError(f"{feature} has a value twice: {', '.join(values)} (PEP 825)")
    if list(values) != sorted(values):
        raise VariantError(
            f"{feature} has unsorted values: {', '.join(values)}; expected {', '.join(sorted(values))} (PEP 825)"
        )


def _listed(variant: Variant) -> str:
    return ", ".join(map(str, variant.features))


class Declaration(Struct, frozen=True):
    """A project's variants, and the metadata that they share."""

    metadata: VariantMetadata
    variants: tuple[Variant, ...] = ()

    @classmethod
    def read(cls, table: Table) -> Self:
        if "$schema" in table:
            table.parsed("$schema", Schema.parse)
        metadata = metadata_for(read_namespaces(table), read_providers(table))
        variants = read_variants(table) if "variants" in table else ()
        for variant in variants:
            metadata.check(variant)
            check_values(variant, metadata)
        return cls(metadata, variants)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The declaration in the text of a ``variant.toml``; `VariantError` names the key that is wrong."""
        try:
            top = Table.parse(text)
            with top.table("variant") as table:
                declaration = cls.read(table)
            top.finish()
        except RecipeError as error:
            raise VariantError(str(error)) from error
        return declaration

    def variant(self, label: str) -> Variant:
        """The variant called *label*; `VariantError` if the project names none of that label."""
        for variant in self.variants:
            if variant.label == label:
                return variant
        known = ", ".join(variant.label for variant in self.variants) or "none"
        raise VariantError(f"no variant {label!r} in the [variant.variants] table, which has {known}")


def _current(values: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The document *values* under a schema that is known, tidy, with notes on what was not.

    What is malformed stays as it is, for the reader to refuse.
    """
    url, variants = values.get("$schema"), values.get("variants")
    if url == _OLDER:
        return _upgraded(values)
    notes = []
    schema = Schema.PEP_850 if "providers" in values else Schema.PEP_825
    if isinstance(url, str) and (schema.has_providers or url != Schema.PEP_850.value) and url != schema.value:
        notes.append(f"$schema is {url}, read as {schema.version}")
        values = {**values, "$schema": schema.value}
    if isinstance(variants, Mapping):
        tidy = _tidied(variants)
        if untidy := [label for label in tidy if tidy[label] != variants[label]]:
            notes.append(f"{', '.join(untidy)}: read with sorted values and without empty namespaces (PEP 825)")
        values = {**values, "variants": tidy}
    return values, tuple(notes)


def _upgraded(values: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    notes = [f"$schema is {_OLDER}, an earlier draft, read as 850/0.2.0"]
    priorities = _table(values, _PRIORITIES)
    static, features = _table(values, _STATIC), _table(priorities, "feature")
    order = _table(priorities, "property")
    named = [name for name in priorities.get("namespace") or () if isinstance(name, str)]
    described = _table(values, "providers")
    providers: dict[str, Any] = {**described}
    for namespace in dict.fromkeys([*named, *described]):
        provider = _table(described, namespace)
        properties = _table(static, namespace) or _table(provider, _STATIC)
        if properties and (not provider.get("requires") or provider.get("install-time") is False):
            providers[namespace] = _static_provider(
                provider, properties, features.get(namespace), _table(order, namespace)
            )
            continue
        if namespace not in described:
            continue
        known = {key: value for key, value in provider.items() if key in _KNOWN and key != _STATIC}
        providers[namespace] = known or described[namespace]
        if "enable-if" in provider:
            notes.append(f"providers.{namespace}.enable-if is left out, so its plugin may be asked on other machines")
        if features.get(namespace) or order.get(namespace):
            notes.append(f"the order of the properties of {namespace} is left out: its plugin says that")
    variants = values.get("variants")
    return {
        **{key: value for key, value in values.items() if key in _TOP},
        "$schema": Schema.PEP_850.value,
        _PRIORITIES: {"namespace": priorities["namespace"]} if "namespace" in priorities else {},
        "providers": providers,
        "variants": _tidied(variants) if isinstance(variants, Mapping) else variants,
    }, tuple(notes)


def _table(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = values.get(key)
    return table if isinstance(table, Mapping) else {}


def _static_provider(
    provider: Mapping[str, Any], properties: Mapping[str, Any], features: object, order: Mapping[str, Any]
) -> dict[str, Any]:
    """*provider* with static *properties*, first those in *features* and *order*."""
    first = features if isinstance(features, list) else provider.get(_ORDER) or ()
    names = [*dict.fromkeys([*(name for name in first if name in properties), *properties])]
    return {
        _STATIC: {name: _ordered(properties[name], order.get(name)) for name in names},
        **({_ORDER: names} if len(names) > 1 else {}),
        **({"optional": provider["optional"]} if "optional" in provider else {}),
    }


def _ordered(values: object, first: object) -> object:
    if not isinstance(values, list) or not isinstance(first, list):
        return values
    return [*(value for value in first if value in values), *(value for value in values if value not in first)]


def _tidied(variants: Mapping[str, Any]) -> dict[str, Any]:
    """The *variants* with the values of each feature sorted and without namespaces that have no features."""

    def with_sorted_lists(value: object) -> object:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return sorted(value)
        if isinstance(value, Mapping):
            return {key: with_sorted_lists(item) for key, item in value.items()}
        return value

    return {
        label: {name: with_sorted_lists(features) for name, features in namespaces.items() if features != {}}
        if isinstance(namespaces, Mapping)
        else namespaces
        for label, namespaces in variants.items()
    }
