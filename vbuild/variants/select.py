"""`vbuild select`: which wheel of a project a machine gets out of folders and indexes of wheels, and why.

    newest version first -> its wheels whose tags fit -> variants ranked -> tags -> build number -> the first one

The order is that of installers: if nothing of a version fits, the next older one is tried, pre-releases come last, and
variants count only if the release's ``{name}-{version}-variants.json`` lists them.
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
from vbuild.errors import HardwareError, VariantError, WheelError, at, meant, reason_of
from vbuild.files.atomic import replacing
from vbuild.files.reading import read_text
from vbuild.hardware.conda import machine_of
from vbuild.hardware.machine import Machine
from vbuild.index_client.located import LocatedFile, files_at
from vbuild.variants.document import Document
from vbuild.variants.order import Ranked, ranked
from vbuild.variants.providers import BUILT_IN
from vbuild.wheel.archive import peek_into
from vbuild.wheel.metadata import Metadata
from vbuild.wheel.name import WheelName

Rank = tuple[bool, int, int, tuple[int, str] | tuple[()]]


class Candidate(Struct, frozen=True):
    """A wheel with its place in the ranking, or the reason why the machine cannot have it."""

    file: LocatedFile
    name: WheelName
    fits: bool
    why: str

    @property
    def path(self) -> Path:
        """Its path, or its name alone if it is somewhere else."""
        return self.file.path or Path(self.file.name)

    @property
    def shown(self) -> str:
        return self.file.name


class Selection(Struct, frozen=True):
    """The wheel that a machine gets, and every wheel of the versions looked at, best first.

    *url* is where the wheel is, empty for a file of this machine, of which *wheel* is the path.

    *notes* say of documents of other tools and earlier drafts how they were read.
    """

    wheel: Path
    name: WheelName
    ranking: tuple[Candidate, ...]
    url: str = ""
    notes: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """The selection as JSON holds it."""
        return {
            "wheel": self.wheel.name,
            "label": self.name.variant,
            "name": self.name.project,
            "version": self.name.version,
            **({"url": self.url} if self.url else {}),
            "ranking": [
                {"wheel": one.file.name, "label": one.name.variant, "fits": one.fits, "why": one.why}
                for one in self.ranking
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
    """The wheel of the project *name* at the places *find_links* that *machine* gets, of *version* if one is given.

    A place is a folder, or the URL of a page of links or a simple index, of which METADATA is read at most.
    `VariantError` if no wheel fits, saying why for each, where a variants.json is not as PEP 825 says, or for a
    namespace of the machine's policy that no release has; `FetchError` for a place that cannot be read.
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
    known = set(BUILT_IN)
    # the final ones, then the pre-releases
    for found in sorted(releases, key=lambda release: (not release.is_prerelease, release), reverse=True):
        index, document = _document(WheelName.parse(releases[found][0].name), listed)
        known.update(document.metadata.namespaces if document else ())
        notes += (f"{index}: {note}" for note in (document.notes if document else ()))
        variants = ranked(document, machine) if document else None
        candidates = _ranked(releases[found], index, variants, machine)
        ranking += candidates
        if (best := candidates[0]).fits:
            _check_policy(machine, known)
            return Selection(best.path, best.name, tuple(ranking), best.file.url, tuple(notes))
    _check_policy(machine, known)
    reasons = "; ".join(f"{candidate.file.name}: {candidate.why}" for candidate in ranking)
    raise VariantError(f"{name}: none of {len(ranking)} wheels fits this machine: {reasons}")


def _check_policy(machine: Machine, known: Collection[str]) -> None:
    """`VariantError` for a namespace in the policy of *machine* that is not *known*."""
    for name in (*machine.without, *machine.namespace_order):
        if name not in known:
            raise VariantError(
                f"no namespace {name!r}; the releases looked at and vbuild have {', '.join(sorted(known))}"
                f"{meant(name, known)}"
            )


