"""Build numbers: the preference among variants as conda's solver knows it, which takes the highest number that fits.

    plain 0 < null 50 < v2 200 < v3 300 < v4 400 < CUDA 500 < CUDA with v3 600

A hundred for each CPU level, two hundred for a GPU, and more where PEP 825's order asks for it: numbers stay what they
are when a release gets more levels. One list of numbers serves all machines, so that of a variant with several values
for one feature each value is placed by itself; neighbours are one package, others a package each.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from vbuild.errors import at
from vbuild.hardware.cpu import X86_64_LEVELS
from vbuild.hardware.driver import Dotted
from vbuild.hardware.machine import Machine
from vbuild.layout.conda.hardware import condition
from vbuild.variant.document import Document
from vbuild.variant.model import Property, Variant
from vbuild.variant.order import ranked

STEP = 100
_NULL, _GPU = 50, 200


@dataclass(frozen=True, slots=True)
class Choice:
    """A variant, by *label*, where it stands with *number*: for machines with one of these *alternatives*."""

    label: str
    alternatives: tuple[tuple[Property, ...], ...]
    number: int


def choices(document: Document) -> tuple[Choice, ...]:
    """The variants of *document*, the least preferred first; `LayoutError` for a property without conda equivalent."""
    found: list[Choice] = []
    for label, alternatives in _neighbours(list(_placed(document))):
        number = max(found[-1].number // STEP * STEP + STEP if found else 0, _natural(alternatives[0]))
        found.append(Choice(label, alternatives, number))
    return tuple(found)


def _natural(properties: Sequence[Property]) -> int:
    """The number of a variant with these *properties* if it were alone."""
    levels = [X86_64_LEVELS.index(prop.value) + 1 for prop in properties if prop.namespace == "x86_64"]
    gpu = _GPU if any(prop.namespace == "nvidia" for prop in properties) else 0
    return STEP * max(levels, default=0) + gpu if properties else _NULL


def _placed(document: Document) -> Iterator[tuple[str, tuple[Property, ...]]]:
    """Each variant with each choice of one value a feature, the least preferred first."""
    for variant in document.variants:
        with at(f"variant {variant.label!r}"):
            for prop in variant.properties:
                condition(prop)
    singles: dict[str, tuple[str, tuple[Property, ...]]] = {}
    for variant in document.variants:
        features = [[Property(f.namespace, f.name, value) for value in f.values] for f in variant.features]
        for properties in product(*features):
            singles[f"single{len(singles)}"] = variant.label, properties
    machine = _everything(document)
    order = []
    for name, (label, properties) in singles.items():
        alone = replace(document, variants=(Variant(name if properties else label, properties),))
        [place] = ranked(alone, machine)
        order.append((place.key[:2], label, properties))
    # of equal ones the first label is taken
    order.sort(key=lambda item: (item[0], item[1]), reverse=True)
    return ((label, properties) for _, label, properties in order)


def _neighbours(
    placed: Sequence[tuple[str, tuple[Property, ...]]],
) -> Iterator[tuple[str, tuple[tuple[Property, ...], ...]]]:
    """*placed*, what follows one another of one label together where conda can ask for it in one package."""
    run: list[tuple[Property, ...]] = []
    before = ""
    for label, properties in placed:
        if run and (label != before or not _differs_in_one(run[-1], properties)):
            yield before, tuple(run)
            run = []
        run.append(properties)
        before = label
    yield before, tuple(run)


def _differs_in_one(one: Sequence[Property], other: Sequence[Property]) -> bool:
    """Whether two choices for the same features differ in the value of one, and ask something of the same packages."""
    asked = [{found[0] for found in map(condition, properties) if found} for properties in (one, other)]
    return asked[0] == asked[1] and sum(here != there for here, there in zip(one, other, strict=True)) == 1


def _everything(document: Document) -> Machine:
    """A machine with every value that *document* names, each list in the order that all machines have it in."""
    values: dict[str, dict[str, set[str]]] = {}
    for prop in (prop for variant in document.variants for prop in variant.properties):
        values.setdefault(prop.namespace, {}).setdefault(prop.feature, set()).add(prop.value)
    supported = tuple((namespace, tuple(_features(found))) for namespace, found in values.items())
    return Machine("3", (), supported=supported)


def _features(values: Mapping[str, set[str]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    # the features of a namespace are in the order of their names, as its provider has them
    for feature, found in sorted(values.items()):
        yield feature, tuple(sorted(found, key=_rank, reverse=True))


def _rank(value: str) -> tuple[bool, Dotted, int]:
    """What values are sorted by, the best highest: machine code before PTX, later GPUs, drivers and levels first."""
    number, _, kind = value.partition("_")
    # 12.0 comes before 12
    return kind != "virtual", Dotted.parse(number.removeprefix("v")), len(value)
