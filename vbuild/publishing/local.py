"""The layout local: variants as local versions, each label in an index of its own, for every installer.

    local/plain/demo-1.0-….whl, simple/demo/…                  as they were, with companions
    local/x86_64_v3/demo-1.0+x86.64.v3-….whl, simple/demo/…    Version changed, and siblings pinned to the same label
    local/index.html                                           which index is for which machines

    x86_64_v3  ->  1.0+x86.64.v3      separators become dots, as PEP 440 normalises them
    cu126, cu1210: refused            compared as text 1210 comes first

One index of all labels would not work: a request without ``+label`` takes the last local version in PEP 440's order,
whatever the machine. Each index also has the companions, siblings, and releases without variants that its wheels need.
uv reads the METADATA of one wheel for all of a version, so the wheels of a label must require the same.
https://packaging.python.org/en/latest/specifications/version-specifiers/#local-version-identifiers
https://docs.astral.sh/uv/concepts/indexes/#pinning-a-package-to-an-index

The check of a folder:

    x86_64_v3/*.whl    all wheels of a release are +x86.64.v3, or none is, if the release has no such variant
                       METADATA of a version is the same in all its wheels; siblings are pinned to that label
    x86_64_v3/simple   lists each file as it is
"""

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, combinations
from pathlib import Path, PurePosixPath

from msgspec import Struct, structs
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.config.requirements import admits, read_requirement
from vbuild.errors import RepackageError
from vbuild.publishing.lint.index import index_problems, layout_problem, wheels_in
from vbuild.publishing.lint.metadata import INSTALLER_FIELDS, MetadataDifference, metadata_view
from vbuild.publishing.model import (
    RIVALS,
    ConsumerUse,
    LinkedFile,
    NewWheel,
    PublishPlan,
    PublishRule,
    SimpleIndex,
    Text,
    install_commands,
    place_below,
    renamed,
)
from vbuild.publishing.releases import (
    EXACT_OPERATORS,
    OfferedRelease,
    OfferedWheel,
    check_siblings,
    companion_wheels,
    companions_with,
    labels_of,
    latest,
    releases_with_variants,
    required_companions,
    sibling_requirement,
    sibling_requirements,
    variants_of,
    wheels_labelled,
    without_variants,
)
from vbuild.verification.model import Finding, Severity

_HTML = """<!DOCTYPE html>
<html>
  <head>
    <meta charset="utf-8">
    <meta name="color-scheme" content="light dark">
    <meta name="viewport" content="width=device-width">
    <title>{title}</title>
  </head>
  <body>
    <h1>{title}</h1>
    <p>An index for each; take one of them only.</p>
    <table>
      <tr><th>index</th><th>version</th><th>for machines with</th></tr>
{rows}
    </table>
  </body>
</html>
"""
_ROW = '      <tr><td><a href="{label}/simple/">{label}</a></td><td>{version}</td><td>{machines}</td></tr>'


def uses(offers: Sequence[OfferedRelease], labels: Sequence[str], *, url: str | None) -> Iterator[ConsumerUse]:
    for label, variant in variants_of(offers, labels).items():
        yield ConsumerUse(
            f"{variant}, with pip and with uv; what else is required comes from the index that they have:",
            install_commands(" ".join(_exact_pins(offers, label)), folder=label, url=url),
        )
    plain, others = without_variants(_latest(offers))
    if wanted := " ".join(f"{offer.project}==={offer.version}" for offer in others):
        yield ConsumerUse(
            f"{plain.capitalize()}, for every machine{RIVALS}:",
            install_commands(wanted, folder=PLAIN, url=url, has_rivals=True),
        )
    yield ConsumerUse(
        f"In the pyproject.toml of a project{'' if url else ', here relative to it'}; then: "
        f"uv sync --extra {_extra(labels[-1])}",
        _tables(offers, labels, url=url),
        "toml",
    )


