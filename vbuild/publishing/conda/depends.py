"""What a conda package depends on: Requires-Dist for each Python, properties of its variant, and its tags.

Markers are evaluated, extras dropped, names mapped:

    numpy>=1.26,<3; python_version >= "3.12"    Python 3.11: nothing      Python 3.12: numpy >=1.26,<3a0
    demo[cli]~=1.4.2                            demo >=1.4.2,1.4.*        conda has no extras
    torch>=2                                    pytorch >=2               with torch mapped to pytorch

A package for several Pythons cannot require something on some of them: it becomes one for each run of Pythons with the
same requirements. A marker that depends on the patch version of Python counts if it applies to one patch version.

    ~=1.4.2     >=1.4.2,1.4.*        ==1.4.*    1.4.*        !=1.4.*    !=1.4.*
    <2          <2a0                 ==1.0      ==1.0        ===1.0     ==1.0
    >=2.dev0    >=2a0

PEP 440 keeps the pre-releases of 2 out of ``<2``; in conda they come before 2, so the bound is put before them. Conda's
``>1.7`` also admits 1.7.post1, and its ``==1.0`` ignores 1.0+local, which conda packages do not have.
https://packaging.python.org/en/latest/specifications/dependency-specifiers/#environment-markers
https://docs.conda.io/projects/conda/en/stable/user-guide/concepts/pkg-specs.html#package-match-specifications

Variant properties and compatibility tags become what the solver can ask of a machine:

    x86_64 :: level :: v3                          _x86_64-microarch-level >=3
    nvidia :: cuda_version_lower_bound :: 12.6     __cuda >=12.6
    nvidia :: cuda_version_upper_bound :: 13       __cuda <13
    nvidia :: sm_arch :: 90_real                   __cuda_arch >=9.0,<10
    nvidia :: sm_arch :: 90_virtual                __cuda_arch >=9.0

``__archspec`` is matched by its build string alone, so a machine that reports zen4 has no x86_64_v3. conda-forge's
package ``_x86_64-microarch-level`` has one build for each name, of the level that this CPU reaches, and no files; a
channel contains its own. ``__cuda_arch`` is the lowest capability of all GPUs, without letters (CEP 46).

    cp311-cp311-manylinux_2_28_x86_64    linux-64   python >=3.11,<3.12.0a0, python_abi 3.11.* *_cp311
    cp39-abi3-manylinux_2_17_x86_64      linux-64   python, cpython >=3.9, _python_abi3_support 1.*; noarch: python
    py3-none-manylinux_2_17_x86_64       linux-64   python >=3; noarch: python, as its code does not need one Python
    py3-none-any                         noarch     python >=3; noarch: python

CEP 20 defines packages for every Python and one machine. All clients know them: they put the files of
``noarch: python`` where they belong, whichever folder the package came from.
https://github.com/conda/ceps/blob/main/cep-0020.md
"""

import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from msgspec import Struct
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from vbuild.config.requirements import SYSTEMS, applies, checked_requirement
from vbuild.errors import HardwareError, RepackageError, WheelError, at
from vbuild.hardware.architectures import ARCHITECTURES, Arch
from vbuild.hardware.conda import MACHINES, x86_64_cpus
from vbuild.hardware.cpu import X86_64_LEVELS
from vbuild.hardware.driver import Dotted
from vbuild.publishing.conda.reading import LEVEL_PACKAGE, NOARCH
from vbuild.publishing.conda.writing import CondaRecord, Independent
from vbuild.variants.model import Property
from vbuild.wheel.metadata import Metadata
from vbuild.wheel.name import WheelName

_ANY = ".*"


def matchspec(specifiers: SpecifierSet) -> str:
    """What *specifiers* ask for, in conda's words; empty where they ask for nothing.

    `RepackageError` for one that has no equivalent: ``===`` with what is not a version.
    """
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
    """Where the versions from *version* on begin: 2.0.dev0 is before all others of 2.0, in conda after its alphas."""
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
    """What a package *depends* on besides Python, in the minor versions *pythons* of Python 3, without a gap."""

    pythons: tuple[int, ...]
    depends: tuple[str, ...]


class CondaNames(Struct, frozen=True):
    """What projects are called in the channels of conda, by their normalised names; others keep that name."""

    pairs: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for project, name in self.pairs:
            if not _CONDA_NAME.fullmatch(name):
                raise RepackageError(f"{project}={name}: no name of a conda package; expected a-z, 0-9, _, . and -")
        known: dict[str, str] = {}
        for project, name in self.pairs:
            if known.setdefault(canonicalize_name(project), name) != name:
                before = known[canonicalize_name(project)]
                raise RepackageError(f"{project}={name}: it is called {before} already; expected one name for it")

    def of(self, project: str) -> str:
        """What *project* is called."""
        name = canonicalize_name(project)
        return {canonicalize_name(known): called for known, called in self.pairs}.get(name, name)


def resolved(
    metadata: Metadata, pythons: Iterable[int], *, machine: str, names: CondaNames
) -> tuple[DependencyRun, ...]:
    """What *metadata* requires in each of *pythons* on Linux and *machine*; `RepackageError` if conda cannot say it."""
    requirements = tuple(_read(metadata))
    admitted = _admitted(metadata, pythons)
    if not admitted:
        raise RepackageError(f"Requires-Python is {metadata.requires_python}; expected one that some Python 3 fits")
    asked = [(minor, _asked(requirements, minor, machine, names)) for minor in admitted]
    # a gap between two Pythons ends a run as well
    runs = groupby(enumerate(asked), lambda pair: (pair[1][1], pair[1][0] - pair[0]))
    return tuple(DependencyRun(tuple(minor for _, (minor, _) in run), depends) for (depends, _), run in runs)


