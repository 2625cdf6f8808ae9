"""The layout conda: a channel whose packages fit the machines of their variants.

    conda/linux-64/demo-1.0-py311_0.conda                   the plain wheel: for every machine
    conda/linux-64/demo-1.0-py311_x86_64_v3_300.conda       _x86_64-microarch-level >=3
    conda/linux-64/demo-1.0-py311_cu126_500.conda           __cuda >=12.6
    conda/noarch/_x86_64-microarch-level-3-0_zen2.conda     the level of a CPU that archspec calls zen2
    conda/{linux-64,noarch}/repodata.json, repodata.json.zst

Of the builds that fit, solvers take the highest build number:

    plain 0 < null 50 < v2 200 < v3 300 < v4 400 < CUDA 500 < CUDA with v3 600

Numbers stay the same when a release gets more levels. All machines share them, so each value of a feature with several
values has a place of its own; neighbours become one package, others a package each.

Requirements: markers are evaluated, extras dropped, names mapped. All else comes from another channel.

    numpy>=1.26,<3; python_version >= "3.12"    Python 3.11: nothing      Python 3.12: numpy >=1.26,<3a0
    demo[cli]~=1.4.2                            demo >=1.4.2,1.4.*        conda has no extras
    torch>=2                                    pytorch >=2               with torch mapped to pytorch
    ==1.4.*    1.4.*                            !=1.4.*    !=1.4.*
    <2         <2a0                             ==1.0, ===1.0    ==1.0    >=2.dev0    >=2a0

A package cannot require something on some Pythons only, so each run of Pythons with the same requirements gets one. A
marker on the patch version counts if it applies to any patch version. PEP 440 keeps pre-releases of 2 out of ``<2``;
conda sorts them before 2, so the bound is put before them. Conda's ``>1.7`` admits 1.7.post1, too, and its ``==1.0``
ignores 1.0+local, which conda packages do not have.

Properties and tags become what the solver can ask of a machine:

    x86_64 :: level :: v3                          _x86_64-microarch-level >=3
    nvidia :: cuda_version_lower_bound :: 12.6     __cuda >=12.6
    nvidia :: sm_arch :: 90_real, 90_virtual       __cuda_arch >=9.0,<10, __cuda_arch >=9.0
    cp311-cp311-manylinux_2_28_x86_64    linux-64   python >=3.11,<3.12.0a0, python_abi 3.11.* *_cp311
    cp39-abi3-manylinux_2_17_x86_64      linux-64   python, cpython >=3.9, _python_abi3_support 1.*; noarch: python
    py3-none-manylinux_2_17_x86_64       linux-64   python >=3; noarch: python, as its code does not need one Python
    py3-none-any                         noarch     python >=3; noarch: python

``__archspec`` is matched by its build string alone, so a machine that reports zen4 has no x86_64_v3. conda-forge's
``_x86_64-microarch-level`` has a build without files for each CPU name, of the level that this CPU reaches; the channel
contains its own. ``__cuda_arch`` is the lowest capability of all GPUs, without letters (CEP 46). Packages for every
Python and one machine are CEP 20's: clients put the files of ``noarch: python`` where they belong.

pixi solves for the machine that its manifest describes: without a table of what machines have at least it takes the
plain build everywhere.
https://packaging.python.org/en/latest/specifications/dependency-specifiers/#environment-markers
https://docs.conda.io/projects/conda/en/stable/user-guide/concepts/pkg-specs.html#package-match-specifications
https://github.com/conda/ceps/blob/main/cep-0020.md
https://pixi.prefix.dev/latest/workspace/system_requirements/
"""

import json
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, product
from pathlib import Path, PurePosixPath
from shlex import quote

