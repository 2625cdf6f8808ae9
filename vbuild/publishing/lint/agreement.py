"""Compare the files of a release: METADATA (installers read that of one wheel for all), variants, and shared files.

    file name           = Name and Version in METADATA
    plain wheel         = each variant for the same Python and machine; one for another libc is built on purpose
    one Python, machine = another; an error if one needs there what the other does not require there
    sdist               = wheels, but for fields that its PKG-INFO declares Dynamic (PEP 643)

PEP 825 leaves dependencies that differ to the publisher, who can declare them Dynamic; uv and Poetry lock all wheels of
a release by the METADATA of one. What `vbuild split` adds to a variant alone may differ.
https://peps.python.org/pep-0825/appendix-metadata-consistency
https://docs.astral.sh/uv/reference/internals/resolver/#metadata-consistency

    wheel's name, label       = its variant.json                  (PEP 825, variant wheel)
    all variant.json together = {name}-{version}-variants.json    (PEP 825, index-level metadata)
    every variant has a plain wheel: pip, and uv without a preview flag, see no other
    a label that exists for one Python exists for all

Distributions of several projects that install the same files collide, and no installer notices: the last one's files
are used, and after either is uninstalled the other is listed without its files. An ``__init__.py`` that is the same in
both is not reported: so packages of several distributions were made before PEP 420.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from posixpath import basename

from msgspec.structs import replace
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from vbuild.config.requirements import applies, read_requirement, required_project, spelled
from vbuild.elf.catalogue import TOOLKIT, is_official
from vbuild.errors import FetchError, VariantError, WheelError, at
from vbuild.files.wording import shown
from vbuild.publishing.lint.files import LintedRelease, ReadySdist, ReadyWheel
from vbuild.publishing.lint.index import IndexRules
from vbuild.publishing.lint.metadata import (
    INSTALLER_FIELDS,
    REQUIRES_DIST,
    MetadataDifference,
    MetadataView,
)
from vbuild.publishing.model import PublishRule
from vbuild.variants.document import Document, combine
from vbuild.variants.providers import check_values
from vbuild.verification.model import Finding, Severity
from vbuild.wheel.metadata import VARIANT_JSON
from vbuild.wheel.slots import FileSlot, covers, meet


def metadata_problems(release: LintedRelease, *, beside: Collection[str]) -> Iterator[Finding]:
    """Where METADATA of *release* contradict one another; *beside* are the projects of other files here."""
    for wheel in release.wheels:
        yield from _of_another(wheel, wheel.name.project, wheel.name.version)
    groups: dict[tuple[FileSlot, ...], list[ReadyWheel]] = {}
    for wheel in (*release.plain, *release.variants):
        groups.setdefault(wheel.slots, []).append(wheel)
    first = [wheels[0] for _, wheels in sorted(groups.items())]
    for wheels in groups.values():
        yield from _among_variants(wheels, beside)
    for wheel in first[1:]:
        for difference in first[0].metadata.differences(wheel.metadata):
            is_plain = wheel.name.variant is None and first[0].name.variant is None
            is_error = is_plain and difference.field == REQUIRES_DIST and _misleads(first[0], wheel)
            yield _differs(wheel, first[0], difference, is_error=is_error)


def _misleads(first: ReadyWheel, other: ReadyWheel) -> bool:
    """Whether a tool that locks by one wheel leaves out what the other needs where that is installed.

    Lines that apply only where the other is not installed do no harm, nor do those that both declare Dynamic.
    """
    if all(REQUIRES_DIST.lower() in wheel.metadata.dynamic for wheel in (first, other)):
        return False
    for read, installed in ((first, other), (other, first)):
        for system, machine_name, minor in {platform for slot in installed.slots for platform in slot.places}:
            locked, needed = (_applying(wheel, system, machine_name, minor) for wheel in (read, installed))
            if needed - locked:
                return True
    return False


def _applying(wheel: ReadyWheel, system: str, machine_name: str, minor: int) -> set[str]:
    """What *wheel* requires there, without markers; lines that cannot be read are another rule's."""
    lines = set()
    for requirement in filter(None, map(read_requirement, wheel.metadata.requires)):
        with suppress(WheelError):
            if applies(requirement, minor, machine=machine_name, system=system):
                requirement.marker = None
                lines.add(spelled(str(requirement)))
    return lines