def page(offers: Sequence[OfferedRelease], labels: Sequence[str], *, has_plain: bool) -> str:
    rows = [(PLAIN, "", "anything")] if has_plain else []
    for label, variant in variants_of(offers, labels).items():
        text = ", ".join(map(str, variant.features)) or "anything"
        rows.append((label, f"+{local_part(label)}", text))
    title = ", ".join(map(str, offers))
    lines = (_ROW.format(label=label, version=version, machines=html.escape(text)) for label, version, text in rows)
    return _HTML.format(title=html.escape(title), rows="\n".join(lines))


def _tables(offers: Sequence[OfferedRelease], labels: Sequence[str], *, url: str | None) -> str:
    """The tables for uv in pyproject.toml."""
    extras: dict[str, list[str]] = {}
    for label in labels:
        wheels = [wheel for offer in _latest(offers, label) for wheel in wheels_labelled(offer, label) or offer.plain]
        # an explicit index is asked only for what a project names: companions have to be among it
        companions = required_companions(wheels, companion_wheels(offers))
        companion_releases = {(wheel.name.project, wheel.name.normalised().version) for wheel in companions}
        pins = (f"{project}=={version}" for project, version in sorted(companion_releases))
        extras[label] = [*_exact_pins(offers, label), *pins]
    lines = ["[project.optional-dependencies]"]
    for label, wanted in extras.items():
        names = ", ".join(f'"{pin}"' for pin in wanted)
        lines.append(f"{_extra(label)} = [{names}]")
    if len(labels) > 1:
        names = ", ".join(f'{{ extra = "{_extra(label)}" }}' for label in labels)
        lines += ["", "[tool.uv]", f"conflicts = [[{names}]]"]
    for label in labels:
        index = place_below(url, f"{label}/simple")
        lines += ["", "[[tool.uv.index]]", f'name = "{_extra(label)}"', f'url = "{index}"', "explicit = true"]
    lines += ["", "[tool.uv.sources]"]
    projects = dict.fromkeys(pin.partition("==")[0] for wanted in extras.values() for pin in wanted)
    for project in projects:
        of_it = [label for label, wanted in extras.items() if any(pin.startswith(f"{project}==") for pin in wanted)]
        sources = (f'    {{ index = "{_extra(label)}", extra = "{_extra(label)}" }},' for label in of_it)
        lines += [f"{project} = [", *sources, "]"]
    return "\n".join(lines) + "\n"


def _exact_pins(offers: Sequence[OfferedRelease], label: str) -> Iterator[str]:
    for offer in _latest(offers, label):
        if label in offer.labels or offer.plain:
            version = local_version(offer.version, label) if label in offer.labels else offer.version
            yield f"{offer.project}=={version}"


def _latest(offers: Sequence[OfferedRelease], label: str | None = None) -> tuple[OfferedRelease, ...]:
    return latest([offer for offer in offers if not offer.is_companion], label)


def _extra(label: str) -> str:
    return local_part(label).replace(".", "-")


PLAIN = "plain"

_NUMBER = re.compile(r"[0-9]+")
# where a dot may go: cu126 becomes cu.126
_GLUED = re.compile(r"(?<=[a-z])(?=[0-9])")


def local_version(version: str, label: str) -> str:
    """*version* with *label* as its local part, after one it has."""
    try:
        return str(Version(f"{version}{'.' if Version(version).local else '+'}{label}"))
    except ValueError as error:  # too many digits for an int is one as well
        raise RepackageError(
            f"label {label!r}: no local version (PEP 440); expected letters and digits with single . or _ between "
            "them: stamp the wheels under another label"
        ) from error


def _version(label: str) -> Version:
    return Version(local_version("0", label))


def local_part(label: str) -> str:
    """*label* as the local part of a version: ``x86.64.v3``."""
    return _version(label).local or ""


