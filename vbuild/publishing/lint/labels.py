"""Check the variants of a release: each wheel's label, variants.json, and which wheels are missing.

    wheel's name, label       = its variant.json                  (PEP 825, variant wheel)
    all variant.json together = {name}-{version}-variants.json    (PEP 825, index-level metadata)
    every variant has a plain wheel: pip, and uv without a preview flag, see no other
    a label that exists for one Python exists for all

https://peps.python.org/pep-0825/
"""

from collections.abc import Iterable, Iterator, Sequence

from vbuild.errors import VariantError, at
from vbuild.publishing.lint.files import LintedRelease, ReadyWheel
from vbuild.publishing.lint.model import PublishRule
from vbuild.publishing.lint.names import FileSlot, covers
from vbuild.variants.document import Document, combine
from vbuild.verification.model import Finding, Severity
from vbuild.wheel.metadata import VARIANT_JSON

_LARGEST = 1 << 26  # bytes of a variants.json
_AGAIN = "write it again: vbuild index"
_MANY_PYTHONS = frozenset({"abi3", "none"})


def label_problems(release: LintedRelease) -> Iterator[Finding]:
    """What is wrong with the variants of *release*."""
    documents: list[tuple[str, Document]] = []
    for wheel in release.wheels:
        try:
            with at(VARIANT_JSON):
                document = Document.of_wheel(wheel.name.variant, wheel.variant_json)
            if document:
                documents.append((wheel.file, document))
        except VariantError as error:
            advice = "stamp the wheel again: vbuild stamp"
            yield Finding(Severity.ERROR, PublishRule.VARIANT, (wheel.file,), str(error), advice)
    if documents:
        yield from _index(release, documents)
    yield from _without_plain(release)
    yield from _incomplete(release)


def _index(release: LintedRelease, documents: Sequence[tuple[str, Document]]) -> Iterator[Finding]:
    try:
        expected = combine(documents)
    except VariantError as error:
        files = tuple(file for file, _ in documents)
        yield Finding(Severity.ERROR, PublishRule.VARIANT, files, str(error), "stamp the wheels alike: vbuild stamp")
        return
    if release.index is None:
        what = f"there are variant wheels but no {release.index_name}, and installers ignore them without"
        yield Finding(Severity.ERROR, PublishRule.INDEX, (release.index_name,), what, "write it: vbuild index")
        return
    try:
        with release.index.open("rb") as file:
            actual = Document.parse(file.read(_LARGEST))
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        yield Finding(Severity.ERROR, PublishRule.INDEX, (release.index.name,), what, _AGAIN)
    except VariantError as error:
        yield Finding(Severity.ERROR, PublishRule.INDEX, (release.index.name,), str(error), _AGAIN)
    else:
        if actual != expected:
            yield Finding(Severity.ERROR, PublishRule.INDEX, (release.index.name,), _stale(actual, expected), _AGAIN)


def _stale(actual: Document, expected: Document) -> str:
    """What is wrong in *actual*, a variants.json, where the wheels say *expected*."""
    listed = {variant.label: variant for variant in actual.variants}
    there = {variant.label: variant for variant in expected.variants}
    parts = []
    if more := sorted(listed.keys() - there.keys()):
        parts.append(f"lists {', '.join(more)}, of which there is no wheel")
    if less := sorted(there.keys() - listed.keys()):
        parts.append(f"does not list {', '.join(less)}, of which there are wheels")
    if other := sorted(label for label in listed.keys() & there.keys() if listed[label] != there[label]):
        parts.append(f"has other properties for {', '.join(other)} than the wheels")
    if (actual.schema, actual.metadata) != (expected.schema, expected.metadata):
        parts.append("has another schema, order of namespaces, or other providers than the wheels")
    return "; ".join(parts)


def _without_plain(release: LintedRelease) -> Iterator[Finding]:
    plain = [wheel.slots for wheel in release.plain]
    for wheel in release.variants:
        if not any(covers(offered, wheel.slots) for offered in plain):
            falls_back = bool(release.sources)
            rest = "pip builds the sdist there instead" if falls_back else "pip finds nothing there"
            yield Finding(
                Severity.WARNING if falls_back else Severity.ERROR,
                PublishRule.PLAIN,
                (wheel.file,),
                f"no plain wheel for {_listed(wheel.slots)}: {rest}",
                "build the plain wheel too",
            )


def _incomplete(release: LintedRelease) -> Iterator[Finding]:
    """The labels that are there for one Python of a machine and not for another."""
    by_machine: dict[str, dict[str, list[tuple[FileSlot, ...]]]] = {}
    for wheel in release.variants:
        for machine in {slot.machine for slot in wheel.slots}:
            by_machine.setdefault(machine, {}).setdefault(wheel.name.variant or "", []).append(wheel.slots)
    for machine, labels in by_machine.items():
        wanted = {slots for there in labels.values() for slots in there} | _of_one_python(release.plain, machine)
        for label, there in labels.items():
            lacks = [slots for slots in sorted(wanted) if not any(covers(offered, slots) for offered in there)]
            if lacks:
                yield Finding(
                    Severity.WARNING,
                    PublishRule.LABELS,
                    (str(release),),
                    f"there is no {label} for {', '.join(map(_listed, lacks))}, as there is for "
                    f"{', '.join(map(_listed, sorted(set(there))))}",
                    "build it too, or leave it out on purpose",
                )


def _of_one_python(wheels: Iterable[ReadyWheel], machine: str) -> set[tuple[FileSlot, ...]]:
    """The slots of those of *wheels* for just one Python and *machine*: variants are expected there as elsewhere."""
    one = (wheel.slots for wheel in wheels if len(wheel.slots) == 1)
    return {slots for slots in one if slots[0].machine == machine and slots[0].abi not in _MANY_PYTHONS}


def _listed(slots: tuple[FileSlot, ...]) -> str:
    return ".".join(map(str, slots))