from msgspec import Struct
from msgspec.structs import replace
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from vbuild.config.requirements import SYSTEMS, applies, checked_requirement
from vbuild.errors import HardwareError, RepackageError, WheelError, at
from vbuild.hardware.architectures import ARCHITECTURES, Arch
from vbuild.hardware.cpu import X86_64_LEVELS
from vbuild.hardware.driver import Dotted
from vbuild.publishing.conda.package import (
    LEVEL_PACKAGE,
    MACHINES,
    NOARCH,
    CondaIndex,
    CondaPackage,
    CondaRecord,
    Independent,
    x86_64_cpus,
)
from vbuild.publishing.model import ConsumerUse, PublishPlan
from vbuild.publishing.releases import OfferedRelease, OfferedWheel
from vbuild.variants.document import Document, combine
from vbuild.variants.model import Property
from vbuild.wheel.metadata import Metadata
from vbuild.wheel.name import WheelName

_ANY = ".*"


def matchspec(specifiers: SpecifierSet) -> str:
    parts = (part for specifier in sorted(specifiers, key=str) for part in _spelled(specifier))
    # lower bounds first, as people write them
    return ",".join(sorted(dict.fromkeys(parts), key=lambda part: not part.startswith(">")))


def _spelled(specifier: Specifier) -> Iterator[str]:
    operator, text = specifier.operator, specifier.version
    match operator:
        case "~=":
            version = _version(specifier, text)
            yield f">={_bound(version)}"
            epoch = f"{version.epoch}!" if version.epoch else ""
            yield epoch + ".".join(map(str, version.release[:-1])) + _ANY
        case "==" | "!=" if text.endswith(_ANY):
            prefix = f"{_version(specifier, text.removesuffix(_ANY))}{_ANY}"
            yield prefix if operator == "==" else f"!={prefix}"
        case "<":
            version = _version(specifier, text)
            is_plain = not (version.is_prerelease or version.is_postrelease)
            yield f"<{_first(version) if is_plain else _bound(version)}"
        case ">=":
            yield f">={_bound(_version(specifier, text))}"
        case "===":
            yield f"=={_version(specifier, text)}"
        case _:
            yield f"{operator}{_version(specifier, text)}"


def _bound(version: Version) -> str:
    """The lower bound of versions from *version* on: 2.0.dev0 comes first in PEP 440, in conda after alphas of 2.0."""
    return _first(version) if version.is_devrelease and version.pre is None else str(version)


def _first(version: Version) -> str:
    """The lowest pre-release of *version* as conda sorts them: 2a0 comes before 2.0a0."""
    release = [*version.release]
    while len(release) > 1 and not release[-1]:
        release.pop()
    epoch = f"{version.epoch}!" if version.epoch else ""
    return f"{epoch}{'.'.join(map(str, release))}a0"


def _version(specifier: Specifier, text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion as error:
        raise RepackageError(
            f"{specifier}: conda has no equivalent; expected a version as PEP 440 writes it"
        ) from error


# the minor versions of Python 3 that markers are checked against; the last one stands for all later ones
NEWEST = 24
_LAST_PATCH = 99
_CONDA_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]*", re.ASCII)
_PATCH = re.compile(r"3\.\d+\.0*[1-9]\w*", re.ASCII)


class DependencyRun(Struct, frozen=True):
    pythons: tuple[int, ...]
    depends: tuple[str, ...]


class CondaNames(Struct, frozen=True):
    pairs: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for project, name in self.pairs:
            if not _CONDA_NAME.fullmatch(name):
                raise RepackageError(f"{project}={name}: no name of a conda package; expected a-z, 0-9, _, . and -")
            if (first := self.of(project)) != name:
                raise RepackageError(f"{project}={name}: it is called {first} already; expected one name for it")

    def of(self, project: str) -> str:
        """The first name that *project* has; without one it is called as on PyPI."""
        normalised = canonicalize_name(project)
        return next((name for other, name in self.pairs if canonicalize_name(other) == normalised), normalised)


