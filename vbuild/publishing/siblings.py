"""Releases of one publication that need each other: which release a line of Requires-Dist means.

    torchvision 0.24, cu126:  Requires-Dist: torch==2.9        torch 2.9 has a cu126, too: the two belong together
    demo 1.0, cu126:          Requires-Dist: demo-libs==0.187  a companion, which is one for all variants

https://packaging.python.org/en/latest/specifications/dependency-specifiers/
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.errors import LayoutError
from vbuild.publishing.offer import Offered, OfferedRelease
from vbuild.variants.model import Variant
from vbuild.wheel.requirements import admits, read_requirement

# who writes one of these means a release that was built together with this one
TIES = frozenset({"==", "~=", "==="})


class SiblingRequirement(Struct, frozen=True):
    """What the *line* of Requires-Dist of a wheel asks for: *releases* among those published, oldest first.

    It *is_tied* where it asks for that release, or one compatible with it, and not for any newer one.
    """

    line: str
    requirement: Requirement
    releases: tuple[OfferedRelease, ...]

    @property
    def project(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def admitted(self) -> tuple[OfferedRelease, ...]:
        """Those of the releases that the line admits."""
        allowed = self.requirement.specifier
        return tuple(offer for offer in self.releases if allowed.contains(offer.version, prereleases=True))

    @property
    def is_tied(self) -> bool:
        return any(one.operator in TIES for one in self.requirement.specifier)


def needs(wheel: Offered, offers: Sequence[OfferedRelease]) -> Iterator[SiblingRequirement]:
    """The lines of *wheel* that name other projects of *offers*, in its order."""
    for line in wheel.metadata.requires_dist:
        if (need := need_of(line, offers)) and need.project != wheel.name.project:
            yield need


def need_of(line: str, offers: Sequence[OfferedRelease]) -> SiblingRequirement | None:
    """What *line* asks for, where that is a project of *offers*."""
    if (found := read_requirement(line)) is None or found.url:
        return None
    project = canonicalize_name(found.name)
    releases = sorted((offer for offer in offers if offer.project == project), key=lambda offer: Version(offer.version))
    return SiblingRequirement(line, found, tuple(releases)) if releases else None


def varied(offers: Sequence[OfferedRelease]) -> tuple[OfferedRelease, ...]:
    """Those of *offers* that have variants; `LayoutError` where there are none."""
    found = tuple(offer for offer in offers if offer.variants)
    if not found:
        said = ", ".join(map(str, offers)) or "nothing"
        raise LayoutError(f"found {said}, and no variant of it; expected wheels with labels: vbuild stamp gives one")
    return found


def latest(offers: Sequence[OfferedRelease], label: str | None = None) -> tuple[OfferedRelease, ...]:
    """The last release of each project, by project: the last with that *label* where there is one."""
    order = sorted(offers, key=lambda offer: (label in offer.labels, Version(offer.version)))
    return tuple(offer for _, offer in sorted({offer.project: offer for offer in order}.items()))


def labels_of(offers: Sequence[OfferedRelease]) -> tuple[str, ...]:
    """The labels of all *offers*, each once, in their order."""
    return tuple(dict.fromkeys(label for offer in offers for label in offer.labels))


def variants_of(offers: Sequence[OfferedRelease], labels: Sequence[str]) -> dict[str, Variant]:
    """What each of *labels* stands for in the last of *offers* that has it."""
    known = {label: wheel.variant for offer in offers for wheel in offer.variants if (label := wheel.label)}
    return {label: variant for label in labels if (variant := known.get(label))}


def labelled(offer: OfferedRelease, label: str) -> tuple[Offered, ...]:
    """The wheels of *offer* under *label*."""
    return tuple(wheel for wheel in offer.variants if wheel.label == label)


def check_ties(offers: Sequence[OfferedRelease]) -> None:
    """`LayoutError` where a wheel requires a release among *offers* that has variants, and none of its own label."""
    known = varied(offers)
    for offer in known:
        for wheel in offer.variants:
            for need in needs(wheel, known):
                if need.is_tied and need.admitted and not any(wheel.label in other.labels for other in need.admitted):
                    raise LayoutError(
                        f"{wheel.path.name}: requires {need.line}, and {need.admitted[-1]} has no {wheel.label}; "
                        "expected the same labels of both: build it, or publish them apart"
                    )


def required(wheels: Sequence[Offered], companions: Sequence[Offered]) -> tuple[Offered, ...]:
    """Those of *companions* that *wheels* require, and what those require."""
    asked, found = list(wheels), set[Offered]()
    while asked:
        wheel = asked.pop()
        new = {one for one in companions if one not in found and _asks(wheel, one)}
        found |= new
        asked += new
    return tuple(companion for companion in companions if companion in found)


def beside(wheels: Sequence[Offered], companions: Sequence[Offered]) -> tuple[Offered, ...]:
    """Those of *companions* that go with *wheels*: what they require, and what requires them."""
    found = {*required(wheels, companions), *(one for one in companions if any(_asks(one, wheel) for wheel in wheels))}
    return tuple(companion for companion in companions if companion in found)


def _asks(wheel: Offered, other: Offered) -> bool:
    """Whether *wheel* requires what *other* is of."""
    lines = wheel.metadata.requires_dist
    return any(admits(read_requirement(line), other.name.project, other.name.version) for line in lines)
