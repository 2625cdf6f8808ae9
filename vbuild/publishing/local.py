"""Variants as local versions, each label in an index of its own: what every installer understands, if asked rightly.

local/plain/demo-1.0-….whl, simple/demo/…                  as they were, with companions
local/x86_64_v3/demo-1.0+x86.64.v3-….whl, simple/demo/…    Version changed, and siblings pinned to the same label
local/index.html                                           which index is for whom

All in one index would not do: a request without ``+label`` takes the last local version in PEP 440's order, whatever
the machine. Each index has what its wheels need of the same publication: companions, siblings, and releases without
variants. uv reads METADATA of one wheel for all of a version, so those of a label must ask for the same.
https://packaging.python.org/en/latest/specifications/version-specifiers/#local-version-identifiers
https://docs.astral.sh/uv/concepts/indexes/#pinning-a-package-to-an-index

What is wrong with a folder of the layout local: an index per label, each of wheels that belong together.

x86_64_v3/*.whl    all wheels of a release are +x86.64.v3, or none is, where it has no such variant
                   METADATA of a version is the same in all its wheels; siblings are pinned to that label
x86_64_v3/simple   says of each file what it is
index.html         is there
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath

from msgspec import Struct
from msgspec.structs import replace
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.errors import LayoutError
from vbuild.publishing.indexes import index_problems, wheels_in
from vbuild.publishing.lint.metadata import CHOSEN_BY, MetadataDifference, stated
from vbuild.publishing.lint.model import Demand, Problem
from vbuild.publishing.local_labels import PLAIN, check_labels, in_order, local_part, local_version
from vbuild.publishing.local_uses import page, uses
from vbuild.publishing.model import LinkedFile, NewWheel, PublishPlan, SimpleIndex, Text
from vbuild.publishing.offer import Offered, OfferedRelease
from vbuild.publishing.renamed import renamed, renaming
from vbuild.publishing.siblings import TIES, beside, check_ties, labelled, labels_of, need_of, needs, varied
from vbuild.wheel.requirements import admits, read_requirement


class Local(Struct, frozen=True):
    """One simple index per label, of wheels whose local version says it; *url* is where the folder will be served."""

    url: str | None = None
    name: str = "local"

    def planned(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        """An index per label, and one of the plain wheels where there are some.

        `LayoutError` where a label is no local version, two would be confused, a wheel requires a release that lacks
        its label, or wheels of one local version ask for different things.
        """
        known = varied(offers)
        labels = in_order(_checked(labels_of(known)))
        check_ties(offers)
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
    return _linked(PLAIN, [*wheels, *beside(wheels, _companions(offers))])


def _of_label(offers: Sequence[OfferedRelease], label: str) -> Iterator[LinkedFile | NewWheel]:
    """What the index of *label* has: wheels of that label, and of releases without it those that are plain."""
    own = [wheel for offer in offers for wheel in labelled(offer, label)]
    others = [
        wheel for offer in offers if not offer.is_companion and label not in offer.labels for wheel in offer.plain
    ]
    _check_agreement(own, label)
    yield from (_local(wheel, label, offers) for wheel in own)
    yield from _linked(label, [*others, *beside([*own, *others], _companions(offers))])


def _linked(label: str, wheels: Sequence[Offered]) -> Iterator[LinkedFile]:
    return (LinkedFile(PurePosixPath(label, wheel.path.name), wheel.path) for wheel in wheels)


def _companions(offers: Sequence[OfferedRelease]) -> list[Offered]:
    return [wheel for offer in offers if offer.is_companion for wheel in offer.wheels]


def _local(wheel: Offered, label: str, offers: Sequence[OfferedRelease]) -> NewWheel:
    """The wheel as local version, siblings pinned to the same label."""
    version = local_version(wheel.name.version, label)
    name = replace(wheel.name.normalised().plain(), version=version)
    metadata = renaming(wheel, name).metadata(wheel.metadata, requirement=partial(_pinned, wheel, label, offers))
    return renamed(wheel, name, folder=label, metadata=metadata)


def _pinned(wheel: Offered, label: str, offers: Sequence[OfferedRelease], line: str) -> str:
    """The requirement *line* of *wheel*, for the local version of *label* where it asks for a sibling that has one."""
    need = need_of(line, offers)
    if not need or need.project == wheel.name.project or not need.is_tied:
        return line
    found = [other for other in need.admitted if label in other.labels]
    if not found:
        return line
    need.requirement.specifier = SpecifierSet(f"=={local_version(found[-1].version, label)}")
    return str(need.requirement)


def _check_agreement(wheels: Sequence[Offered], label: str) -> None:
    """Refuse *wheels* of one release and *label* that ask for different things."""
    first: dict[tuple[str, str], Offered] = {}
    for wheel in wheels:
        like = first.setdefault((wheel.name.project, wheel.name.normalised().version), wheel)
        for difference in _differences(like, wheel):
            raise LayoutError(
                f"{wheel.path.name}: not as in {like.path.name}: {difference}; expected the same of all wheels "
                f"labelled {label}: uv takes one's METADATA for all of a version"
            )


def _differences(like: Offered, wheel: Offered) -> Iterator[MetadataDifference]:
    """What *wheel* asks of installers and *like* does not, or the other way round."""
    one, other = (stated(str(each.metadata).encode()) for each in (like, wheel))
    return (difference for difference in one.differences(other) if difference.field in CHOSEN_BY)


def _notes(offers: Sequence[OfferedRelease], labels: Sequence[str]) -> Iterator[str]:
    known = varied(offers)
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
        tags = {wheel.tag for wheel in labelled(offer, label)}
        others = dict.fromkeys("-".join(wheel.tag) for wheel in offer.wheels if wheel.tag not in tags)
        lacking.setdefault(tuple(others), []).append(label)
    for lacks, found in lacking.items():
        if lacks:
            yield f"{offer}: there is no {', '.join(found)} for {', '.join(lacks)}; that index has nothing there."


def _unpinned(offer: OfferedRelease, offers: Sequence[OfferedRelease]) -> Iterator[str]:
    """The requirements of *offer* for another release of a sibling than those published."""
    lines = {need.line: need for wheel in offer.variants for need in needs(wheel, offers)}
    for line, need in lines.items():
        if need.is_tied and not need.admitted:
            there = ", ".join(map(str, need.releases))
            yield f"{offer}: requires {line}, which {there} is not; left as it is."


def _unlike(offer: OfferedRelease) -> Iterator[str]:
    """Where the plain wheels, which stay as they are, ask for different things."""
    for wheel in offer.plain[1:]:
        for difference in _differences(offer.plain[0], wheel):
            yield f"{wheel.path.name}: not as in {offer.plain[0].path.name}: {difference}; uv takes one's for all."


_AGAIN = "publish the wheels again into an empty folder: vbuild publish --layout local"


def problems(folder: Path) -> Iterator[Problem]:
    """What is wrong with the indexes in *folder*."""
    places = sorted(path for path in folder.iterdir() if path.is_dir())
    labels = [place.name for place in places if place.name != PLAIN]
    if not labels:
        yield _problem(Demand.LABELS, folder.resolve().name, "has no index of a label; expected a folder for each")
    try:
        check_labels(labels)
    except LayoutError as error:
        yield _problem(Demand.LABELS, folder.resolve().name, str(error))
        return
    if labels and not (folder / "index.html").is_file():
        yield _problem(Demand.INDEX, "index.html", "is not there; expected the page that says which index is for whom")
    for place in places:
        for problem in _place(place, labels):
            yield replace(problem, files=tuple(f"{place.name}/{file}" for file in problem.files))


def _place(place: Path, labels: Sequence[str]) -> Iterator[Problem]:
    """What is wrong in the folder *place* of one index."""
    wheels: list[Offered] = []
    yield from wheels_in(place, wheels)
    if place.name == PLAIN:
        yield from (_labelled(wheel) for wheel in wheels if wheel.label)
    else:
        yield from _checked_index(wheels, place.name, labels)
    yield from _unlike_index(wheels)
    yield from index_problems(place)


def _checked_index(wheels: Sequence[Offered], label: str, labels: Sequence[str]) -> Iterator[Problem]:
    """What is wrong among the *wheels* in the index of *label*, one of *labels*."""
    own = {_release(wheel) for wheel in wheels if _is_of(wheel, label)}
    if not own:
        yield _problem(Demand.LOCAL_VERSION, "*.whl", f"none is of a version +{local_part(label)}")
    for wheel in wheels:
        if wheel.label:
            yield _labelled(wheel)
        if not _is_of(wheel, label):
            if _release(wheel) in own:
                what = f"is not +{local_part(label)}, as others of {' '.join(_release(wheel))} in this index are"
                yield _problem(Demand.LOCAL_VERSION, wheel.path.name, what)
            elif other := next((other for other in labels if _is_of(wheel, other)), None):
                yield _problem(Demand.LOCAL_VERSION, wheel.path.name, f"is of the index {other}")
        yield from _pins(wheel, wheels, label)


def _pins(wheel: Offered, wheels: Sequence[Offered], label: str) -> Iterator[Problem]:
    """The requirements of *wheel* for siblings that are not pinned to *label*, or to what is not there."""
    varied = {other.name.project for other in wheels if _is_of(other, label)} - {wheel.name.project}
    for line in wheel.metadata.requires_dist:
        found = read_requirement(line)
        project = canonicalize_name(found.name) if found else ""
        if not found or project not in varied or not (tied := [one for one in found.specifier if one.operator in TIES]):
            continue
        admitted = [
            other for other in wheels if other.name.project == project and admits(found, project, other.name.version)
        ]
        is_pinned = any(one.operator == "==" and _ends(one.version, label) for one in tied)
        if not admitted:
            what = f"requires {line}, and only other releases are in this index"
            yield Problem(Demand.REQUIREMENT, (wheel.path.name,), what, "publish that one, too", is_error=False)
        elif not is_pinned and any(_is_of(other, label) for other in admitted):
            what = f"requires {line}, which other builds than +{local_part(label)} are, too"
            yield _problem(Demand.REQUIREMENT, wheel.path.name, what)


def _unlike_index(wheels: Sequence[Offered]) -> Iterator[Problem]:
    first: dict[tuple[str, Version], Offered] = {}
    for wheel in wheels:
        like = first.setdefault((wheel.name.project, Version(wheel.name.version)), wheel)
        one, other = (stated(str(each.metadata).encode()) for each in (like, wheel))
        for difference in one.differences(other):
            if difference.field in CHOSEN_BY and not wheel.is_companion:
                what = f"not as in {like.path.name}: {difference}"
                advice = "state the same in all: uv takes one wheel's METADATA for all of a version"
                # the plain wheels are as their publisher made them
                is_error = Version(wheel.name.version).local is not None
                yield Problem(Demand.METADATA, (wheel.path.name,), what, advice, is_error=is_error)


def _release(wheel: Offered) -> tuple[str, str]:
    """Project and version of *wheel*, without the local part of that."""
    return wheel.name.project, Version(wheel.name.version).public


def _is_of(wheel: Offered, label: str) -> bool:
    return _ends(wheel.name.version, label)


def _ends(version: str, label: str) -> bool:
    """Whether *version* is a local one of *label*, whatever local part it had before."""
    try:
        local = Version(version).local or ""
    except ValueError:  # ==1.*
        return False
    return f".{local}".endswith(f".{local_part(label)}")


def _labelled(wheel: Offered) -> Problem:
    what = "has a variant label, which only installers of variants read"
    return _problem(Demand.VARIANT, wheel.path.name, what)


def _problem(demand: Demand, place: str, what: str) -> Problem:
    return Problem(demand, (place,), what, _AGAIN, is_error=True)
