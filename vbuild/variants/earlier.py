"""Documents of other tools and of earlier drafts, as those of PEP 850: read with a note, never written.

    …/v0.2.0.json, …/peps/9999/v0.2.0.json   variantlib 0.2.2, and the draft without a number: nothing else differs
    …/v0.0.3.json                            PEP 817, and variantlib up to 0.2.1

What 0.0.3 has and 0.2.0 has not:

    default-priorities.feature      {namespace: [features]}: the order of static properties, else of a plugin
    default-priorities.property     {namespace: {feature: [values]}}: the same for values
    static-properties               {namespace: {feature: [values]}} at the top; now in providers
    providers.*.enable-if           a marker: the plugin is for machines where it holds
    providers.*.install-time        false: no plugin at all, the static properties count
    any other key                   to be ignored (PEP 817); lists of values in any order

What the order of a plugin's properties would be is for its plugin to say since 0.2.0, so such an order is not kept.
https://peps.python.org/pep-0817/
"""

from collections.abc import Mapping
from typing import Any

_SITE = "https://variants-schema.wheelnext.dev"
CURRENT = f"{_SITE}/peps/850/v0.2.0.json"
_SAME = (f"{_SITE}/v0.2.0.json", f"{_SITE}/peps/9999/v0.2.0.json")
_OLDER = f"{_SITE}/v0.0.3.json"

_PRIORITIES, _STATIC, _ORDER = "default-priorities", "static-properties", "feature-order"
_TOP = ("$schema", _PRIORITIES, "providers", "variants")
_KNOWN = ("requires", "plugin-api", _STATIC, _ORDER, "optional")


def current(values: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the document *values* as one of today, and what is to be known of that; itself if it is none of these.

    What is not as expected stays in it: reading the result refuses that.
    """
    schema = values.get("$schema")
    if schema in _SAME:
        return {**values, "$schema": CURRENT}, (f"$schema is {schema}, read as 850/0.2.0, which is the same",)
    if schema != _OLDER:
        return values, ()
    return _upgraded(values)


def _upgraded(values: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The document *values* of 0.0.3."""
    notes = [f"$schema is {_OLDER}, an earlier draft, read as 850/0.2.0"]
    priorities = _table(values, _PRIORITIES)
    static, features = _table(values, _STATIC), _table(priorities, "feature")
    order = _table(priorities, "property")
    named = [name for name in priorities.get("namespace") or () if isinstance(name, str)]
    described = _table(values, "providers")
    providers: dict[str, Any] = {**described}
    for namespace in dict.fromkeys([*named, *described]):
        one = _table(described, namespace)
        own = _table(static, namespace) or _table(one, _STATIC)
        if own and (not one.get("requires") or one.get("install-time") is False):
            providers[namespace] = _listed(one, own, features.get(namespace), _table(order, namespace))
            continue
        if namespace not in described:
            continue
        kept = {key: value for key, value in one.items() if key in _KNOWN and key != _STATIC}
        providers[namespace] = kept or described[namespace]
        if "enable-if" in one:
            notes.append(f"providers.{namespace}.enable-if is left out, so its plugin may be asked on other machines")
        if features.get(namespace) or order.get(namespace):
            notes.append(f"the order of the properties of {namespace} is left out: its plugin says that")
    known = {key: value for key, value in values.items() if key in _TOP}
    variants = values.get("variants")
    return {
        **known,
        "$schema": CURRENT,
        _PRIORITIES: {"namespace": priorities["namespace"]} if "namespace" in priorities else {},
        "providers": providers,
        "variants": _sorted(variants) if isinstance(variants, Mapping) else variants,
    }, tuple(notes)


def _table(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = values.get(key)
    return found if isinstance(found, Mapping) else {}


def _listed(
    one: Mapping[str, Any], own: Mapping[str, Any], features: object, order: Mapping[str, Any]
) -> dict[str, Any]:
    """A provider of static properties, those that *features* and *order* name first."""
    first = [name for name in (features if isinstance(features, list) else one.get(_ORDER) or ()) if name in own]
    names = [*dict.fromkeys([*first, *own])]
    provider: dict[str, Any] = {_STATIC: {name: _ordered(own[name], order.get(name)) for name in names}}
    if len(names) > 1:
        provider[_ORDER] = names
    return {**provider, **({"optional": one["optional"]} if "optional" in one else {})}


def _ordered(values: object, first: object) -> object:
    if not isinstance(values, list) or not isinstance(first, list):
        return values
    return [*(value for value in first if value in values), *(value for value in values if value not in first)]


def _sorted(variants: Mapping[str, Any]) -> dict[str, Any]:
    """The *variants* with the values of each feature sorted, as PEP 825 wants them."""

    def placed(value: object) -> object:
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return sorted(value)
        return {key: placed(each) for key, each in value.items()} if isinstance(value, Mapping) else value

    return {label: placed(value) for label, value in variants.items()}