def sdist_problems(release: LintedRelease, terms: IndexRules) -> Iterator[Finding]:
    if not (release.sources or release.former) and not all(wheel.is_companion for wheel in release.wheels):
        fault = "there is no sdist: users without a matching wheel, and users who build from source, cannot install it"
        advice = "put it next to the wheels: python -m build --sdist, or uv build --sdist"
        yield Finding(Severity.WARNING, PublishRule.SDIST, (str(release),), fault, advice)
    if len(release.sources) > 1:
        files = tuple(source.file for source in release.sources)
        fault = "are two sdists of one release, and PyPI takes one"
        yield Finding(terms.severity, PublishRule.SDIST, files, fault, "remove one")
    expected = f"{release}.tar.gz"
    for file in (*(source.file for source in release.sources), *release.former):
        if file != expected:
            fault = f"expected the file name {expected} (PEP 625)"
            yield Finding(terms.severity, PublishRule.SDIST, (file,), fault, "build it with a newer backend")
    for source in release.sources:
        yield from _of_another(source, source.project, str(source.version))
        for wheel in (release.plain or release.wheels)[:1]:
            yield from _unlike(source, wheel)


def _of_another(file: ReadyWheel | ReadySdist, project: str, version: str) -> Iterator[Finding]:
    metadata = file.metadata
    try:
        is_same = Version(metadata.version) == Version(version)
    except InvalidVersion:
        is_same = False
    if canonicalize_name(metadata.name) != project or not is_same:
        fault = f"its metadata is of {metadata.name} {metadata.version}, which the file name does not say"
        advice = "build it again; do not rename files by hand"
        yield Finding(Severity.ERROR, PublishRule.METADATA, (file.file,), fault, advice)


def _among_variants(wheels: list[ReadyWheel], beside: Collection[str]) -> Iterator[Finding]:
    """Differences of wheels for the same Python and machine; the first is a plain one if any is.

    A variant is compared with the plain wheel of its own name: others may be for an older libc and predate it.
    """
    first, *others = wheels
    plain = {wheel.name: wheel for wheel in wheels if wheel.name.variant is None}
    for wheel in others:
        like = plain.get(wheel.name.plain(), first) if wheel.name.variant else first
        for difference in _differences(like.metadata, wheel):
            is_declared = all(difference.field.lower() in file.metadata.dynamic for file in (like, wheel))
            chosen_by = difference.field in INSTALLER_FIELDS and wheel.name.variant is not None
            is_error = chosen_by and not (is_declared or _is_added(difference, beside))
            yield _differs(wheel, like, difference, is_error=is_error)


def _is_added(difference: MetadataDifference, beside: Collection[str]) -> bool:
    """Whether only requirements differ that a variant alone needs: the vendor's packages, and those *beside*."""
    if difference.field != REQUIRES_DIST:
        return False
    return all(project == TOOLKIT or is_official(project) or project in beside for project in _projects(difference))


def _projects(difference: MetadataDifference) -> list[str]:
    return [required_project(line) or "" for line in (*difference.lacks, *difference.has)]


def _differences(like: MetadataView, wheel: ReadyWheel) -> Iterator[MetadataDifference]:
    """What *wheel* states otherwise than *like*, but for requirements that its properties say, too."""
    built_against = _built_against(wheel)
    for difference in like.differences(wheel.metadata):
        if difference.field != REQUIRES_DIST or not built_against.issuperset(_projects(difference)):
            yield difference


def _built_against(wheel: ReadyWheel) -> frozenset[str]:
    """The projects that the variant *wheel* was built against (PEP 850, ABI dependencies)."""
    try:
        document = Document.of_wheel(wheel.name.variant, wheel.variant_json)
    except VariantError:
        return frozenset()  # which is a finding of its own
    properties = document.variants[0].properties if document else ()
    return frozenset(
        prop.feature.replace("_", "-") for prop in properties if document and document.metadata.is_abi(prop.namespace)
    )


def _differs(wheel: ReadyWheel, first: ReadyWheel, difference: MetadataDifference, *, is_error: bool) -> Finding:
    advice = "build all wheels of a release from the same source"
    if difference.field in INSTALLER_FIELDS:
        advice = "state the same in all of them: lock files take one wheel's METADATA for all of the release"
    fault = f"not as in {first.file}: {difference}"
    return Finding(Severity.ERROR if is_error else Severity.WARNING, PublishRule.METADATA, (wheel.file,), fault, advice)


