"""The layout local: variants as local versions, each label in an index of its own, for every installer.

local/plain/demo-1.0-….whl, simple/demo/…                  as they were, with companions
local/x86_64_v3/demo-1.0+x86.64.v3-….whl, simple/demo/…    Version changed, and siblings pinned to the same label
local/index.html                                           which index is for which machines

A label becomes a local version:

    x86_64_v3  ->  1.0+x86.64.v3      separators become dots, as PEP 440 normalises them
    cu12.6     ->  1.0+cu12.6
    cu126, cu1210: refused            compared as text 1210 comes first

One index of all labels would not work: a request without ``+label`` takes the last local version in PEP 440's order,
whatever the machine. Each index also has what its wheels need of the same publication: companions, siblings, and
releases without variants. uv reads the METADATA of one wheel for all of a version, so the wheels of a label must
require the same. ``==1.0+label`` is never found anywhere else: PyPI does not accept local versions.
https://packaging.python.org/en/latest/specifications/version-specifiers/#local-version-identifiers
https://docs.astral.sh/uv/concepts/indexes/#pinning-a-package-to-an-index
"""

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, combinations
from pathlib import PurePosixPath

from msgspec import Struct
from msgspec.structs import replace
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from vbuild.errors import RepackageError
from vbuild.publishing.lint.metadata import INSTALLER_FIELDS, MetadataDifference, metadata_view
from vbuild.publishing.model import (
    RIVALS,
    ConsumerUse,
    LinkedFile,
    NewWheel,
    PublishPlan,
    SimpleIndex,
    Text,
    install_commands,
    place_below,
    renamed,
    renaming,
)
from vbuild.publishing.releases import (
    OfferedRelease,
    OfferedWheel,
    check_siblings,
    companions_with,
    labels_of,
    latest,
    releases_with_variants,
    required_companions,
    sibling_requirement,
    sibling_requirements,
    variants_of,
    wheels_labelled,
)

_HTML = """<!DOCTYPE html>
<html>
  <head>
    <meta charset="utf-8">
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


def uses(offers: Sequence[OfferedRelease], labels: Sequence[str], *, url: str | None) -> Iterator[ConsumerUse]:
    """How to get each of *labels*, and the plain wheels; *url* is where the layout's folder will be served."""
    for label, variant in variants_of(offers, labels).items():
        yield ConsumerUse(
            f"{variant}, with pip and with uv; what else is required comes from the index that they have:",
            install_commands(" ".join(_exact_pins(offers, label)), folder=label, url=url),
        )
    if plain := " ".join(f"{offer.project}==={offer.version}" for offer in _latest(offers) if offer.plain):
        yield ConsumerUse(
            f"The plain wheel, for every machine{RIVALS}:",
            install_commands(plain, folder=PLAIN, url=url, has_rivals=True),
        )
    yield ConsumerUse(
        f"In the pyproject.toml of a project{'' if url else ', here relative to it'}; then: "
        f"uv sync --extra {_extra(labels[-1])}",
        _tables(offers, labels, url=url),
        "toml",
    )


def page(offers: Sequence[OfferedRelease], labels: Sequence[str], *, has_plain: bool) -> str:
    """The page that says which index is for whom, with the properties of *offers* as variants."""
    rows = [(PLAIN, "", "anything")] if has_plain else []
    for label, variant in variants_of(offers, labels).items():
        text = ", ".join(map(str, variant.features)) or "anything"
        rows.append((label, f"+{local_part(label)}", text))
    title = ", ".join(map(str, offers))
    return _HTML.format(title=html.escape(title), rows="\n".join(_row(*row) for row in rows))


def _row(label: str, version: str, machines: str) -> str:
    link = f'<a href="{label}/simple/">{label}</a>'
    return f"      <tr><td>{link}</td><td>{version}</td><td>{html.escape(machines)}</td></tr>"


