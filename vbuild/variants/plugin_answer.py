"""What a provider plugin answered, taken apart without trust in any of it.

    {"namespace": null | the namespace,
     "features": [{"name": "gfx_arch", "values": ["gfx1100", ...], "multi_value": true}, ...]}    best first

    name, namespace    a-z, 0-9 and _ (PEP 825), 128 characters
    values             a-z, 0-9, _ and ., 128 characters each, 1 to 1024 of them, none twice
    features           256, none twice; in all 2**20 bytes

The longest list of the plugins there are has 160 values (``nvidia :: sm_arch``), the widest answer some 60 features.
"""

from vbuild.config.table import Table
from vbuild.errors import RecipeError, VariantError
from vbuild.files.json_text import json_object
from vbuild.hardware.machine import Features
from vbuild.variants.model import checked_name, checked_value

MOST_BYTES = 1 << 20
_MOST_FEATURES, _MOST_VALUES, _LONGEST = 256, 1024, 128


def parsed(data: bytes, namespace: str) -> Features:
    """The features of *namespace*, best first, in the answer *data*; `VariantError` if it is not as above."""
    try:
        return _read(Table(json_object(data, VariantError)), namespace)
    except (RecipeError, VariantError) as error:
        raise VariantError(f"its answer: {error}") from error


def _read(table: Table, namespace: str) -> Features:
    stated = table.optional_text("namespace")
    if stated not in {None, namespace}:
        raise table.refuse("namespace", f"found {stated!r}; expected {namespace!r}, which it was asked for")
    if table.raw("features") is None:
        raise table.refuse("features", "missing; expected an array")
    tables = table.tables("features")
    if len(tables) > _MOST_FEATURES:
        raise table.refuse("features", f"{len(tables)} of them; expected {_MOST_FEATURES} at most")
    features: dict[str, tuple[str, ...]] = {}
    for found in tables:
        name = checked_name(_short(found, "name", found.text("name")), "feature")
        if name in features:
            raise found.refuse("name", f"{name!r} a second time; expected each feature once")
        features[name] = _values(found)
        found.flag("multi_value", default=False)
        found.finish()
    table.finish()
    return tuple(features.items())


def _values(table: Table) -> tuple[str, ...]:
    values = table.texts("values")
    if not 0 < len(values) <= _MOST_VALUES:
        raise table.refuse("values", f"{len(values)} of them; expected 1 to {_MOST_VALUES}, best first")
    seen: set[str] = set()
    for value in values:
        if checked_value(_short(table, "values", value)) in seen:
            raise table.refuse("values", f"{value!r} twice; expected each value once, best first")
        seen.add(value)
    return values


def _short(table: Table, key: str, text: str) -> str:
    if len(text) > _LONGEST:
        raise table.refuse(key, f"{text[:_LONGEST]!r}... of {len(text)} characters; expected {_LONGEST} at most")
    return text
