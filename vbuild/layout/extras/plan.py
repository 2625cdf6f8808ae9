"""One wheel for everybody, and plugins beside it that have only what differs: ``pip install 'demo[cu12]'``.

    extras/demo-1.0-1extras-….whl            the plain wheel, with a loader; Provides-Extra: cu12
    extras/demo_cu12_plugin-1.0-….whl        what the variant cu12 has otherwise; Requires-Dist: demo==1.0
    extras/simple/…                          an index of them

Files are compared by their hashes in RECORD. A plugin is of one build with its base: each requires the other's exact
version, and the loader refuses what was mixed nevertheless.
https://packaging.python.org/en/latest/specifications/core-metadata/#provides-extra-multiple-use
https://packaging.python.org/en/latest/specifications/entry-points/
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Self

from packaging.version import Version

from vbuild.binary.loading import Loading
from vbuild.errors import LayoutError
from vbuild.hardware.cpu import available_cores
from vbuild.layout.address import install
from vbuild.layout.extras.loader import MODULE, PLAIN, Backend, in_order, variable
from vbuild.layout.extras.payload import Payload, payload
from vbuild.layout.extras.wheels import base_wheel, plugin_wheel
from vbuild.layout.model import Linked, NewWheel, Plan, SimpleIndex, Use
from vbuild.layout.offer import Offer, Offered
from vbuild.layout.siblings import varied
from vbuild.publishing.slots import slots
from vbuild.splitting.bundle import Reader
from vbuild.splitting.threads import in_threads
from vbuild.variant.model import NULL_LABEL
from vbuild.wheel.name import escaped

_EXTRA = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Extras:
    """The layout of base and plugins; *url* is where its folder will be served."""

    url: str | None = None
    name: str = "extras"

    def planned(self, offers: Sequence[Offer]) -> Plan:
        """The base wheels and a plugin for each variant wheel; companions and releases without variants as they are.

        `LayoutError` where what differs cannot be loaded from another package, naming the file.
        """
        reader = Reader(_unasked)
        releases = {offer: _Release.of(offer, reader) for offer in varied(offers)}
        wheels: list[NewWheel | Linked] = []
        for offer in offers:
            if offer in releases:
                wheels += releases[offer].wheels()
            else:
                wheels += [Linked(PurePosixPath(wheel.path.name), wheel.path) for wheel in offer.wheels]
        index = SimpleIndex(PurePosixPath("simple"), tuple(wheel.target for wheel in wheels))
        latest = {
            offer.project: releases[offer] for offer in sorted(releases, key=lambda offer: Version(offer.version))
        }
        uses = tuple(use for release in latest.values() for use in self._uses(release))
        return Plan(self.name, (*wheels, index), uses, tuple(_notes(latest.values())))

    def _uses(self, release: "_Release") -> Iterator[Use]:
        project, root = release.offer.project, release.roots[0].replace("/", ".")
        ask = f"python -c 'from {root} import {MODULE}; print({MODULE}.backend())'"
        pinned = release.offer.version
        wanted = {f"{project} for {one.extra}": f"'{project}[{one.extra}]=={pinned}'" for one in release.backends}
        for what, asked in (wanted | {f"{project} alone, which runs on every machine": f"{project}=={pinned}"}).items():
            yield Use(
                f"{what}, with pip and with uv; what else is required comes from the index that they have:",
                install(asked, url=self.url),
            )
        yield Use("Which backend is in use; an extra that was misspelt shows here:", ask)
        yield Use("Without a backend, for one run; so another is named, too:", f"{variable(project)}={PLAIN} {ask}")


@dataclass(frozen=True, slots=True)
class _Release:
    """The wheels of *offer* as base and plugins: the *payloads*, each with its backend and its plain wheel.

    *roots* are the packages that load plugins, as folders; a plugin has the modules of the first directly in its own.
    """

    offer: Offer
    bases: tuple[Offered, ...]
    backends: tuple[Backend, ...]
    payloads: tuple[tuple[Backend, Offered, Payload], ...]
    roots: tuple[str, ...]

    @classmethod
    def of(cls, offer: Offer, reader: Reader) -> Self:
        """The same of *offer*, whose wheels *reader* reads."""
        known = {label: Backend(offer.project, label, wheel.properties) for label, wheel in _served(offer)}
        _check_names(known.values())
        bases = _bases(offer)
        served = [(known[label], wheel, _base_of(wheel, bases)) for label, wheel in _served(offer)]

        def read(row: tuple[Backend, Offered, Offered]) -> tuple[Backend, Offered, Payload]:
            backend, wheel, base = row
            return backend, base, payload(wheel, base, reader=reader)

        payloads = in_threads(read, served, size=lambda row: row[1].size, threads=available_cores())
        roots = {root for _, _, found in payloads for root in found.roots}
        named = escaped(offer.project)
        ordered = tuple(sorted(roots, key=lambda root: (root != named, root)))
        return cls(offer, bases, in_order(tuple(known.values())), tuple(payloads), ordered)

    def wheels(self) -> Iterator[NewWheel]:
        """The base wheels, then the plugins."""
        for base in self.bases:
            yield base_wheel(base, self.roots, self.backends)
        for backend, base, found in self.payloads:
            yield plugin_wheel(found, base, backend, root=self.roots[0])


def _served(offer: Offer) -> Iterator[tuple[str, Offered]]:
    """The variant wheels that become plugins, with their labels."""
    for wheel in offer.variants:
        if wheel.label is not None and wheel.label != NULL_LABEL:
            yield wheel.label, wheel


def _bases(offer: Offer) -> tuple[Offered, ...]:
    """The plain wheels, and null variants where there is no plain one for the same."""
    plain = {slots(wheel.name) for wheel in offer.plain}
    null = (wheel for wheel in offer.variants if wheel.label == NULL_LABEL and slots(wheel.name) not in plain)
    return (*offer.plain, *null)


def _base_of(variant: Offered, bases: Sequence[Offered]) -> Offered:
    """The plain wheel that whoever installs the plugin made of *variant* has beside it."""
    found = [base for base in bases if slots(base.name) == slots(variant.name)]
    if len(found) != 1:
        said = ", ".join(base.path.name for base in found) or "none"
        raise LayoutError(
            f"{variant.path.name}: plain wheels for the same Python and machine: {said}; expected one, which a plugin "
            "is made for: build it, or give the others apart"
        )
    return found[0]


def _check_names(backends: Collection[Backend]) -> None:
    """Refuse labels that are no extras, or that are the same one (PEP 685)."""
    extras: dict[str, str] = {PLAIN: "the wheel without a backend"}
    for backend in backends:
        if not _EXTRA.fullmatch(backend.extra):
            raise LayoutError(
                f"label {backend.label!r}: no name of an extra; expected it to begin and end with a-z, 0-9"
            )
        if other := extras.get(backend.extra):
            raise LayoutError(
                f"label {backend.label!r}: as an extra it is {backend.extra!r}, as is {other}; rename one"
            )
        extras[backend.extra] = f"the label {backend.label!r}"


def _notes(releases: Iterable[_Release]) -> Iterator[str]:
    for release in releases:
        project, named = release.offer.project, variable(release.offer.project)
        extras = ", ".join(backend.extra for backend in release.backends)
        yield f"Extras of {project}: {extras}; of one that it does not have, pip and uv only warn, if that."
        yield (
            f"The wheel of {project} here has a build tag: installers prefer it to the plain wheel of the same tags. "
            "Publish it beside that one, or in its stead."
        )
        plugins = ", ".join(backend.plugin for backend in release.backends)
        yield f"Anybody may take these names on an index that has none: register {plugins} there first."
        if len(release.backends) == 1:
            continue
        yield (
            f"Of several backends that are installed, and differ in the x86-64 level alone, {project} takes the best "
            f"that the CPU runs; of others, {named} has to name one. GPUs are not looked for."
        )


def _unasked(_name: str, _loading: Loading, _data: memoryview, _sha256: str, /) -> None:
    """Where bundled libraries come from does not matter here."""