def _tables(offers: Sequence[OfferedRelease], labels: Sequence[str], *, url: str | None) -> str:
    """What uv reads: an extra for each label, an index that is asked for nothing else, and who comes from where."""
    extras = {label: [*_exact_pins(offers, label), *_required_companions(offers, label)] for label in labels}
    lines = ["[project.optional-dependencies]"]
    for label, wanted in extras.items():
        names = ", ".join(f'"{each}"' for each in wanted)
        lines.append(f"{_extra(label)} = [{names}]")
    if len(labels) > 1:
        names = ", ".join(f'{{ extra = "{_extra(label)}" }}' for label in labels)
        lines += ["", "[tool.uv]", f"conflicts = [[{names}]]"]
    for label in labels:
        there = place_below(url, f"{label}/simple")
        lines += ["", "[[tool.uv.index]]", f'name = "{_extra(label)}"', f'url = "{there}"', "explicit = true"]
    lines += ["", "[tool.uv.sources]"]
    projects = dict.fromkeys(each.partition("==")[0] for wanted in extras.values() for each in wanted)
    for project in projects:
        sources = [label for label, wanted in extras.items() if any(_names_project(each, project) for each in wanted)]
        lines += [f"{project} = [", *(f"    {_source(label)}," for label in sources), "]"]
    return "\n".join(lines) + "\n"


def _source(label: str) -> str:
    return f'{{ index = "{_extra(label)}", extra = "{_extra(label)}" }}'


def _names_project(requirement: str, project: str) -> bool:
    return requirement.partition("==")[0] == project


def _exact_pins(offers: Sequence[OfferedRelease], label: str) -> Iterator[str]:
    """The exact requirements that get the wheels of *label*, and the plain ones of projects that have no such."""
    for offer in _latest(offers, label):
        if label in offer.labels:
            yield f"{offer.project}=={local_version(offer.version, label)}"
        elif offer.plain:
            yield f"{offer.project}=={offer.version}"


def _required_companions(offers: Sequence[OfferedRelease], label: str) -> Iterator[str]:
    """The companions that these require: an explicit index is asked only for what a project names."""
    wheels = [wheel for offer in _latest(offers, label) for wheel in wheels_labelled(offer, label) or offer.plain]
    known = [wheel for offer in offers if offer.is_companion for wheel in offer.wheels]
    found = {(wheel.name.project, wheel.name.normalised().version) for wheel in required_companions(wheels, known)}
    yield from (f"{project}=={version}" for project, version in sorted(found))


def _latest(offers: Sequence[OfferedRelease], label: str | None = None) -> tuple[OfferedRelease, ...]:
    """The last releases of projects that are not companions."""
    return latest([offer for offer in offers if not offer.is_companion], label)


def _extra(label: str) -> str:
    """*label* as an extra is spelled, and as uv lets an index be called."""
    return local_part(label).replace(".", "-")


PLAIN = "plain"

_NUMBER = re.compile(r"[0-9]+")
_GLUED = re.compile(r"(?<=[a-z])(?=[0-9])")


def local_version(version: str, label: str) -> str:
    """*version* with the local part that *label* becomes, after one it has; `RepackageError` if it becomes none."""
    try:
        return str(Version(f"{version}{'.' if Version(version).local else '+'}{label}"))
    except ValueError as error:  # too many digits for an int is one as well
        raise RepackageError(
            f"label {label!r}: no local version (PEP 440); expected letters and digits with single . or _ between "
            "them: stamp the wheels under another label"
        ) from error


def local_part(label: str) -> str:
    """What of a version *label* becomes: ``x86.64.v3``."""
    return _version(label).local or ""


def check_labels(labels: Iterable[str]) -> None:
    """`RepackageError` for the first of *labels* that cannot have an index of its own, or two that should not be."""
    known = {label: _version(label) for label in labels}
    if PLAIN in known:
        raise RepackageError(
            f"label {PLAIN!r}: the plain wheels' index is called so; stamp the wheels under another label"
        )
    for one, other in combinations(known, 2):
        if known[one] == known[other]:
            raise RepackageError(
                f"labels {one!r} and {other!r}: both become +{known[one].local} (PEP 440); expected labels that differ "
                "in more than separators: stamp one of them again"
            )
        low, high = sorted((one, other), key=lambda label: known[label])
        if _pattern(low) == _pattern(high) and _numbers(low) > _numbers(high):
            raise RepackageError(
                f"labels {low!r} and {high!r}: compared as text (PEP 440), {high} is the later of the two, which an "
                f"unpinned request would take; expected numbers that are parts of their own, as in {_apart(high)} and "
                f"{_apart(low)}: stamp them again"
            )


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """The *labels* as installers order their local versions: a request without one takes the last."""
    return tuple(sorted(labels, key=_version))