def _unlike(source: ReadySdist, wheel: ReadyWheel) -> Iterator[Finding]:
    if not source.metadata.is_static:
        return
    for difference in _differences(source.metadata, wheel):
        if difference.field in INSTALLER_FIELDS and difference.field.lower() not in source.metadata.dynamic:
            fault = f"{wheel.file} is not as it says: {difference} (PEP 643)"
            advice = "build both from the same source, or declare the field dynamic in pyproject.toml"
            yield Finding(Severity.WARNING, PublishRule.SDIST, (source.file,), fault, advice)


_INIT = "__init__.py"


@dataclass(slots=True)
class _Group:
    project: str
    slots: tuple[FileSlot, ...]
    wheels: list[ReadyWheel] = field(default_factory=list)
    installs: dict[str, str] = field(default_factory=dict)


def collisions(releases: Iterable[LintedRelease]) -> Iterator[Finding]:
    """The projects among *releases* that install the same files; those that are linked so are named together."""
    by_slots: dict[tuple[str, tuple[FileSlot, ...]], _Group] = {}
    for release in releases:
        for wheel in release.wheels:
            key = release.project, wheel.slots
            group = by_slots.setdefault(key, _Group(*key))
            group.wheels.append(wheel)
            group.installs |= wheel.installs
    groups = list(by_slots.values())
    paths = _paths(groups)
    shared = dict(_meetings(groups, paths))
    linked: dict[str, set[str]] = {}
    for number, other_number in shared:
        linked.setdefault(groups[number].project, set()).add(groups[other_number].project)
        linked.setdefault(groups[other_number].project, set()).add(groups[number].project)
    left = set(linked)
    while left:
        projects = _reached(min(left), linked)
        left -= projects
        pairs = [pair for pair in shared if groups[pair[0]].project in projects]
        wheels = {
            wheel.file for number in {number for pair in pairs for number in pair} for wheel in groups[number].wheels
        }
        owners = {several for pair in pairs for several in shared[pair]}
        first, *others = sorted(projects)
        files = shown(sorted(path for several in owners for path in paths[several]))
        fault = f"{first} has files shared with {shown(others)}: {files}"
        advice = (
            "say that one excludes the others: no installer notices, the last one's files win, and go with any of them"
        )
        yield Finding(Severity.WARNING, PublishRule.SHARED_FILES, tuple(sorted(wheels)), fault, advice)


def _paths(groups: Sequence[_Group]) -> dict[tuple[int, ...], list[str]]:
    """The paths that several of *groups* install, by the numbers of these: files mostly come and go together."""
    owners: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        for path in group.installs:
            owners.setdefault(path, []).append(number)
    paths: dict[tuple[int, ...], list[str]] = {}
    for path, several in owners.items():
        if len(several) > 1:
            paths.setdefault(tuple(several), []).append(path)
    return paths


def _meetings(
    groups: Sequence[_Group], paths: Mapping[tuple[int, ...], Sequence[str]]
) -> Iterator[tuple[tuple[int, int], list[tuple[int, ...]]]]:
    """The pairs of *groups* of different projects that meet in an environment and in *paths*, with the keys there."""
    keys_of: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for owners in paths:
        for pair in combinations(owners, 2):
            keys_of.setdefault(pair, []).append(owners)
    for pair, several in keys_of.items():
        group, other_group = (groups[number] for number in pair)
        files = (path for owners in several for path in paths[owners])
        if group.project == other_group.project or not meet(group.slots, other_group.slots):
            continue
        # a package of several distributions has the same __init__.py in each
        if not all(basename(path) == _INIT and group.installs[path] == other_group.installs[path] for path in files):
            yield pair, several


def _reached(project: str, linked: Mapping[str, set[str]]) -> set[str]:
    reached, unvisited = {project}, [project]
    while unvisited:
        new = linked[unvisited.pop()] - reached
        reached |= new
        unvisited += new
    return reached


_AGAIN = "write it again: vbuild index"
_STAMP = "stamp the wheel again: vbuild stamp"
_MANY_PYTHONS = frozenset({"abi3", "none"})


