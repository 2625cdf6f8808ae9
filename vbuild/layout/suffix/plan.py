"""Variants as distributions of their own, ``demo-cu12`` beside ``demo``: what the field has done for years.

suffix/demo_cu12-1.0-….whl      renamed: file, .dist-info, .data, Name, extras of its own, siblings of the same label
suffix/demo-1.0-….whl           the plain wheel as it was, or with a metapackage an empty one that requires demo-cu12
suffix/simple/demo-cu12/…       an index of all of them

Import packages stay, so that two of these wheels have the same files: no installer notices. The opt-in guard says so on
import.
https://packaging.python.org/en/latest/specifications/name-normalization/
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from shlex import quote

from packaging.utils import canonicalize_name

from vbuild.errors import LayoutError
from vbuild.layout.address import RIVALS, below, install
from vbuild.layout.model import Linked, NewWheel, Plan, SimpleIndex, Use
from vbuild.layout.offer import Offer, Offered
from vbuild.layout.renamed import renamed, renaming
from vbuild.layout.siblings import check_ties, labelled, labels_of, latest, read, variants_of, varied
from vbuild.layout.suffix.guard import guarded
from vbuild.layout.suffix.meta import metapackage, metapackage_name
from vbuild.layout.suffix.names import hard_wired, suffixed
from vbuild.wheel.name import escaped
from vbuild.wheel.renaming import requirement_of

Names = Mapping[tuple[str, str], str]

_HOW = "with pip and with uv; what else is required comes from the index that they have:"


@dataclass(frozen=True, slots=True)
class Suffix:
    """Wheels under the names that *naming* makes of project and label, in one index.

    *siblings* are projects published likewise elsewhere: requirements of them get the same names. *metapackage* is the
    label that an empty wheel under the old name requires. With *guard* renamed wheels warn where another one was
    installed over them. *url* is where the folder will be served.
    """

    naming: str = "{name}-{label}"
    siblings: tuple[str, ...] = ()
    metapackage: str | None = None
    guard: bool = False
    url: str | None = None
    name: str = "suffix"

    def planned(self, offers: Sequence[Offer]) -> Plan:
        """Every variant under its new name, and the rest as it is.

        `LayoutError` where a new name is none or stands for two, where a sibling or the label of the metapackage is
        not known, or where a wheel requires a release that lacks its label.
        """
        known = varied(offers)
        names = self._names(offers)
        self._check(known)
        check_ties(offers)
        wheels = [wheel for offer in offers for wheel in self._wheels(offer, names)]
        index = SimpleIndex(PurePosixPath("simple"), tuple(wheel.target for wheel in wheels))
        return Plan(self.name, (*wheels, index), tuple(self._uses(offers, names)), tuple(self._notes(known, names)))

    def _names(self, offers: Sequence[Offer]) -> Names:
        """The new name of each project and label; `LayoutError` where one stands for two things."""
        names = {(o.project, label): suffixed(o.project, label, self.naming) for o in offers for label in o.labels}
        taken = {offer.project: f"the project {offer.project}" for offer in offers}
        for (project, label), name in names.items():
            this = f"{project} {label}"
            if name in taken:
                raise LayoutError(
                    f"name {self.naming!r}: {name} would be {this} and {taken[name]}; expected a name for each: give "
                    "--name a {name} and a {label}, or stamp one under another label"
                )
            taken[name] = this
        return names

    def _check(self, known: Sequence[Offer]) -> None:
        lines = [line for offer in known for wheel in offer.variants for line in wheel.metadata.requires_dist]
        asked = {canonicalize_name(found.name) for line in lines if (found := read(line))}
        for sibling in map(canonicalize_name, self.siblings):
            if sibling not in asked:
                said = ", ".join(sorted(asked - {offer.project for offer in known})) or "none"
                raise LayoutError(f"sibling {sibling}: no wheel requires it; expected one of those required: {said}")
        labels = labels_of(known)
        if self.metapackage is not None and self.metapackage not in labels:
            raise LayoutError(f"metapackage {self.metapackage!r}: no such label; expected one of {', '.join(labels)}")

    def _wheels(self, offer: Offer, names: Names) -> Iterator[Linked | NewWheel]:
        """What becomes of the wheels of *offer*."""
        default = labelled(offer, self.metapackage) if self.metapackage else ()
        if default and self.metapackage:
            yield metapackage(default[0], names[offer.project, self.metapackage])
        else:
            yield from (Linked(PurePosixPath(wheel.path.name), wheel.path) for wheel in offer.plain)
        for wheel in offer.variants:
            yield self._renamed(wheel, wheel.label or "", names)

    def _renamed(self, wheel: Offered, label: str, names: Names) -> NewWheel:
        """The *wheel* under its new name, and what it requires of siblings under theirs."""
        table = {project: name for (project, other), name in names.items() if other == label}
        for sibling in map(canonicalize_name, self.siblings):
            table.setdefault(sibling, suffixed(sibling, label, self.naming))
        project = table[wheel.name.project]
        name = replace(wheel.name.normalised().plain(), distribution=escaped(project))
        metadata = renaming(wheel, name).metadata(wheel.metadata, requirement=partial(requirement_of, projects=table))
        family = [new for (old, _), new in names.items() if old == wheel.name.project]
        changed = guarded(wheel, name, family=family) if self.guard else None
        return renamed(wheel, name, metadata=metadata, changed=changed)

    def _uses(self, offers: Sequence[Offer], names: Names) -> Iterator[Use]:
        last = latest(offers)
        for label, variant in variants_of(last, labels_of(last)).items():
            having = [offer for offer in last if label in offer.labels]
            wanted = " ".join(f"{names[offer.project, label]}=={offer.version}" for offer in having)
            yield Use(f"{variant}, {_HOW}", install(wanted, url=self.url))
        rest = [offer for offer in last if not offer.is_companion and self._keeps_name(offer)]
        if wanted := " ".join(self._default(offer) for offer in rest):
            has_rivals = any(self.metapackage not in offer.labels for offer in rest)
            what = f"The default, {self.metapackage}" if self.metapackage else "The plain wheel, for every machine"
            rivals = RIVALS if has_rivals else ""
            yield Use(f"{what}{rivals}; {_HOW}", install(wanted, url=self.url, has_rivals=has_rivals))

    def _default(self, offer: Offer) -> str:
        """What asks for the last release of *offer* under its old name."""
        if self.metapackage not in offer.labels:
            return f"{offer.project}=={offer.version}"
        # by its file: where another index has a wheel of that name and version, for one platform, pip would prefer it
        return quote(below(self.url, str(metapackage_name(labelled(offer, self.metapackage)[0]))))

    def _keeps_name(self, offer: Offer) -> bool:
        """Whether there is something under the old name of *offer*."""
        return bool(offer.plain) or self.metapackage in offer.labels

    def _notes(self, known: Sequence[Offer], names: Names) -> Iterator[str]:
        for offer in known:
            called = [names[offer.project, label] for label in offer.labels]
            plain = [offer.project] if offer.plain and self.metapackage not in offer.labels else []
            if len(several := [*plain, *called]) > 1:
                yield (
                    f"{', '.join(several)} have the same files, which no installer notices: uninstall one before the "
                    f"other is installed.{' A guard in them says so on import.' if self.guard else ''}"
                )
            if self.metapackage in offer.labels and offer.plain:
                yield f"{offer}: the plain wheel is left out: {offer.project} is an empty one now."
            for place in hard_wired(offer.variants):
                yield f"{place} finds no {offer.project} where only {' or '.join(called)} is installed."
            if any("/headers/" in row.path and ".data/" in row.path for wheel in offer.variants for row in wheel.rows):
                yield f"{offer}: its headers are installed into a folder called after the new name."
        new = ", ".join(names.values())
        yield f"Anybody may take these names on an index that has none: register {new} there first."
