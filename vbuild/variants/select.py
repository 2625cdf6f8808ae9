"""`vbuild select`: which wheel of a project a machine gets out of folders of wheels, and why.

    newest version first -> its wheels whose tags fit -> variants ranked -> tags -> build number -> the first one

The order is that of installers: if nothing of a version fits, the next older one is tried, pre-releases come last, and
variants count only if the release's ``{name}-{version}-variants.json`` lists them.
https://peps.python.org/pep-0825/#variant-ordering
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from vbuild.errors import HardwareError, VariantError, WheelError, at
from vbuild.files.atomic import replacing
from vbuild.hardware.conda import machine_of
from vbuild.hardware.machine import Machine
from vbuild.variants.document import Document
from vbuild.variants.model import PluginFeatures
from vbuild.variants.order import Ranked, ranked
from vbuild.wheel.archive import peek
from vbuild.wheel.metadata import Metadata
from vbuild.wheel.name import WheelName

# asks the plugins that a release names which features the machine supports
Ask = Callable[[Document, Machine], tuple[PluginFeatures, ...]]
Rank = tuple[bool, int, int, tuple[int, str] | tuple[()]]


class Candidate(Struct, frozen=True):
    """A wheel with its place in the ranking, or the reason why the machine cannot have it."""

    path: Path
    name: WheelName
    fits: bool
    why: str


class Selection(Struct, frozen=True):
    """The wheel that a machine gets, and every wheel of the versions looked at, best first.

    *plugin_features* are what plugins answered about the machine for the wheel's release, if they were asked.
    """

    wheel: Path
    name: WheelName
    ranking: tuple[Candidate, ...]
    plugin_features: tuple[PluginFeatures, ...] = ()

    def data(self) -> dict[str, Any]:
        """The selection as JSON holds it."""
        return {
            "wheel": self.wheel.name,
            "label": self.name.variant,
            "name": self.name.project,
            "version": self.name.version,
            "ranking": [
                {"wheel": one.path.name, "label": one.name.variant, "fits": one.fits, "why": one.why}
                for one in self.ranking
            ],
            **({"plugins": [answer.data() for answer in self.plugin_features]} if self.plugin_features else {}),
        }


def select(
    name: str,
    find_links: Sequence[Path],
    *,
    machine: Machine,
    version: str | None = None,
    ask: Ask | None = None,
) -> Selection:
    """The wheel of the project *name* in the folders *find_links* that *machine* gets, of *version* if one is given.

    *ask*, if given, says more of the machine for each release looked at that has variants. `VariantError` if no
    wheel fits, saying why for each, or where a variants.json is not as PEP 825 says.
    """
    releases = _releases(name, find_links, version)
    if not releases:
        wanted = f"{name} {version}" if version else name
        raise VariantError(f"{wanted}: no wheel of it in {', '.join(map(str, find_links))}")
    ranking: list[Candidate] = []
    asked: list[PluginFeatures] = []
    # the final ones, then the pre-releases
    for found in sorted(releases, key=lambda release: (not release.is_prerelease, release), reverse=True):
        index, document = _document(WheelName.parse(releases[found][0].name), find_links)
        answers = ask(document, machine) if ask and document else ()
        variants = ranked(document, informed(machine, answers)) if document else None
        candidates = _ranked(releases[found], index, variants, machine)
        ranking += candidates
        asked += answers
        if (best := candidates[0]).fits:
            return Selection(best.path, best.name, tuple(ranking), answers)
    reasons = "; ".join((*(f"{candidate.path.name}: {candidate.why}" for candidate in ranking), *map(str, asked)))
    raise VariantError(f"{name}: none of {len(ranking)} wheels fits this machine: {reasons}")


def informed(machine: Machine, answers: Iterable[PluginFeatures]) -> Machine:
    """*machine* with what it supports by the *answers* of plugins, next to what it lists."""
    return replace(machine, supported=(*machine.supported, *((one.namespace, one.features) for one in answers)))


def machine_at(path: Path) -> Machine:
    """The machine that the file at *path* describes: TOML, or the JSON in which conda or pixi say it.

    `HardwareError` with file and key for what is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise HardwareError(f"{path}: cannot be read: {reason}") from error
    with at(path):
        # no TOML begins with a brace
        is_json = path.suffix == ".json" or text.lstrip().startswith("{")
        return machine_of(text) if is_json else Machine.parse(text)


