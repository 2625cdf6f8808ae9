"""Variant properties, and variants.

    x86_64 :: level :: v3            namespace :: feature :: value
    x86_64_v3 = {x86_64 :: level :: v3}    a variant: its label, and the properties that the label stands for

A wheel fits a machine if, for each feature that it names, the machine supports at least one of the values.
https://peps.python.org/pep-0825/#variant-properties
"""

import hashlib
import re
from collections.abc import Iterable
from itertools import groupby
from typing import Self

from msgspec import Struct

from vbuild.errors import VariantError

NULL_LABEL = "null"

_LABEL = re.compile(r"[0-9a-z_.]+", re.ASCII)
_NAME = re.compile(r"[0-9a-z_]+", re.ASCII)
_VALUE = re.compile(r"[0-9a-z_.]+", re.ASCII)
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


class Variant(Struct, frozen=True):
    """A variant label and its properties, sorted."""

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
    """A label of eight hexadecimal digits, as variantlib's default labels.

    A newline ends each property, so that no two lists of properties are hashed as the same text.
    """
    text = "".join(f"{prop}\n" for prop in sorted(set(properties)))
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]