def resolved(
    metadata: Metadata, pythons: Iterable[int], *, machine: str, names: CondaNames
) -> tuple[DependencyRun, ...]:
    requirements = tuple(_read(metadata))
    try:
        wanted = SpecifierSet(metadata.requires_python or "")
    except InvalidSpecifier as error:
        raise RepackageError(f"Requires-Python {metadata.requires_python!r}: expected version specifiers") from error
    depends_of: list[tuple[int, tuple[str, ...]]] = []
    for minor in pythons:
        # some patch version is enough
        if any(wanted.contains(f"3.{minor}.{patch}", prereleases=True) for patch in range(_LAST_PATCH + 1)):
            specifiers: dict[str, SpecifierSet] = {}
            for requirement in requirements:
                if applies(requirement, minor, machine=machine):
                    name = names.of(requirement.name)
                    specifiers[name] = specifiers.get(name, SpecifierSet()) & requirement.specifier
            specs = (f"{name} {matchspec(several)}".rstrip() for name, several in sorted(specifiers.items()))
            depends_of.append((minor, tuple(specs)))
    if not depends_of:
        raise RepackageError(f"Requires-Python is {metadata.requires_python}; expected one that some Python 3 fits")
    # a gap between two Pythons ends a run as well
    runs = groupby(enumerate(depends_of), lambda pair: (pair[1][1], pair[1][0] - pair[0]))
    return tuple(DependencyRun(tuple(minor for _, (minor, _) in run), depends) for (depends, _), run in runs)


def patches_of(metadata: Metadata) -> str:
    """The patch versions in Requires-Python, ``>=3.9.2,!=3.10.1``, which runs of minor ones do not say."""
    wanted = SpecifierSet(metadata.requires_python or "")
    return matchspec(
        SpecifierSet(",".join(str(specifier) for specifier in wanted if _PATCH.fullmatch(specifier.version)))
    )


def depends_on_machine(metadata: Metadata) -> bool:
    places = [(system, machine) for system in SYSTEMS for machine in ("x86_64", "aarch64")]
    return any(
        len({applies(requirement, minor, machine=machine, system=system) for system, machine in places}) > 1
        for requirement in _read(metadata)
        for minor in range(NEWEST + 1)
    )


def _read(metadata: Metadata) -> Iterator[Requirement]:
    for line in metadata.requires_dist:
        with at("Requires-Dist"):
            requirement = checked_requirement(line, WheelError)
        with at(f"Requires-Dist {line}"):
            if requirement.url:
                raise RepackageError("conda has no equivalent of a URL; expected a version")
            matchspec(requirement.specifier)
        yield requirement


_SM_ARCH = re.compile(r"(?P<number>\d{2,3})(?P<letter>[af])?_(?P<kind>real|virtual)", re.ASCII)
_KNOWN = "x86_64 :: level, nvidia :: cuda_version_lower_bound, cuda_version_upper_bound or sm_arch"
_CUDA_BOUNDS = {"cuda_version_lower_bound": ">=", "cuda_version_upper_bound": "<"}


def condition(prop: Property) -> tuple[str, str] | None:
    """The package and version that *prop* needs, or None if every machine has it."""
    match prop.namespace, prop.feature:
        case "x86_64", "level" if prop.value in X86_64_LEVELS:
            level = X86_64_LEVELS.index(prop.value) + 1
            return (LEVEL_PACKAGE, f">={level}") if level > 1 else None
        case "nvidia", feature if feature in _CUDA_BOUNDS:
            try:
                return "__cuda", f"{_CUDA_BOUNDS[feature]}{Dotted.parse(prop.value)}"
            except HardwareError as error:
                raise RepackageError(f"{prop}: {error}") from error
        case "nvidia", "sm_arch":
            return "__cuda_arch", _capabilities(prop)
        case _:
            raise RepackageError(f"{prop}: no conda equivalent; expected {_KNOWN}: leave the wheels that say so out")


def conditions(alternatives: Sequence[Sequence[Property]]) -> tuple[str, ...]:
    """What a machine with all properties of one of *alternatives* must have; these differ in one feature."""
    versions: dict[str, list[str]] = {}
    for properties in alternatives:
        joined: dict[str, str] = {}
        for package, version in filter(None, map(condition, properties)):
            joined[package] = f"{joined[package]},{version}" if package in joined else version
        for package, version in joined.items():
            if version not in versions.setdefault(package, []):
                versions[package].append(version)
    # a comma binds closer than a bar
    return tuple(f"{package} {'|'.join(_without_parts(bounds))}" for package, bounds in sorted(versions.items()))


