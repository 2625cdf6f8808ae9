"""The layout conda: a channel for conda, mamba and pixi, with packages that fit the machines of their variants.

    conda/linux-64/demo-1.0-py311_0.conda                   the plain wheel: for every machine
    conda/linux-64/demo-1.0-py311_x86_64_v3_300.conda       _x86_64-microarch-level >=3
    conda/linux-64/demo-1.0-py311_cu126_500.conda           __cuda >=12.6
    conda/noarch/_x86_64-microarch-level-3-0_zen2.conda     the level of a CPU that archspec calls zen2
    conda/{linux-64,noarch}/repodata.json, repodata.json.zst

Requirements are translated by `vbuild.publishing.conda.depends`; Python and everything else comes from another channel.
Of the builds that fit, solvers take the highest build number:

    plain 0 < null 50 < v2 200 < v3 300 < v4 400 < CUDA 500 < CUDA with v3 600

A hundred for each CPU level, two hundred for a GPU, and more if PEP 825's order requires it: numbers stay what they are
when a release gets more levels. One list of numbers serves all machines, so each value of a variant with several values
for one feature is placed by itself; neighbours become one package, others a package each.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path, PurePosixPath
from shlex import quote

from msgspec import Struct
from msgspec.structs import replace

from vbuild.errors import RepackageError, at
from vbuild.hardware.conda import MACHINES
from vbuild.hardware.cpu import X86_64_LEVELS
from vbuild.hardware.driver import Dotted
from vbuild.hardware.machine import Machine
from vbuild.publishing.conda.depends import (
    NEWEST,
    CondaNames,
    DependencyRun,
    Tags,
    condition,
    conditions,
    depends_on_machine,
    level_packages,
    patches_of,
    resolved,
    tags_of,
)
from vbuild.publishing.conda.reading import LEVEL_PACKAGE, NOARCH
from vbuild.publishing.conda.writing import (
    CondaIndex,
    CondaPackage,
    CondaRecord,
    Independent,
    platforms,
    system_requirements,
)
from vbuild.publishing.model import ConsumerUse, PublishPlan
from vbuild.publishing.releases import OfferedRelease, OfferedWheel
from vbuild.variants.document import Document, combine
from vbuild.variants.model import Property, Variant
from vbuild.variants.order import ranked

STEP = 100
_NULL, _GPU = 50, 200


class VariantChoice(Struct, frozen=True):
    """A variant, by *label*, where it stands with *number*: for machines with one of these *alternatives*."""

    label: str
    alternatives: tuple[tuple[Property, ...], ...]
    number: int


def choices(document: Document) -> tuple[VariantChoice, ...]:
    """The variants of *document*, the least preferred first; `RepackageError` for a property without conda
    equivalent.
    """
    found: list[VariantChoice] = []
    for label, alternatives in _neighbours(list(_placed(document))):
        first = alternatives[0]
        # the number that the variant would have alone
        levels = [X86_64_LEVELS.index(prop.value) + 1 for prop in first if prop.namespace == "x86_64"]
        gpu = _GPU if any(prop.namespace == "nvidia" for prop in first) else 0
        alone = STEP * max(levels, default=0) + gpu if first else _NULL
        number = max(found[-1].number // STEP * STEP + STEP if found else 0, alone)
        found.append(VariantChoice(label, alternatives, number))
    return tuple(found)


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
    supported = []
    for namespace, features in values.items():
        # by name, as the provider of the namespace has them
        ordered = tuple((name, tuple(sorted(features[name], key=_rank, reverse=True))) for name in sorted(features))
        supported.append((namespace, ordered))
    return Machine("3", (), supported=tuple(supported))


def _rank(value: str) -> tuple[bool, Dotted, int]:
    """What values are sorted by, the best highest: machine code before PTX, later GPUs, drivers and levels first."""
    number, _, kind = value.partition("_")
    # 12.0 comes before 12
    return kind != "virtual", Dotted.parse(number.removeprefix("v")), len(value)


FORGE = "conda-forge"
_PLAIN = VariantChoice("", ((),), 0)
# so that a wheel never gets the number of the next variant
_MOST = STEP // 2
_NEEDS = {"python", "python_abi", "cpython", "_python_abi3_support", LEVEL_PACKAGE}


class Conda(Struct, frozen=True):
    """The layout; *url* is where its folder will be served, *names* what projects of PyPI are called in conda."""

    url: str | None = None
    names: tuple[tuple[str, str], ...] = ()
    name: str = "conda"

    def planned(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        """A package or more for each wheel, packages of CPU levels where one is asked for, and the channel's indexes.

        `RepackageError` if a property or a requirement has no equivalent in conda, two projects would be called the
        same, or no wheel is for Linux.
        """
        names = CondaNames(self.names)
        projects: dict[str, str] = {}
        for offer in offers:
            name = names.of(offer.project)
            if (other := projects.setdefault(name, offer.project)) != offer.project:
                raise RepackageError(
                    f"{other} and {offer.project} would both be called {name}; expected a name for each"
                )
        made = [(offer, tuple(_packages(offer, names))) for offer in offers]
        packages = [package for _, its in made for package in its]
        if not packages:
            found = ", ".join(map(str, offers)) or "none"
            raise RepackageError(
                f"found no wheel for CPython on Linux (x86_64, aarch64, glibc) or any machine in {found}"
            )
        records = [package.record for package in packages]
        if any(asked.startswith(LEVEL_PACKAGE) for record in records for asked in record.depends):
            packages += [CondaPackage(record.target, record) for record in level_packages()]
        indexes: list[CondaIndex] = []
        for subdir in (*MACHINES, NOARCH):
            files = tuple(package.target for package in packages if package.record.subdir == subdir)
            # clients refuse a channel without noarch
            if files or subdir != "linux-aarch64":
                indexes.append(CondaIndex(PurePosixPath(subdir, "repodata.json"), files))
        return PublishPlan(
            self.name,
            (*packages, *indexes),
            tuple(self._uses([offer for offer, its in made if its], records, names)),
            tuple(_notes(offers, packages, names)),
        )

    def _uses(
        self, offers: Sequence[OfferedRelease], records: Sequence[CondaRecord], names: CondaNames
    ) -> Iterator[ConsumerUse]:
        where = quote(self.url.rstrip("/")) if self.url else '"file://$PWD"'
        asked = {names.of(offer.project): offer.version for offer in offers if not offer.is_companion}
        wanted = " ".join(f"{name}=={version}" for name, version in asked.items())
        first = next(iter(asked), "demo")
        yield ConsumerUse(
            "With conda; mamba and micromamba take the same words. The best build for the machine is taken:",
            f"conda create --name {first} --override-channels --channel {where} --channel {FORGE} {wanted}",
        )
        channel = self.url.rstrip("/") if self.url else "./"
        yield ConsumerUse(
            "With pixi 0.71 or later, in pixi.toml: machines that have what a build asks for, the best first:",
            platforms(records, asked, channels=(channel, FORGE)),
            "toml",
        )
        yield ConsumerUse(
            "With an earlier pixi, which knows no __cuda_arch; pixi run --environment chooses the machine:",
            system_requirements(records, asked, channels=(channel, FORGE)),
            "toml",
        )


class _Build(Struct, frozen=True):
    """A wheel, what its tags say, and where its variant stands."""

    wheel: OfferedWheel
    tags: Tags
    choice: VariantChoice

    @property
    def kind(self) -> tuple[int, int, tuple[int, str] | tuple[()]]:
        """What installers choose by among wheels of one variant: the tags, the newest platform, the build tag."""
        return self.tags.rank, self.tags.glibc or 0, self.wheel.name.build_order

    def is_before(self, other: "_Build") -> bool:
        """Whether *other* is taken where both would do."""
        fits = self.choice == other.choice and bool({*self.tags.pythons} & {*other.tags.pythons})
        return fits and self.kind < other.kind


def _packages(offer: OfferedRelease, names: CondaNames) -> Iterator[CondaPackage]:
    """The packages of the wheels of *offer*, those of one wheel one after the other."""
    documents = [(wheel.path.name, wheel.document) for wheel in offer.variants if wheel.document]
    with at(offer):
        found = choices(combine(documents)) if documents else ()
    builds: list[_Build] = []
    for wheel in offer.wheels:
        # without tags it is for another system, or another Python
        if tags := tags_of(wheel.name):
            own = [choice for choice in found if choice.label == wheel.label] if wheel.label else [_PLAIN]
            builds += [_Build(wheel, tags, choice) for choice in own]
    firsts: dict[Path, PurePosixPath] = {}
    numbers: dict[_Build, int] = {}
    for build in sorted(builds, key=lambda build: build.kind):
        numbers[build] = max((numbers[other] + 1 for other in numbers if other.is_before(build)), default=0)
    for build in builds:
        path = build.wheel.path
        with at(path.name):
            if numbers[build] >= _MOST:
                raise RepackageError(f"{numbers[build]} other wheels of its variant come before it; expected fewer")
            for record in _records(build, offer, names, number=build.choice.number + numbers[build]):
                yield CondaPackage(record.target, record, path, firsts.get(path))
                firsts.setdefault(path, record.target)


def _records(build: _Build, offer: OfferedRelease, names: CondaNames, *, number: int) -> Iterator[CondaRecord]:
    """The packages of one wheel: one for each run of Pythons, and machine, that ask for the same."""
    tags, metadata = build.tags, build.wheel.metadata
    subdirs = tuple(MACHINES) if tags.subdir == NOARCH and depends_on_machine(metadata) else (tags.subdir,)
    asked = conditions(build.choice.alternatives)
    licence = metadata.headers.value("License-Expression") or metadata.headers.value("License")
    for subdir in subdirs:
        runs = resolved(metadata, tags.pythons, machine=MACHINES.get(subdir, "x86_64"), names=names)
        for run in runs:
            word = tags.word if len(runs) == 1 else f"{tags.word}_{_span(run)}"
            parts = (word, *filter(None, [build.wheel.label]), str(number))
            yield CondaRecord(
                name=names.of(offer.project),
                version=offer.version,
                build="_".join(parts),
                number=number,
                subdir=subdir,
                depends=(*tags.depends(run.pythons, patches_of(metadata)), *asked, *run.depends),
                independent=None if tags.python else Independent.PYTHON,
                python=tags.python,
                license=licence if licence and len(licence.splitlines()) == 1 else None,
                label=build.wheel.label,
            )


def _span(run: DependencyRun) -> str:
    first, last = run.pythons[0], run.pythons[-1]
    if last == NEWEST:
        return f"3{first}on"
    return f"3{first}" if first == last else f"3{first}to3{last}"


def _notes(offers: Sequence[OfferedRelease], packages: Sequence[CondaPackage], names: CondaNames) -> Iterator[str]:
    wheels = [wheel for offer in offers for wheel in offer.wheels]
    if left := [wheel.path.name for wheel in wheels if not tags_of(wheel.name)]:
        yield f"Not for CPython on Linux with glibc, and left out: {', '.join(left)}."
    if extras := sorted({extra for wheel in wheels for extra in wheel.metadata.headers.values("Provides-Extra")}):
        yield f"Extras are left out, for conda has none: {', '.join(extras)}."
    if lone := [str(offer) for offer in offers if offer.variants and not offer.plain]:
        yield f"Without a plain wheel, machines that no variant fits get nothing: {', '.join(lone)}."
    records = [package.record for package in packages if package.wheel]
    asked = {text.split()[0] for record in records for text in record.depends}
    if LEVEL_PACKAGE in asked:
        yield "CPUs that archspec gets to know later have no level until this is published again with it."
    if "__cuda_arch" in asked:
        yield "Builds for some GPUs need a client that knows __cuda_arch (CEP 46); others pass them over."
    if "_python_abi3_support" in asked:
        yield f"Wheels of the stable ABI need cpython and _python_abi3_support, which {FORGE} has (CEP 20)."
    own = {*_NEEDS, *(record.name for record in records), *(called for _, called in names.pairs)}
    if kept := sorted(name for name in asked - own if not name.startswith("__")):
        yield f"Required by the names they have on PyPI: {', '.join(kept)}; map those that {FORGE} calls otherwise."