def check_labels(labels: Iterable[str]) -> None:
    """`RepackageError` for a label that cannot have an index of its own, and for two that are easily confused."""
    versions = {label: _version(label) for label in labels}
    if PLAIN in versions:
        raise RepackageError(
            f"label {PLAIN!r}: the plain wheels' index is called so; stamp the wheels under another label"
        )
    for first, second in combinations(versions, 2):
        if versions[first] == versions[second]:
            raise RepackageError(
                f"labels {first!r} and {second!r}: both become +{versions[first].local} (PEP 440); expected labels "
                "that differ in more than separators: stamp one of them again"
            )
        low, high = sorted((first, second), key=lambda label: versions[label])
        parts = [local_part(label) for label in (low, high)]
        numbers, others = ([int(number) for number in _NUMBER.findall(part)] for part in parts)
        # labels of one pattern are expected to be in the order of their numbers
        if len({_NUMBER.sub("#", part) for part in parts}) == 1 and numbers > others:
            raise RepackageError(
                f"labels {low!r} and {high!r}: compared as text (PEP 440), {high} is the later of the two, which an "
                f"unpinned request would take; expected numbers that are parts of their own, as in "
                f"{_GLUED.sub('.', high)} and {_GLUED.sub('.', low)}: stamp them again"
            )


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """The *labels* as installers order their local versions: a request without one takes the last."""
    return tuple(sorted(labels, key=_version))