def _without_parts(bounds: Sequence[str]) -> Iterator[str]:
    """The *bounds* that are not part of another: >=8.6,<9 is one of >=8.0,<9."""
    meant = {text: _meant(text) for text in bounds}
    yield from (text for text, own in meant.items() if not any(own < other for other in meant.values()))


def _meant(text: str) -> frozenset[Dotted]:
    rules = [(_COMPARISONS[sign], Dotted.parse(number)) for sign, number in _COMPARED.findall(text)]
    return frozenset(version for version in _VERSIONS if all(holds(version, number) for holds, number in rules))


def level_packages() -> Iterator[CondaRecord]:
    for level, name in x86_64_cpus():
        yield CondaRecord(
            name=LEVEL_PACKAGE,
            version=str(level),
            build=f"0_{name}",
            number=0,
            subdir=NOARCH,
            depends=(f"__archspec 1.* {name}",),
            independent=Independent.GENERIC,
        )


def _capabilities(prop: Property) -> str:
    match = _SM_ARCH.fullmatch(prop.value)
    if not match:
        raise RepackageError(f"{prop}: no conda equivalent; expected a value as in 90_real or 90_virtual")
    number = int(match["number"])
    if match["letter"]:
        raise RepackageError(
            f"{prop}: no conda equivalent: __cuda_arch is a number without letters; "
            f"expected {number}_real or {number}_virtual: leave the wheels that say so out"
        )
    arch = Arch(number)
    lowest = Dotted(*divmod(number, 10))
    if match["kind"] == "virtual":
        return f">={lowest}"
    if arch.is_tegra:
        return f"=={lowest}"
    others = (other for other in sorted(ARCHITECTURES) if arch.is_before(Arch(other)) and not arch.runs_on(Arch(other)))
    return ",".join((f">={lowest}", f"<{arch.major + 1}", *(f"!={Dotted(*divmod(other, 10))}" for other in others)))


_COMPARED = re.compile(r"(>=|<|!=|==)([0-9.]+)")
_COMPARISONS = {">=": operator.ge, "<": operator.lt, "!=": operator.ne, "==": operator.eq}
# of CUDA, compute capabilities and CPU levels, with room for those to come
_VERSIONS = [Dotted(major, minor) for major in range(40) for minor in range(10)]
_PYTHON = re.compile(r"(?P<implementation>py|cp)3(?P<minor>\d*)", re.ASCII)
_ABI = re.compile(r"cp3(?P<minor>\d+)(?P<threads>t?)", re.ASCII)
_PLATFORM = re.compile(r"(manylinux_2_(?P<glibc>\d+)|(?P<alias>manylinux\d+)|linux)_(?P<machine>\w+)", re.ASCII)
_ALIASES = {"manylinux1": 5, "manylinux2010": 12, "manylinux2014": 17}
# what installers take first: wheels of one Python, then of a stable ABI, the newer the better, then of no ABI
_SPECIFIC, _STABLE = 200, 100
_SUBDIRS = {machine: subdir for subdir, machine in MACHINES.items()}


class Tags(Struct, frozen=True):
    """What a wheel's tags say: its *subdir* of a channel, the minor versions *pythons* of Python 3, and what it needs.

    *word* begins the build string. *python* is the one Python whose folder its files are in. *rank* is higher for what
    installers prefer. *glibc* is the minor version of glibc 2.
    """

    subdir: str
    word: str
    pythons: tuple[int, ...]
    rank: int
    python: str | None = None
    glibc: int | None = None
    is_abi3: bool = False

    def depends(self, pythons: Sequence[int], patches: str = "") -> tuple[str, ...]:
        lower, upper = min(pythons), max(pythons)
        bounds = [f">=3.{lower}" if lower else ">=3"]
        bounds += [f"<3.{upper + 1}.0a0"] if upper < NEWEST else []
        needs = [f"python {','.join((*bounds, *filter(None, [patches])))}"]
        if self.python:
            abi = f"cp{self.python.replace('.', '')}"
            needs.append(f"python_abi {self.python.removesuffix('t')}.* *_{abi}")
        if self.is_abi3:
            needs += [f"cpython {bounds[0]}", "_python_abi3_support 1.*"]
        if self.glibc is not None:
            needs.append(f"__glibc >=2.{self.glibc}")
        return tuple(needs)


