"""`vbuild select`: which wheel of a project a machine gets out of folders and indexes of wheels, and why.

    newest version first -> its wheels whose tags fit -> variants ranked -> tags -> build number -> the first one

The order is that of installers: if nothing of a version fits, the next older one is tried, pre-releases come last, and
variants count only if the release's ``{name}-{version}-variants.json`` lists them.

A machine supports a variant if, for each of its features, it supports one of the values. The best value of each feature
has a place: (of the namespace, of the feature, of the value), counted from the best. A variant's rank is the sorted
list of these places; the lower list wins, and a list that goes on beats the same list cut short. Equal ranks fall to
the label. The null variant comes after every other one, then plain wheels.
https://peps.python.org/pep-0825/#variant-ordering
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from vbuild.config.requirements import asked_project
from vbuild.elf.catalogue import platforms_in
from vbuild.errors import HardwareError, VariantError, WheelError, at, meant, reason_of
from vbuild.files.atomic import replacing
from vbuild.files.reading import read_text
from vbuild.files.wording import counted, shown
from vbuild.hardware.machine import Features, Machine
from vbuild.index_client.located import LocatedFile, files_at
from vbuild.variants.document import Document
from vbuild.variants.model import Feature, Variant, VariantMetadata
from vbuild.variants.providers import BUILT_IN, is_answered, supported, unanswered
from vbuild.wheel.archive import peek_into
from vbuild.wheel.metadata import Metadata
from vbuild.wheel.name import WheelName

Place = tuple[int, int, int]

_SHOWN = 6
# after every place, so that of two lists that begin alike the longer one is lower
_END: Place = (1 << 30, 0, 0)


class Ranked(Struct, frozen=True):
    """A variant with its rank on a machine, or what the machine lacks for it."""

    variant: Variant
    rank: tuple[Place, ...]
    best: tuple[str, ...]
    missing: tuple[str, ...] = ()

    @property
    def is_supported(self) -> bool:
        return not self.missing

    @property
    def why(self) -> str:
        if not self.variant.properties:
            return "null variant: fits every machine, after all others"
        return "; ".join(self.missing or self.best)

    @property
    def key(self) -> tuple[bool, tuple[Place, ...], str]:
        return bool(self.missing), (*self.rank, _END), self.variant.label


def ranked(document: Document, machine: Machine) -> tuple[Ranked, ...]:
    """The variants of *document*, the best for *machine* first, unsupported ones last."""
    namespaces = machine.ordered(document.metadata.namespaces)
    features = [supported_features(document.metadata, namespace, machine) for namespace in namespaces]
    places = dict(zip(namespaces, enumerate(features), strict=True))
    ranks = (_rank_of(variant, document.metadata, places, machine) for variant in document.variants)
    return tuple(sorted(ranks, key=lambda rank: rank.key))


def supported_features(metadata: VariantMetadata, namespace: str, machine: Machine) -> Features:
    """The features of *namespace* that *machine* supports, best first; none without a provider."""
    provider = None if namespace in machine.without else metadata.provider(namespace)
    return supported(namespace, provider, machine) if provider else ()


def _rank_of(
    variant: Variant, metadata: VariantMetadata, places: dict[str, tuple[int, Features]], machine: Machine
) -> Ranked:
    best: list[tuple[Place, str]] = []
    missing: list[str] = []
    for feature in variant.features:
        number, features = places.get(feature.namespace, (0, ()))
        names = [name for name, _ in features]
        values = dict(features).get(feature.name, ())
        if value := next((value for value in values if value in feature.values), None):
            place = number, names.index(feature.name), values.index(value)
            text = f"{feature.namespace} :: {feature.name} :: {value}"
            best.append((place, f"{text} is number {place[2] + 1} of {len(values)} that the machine supports"))
        else:
            is_unwanted = feature.namespace in machine.without
            reason = "left out, as asked" if is_unwanted else _reason(feature, metadata, features, machine)
            missing.append(f"{feature} is not supported: {reason}")
    best.sort()
    return Ranked(variant, tuple(place for place, _ in best), tuple(text for _, text in best), tuple(missing))


def _reason(feature: Feature, metadata: VariantMetadata, features: Features, machine: Machine) -> str:
    """Why *machine*, which has *features* of the namespace, supports no value of *feature*."""
    is_listed = machine.features(feature.namespace) is not None
    if not is_listed and (reason := unanswered(feature.properties)):
        return f"installers do not ask for it: {reason}"
    if values := dict(features).get(feature.name):
        return f"the machine has {', '.join(values[:_SHOWN])}{', ...' if len(values) > _SHOWN else ''}"
    if metadata.is_abi(feature.namespace):
        return f"neither the environment, nor --with, nor [installed] in the machine's file has {feature.name}"
    provider = metadata.provider(feature.namespace)
    if provider is None or provider.optional:
        off = "its provider is optional, so off unless asked for"
        return off if provider else "no provider says what a machine supports"
    if features or is_listed or is_answered(feature.namespace, provider):
        return f"the machine has no {feature.namespace} :: {feature.name}"
    setting = f"[supported.{feature.namespace}] with {feature.name} = ['{feature.values[0]}'] to the file of --machine"
    unknown = f"vbuild does not know what a machine has of {feature.namespace}, and does not run its provider"
    return f"{unknown}, {', '.join(provider.requires) or provider.builtin}; if the machine has it, add {setting}"


class Candidate(Struct, frozen=True):
    """A wheel with its place in the ranking, or the reason why the machine cannot have it."""

    file: LocatedFile
    name: WheelName
    fits: bool
    why: str

    @property
    def path(self) -> Path:
        return self.file.path or Path(self.file.name)

    @property
    def shown(self) -> str:
        return self.file.name


class Selection(Struct, frozen=True):
    """The wheel that a machine gets, and every wheel of the versions looked at, best first.

    *wheel* is its path on this machine, or its name if it is at *url*. *notes* say how variants.json of other tools and
    earlier drafts were read. It may be for releases *by_dependency*, of what is installed.
    """

    wheel: Path
    name: WheelName
    ranking: tuple[Candidate, ...]
    url: str = ""
    notes: tuple[str, ...] = ()
    by_dependency: bool = False

    @property
    def lines(self) -> tuple[str, ...]:
        ranking = (f"{rank:3}. {wheel.file.name}\n     {wheel.why}" for rank, wheel in enumerate(self.ranking, 1))
        notes = (f"note: {note}" for note in self.notes)
        return self.wheel.name, *filter(None, [self.url]), *"\n".join(ranking).split("\n"), *notes

    def data(self) -> dict[str, Any]:
        return {
            "wheel": self.wheel.name,
            "label": self.name.variant,
            "name": self.name.project,
            "version": self.name.version,
            **({"url": self.url} if self.url else {}),
            "ranking": [
                {"wheel": wheel.file.name, "label": wheel.name.variant, "fits": wheel.fits, "why": wheel.why}
                for wheel in self.ranking
            ],
            **({"notes": list(self.notes)} if self.notes else {}),
        }


def select(
    name: str,
    find_links: Sequence[str | Path],
    *,
    machine: Machine,
    version: str | Version | None = None,
) -> Selection:
    """The wheel of the project *name* at the places *find_links* that *machine* gets, by default of any *version*.

    A place is a folder, or the URL of a page of links or a simple index, from which only METADATA is fetched.
    `VariantError` if no wheel fits, with the reason for each, if a variants.json breaks PEP 825, or for a namespace of
    the machine's policy that no release has; `FetchError` for a place that cannot be read.
    """
    asked_project(name, VariantError)
    listed = {file.name: file for place in reversed(find_links) for file in files_at(place, name)}
    releases = _releases(name, listed, version)
    if not releases:
        wanted = f"{name} {version}" if version else name
        places = ", ".join(map(str, find_links))
        there = {file.partition("-")[0] for file in listed if file.endswith(".whl")}
        near = meant(name, there) if version is None else ""
        raise VariantError(f"{wanted}: no wheel of it in {places}{near}")
    ranking: list[Candidate] = []
    notes: list[str] = []
    known, built_for = set(BUILT_IN), set[str]()
    # final releases before pre-releases
    for release in sorted(releases, key=lambda release: (not release.is_prerelease, release), reverse=True):
        index = WheelName.parse(releases[release][0].name).variants_json
        variants = None
        if file := listed.get(index):
            with at(file.path or file.url):
                document = Document.parse(file.read())
            metadata = document.metadata
            known.update(metadata.namespaces)
            built_for |= {
                item.label
                for item in document.variants
                if any(metadata.is_abi(feature.namespace) for feature in item.features)
            }
            notes += (f"{index}: {note}" for note in document.notes)
            variants = ranked(document, machine)
        candidates = _candidates(releases[release], index, variants, machine)
        ranking += candidates
        if (best := candidates[0]).fits:
            _check_policy(machine, known)
            is_built_for = best.name.variant in built_for
            return Selection(best.path, best.name, tuple(ranking), best.file.url, tuple(notes), is_built_for)
    _check_policy(machine, known)
    reasons: dict[str, list[str]] = {}
    for candidate in ranking:
        reasons.setdefault(candidate.why, []).append(candidate.file.name)
    lines = "; ".join(f"{shown(files, 1)}: {why}" for why, files in reasons.items())
    sdists = (f"{candidate.name.release}.tar.gz" for candidate in ranking)
    build = "".join(f"; pip and uv build {sdist}" for sdist in [*filter(listed.get, sdists)][:1])
    raise VariantError(f"{name}: none of {counted(len(ranking), 'wheel')} fits this machine: {lines}{build}")


def _check_policy(machine: Machine, known: Collection[str]) -> None:
    for name in (*machine.without, *machine.namespace_order):
        if name not in known:
            raise VariantError(
                f"no namespace {name!r}; the releases looked at and vbuild have {', '.join(sorted(known))}"
                f"{meant(name, known)}"
            )


def machine_at(path: Path) -> Machine:
    """The machine that the TOML file at *path* describes; `HardwareError` names the file, and the key that is wrong."""
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise HardwareError(f"{path}: cannot be read: {reason_of(error)}") from error
    with at(path):
        return Machine.parse(text)


def save_machine(machine: Machine, path: Path) -> None:
    try:
        with replacing(path) as part:
            part.write_text(str(machine), encoding="utf-8")
    except OSError as error:
        raise HardwareError(f"{path}: cannot be written: {error.strerror}") from error


def _releases(
    name: str, listed: Mapping[str, LocatedFile], version: str | Version | None
) -> dict[Version, tuple[LocatedFile, ...]]:
    project = canonicalize_name(name)
    try:
        only = Version(version) if isinstance(version, str) else version
    except InvalidVersion as error:
        raise VariantError(f"no version {version!r}; expected one as PEP 440 writes it") from error
    releases: dict[Version, list[LocatedFile]] = {}
    for filename in sorted(listed):
        try:
            wheel = WheelName.parse(filename)
        except WheelError:
            continue  # installers ignore such files
        if wheel.project == project and only in {None, Version(wheel.version)}:
            releases.setdefault(Version(wheel.version), []).append(listed[filename])
    return {release: tuple(wheels) for release, wheels in releases.items()}


def _candidates(
    wheels: tuple[LocatedFile, ...], index: str, variants: tuple[Ranked, ...] | None, machine: Machine
) -> list[Candidate]:
    """The *wheels* of one release, best first: by variant, then by tag, then the highest build number."""
    tags = {tag: place for place, tag in enumerate(machine.tags)}
    ranks: dict[str, tuple[bool, int, int, tuple[int, str] | tuple[()]]] = {}
    candidates = []
    for file in wheels:
        name = WheelName.parse(file.name)
        place, why = _placed(name.variant, index, variants)
        tag = min((tags[tag] for tag in map(str, name.tags) if tag in tags), default=None)
        if tag is None:
            why = _lacking(name, machine)
        fits = place is not None and tag is not None
        ranks[file.name] = fits, -(place or 0), -(tag or 0), name.build_order
        candidates.append(Candidate(file, name, fits, why))
    # PEP 825 leaves ties open; uv takes the wheel of one tag before those of several
    candidates.sort(key=lambda candidate: (len(candidate.name.tags) > 1, candidate.file.name))
    candidates.sort(key=lambda candidate: ranks[candidate.file.name], reverse=True)
    return _admitted(candidates, machine)


def _lacking(name: WheelName, machine: Machine) -> str:
    """What the tags of the wheel *name* ask for and *machine* does not have."""
    pairs, platforms = (dict.fromkeys(tag.rpartition("-")[end] for tag in machine.tags) for end in (0, 2))
    if not any(f"{tag.interpreter}-{tag.abi}" in pairs for tag in name.tags):
        return f"{name.python}-{name.abi} is not a tag of this machine, which has Python {machine.python}"
    there = platforms_in(".".join(platforms))
    newest = max((platform.glibc for platform in there if platform.glibc), default=None)
    machines = {platform.machine for platform in there}
    wanted = [platform.glibc for platform in platforms_in(name.platform) if platform.machine in machines]
    glibc = min(filter(None, wanted), default=None)
    if glibc and newest and glibc > newest:
        return f"needs glibc {'.'.join(map(str, glibc))}, the machine has {'.'.join(map(str, newest))}"
    return f"is for {name.platform}, the machine is {next(iter(platforms))}"


def _placed(label: str | None, index: str, variants: tuple[Ranked, ...] | None) -> tuple[int | None, str]:
    """The rank of *label* among the *variants* of *index*, and why; None if the machine cannot have it."""
    if label is None:
        return len(variants or ()), "no variant: after every variant that fits"
    if variants is None:
        return None, f"no {index} alongside it, so variants do not count"
    for place, item in enumerate(variants):
        if item.variant.label == label:
            return (place if item.is_supported else None), item.why
    return None, f"{index} does not list {label!r}"


def _metadata(file: LocatedFile) -> bytes | None:
    if alongside := file.metadata():
        return alongside.read()
    with file.opened() as opened:
        return peek_into(opened, file.name, "METADATA")


def _admitted(candidates: list[Candidate], machine: Machine) -> list[Candidate]:
    """The *candidates*; if the best one's Requires-Python excludes the machine's Python, none of them fits."""
    best = candidates[0]
    wanted = best.file.requires_python
    if best.fits and wanted is None:
        data = _metadata(best.file)
        with at(best.file.name):
            wanted = Metadata.parse(data.decode("utf-8", "replace")).requires_python if data else None
    try:
        if wanted is None or SpecifierSet(wanted).contains(machine.python, prereleases=True):
            return candidates
    except InvalidSpecifier:
        return candidates
    why = f"Requires-Python is {wanted}, the machine has {machine.python}"
    return [replace(candidate, fits=False, why=why) if candidate.fits else candidate for candidate in candidates]