def _version(label: str) -> Version:
    return Version(local_version("0", label))


def _apart(label: str) -> str:
    """The label with a dot before each number that follows a letter: ``cu126`` as ``cu.126``."""
    return _GLUED.sub(".", label)


def _pattern(label: str) -> str:
    """The label with its numbers left open: what is called by one pattern is expected to be in their order."""
    return _NUMBER.sub("#", local_part(label))


def _numbers(label: str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(local_part(label))]


class Local(Struct, frozen=True):
    """One simple index per label, of wheels whose local version says it; *url* is where the folder will be served."""

    url: str | None = None
    name: str = "local"

    def planned(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        """An index per label, and one of the plain wheels if there are some.

        `RepackageError` if a label is not a local version, two would be confused, a wheel requires a release that lacks
        its label, or wheels of one local version ask for different things.
        """
        known = releases_with_variants(offers)
        labels = in_order(_checked(labels_of(known)))
        check_siblings(offers)
        indexes = {label: (*_of_label(offers, label),) for label in labels}
        if plain := (*_plain(offers),):
            indexes = {PLAIN: plain, **indexes}
        wheels = chain.from_iterable(indexes.values())
        # last: the wheels are hashed while further ones are written
        pages = (_index(label, files) for label, files in indexes.items())
        root = Text(PurePosixPath("index.html"), page(known, labels, has_plain=bool(plain)).encode())
        found = tuple(uses(offers, labels, url=self.url))
        return PublishPlan(self.name, (*wheels, root, *pages), found, tuple(_notes(offers, labels)))


def _checked(labels: tuple[str, ...]) -> tuple[str, ...]:
    check_labels(labels)
    return labels


def _index(label: str, files: Sequence[LinkedFile | NewWheel]) -> SimpleIndex:
    return SimpleIndex(PurePosixPath(label, "simple"), tuple(file.target for file in files))


def _plain(offers: Sequence[OfferedRelease]) -> Iterator[LinkedFile]:
    """The plain wheels of all, and the companions of these."""
    wheels = [wheel for offer in offers if not offer.is_companion for wheel in offer.plain]
    return _linked(PLAIN, [*wheels, *companions_with(wheels, _companions(offers))])


def _of_label(offers: Sequence[OfferedRelease], label: str) -> Iterator[LinkedFile | NewWheel]:
    """What the index of *label* has: wheels of that label, and of releases without it those that are plain."""
    own = [wheel for offer in offers for wheel in wheels_labelled(offer, label)]
    others = [
        wheel for offer in offers if not offer.is_companion and label not in offer.labels for wheel in offer.plain
    ]
    _check_agreement(own, label)
    yield from (_local(wheel, label, offers) for wheel in own)
    yield from _linked(label, [*others, *companions_with([*own, *others], _companions(offers))])


def _linked(label: str, wheels: Sequence[OfferedWheel]) -> Iterator[LinkedFile]:
    return (LinkedFile(PurePosixPath(label, wheel.path.name), wheel.path) for wheel in wheels)


def _companions(offers: Sequence[OfferedRelease]) -> list[OfferedWheel]:
    return [wheel for offer in offers if offer.is_companion for wheel in offer.wheels]


def _local(wheel: OfferedWheel, label: str, offers: Sequence[OfferedRelease]) -> NewWheel:
    """The wheel as local version, siblings pinned to the same label."""
    version = local_version(wheel.name.version, label)
    name = replace(wheel.name.normalised().plain(), version=version)
    metadata = renaming(wheel, name).metadata(wheel.metadata, requirement=partial(_pinned, wheel, label, offers))
    return renamed(wheel, name, folder=label, metadata=metadata)


def _pinned(wheel: OfferedWheel, label: str, offers: Sequence[OfferedRelease], line: str) -> str:
    """The requirement *line* of *wheel*, for the local version of *label* where it asks for a sibling that has one."""
    need = sibling_requirement(line, offers)
    if not need or need.project == wheel.name.project or not need.is_tied:
        return line
    found = [other for other in need.admitted if label in other.labels]
    if not found:
        return line
    need.requirement.specifier = SpecifierSet(f"=={local_version(found[-1].version, label)}")
    return str(need.requirement)


def _check_agreement(wheels: Sequence[OfferedWheel], label: str) -> None:
    """Refuse *wheels* of one release and *label* that ask for different things."""
    first: dict[tuple[str, str], OfferedWheel] = {}
    for wheel in wheels:
        like = first.setdefault((wheel.name.project, wheel.name.normalised().version), wheel)
        for difference in _differences(like, wheel):
            raise RepackageError(
                f"{wheel.path.name}: not as in {like.path.name}: {difference}; expected the same of all wheels "
                f"labelled {label}: uv takes one's METADATA for all of a version"
            )


def _differences(like: OfferedWheel, wheel: OfferedWheel) -> Iterator[MetadataDifference]:
    """What *wheel* asks of installers and *like* does not, or the other way round."""
    one, other = (metadata_view(str(each.metadata).encode()) for each in (like, wheel))
    return (difference for difference in one.differences(other) if difference.field in INSTALLER_FIELDS)


def _notes(offers: Sequence[OfferedRelease], labels: Sequence[str]) -> Iterator[str]:
    known = releases_with_variants(offers)
    *others, last = (f"+{local_part(label)}" for label in labels)
    order = f"{last}, which comes after {', '.join(others)}" if others else last
    yield f"Keep to one of the indexes: of several, a request without +label takes {order}, whatever the machine."
    whole, one = known[0].version, Version(known[0].version).public
    alone = f", ==={whole} the plain one alone," if known[0].plain else ""
    yield f"=={one} takes every local version of {one}{alone} and >{one} none (PEP 440)."
    for offer in known:
        yield from _missing(offer, labels)
        yield from _unpinned(offer, offers)
        yield from _unlike(offer)


def _missing(offer: OfferedRelease, labels: Sequence[str]) -> Iterator[str]:
    """What *offer* lacks in some index."""
    if none := ", ".join(label for label in labels if label not in offer.labels):
        there = "has its plain wheel" if offer.plain else "has nothing of it"
        yield f"{offer}: there is no {none}; that index {there}."
    lacking: dict[tuple[str, ...], list[str]] = {}
    for label in offer.labels:
        tags = {wheel.tag for wheel in wheels_labelled(offer, label)}
        others = dict.fromkeys("-".join(wheel.tag) for wheel in offer.wheels if wheel.tag not in tags)
        lacking.setdefault(tuple(others), []).append(label)
    for lacks, found in lacking.items():
        if lacks:
            yield f"{offer}: there is no {', '.join(found)} for {', '.join(lacks)}; that index has nothing there."


def _unpinned(offer: OfferedRelease, offers: Sequence[OfferedRelease]) -> Iterator[str]:
    """The requirements of *offer* for another release of a sibling than those published."""
    lines = {need.line: need for wheel in offer.variants for need in sibling_requirements(wheel, offers)}
    for line, need in lines.items():
        if need.is_tied and not need.admitted:
            there = ", ".join(map(str, need.releases))
            yield f"{offer}: requires {line}, which {there} is not; left as it is."


def _unlike(offer: OfferedRelease) -> Iterator[str]:
    """Where the plain wheels, which stay as they are, ask for different things."""
    for wheel in offer.plain[1:]:
        for difference in _differences(offer.plain[0], wheel):
            yield f"{wheel.path.name}: not as in {offer.plain[0].path.name}: {difference}; uv takes one's for all."