def tags_of(name: WheelName) -> Tags | None:
    """The tags in *name*, or None if it is not for Linux and CPython."""
    pythons = [match for match in map(_PYTHON.fullmatch, name.python.split(".")) if match]
    subdir_and_glibc = _subdir_and_glibc(name.platform)
    if not pythons or subdir_and_glibc is None:
        return None
    (subdir, glibc), first = subdir_and_glibc, min(int(match["minor"] or 0) for match in pythons)
    later = tuple(range(first, NEWEST + 1))
    if match := _ABI.fullmatch(name.abi):
        python = f"3.{match['minor']}{match['threads']}"
        return Tags(subdir, f"py{python.replace('.', '')}", (int(match["minor"]),), _SPECIFIC, python, glibc)
    if name.abi == "abi3" and subdir != NOARCH:
        return Tags(subdir, f"py3{first}abi3", later, _STABLE + first, glibc=glibc, is_abi3=True)
    if name.abi == "none" and first and all(match["implementation"] == "cp" for match in pythons):
        return Tags(subdir, f"py3{first}", (first,), _STABLE, glibc=glibc)
    if name.abi == "none":
        return Tags(subdir, "py" if subdir == NOARCH else f"py3{first or ''}", later, first, glibc=glibc)
    return None


def _subdir_and_glibc(platform: str) -> tuple[str, int | None] | None:
    if platform == "any":
        return NOARCH, None
    platforms = [match for match in map(_PLATFORM.fullmatch, platform.split(".")) if match]
    if not platforms or platforms[0]["machine"] not in _SUBDIRS:
        return None
    # one of the platforms is enough, and one without a number asks for no glibc
    minors = [int(match["glibc"]) if match["glibc"] else _ALIASES.get(match["alias"] or "") for match in platforms]
    glibc = None if None in minors else min(minor for minor in minors if minor is not None)
    return _SUBDIRS[platforms[0]["machine"]], glibc


STEP = 100
_NULL, _GPU = 50, 200
# what needs less comes after what needs the same and more
_LAST = (1 << 30, "", 0)


class VariantChoice(Struct, frozen=True):
    """A variant for machines with one of *alternatives*."""

    label: str
    alternatives: tuple[tuple[Property, ...], ...]
    number: int


