"""The wheels to publish, grouped by release, and which releases need each other.

files, folders -> OfferedWheel, one for each wheel -> OfferedRelease, one for each project and version

torchvision 0.24, cu126:  Requires-Dist: torch==2.9        a sibling: torch 2.9 is published with a cu126, too
demo 1.0, cu126:          Requires-Dist: demo-libs==0.187  a companion, which is the same for all variants
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Self

from msgspec import Struct
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.config.requirements import admits, read_requirement
from vbuild.errors import RepackageError, WheelError, at
from vbuild.files.hashing import sha256_of
from vbuild.variants.document import Document
from vbuild.variants.model import Property, Variant
from vbuild.wheel.archive import SharedWheels, Wheel, open_wheel, wheels_at
from vbuild.wheel.metadata import VARIANT_JSON, Metadata, RecordRow, WheelFile, is_companion
from vbuild.wheel.name import WheelName
from vbuild.wheel.sdist import divided, release_of

_MACHINES = ("x86_64", "aarch64")


class OfferedWheel(Struct, frozen=True):
    """One wheel of a release, closed; *rows* are RECORD's in the archive's order."""

    path: Path
    name: WheelName
    dist_info: str
    metadata: Metadata
    wheel_file: WheelFile
    document: Document | None
    rows: tuple[RecordRow, ...]
    is_companion: bool
    shared: SharedWheels | None = None

    @classmethod
    def of(cls, path: Path, *, shared: SharedWheels | None = None) -> Self:
        with shared.open(path) if shared else open_wheel(path) as wheel:
            with at(wheel.path.name), at(VARIANT_JSON):
                stated = Document.of_wheel(wheel.name.variant, wheel.variant_json)
            return cls(
                path=path,
                name=wheel.name,
                dist_info=wheel.dist_info,
                metadata=wheel.metadata(),
                wheel_file=wheel.wheel_file(),
                document=stated,
                rows=tuple(map(wheel.row, wheel.members)),
                is_companion=is_companion(wheel.metadata(), wheel.wheel_file()),
                shared=shared,
            )

    def opened(self) -> AbstractContextManager[Wheel]:
        return self.shared.open(self.path) if self.shared else open_wheel(self.path)

    @property
    def label(self) -> str | None:
        return self.name.variant

    @property
    def variant(self) -> Variant | None:
        return self.document.only(self.name.variant) if self.document and self.name.variant else None

    @property
    def properties(self) -> tuple[Property, ...]:
        return self.variant.properties if self.variant else ()

    @property
    def machine(self) -> str | None:
        """``x86_64`` or ``aarch64``, as its platform tag says; None for others, and for wheels of any machine."""
        return next((machine for machine in _MACHINES if self.name.platform.endswith(machine)), None)

    @property
    def tag(self) -> tuple[str, str, str]:
        """Wheels of one tag differ in their variant only."""
        return self.name.python, self.name.abi, self.name.platform

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def sha256(self) -> str:
        return self.shared.digests.of(self.path) if self.shared else sha256_of(self.path)


class OfferedRelease(Struct, frozen=True):
    """The wheels of one release, plain ones first; *project* as indexes spell it, *version* as PEP 440 normalises.

    Its *sdist* is the project's own.
    """

    project: str
    version: str
    wheels: tuple[OfferedWheel, ...]
    sdist: Path | None = None

    @property
    def is_companion(self) -> bool:
        """Whether a split made its wheels alongside others: every layout passes them on as they are."""
        return all(wheel.is_companion for wheel in self.wheels)

    @property
    def plain(self) -> tuple[OfferedWheel, ...]:
        return tuple(wheel for wheel in self.wheels if wheel.label is None)

    @property
    def variants(self) -> tuple[OfferedWheel, ...]:
        return tuple(wheel for wheel in self.wheels if wheel.label is not None)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(wheel.label for wheel in self.variants if wheel.label is not None))

    def __str__(self) -> str:
        return f"{self.project} {self.version}"


def releases_at(paths: Sequence[Path], *, shared: SharedWheels | None = None) -> tuple[OfferedRelease, ...]:
    """The releases of the wheels at *paths*, files or folders, each with its sdist there; `VbuildError` for two."""
    wheel_paths, sdist_paths = divided(paths)
    wheels_of: dict[tuple[str, Version], list[OfferedWheel]] = {}
    for wheel in (OfferedWheel.of(path, shared=shared) for path in wheels_at(wheel_paths)):
        wheels_of.setdefault((wheel.name.project, Version(wheel.name.version)), []).append(wheel)
    sdists: dict[tuple[str, Version], Path] = {}
    for path in sdist_paths:
        with suppress(WheelError):  # another archive
            if (other := sdists.setdefault(release_of(path.name), path)) != path:
                raise RepackageError(f"{path}: {other} is an sdist of this release, too; expected one")
    strange = {*sdist_paths}.intersection(paths).difference(map(sdists.get, wheels_of))
    if strange:
        raise RepackageError(f"{min(strange)}: none of the wheels is of this release; give both, or leave it out")
    return tuple(
        OfferedRelease(
            project,
            str(version),
            tuple(sorted(several, key=lambda wheel: (wheel.label is not None, wheel.path.name))),
            sdists.get((project, version)),
        )
        for (project, version), several in sorted(wheels_of.items())
    )


# who writes one of these means a release that was built together with this one
EXACT_OPERATORS = frozenset({"==", "~=", "==="})


class SiblingRequirement(Struct, frozen=True):
    """A *line* of Requires-Dist that names a *project* with *releases* that are published, oldest first.

    It *is_tied* if it asks for one release, or compatible ones.
    """

    line: str
    requirement: Requirement
    project: str
    releases: tuple[OfferedRelease, ...]
    admitted: tuple[OfferedRelease, ...]
    is_tied: bool


def sibling_requirements(wheel: OfferedWheel, offers: Sequence[OfferedRelease]) -> Iterator[SiblingRequirement]:
    for line in wheel.metadata.requires_dist:
        if (need := sibling_requirement(line, offers)) and need.project != wheel.name.project:
            yield need


def sibling_requirement(line: str, offers: Sequence[OfferedRelease]) -> SiblingRequirement | None:
    if (requirement := read_requirement(line)) is None or requirement.url:
        return None
    project = canonicalize_name(requirement.name)
    releases = sorted((offer for offer in offers if offer.project == project), key=lambda offer: Version(offer.version))
    if not releases:
        return None
    admitted = tuple(offer for offer in releases if requirement.specifier.contains(offer.version, prereleases=True))
    is_tied = any(specifier.operator in EXACT_OPERATORS for specifier in requirement.specifier)
    return SiblingRequirement(line, requirement, project, tuple(releases), admitted, is_tied)


def releases_with_variants(offers: Sequence[OfferedRelease]) -> tuple[OfferedRelease, ...]:
    with_variants = tuple(offer for offer in offers if offer.variants)
    if not with_variants:
        names = ", ".join(map(str, offers)) or "nothing"
        raise RepackageError(
            f"found {names}, and no variant of it; expected wheels with labels: vbuild stamp gives one"
        )
    return with_variants


def latest(offers: Sequence[OfferedRelease], label: str | None = None) -> tuple[OfferedRelease, ...]:
    """The last release of each project, by project: the last with that *label* if there is one."""
    order = sorted(offers, key=lambda offer: (label in offer.labels, Version(offer.version)))
    return tuple(offer for _, offer in sorted({offer.project: offer for offer in order}.items()))


def exact_pins(offers: Sequence[OfferedRelease]) -> str:
    """Requirements of the last release of each project: another index may have a newer one."""
    return " ".join(f"{offer.project}=={offer.version}" for offer in latest(offers))


def without_variants(offers: Sequence[OfferedRelease]) -> tuple[str, tuple[OfferedRelease, ...]]:
    """What installers that take no variants get of *offers*, in words, and those of which they get something."""
    some = tuple(offer for offer in offers if not offer.is_companion and (offer.plain or offer.sdist))
    return "the plain wheel" if all(offer.plain for offer in some) else "the sdist, which they build", some


def labels_of(offers: Iterable[OfferedRelease]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(label for offer in offers for label in offer.labels))


def variants_of(offers: Sequence[OfferedRelease], labels: Sequence[str]) -> dict[str, Variant]:
    """The variant of each of *labels* in the last of *offers* that has it."""
    variant_by_label = {label: wheel.variant for offer in offers for wheel in offer.variants if (label := wheel.label)}
    return {label: variant for label in labels if (variant := variant_by_label.get(label))}


def wheels_labelled(offer: OfferedRelease, label: str) -> tuple[OfferedWheel, ...]:
    return tuple(wheel for wheel in offer.variants if wheel.label == label)


def check_siblings(offers: Sequence[OfferedRelease]) -> None:
    """`RepackageError` if a wheel requires a release among *offers* that has variants, and none of its label."""
    with_variants = releases_with_variants(offers)
    for offer in with_variants:
        for wheel in offer.variants:
            for need in sibling_requirements(wheel, with_variants):
                if need.is_tied and need.admitted and not any(wheel.label in other.labels for other in need.admitted):
                    raise RepackageError(
                        f"{wheel.path.name}: requires {need.line}, and {need.admitted[-1]} has no {wheel.label}; "
                        "expected the same labels of both: build it, or publish them apart"
                    )


def companion_wheels(offers: Sequence[OfferedRelease]) -> tuple[OfferedWheel, ...]:
    return tuple(wheel for offer in offers if offer.is_companion for wheel in offer.wheels)


def required_companions(wheels: Sequence[OfferedWheel], companions: Sequence[OfferedWheel]) -> tuple[OfferedWheel, ...]:
    """Those of *companions* that *wheels* require, and what those require."""
    unvisited, required = list(wheels), set[OfferedWheel]()
    while unvisited:
        wheel = unvisited.pop()
        new = {companion for companion in companions if companion not in required and _asks(wheel, companion)}
        required |= new
        unvisited += new
    return tuple(companion for companion in companions if companion in required)


def companions_with(wheels: Sequence[OfferedWheel], companions: Sequence[OfferedWheel]) -> tuple[OfferedWheel, ...]:
    related = {
        *required_companions(wheels, companions),
        *(companion for companion in companions if any(_asks(companion, wheel) for wheel in wheels)),
    }
    return tuple(companion for companion in companions if companion in related)


def _asks(wheel: OfferedWheel, other: OfferedWheel) -> bool:
    lines = wheel.metadata.requires_dist
    return any(admits(read_requirement(line), other.name.project, other.name.version) for line in lines)