class Local(Struct, frozen=True):
    url: str | None = None
    name: str = "local"

    def plan(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        with_variants = releases_with_variants(offers)
        check_labels(labels_of(with_variants))
        labels = in_order(labels_of(with_variants))
        check_siblings(offers)
        indexes = {label: tuple(_of_label(offers, label)) for label in labels}
        plain_wheels = [wheel for offer in offers if not offer.is_companion for wheel in offer.plain]
        plain = [*_linked(PLAIN, plain_wheels, offers)]
        sdists = (offer.sdist for offer in offers if offer.sdist)
        plain += (LinkedFile(PurePosixPath(PLAIN, sdist.name), sdist) for sdist in sdists)
        if plain:
            indexes = {PLAIN: tuple(plain), **indexes}
        wheels = chain.from_iterable(indexes.values())
        # last: the wheels are hashed while further ones are written
        pages = (
            SimpleIndex(PurePosixPath(label, "simple"), tuple(file.target for file in files))
            for label, files in indexes.items()
        )
        root = Text(PurePosixPath("index.html"), page(with_variants, labels, has_plain=bool(plain)).encode())
        consumer_uses = tuple(uses(offers, labels, url=self.url))
        return PublishPlan(self.name, (*wheels, root, *pages), consumer_uses, tuple(_notes(offers, labels)))


def _of_label(offers: Sequence[OfferedRelease], label: str) -> Iterator[LinkedFile | NewWheel]:
    own = [wheel for offer in offers for wheel in wheels_labelled(offer, label)]
    without = [offer for offer in offers if not offer.is_companion and label not in offer.labels]
    others = [wheel for offer in without for wheel in offer.plain]
    first: dict[tuple[str, str], OfferedWheel] = {}
    for wheel in own:
        like = first.setdefault((wheel.name.project, wheel.name.normalised().version), wheel)
        for difference in _differences(like, wheel):
            raise RepackageError(
                f"{wheel.path.name}: not as in {like.path.name}: {difference}; expected the same of all wheels "
                f"labelled {label}: uv takes one's METADATA for all of a version"
            )
    for wheel in own:
        name = structs.replace(wheel.name.normalised().plain(), version=local_version(wheel.name.version, label))
        yield renamed(wheel, name, folder=label, requirement=partial(_pinned, wheel, label, offers))
    yield from _linked(label, others, offers, own)


def _linked(
    label: str, wheels: Sequence[OfferedWheel], offers: Sequence[OfferedRelease], others: Sequence[OfferedWheel] = ()
) -> Iterator[LinkedFile]:
    for wheel in (*wheels, *companions_with([*others, *wheels], companion_wheels(offers))):
        yield LinkedFile(PurePosixPath(label, wheel.path.name), wheel.path)


def _pinned(wheel: OfferedWheel, label: str, offers: Sequence[OfferedRelease], line: str) -> str:
    """The requirement *line* of *wheel*, pinned to *label* if it names a sibling that has one."""
    need = sibling_requirement(line, offers)
    if not need or need.project == wheel.name.project or not need.is_tied:
        return line
    labelled = [other for other in need.admitted if label in other.labels]
    if not labelled:
        return line
    need.requirement.specifier = SpecifierSet(f"=={local_version(labelled[-1].version, label)}")
    return str(need.requirement)


def _differences(like: OfferedWheel, wheel: OfferedWheel) -> Iterator[MetadataDifference]:
    like_view, view = (metadata_view(str(offered.metadata).encode()) for offered in (like, wheel))
    return (difference for difference in like_view.differences(view) if difference.field in INSTALLER_FIELDS)


def _notes(offers: Sequence[OfferedRelease], labels: Sequence[str]) -> Iterator[str]:
    with_variants = releases_with_variants(offers)
    *others, last = (f"+{local_part(label)}" for label in labels)
    order = f"{last}, which comes after {', '.join(others)}" if others else last
    yield f"Keep to one of the indexes: of several, a request without +label takes {order}, whatever the machine."
    public = Version(with_variants[0].version).public
    alone = f", ==={with_variants[0].version} the plain one alone," if with_variants[0].plain else ""
    yield f"=={public} takes every local version of {public}{alone} and >{public} none (PEP 440)."
    for offer in with_variants:
        yield from _missing(offer, labels)
        lines = {need.line: need for wheel in offer.variants for need in sibling_requirements(wheel, offers)}
        for line, need in lines.items():
            if need.is_tied and not need.admitted:
                published = ", ".join(map(str, need.releases))
                yield f"{offer}: requires {line}, which {published} is not; left as it is."
        # the plain wheels stay as they are
        for wheel in offer.plain[1:]:
            for difference in _differences(offer.plain[0], wheel):
                yield f"{wheel.path.name}: not as in {offer.plain[0].path.name}: {difference}; uv takes one's for all."


def _missing(offer: OfferedRelease, labels: Sequence[str]) -> Iterator[str]:
    if none := ", ".join(label for label in labels if label not in offer.labels):
        fallback = "has its plain wheel" if offer.plain else "has nothing of it"
        yield f"{offer}: there is no {none}; that index {fallback}."
    lacking: dict[tuple[str, ...], list[str]] = {}
    for label in offer.labels:
        tags = {wheel.tag for wheel in wheels_labelled(offer, label)}
        others = dict.fromkeys("-".join(wheel.tag) for wheel in offer.wheels if wheel.tag not in tags)
        lacking.setdefault(tuple(others), []).append(label)
    for lacks, without in lacking.items():
        if lacks:
            yield f"{offer}: there is no {', '.join(without)} for {', '.join(lacks)}; that index is empty for it."


_problem = partial(layout_problem, "local")
_LABELLED = "has a variant label, which only installers of variants read"


def problems(folder: Path) -> Iterator[Finding]:
    index_folders = sorted(path for path in folder.iterdir() if path.is_dir())
    labels = [index_folder.name for index_folder in index_folders if index_folder.name != PLAIN]
    if not labels:
        yield _problem(PublishRule.LABELS, folder.resolve().name, "has no index of a label; expected a folder for each")
    try:
        check_labels(labels)
    except RepackageError as error:
        yield _problem(PublishRule.LABELS, folder.resolve().name, str(error))
        return
    if labels and not (folder / "index.html").is_file():
        fault = "is missing; expected the page that lists which index is for which machines"
        yield _problem(PublishRule.INDEX, "index.html", fault)
    for index_folder in index_folders:
        for problem in _index_findings(index_folder, labels):
            yield structs.replace(problem, places=tuple(f"{index_folder.name}/{file}" for file in problem.places))


def _index_findings(index_folder: Path, labels: Sequence[str]) -> Iterator[Finding]:
    wheels: list[OfferedWheel] = []
    yield from wheels_in(index_folder, wheels)
    if index_folder.name == PLAIN:
        yield from (_problem(PublishRule.VARIANT, wheel.path.name, _LABELLED) for wheel in wheels if wheel.label)
    else:
        yield from _checked_index(wheels, index_folder.name, labels)
    yield from _unlike_index(wheels)
    yield from index_problems(index_folder)


def _checked_index(wheels: Sequence[OfferedWheel], label: str, labels: Sequence[str]) -> Iterator[Finding]:
    own = {_release(wheel) for wheel in wheels if _ends(wheel.name.version, label)}
    if not own:
        yield _problem(PublishRule.LOCAL_VERSION, "*.whl", f"none is of a version +{local_part(label)}")
    for wheel in wheels:
        if wheel.label:
            yield _problem(PublishRule.VARIANT, wheel.path.name, _LABELLED)
        if not _ends(wheel.name.version, label):
            if _release(wheel) in own:
                fault = f"is not +{local_part(label)}, as others of {' '.join(_release(wheel))} in this index are"
                yield _problem(PublishRule.LOCAL_VERSION, wheel.path.name, fault)
            elif other := next((other for other in labels if _ends(wheel.name.version, other)), None):
                yield _problem(PublishRule.LOCAL_VERSION, wheel.path.name, f"is of the index {other}")
        yield from _pins(wheel, wheels, label)


def _pins(wheel: OfferedWheel, wheels: Sequence[OfferedWheel], label: str) -> Iterator[Finding]:
    varied = {other.name.project for other in wheels if _ends(other.name.version, label)} - {wheel.name.project}
    for line in wheel.metadata.requires_dist:
        requirement = read_requirement(line)
        project = canonicalize_name(requirement.name) if requirement else ""
        tied = (
            [specifier for specifier in requirement.specifier if specifier.operator in EXACT_OPERATORS]
            if requirement
            else []
        )
        if not requirement or project not in varied or not tied:
            continue
        admitted = [
            other
            for other in wheels
            if other.name.project == project and admits(requirement, project, other.name.version)
        ]
        is_pinned = any(specifier.operator == "==" and _ends(specifier.version, label) for specifier in tied)
        if not admitted:
            fault = f"requires {line}, and only other releases are in this index"
            yield Finding(Severity.WARNING, PublishRule.REQUIREMENT, (wheel.path.name,), fault, "publish that one, too")
        elif not is_pinned and any(_ends(other.name.version, label) for other in admitted):
            fault = f"requires {line}, which other builds than +{local_part(label)} are, too"
            yield _problem(PublishRule.REQUIREMENT, wheel.path.name, fault)


def _unlike_index(wheels: Sequence[OfferedWheel]) -> Iterator[Finding]:
    first: dict[tuple[str, Version], OfferedWheel] = {}
    for wheel in wheels:
        like = first.setdefault((wheel.name.project, Version(wheel.name.version)), wheel)
        for difference in () if wheel.is_companion else _differences(like, wheel):
            fault = f"not as in {like.path.name}: {difference}"
            advice = "state the same in all: uv takes one wheel's METADATA for all of a version"
            # the plain wheels are as their publisher made them
            severity = Severity.ERROR if Version(wheel.name.version).local else Severity.WARNING
            yield Finding(severity, PublishRule.METADATA, (wheel.path.name,), fault, advice)


def _release(wheel: OfferedWheel) -> tuple[str, str]:
    return wheel.name.project, Version(wheel.name.version).public


def _ends(version: str, label: str) -> bool:
    """Whether *version* is a local one of *label*, whatever local part it had before."""
    try:
        local = Version(version).local or ""
    except ValueError:  # ==1.*
        return False
    return f".{local}".endswith(f".{local_part(label)}")