def label_problems(release: LintedRelease) -> Iterator[Finding]:
    documents: list[tuple[str, Document]] = []
    for wheel in release.wheels:
        try:
            with at(VARIANT_JSON):
                document = Document.of_wheel(wheel.name.variant, wheel.variant_json)
            if document:
                documents.append((wheel.file, document))
                for note in document.notes:
                    fault = f"{VARIANT_JSON}: {note}; installers may not"
                    yield Finding(Severity.WARNING, PublishRule.VARIANT, (wheel.file,), fault, _STAMP)
                for variant in document.variants:
                    check_values(variant, document.metadata)
        except VariantError as error:
            yield Finding(Severity.ERROR, PublishRule.VARIANT, (wheel.file,), str(error), _STAMP)
    if documents:
        yield from _documented(release, documents)
    yield from _without_plain(release)
    yield from _incomplete(release)


def _documented(release: LintedRelease, documents: Sequence[tuple[str, Document]]) -> Iterator[Finding]:
    try:
        expected = combine(documents)
    except VariantError as error:
        files = tuple(file for file, _ in documents)
        yield Finding(Severity.ERROR, PublishRule.VARIANT, files, str(error), "stamp the wheels alike: vbuild stamp")
        return
    if release.index is None:
        fault = f"there are variant wheels but no {release.index_name}, and installers ignore them without"
        yield Finding(Severity.ERROR, PublishRule.INDEX, (release.index_name,), fault, "write it: vbuild index")
        return
    try:
        actual = Document.parse(release.index.read())
    except (FetchError, VariantError) as error:
        fault = str(error).removeprefix(f"{release.index.path}: ")
        yield Finding(Severity.ERROR, PublishRule.INDEX, (release.index.name,), fault, _AGAIN)
    else:
        for note in actual.notes:
            fault = f"{note}; installers may not"
            yield Finding(Severity.WARNING, PublishRule.INDEX, (release.index.name,), fault, _AGAIN)
        if replace(actual, notes=()) != expected:
            yield Finding(Severity.ERROR, PublishRule.INDEX, (release.index.name,), _stale(actual, expected), _AGAIN)


def _stale(actual: Document, expected: Document) -> str:
    listed = {variant.label: variant for variant in actual.variants}
    expected_variants = {variant.label: variant for variant in expected.variants}
    parts = []
    if more := sorted(listed.keys() - expected_variants.keys()):
        parts.append(f"lists {', '.join(more)}, for which there is no wheel")
    if less := sorted(expected_variants.keys() - listed.keys()):
        parts.append(f"does not list {', '.join(less)}, for which there are wheels")
    if other := sorted(
        label for label in listed.keys() & expected_variants.keys() if listed[label] != expected_variants[label]
    ):
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
            severity = Severity.WARNING if falls_back else Severity.ERROR
            fault = f"no plain wheel for {_joined(wheel.slots)}: {rest}"
            yield Finding(severity, PublishRule.PLAIN, (wheel.file,), fault, "build the plain wheel too")


def _incomplete(release: LintedRelease) -> Iterator[Finding]:
    by_machine: dict[str, dict[str, list[tuple[FileSlot, ...]]]] = {}
    for wheel in release.variants:
        for machine in {slot.machine for slot in wheel.slots}:
            by_machine.setdefault(machine, {}).setdefault(wheel.name.variant or "", []).append(wheel.slots)
    # variants are expected for each single Python that has a plain wheel
    plain = {wheel.slots for wheel in release.plain if len(wheel.slots) == 1}
    of_one_python = {slots for slots in plain if slots[0].abi not in _MANY_PYTHONS}
    for machine, labels in by_machine.items():
        wanted = {slots for slots_of_label in labels.values() for slots in slots_of_label}
        wanted |= {slots for slots in of_one_python if slots[0].machine == machine}
        for label, slots_of_label in labels.items():
            lacks = [slots for slots in sorted(wanted) if not any(covers(offered, slots) for offered in slots_of_label)]
            if lacks:
                others = ", ".join(map(_joined, sorted(set(slots_of_label))))
                fault = f"there is no {label} for {', '.join(map(_joined, lacks))}, as there is for {others}"
                advice = "build it too, or leave it out on purpose"
                yield Finding(Severity.WARNING, PublishRule.LABELS, (str(release),), fault, advice)


def _joined(slots: tuple[FileSlot, ...]) -> str:
    return ".".join(map(str, slots))