def patches_of(metadata: Metadata) -> str:
    """What Requires-Python says of patch versions, ``>=3.9.2,!=3.10.1``, which runs of minor ones do not say."""
    wanted = SpecifierSet(metadata.requires_python or "")
    return matchspec(SpecifierSet(",".join(str(one) for one in wanted if _PATCH.fullmatch(one.version))))


def depends_on_machine(metadata: Metadata) -> bool:
    """Whether what *metadata* requires differs between operating systems or machines."""
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


def _admitted(metadata: Metadata, pythons: Iterable[int]) -> tuple[int, ...]:
    """Those of *pythons* of which Requires-Python allows some patch version."""
    try:
        wanted = SpecifierSet(metadata.requires_python or "")
    except InvalidSpecifier as error:
        raise RepackageError(f"Requires-Python {metadata.requires_python!r}: expected version specifiers") from error
    return tuple(
        minor
        for minor in pythons
        if any(wanted.contains(f"3.{minor}.{patch}", prereleases=True) for patch in range(_LAST_PATCH + 1))
    )


def _asked(requirements: Sequence[Requirement], minor: int, machine: str, names: CondaNames) -> tuple[str, ...]:
    """The match specifications of those *requirements* that hold in Python 3.*minor*, sorted, one for each project."""
    found: dict[str, SpecifierSet] = {}
    for requirement in requirements:
        if applies(requirement, minor, machine=machine):
            name = names.of(requirement.name)
            found[name] = found.get(name, SpecifierSet()) & requirement.specifier
    return tuple(f"{name} {matchspec(specifiers)}".rstrip() for name, specifiers in sorted(found.items()))


_SM_ARCH = re.compile(r"(?P<number>\d{2,3})(?P<letter>[af])?_(?P<kind>real|virtual)", re.ASCII)
_KNOWN = "x86_64 :: level, nvidia :: cuda_version_lower_bound, cuda_version_upper_bound or sm_arch"
_CUDA_BOUNDS = {"cuda_version_lower_bound": ">=", "cuda_version_upper_bound": "<"}


def condition(prop: Property) -> tuple[str, str] | None:
    """The package that *prop* asks for, and of which version, or None if every machine has it.

    `RepackageError` for a property that conda cannot ask for.
    """
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
    """What conda asks of a machine that has all properties of one of *alternatives*, which differ in one feature."""
    versions: dict[str, list[str]] = {}
    for properties in alternatives:
        joined: dict[str, str] = {}
        for package, version in filter(None, map(condition, properties)):
            joined[package] = f"{joined[package]},{version}" if package in joined else version
        for package, version in joined.items():
            if version not in versions.setdefault(package, []):
                versions[package].append(version)
    # a comma binds closer than a bar
    return tuple(f"{package} {'|'.join(_without_parts(asked))}" for package, asked in sorted(versions.items()))


def _without_parts(asked: Sequence[str]) -> Iterator[str]:
    """Those of *asked*, versions each, that are no part of another one: >=8.6,<9 is one of >=8.0,<9."""
    meant = {text: _meant(text) for text in asked}
    yield from (text for text, own in meant.items() if not any(own < other for other in meant.values()))


def _meant(text: str) -> frozenset[Dotted]:
    """Those of `_VERSIONS` that *text* means."""
    rules = [(_COMPARISONS[sign], Dotted.parse(number)) for sign, number in _COMPARED.findall(text)]
    return frozenset(version for version in _VERSIONS if all(holds(version, number) for holds, number in rules))


def level_packages() -> Iterator[CondaRecord]:
    """The packages of CPU levels, one for each name that archspec has."""
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
    """The compute capabilities that code for this *prop* runs on."""
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

    *word* begins the build string. *python* is the one Python whose folder its files are in, or None if any will do.
    *rank* is higher for what installers take first. *glibc* is the minor version of glibc 2.
    """

    subdir: str
    word: str
    pythons: tuple[int, ...]
    rank: int
    python: str | None = None
    glibc: int | None = None
    is_abi3: bool = False

    def depends(self, pythons: Sequence[int], patches: str = "") -> tuple[str, ...]:
        """What a package of these *pythons*, some of its own, needs of Python and the machine.

        *patches* is what else is asked of Python's version.
        """
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
    """What the tags in *name* say, or None if no conda package for Linux and CPython comes of them."""
    pythons = [match for match in map(_PYTHON.fullmatch, name.python.split(".")) if match]
    place = _place(name.platform)
    if not pythons or place is None:
        return None
    (subdir, glibc), first = place, min(int(match["minor"] or 0) for match in pythons)
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


def _place(platform: str) -> tuple[str, int | None] | None:
    """The folder of a channel for what has the tag *platform*, and the glibc it needs, or None if there is none."""
    if platform == "any":
        return NOARCH, None
    found = [match for match in map(_PLATFORM.fullmatch, platform.split(".")) if match]
    if not found or found[0]["machine"] not in _SUBDIRS:
        return None
    # one of the platforms is enough, and one without a number asks for no glibc
    minors = [int(match["glibc"]) if match["glibc"] else _ALIASES.get(match["alias"] or "") for match in found]
    glibc = None if None in minors else min(minor for minor in minors if minor is not None)
    return _SUBDIRS[found[0]["machine"]], glibc