def save_machine(machine: Machine, path: Path, answers: Sequence[PluginFeatures] = ()) -> None:
    """Write *machine*, and the *answers* of plugins about it, to *path*, complete or not at all.

    `HardwareError` if that cannot be.
    """
    notes = "".join(f"# {' '.join(line.split())}\n" for one in answers for line in one.lines())
    try:
        with replacing(path) as part:
            part.write_text(f"{notes}{informed(machine, answers)}", encoding="utf-8")
    except OSError as error:
        raise HardwareError(f"{path}: cannot be written: {error.strerror}") from error


def _releases(name: str, folders: Sequence[Path], version: str | None) -> dict[Version, tuple[Path, ...]]:
    """The wheels of the project by version; of two with the same file name the first folder's counts."""
    wanted = canonicalize_name(name)
    try:
        only = version and Version(version)
    except InvalidVersion as error:
        raise VariantError(f"no version {version!r}; expected one as PEP 440 writes it") from error
    releases: dict[Version, dict[str, Path]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise VariantError(f"{folder}: no such folder of wheels")
        for path in sorted(folder.glob("*.whl")):
            try:
                parsed = WheelName.parse(path.name)
            except WheelError:
                continue  # installers pass such files over
            if parsed.project == wanted and only in {None, Version(parsed.version)}:
                releases.setdefault(Version(parsed.version), {}).setdefault(path.name, path)
    return {found: tuple(wheels.values()) for found, wheels in releases.items()}


def _ranked(
    wheels: tuple[Path, ...], index: str, variants: tuple[Ranked, ...] | None, machine: Machine
) -> list[Candidate]:
    """The *wheels* of one release, best first: by variant, then by tag, then the highest build number."""
    tags = {tag: place for place, tag in enumerate(machine.tags)}
    ranks: dict[Path, Rank] = {}
    candidates = []
    for path in wheels:
        name = WheelName.parse(path.name)
        place, why = _placed(name.variant, index, variants)
        tag = min((tags[tag] for tag in map(str, name.tags) if tag in tags), default=None)
        if tag is None:
            why = f"none of its tags is the machine's: {name.python}-{name.abi}-{name.platform}"
        fits = place is not None and tag is not None
        ranks[path] = fits, -(place or 0), -(tag or 0), name.build_order
        candidates.append(Candidate(path, name, fits, why))
    # PEP 825 leaves what is equal open; uv takes the wheel of one tag before those of several
    candidates.sort(key=lambda candidate: (len(candidate.name.tags) > 1, candidate.path.name))
    candidates.sort(key=lambda candidate: ranks[candidate.path], reverse=True)
    return _admitted(candidates, machine)


def _document(name: WheelName, folders: Sequence[Path]) -> tuple[str, Document | None]:
    """The name of the release's variants.json and what is in it, or None if no folder has the file."""
    index = f"{name.release}-variants.json"
    for folder in folders:
        if (path := folder / index).is_file():
            with at(path):
                return index, Document.parse(path.read_bytes())
    return index, None


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


def _admitted(candidates: list[Candidate], machine: Machine) -> list[Candidate]:
    """The *candidates*; none of them fits where the best one does not allow the machine's Python."""
    best = candidates[0]
    data = peek(best.path, "METADATA") if best.fits else None
    wanted = Metadata.parse(data.decode("utf-8", "replace")).requires_python if data else None
    try:
        if wanted is None or SpecifierSet(wanted).contains(machine.python, prereleases=True):
            return candidates
    except InvalidSpecifier:
        return candidates
    why = f"Requires-Python is {wanted}, the machine has {machine.python}"
    return [replace(candidate, fits=False, why=why) if candidate.fits else candidate for candidate in candidates]