def choices(document: Document) -> tuple[VariantChoice, ...]:
    ordered: list[VariantChoice] = []
    for label, alternatives in _neighbours(list(_placed(document))):
        first = alternatives[0]
        # the number that the variant would have alone
        levels = [X86_64_LEVELS.index(prop.value) + 1 for prop in first if prop.namespace == "x86_64"]
        gpu = _GPU if any(prop.namespace == "nvidia" for prop in first) else 0
        alone = STEP * max(levels, default=0) + gpu if first else _NULL
        number = max(ordered[-1].number // STEP * STEP + STEP if ordered else 0, alone)
        ordered.append(VariantChoice(label, alternatives, number))
    return tuple(ordered)


def _placed(document: Document) -> Iterator[tuple[str, tuple[Property, ...]]]:
    """Each variant with each choice of one value a feature, the least preferred first."""
    values: dict[tuple[str, str], set[str]] = {}
    for variant in document.variants:
        with at(f"variant {variant.label!r}"):
            for prop in variant.properties:
                condition(prop)
                values.setdefault((prop.namespace, prop.feature), set()).add(prop.value)
    # the order that all machines have, which have some of the values
    best_first = {feature: sorted(names, key=_rank, reverse=True) for feature, names in values.items()}

    def rank(prop: Property) -> tuple[int, str, int]:
        values = best_first[prop.namespace, prop.feature]
        return document.metadata.namespaces.index(prop.namespace), prop.feature, values.index(prop.value)

    order = [
        ((*sorted(map(rank, properties)), _LAST), variant.label, properties)
        for variant in document.variants
        for properties in product(
            *([Property(f.namespace, f.name, value) for value in f.values] for f in variant.features)
        )
    ]
    # of equal ones the first label is taken
    return ((label, properties) for _, label, properties in sorted(order, reverse=True))


def _neighbours(
    placed: Sequence[tuple[str, tuple[Property, ...]]],
) -> Iterator[tuple[str, tuple[tuple[Property, ...], ...]]]:
    run: list[tuple[Property, ...]] = []
    before = ""
    for label, properties in placed:
        if run and (label != before or not _differs_in_one(run[-1], properties)):
            yield before, tuple(run)
            run = []
        run.append(properties)
        before = label
    yield before, tuple(run)


def _differs_in_one(choice: Sequence[Property], other_choice: Sequence[Property]) -> bool:
    """Whether two choices differ in the value of one feature, and need versions of the same packages."""
    packages = [{need[0] for need in map(condition, properties) if need} for properties in (choice, other_choice)]
    return (
        packages[0] == packages[1]
        and sum(value != other_value for value, other_value in zip(choice, other_choice, strict=True)) == 1
    )


def _rank(value: str) -> tuple[bool, Dotted, int]:
    """The order of values, the best highest: machine code before PTX, later GPUs, drivers and levels first."""
    number, _, kind = value.partition("_")
    # 12.0 comes before 12
    return kind != "virtual", Dotted.parse(number.removeprefix("v")), len(value)


FORGE = "conda-forge"
_PLAIN = VariantChoice("", ((),), 0)
# so that a wheel never gets the number of the next variant
_MOST = STEP // 2
_NEEDS = {"python", "python_abi", "cpython", "_python_abi3_support", LEVEL_PACKAGE}


class Conda(Struct, frozen=True):
    url: str | None = None
    names: tuple[tuple[str, str], ...] = ()
    name: str = "conda"

    def plan(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        names = CondaNames(self.names)
        projects: dict[str, str] = {}
        for offer in offers:
            name = names.of(offer.project)
            if (other := projects.setdefault(name, offer.project)) != offer.project:
                raise RepackageError(
                    f"{other} and {offer.project} would both be called {name}; expected a name for each"
                )
        packages_of = [(offer, tuple(_packages(offer, names))) for offer in offers]
        packages = [package for _, its in packages_of for package in its]
        if not packages:
            names_found = ", ".join(map(str, offers)) or "none"
            raise RepackageError(
                f"found no wheel for CPython on Linux (x86_64, aarch64, glibc) or any machine in {names_found}"
            )
        records = [package.record for package in packages]
        if any(spec.startswith(LEVEL_PACKAGE) for record in records for spec in record.depends):
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
            tuple(self._uses([offer for offer, its in packages_of if its], records, names)),
            tuple(_notes(offers, packages, names)),
        )

    def _uses(
        self, offers: Sequence[OfferedRelease], records: Sequence[CondaRecord], names: CondaNames
    ) -> Iterator[ConsumerUse]:
        where = quote(self.url.rstrip("/")) if self.url else '"file://$PWD"'
        versions = {names.of(offer.project): offer.version for offer in offers if not offer.is_companion}
        wanted = " ".join(f"{name}=={version}" for name, version in versions.items())
        first = next(iter(versions), "demo")
        yield ConsumerUse(
            "With conda; mamba and micromamba take the same words. The best build for the machine is taken:",
            f"conda create --name {first} --override-channels --channel {where} --channel {FORGE} {wanted}",
        )
        channel = self.url.rstrip("/") if self.url else "./"
        yield ConsumerUse(
            "With pixi 0.71 or later, in pixi.toml: machines that have what a build asks for, the best first:",
            platforms(records, versions, channels=(channel, FORGE)),
            "toml",
        )


class _Build(Struct, frozen=True):
    wheel: OfferedWheel
    tags: Tags
    choice: VariantChoice

    @property
    def kind(self) -> tuple[int, int, tuple[int, str] | tuple[()]]:
        """What installers choose by among wheels of one variant: the tags, the newest platform, the build tag."""
        return self.tags.rank, self.tags.glibc or 0, self.wheel.name.build_order

    def is_before(self, other: "_Build") -> bool:
        fits = self.choice == other.choice and bool({*self.tags.pythons} & {*other.tags.pythons})
        return fits and self.kind < other.kind


def _packages(offer: OfferedRelease, names: CondaNames) -> Iterator[CondaPackage]:
    documents = [(wheel.path.name, wheel.document) for wheel in offer.variants if wheel.document]
    with at(offer):
        variant_choices = choices(combine(documents)) if documents else ()
    builds: list[_Build] = []
    for wheel in offer.wheels:
        # without tags it is for another system, or another Python
        if tags := tags_of(wheel.name):
            choices_of_label = [choice for choice in (_PLAIN, *variant_choices) if choice.label == (wheel.label or "")]
            builds += [_Build(wheel, tags, choice) for choice in choices_of_label]
    firsts: dict[Path, PurePosixPath] = {}
    numbers: dict[_Build, int] = {}
    for build in sorted(builds, key=lambda build: build.kind):
        numbers[build] = max((number + 1 for other, number in numbers.items() if other.is_before(build)), default=0)
    for build in builds:
        path = build.wheel.path
        with at(path.name):
            if numbers[build] >= _MOST:
                raise RepackageError(f"{numbers[build]} other wheels of its variant come before it; expected fewer")
            for record in _records(build, offer, names, number=build.choice.number + numbers[build]):
                yield CondaPackage(record.target, record, path, firsts.get(path))
                firsts.setdefault(path, record.target)


def _records(build: _Build, offer: OfferedRelease, names: CondaNames, *, number: int) -> Iterator[CondaRecord]:
    tags, metadata = build.tags, build.wheel.metadata
    subdirs = tuple(MACHINES) if tags.subdir == NOARCH and depends_on_machine(metadata) else (tags.subdir,)
    machine_needs = conditions(build.choice.alternatives)
    licence = metadata.headers.value("License-Expression") or metadata.headers.value("License")
    for subdir in subdirs:
        runs = resolved(metadata, tags.pythons, machine=MACHINES.get(subdir, "x86_64"), names=names)
        for run in runs:
            first, last = run.pythons[0], run.pythons[-1]
            span = f"3{first}on" if last == NEWEST else f"3{first}" if first == last else f"3{first}to3{last}"
            word = tags.word if len(runs) == 1 else f"{tags.word}_{span}"
            parts = (word, *filter(None, [build.wheel.label]), str(number))
            yield CondaRecord(
                name=names.of(offer.project),
                version=offer.version,
                build="_".join(parts),
                number=number,
                subdir=subdir,
                depends=(*tags.depends(run.pythons, patches_of(metadata)), *machine_needs, *run.depends),
                independent=None if tags.python else Independent.PYTHON,
                python=tags.python,
                license=licence if licence and len(licence.splitlines()) == 1 else None,
                label=build.wheel.label,
            )


def _notes(offers: Sequence[OfferedRelease], packages: Sequence[CondaPackage], names: CondaNames) -> Iterator[str]:
    wheels = [wheel for offer in offers for wheel in offer.wheels]
    if left_out := [wheel.path.name for wheel in wheels if not tags_of(wheel.name)]:
        yield f"Not for CPython on Linux with glibc, and left out: {', '.join(left_out)}."
    if extras := sorted({extra for wheel in wheels for extra in wheel.metadata.headers.values("Provides-Extra")}):
        yield f"Extras are left out, for conda has none: {', '.join(extras)}."
    if lone := [str(offer) for offer in offers if offer.variants and not offer.plain]:
        yield f"Without a plain wheel, machines that no variant fits get nothing: {', '.join(lone)}."
    records = [package.record for package in packages if package.wheel]
    required = {text.split()[0] for record in records for text in record.depends}
    if LEVEL_PACKAGE in required:
        yield "CPUs that archspec gets to know later have no level until this is published again with it."
    if "__cuda_arch" in required:
        yield "Builds for some GPUs need a client that knows __cuda_arch (CEP 46); others pass them over."
    if "_python_abi3_support" in required:
        yield f"Wheels of the stable ABI need cpython and _python_abi3_support, which {FORGE} has (CEP 20)."
    mapped = {*_NEEDS, *(record.name for record in records), *(name for _, name in names.pairs)}
    if unmapped := sorted(name for name in required - mapped if not name.startswith("__")):
        yield f"Required by the names they have on PyPI: {', '.join(unmapped)}; map those that {FORGE} calls otherwise."


_ASKED = (LEVEL_PACKAGE, "__cuda", "__glibc")
_BOUND = re.compile(r"(>=|==|<)(?P<version>[\d.]+)")
_NAME = re.compile(r"[^a-z0-9]+")


class _Kind(Struct, frozen=True):
    """What machines have at least; *arch* is the compute capability of their GPUs."""

    name: str
    subdir: str
    level: str | None
    cuda: Dotted | None
    arch: Dotted | None
    glibc: Dotted | None


def platforms(records: Sequence[CondaRecord], versions: Mapping[str, str], *, channels: Sequence[str]) -> str:
    """The pixi.toml of a workspace with the projects *versions* for the machines of *records*."""
    name = next(iter(versions), "demo")
    lines = ["[workspace]", f"name = {json.dumps(name)}", f"channels = {json.dumps([*channels])}", "platforms = ["]
    for kind in _kinds(records):
        driver = str(kind.cuda or Dotted(0, 0))
        keys = {
            "name": kind.name,
            "platform": kind.subdir,
            "archspec": f"x86_64_v{kind.level}" if kind.level else None,
            "cuda": {"driver": driver, "arch": str(kind.arch)} if kind.arch else kind.cuda and driver,
            "glibc": kind.glibc and str(kind.glibc),
        }
        lines.append(f"  {_inline(keys)},")
    dependencies = (f'{json.dumps(project)} = "=={version}"' for project, version in versions.items())
    return "\n".join([*lines, "]", "", "[dependencies]", *dependencies])


def _kinds(records: Sequence[CondaRecord]) -> list[_Kind]:
    """The kinds of machines, the most preferred first; of builds of one label the newest glibc counts."""
    kinds_by_name: dict[str, _Kind] = {}
    for record in sorted(records, key=lambda record: -record.number):
        for kind in _kinds_of(record):
            first = kinds_by_name.setdefault(kind.name, kind)
            newest = max(filter(None, (first.glibc, kind.glibc)), default=None)
            kinds_by_name[kind.name] = replace(first, glibc=newest)
    best: dict[_Kind, _Kind] = {}
    for kind in kinds_by_name.values():
        best.setdefault(replace(kind, name=""), kind)
    return list(best.values())


def _kinds_of(record: CondaRecord) -> Iterator[_Kind]:
    """The machines that *record* is for: one for each bound on GPUs, the highest first, above which it does not run."""
    versions_of = {name: versions for name, _, versions in (text.partition(" ") for text in record.depends)}
    subdir = "linux-64" if record.subdir == NOARCH else record.subdir
    level, cuda, glibc = (min(_bounds(versions_of.get(name, "")), default=None) for name in _ASKED)
    archs: Iterable[Dotted | None] = sorted(_bounds(versions_of.get("__cuda_arch", "")), reverse=True) or (None,)
    for arch in archs:
        words = (subdir, record.label or "plain", *([str(arch)] if arch else []))
        name = _NAME.sub("-", "-".join(words)).strip("-")
        yield _Kind(name, subdir, str(level.major) if level else None, cuda, arch, glibc)


def _bounds(versions: str) -> frozenset[Dotted]:
    return frozenset(Dotted.parse(match["version"]) for match in _BOUND.finditer(versions))


def _inline(keys: Mapping[str, object]) -> str:
    items = ((key, value) for key, value in keys.items() if value is not None)
    pairs = (f"{key} = {_inline(value) if isinstance(value, dict) else json.dumps(value)}" for key, value in items)
    return f"{{ {', '.join(pairs)} }}"