def machine_at(path: Path) -> Machine:
    """The machine that the file at *path* describes: TOML, or the JSON in which conda or pixi say it.

    `HardwareError` with file and key for what is wrong.
    """
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise HardwareError(f"{path}: cannot be read: {reason_of(error)}") from error
    with at(path):
        # no TOML begins with a brace
        is_json = path.suffix == ".json" or text.lstrip().startswith("{")
        return machine_of(text) if is_json else Machine.parse(text)


def save_machine(machine: Machine, path: Path) -> None:
    """Write *machine* to *path*, complete or not at all. `HardwareError` if that cannot be."""
    try:
        with replacing(path) as part:
            part.write_text(str(machine), encoding="utf-8")
    except OSError as error:
        raise HardwareError(f"{path}: cannot be written: {error.strerror}") from error


def _releases(
    name: str, listed: Mapping[str, LocatedFile], version: str | Version | None
) -> dict[Version, tuple[LocatedFile, ...]]:
    """The wheels of the project among the files *listed*, by version."""
    wanted = canonicalize_name(name)
    try:
        only = Version(version) if isinstance(version, str) else version
    except InvalidVersion as error:
        raise VariantError(f"no version {version!r}; expected one as PEP 440 writes it") from error
    releases: dict[Version, list[LocatedFile]] = {}
    for file in (listed[name] for name in sorted(listed) if name.endswith(".whl")):
        try:
            parsed = WheelName.parse(file.name)
        except WheelError:
            continue  # installers pass such files over
        if parsed.project == wanted and only in {None, Version(parsed.version)}:
            releases.setdefault(Version(parsed.version), []).append(file)
    return {found: tuple(wheels) for found, wheels in releases.items()}


def _ranked(
    wheels: tuple[LocatedFile, ...], index: str, variants: tuple[Ranked, ...] | None, machine: Machine
) -> list[Candidate]:
    """The *wheels* of one release, best first: by variant, then by tag, then the highest build number."""
    tags = {tag: place for place, tag in enumerate(machine.tags)}
    ranks: dict[str, Rank] = {}
    candidates = []
    for file in wheels:
        name = WheelName.parse(file.name)
        place, why = _placed(name.variant, index, variants)
        tag = min((tags[tag] for tag in map(str, name.tags) if tag in tags), default=None)
        if tag is None:
            why = f"none of its tags is the machine's: {name.python}-{name.abi}-{name.platform}"
        fits = place is not None and tag is not None
        ranks[file.name] = fits, -(place or 0), -(tag or 0), name.build_order
        candidates.append(Candidate(file, name, fits, why))
    # PEP 825 leaves what is equal open; uv takes the wheel of one tag before those of several
    candidates.sort(key=lambda candidate: (len(candidate.name.tags) > 1, candidate.file.name))
    candidates.sort(key=lambda candidate: ranks[candidate.file.name], reverse=True)
    return _admitted(candidates, machine)


def _document(name: WheelName, listed: Mapping[str, LocatedFile]) -> tuple[str, Document | None]:
    """The name of the release's variants.json and what is in it, or None if it is not *listed*."""
    index = f"{name.release}-variants.json"
    if (file := listed.get(index)) is None:
        return index, None
    with at(file.path or file.url):
        return index, Document.parse(file.read())


def _placed(label: str | None, index: str, variants: tuple[Ranked, ...] | None) -> tuple[int | None, str]:
    """Where wheels of *label* stand among the *variants* of the *index*, and why, or None if they cannot be had."""
    if label is None:
        return len(variants or ()), "no variant: after every variant that fits"
    if variants is None:
        return None, f"no {index} alongside it, so variants do not count"
    for place, item in enumerate(variants):
        if item.variant.label == label:
            return (place if item.is_supported else None), item.why
    return None, f"{index} does not list {label!r}"


def _metadata(file: LocatedFile) -> bytes | None:
    """The METADATA of the wheel *file*, or None if it has none."""
    if alongside := file.metadata():
        return alongside.read()
    with file.opened() as opened:
        return peek_into(opened, file.name, "METADATA")


def _admitted(candidates: list[Candidate], machine: Machine) -> list[Candidate]:
    """The *candidates*; none of them fits where the best one does not allow the machine's Python."""
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
