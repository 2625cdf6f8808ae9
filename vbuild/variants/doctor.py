"""`vbuild doctor`: whether installed variants fit this machine.

    folders of an environment -> *.dist-info/variant.json -> supported here or not, and what is better

Shared caches and disks bring variants to machines that cannot run them, and no installer checks again. Installed wheels
keep their variant.json (PEP 825).
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import canonicalize_name

from vbuild.errors import RepackageError, VariantError
from vbuild.files.reading import read_file
from vbuild.hardware.machine import Machine
from vbuild.variants.document import Document, Schema
from vbuild.variants.model import VariantMetadata
from vbuild.variants.providers import BUILT_IN, is_answered, metadata_for
from vbuild.variants.select import Selection, ranked, select, supported_features
from vbuild.wheel.installed import Environment
from vbuild.wheel.metadata import VARIANT_JSON

_VERDICTS = {True: "runs here", None: "may run here or not", False: "is NOT for this machine"}
_CPUS = ("x86_64", "aarch64")
_PIP = "pip install --force-reinstall --no-deps --no-cache-dir"
_UV = "uv pip install --reinstall --no-deps --no-cache"


class Diagnosis(Struct, frozen=True):
    """An installed wheel, and whether it runs here: a variant, or the plain one if there is a better one.

    *is_supported* is None if vbuild cannot know; *why* is what the machine supports or lacks, and *advice* why to
    install another wheel, if so, by which *commands*. A variant.json that cannot be read has no *label*, and is not
    supported.
    """

    project: str
    version: str
    label: str | None
    folder: Path
    is_supported: bool | None
    why: str
    advice: str | None = None
    commands: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        return {
            "name": self.project,
            "version": self.version,
            "label": self.label,
            "folder": str(self.folder),
            "supported": self.is_supported,
            "why": self.why,
            "do": ": ".join(filter(None, [self.advice, ", or ".join(self.commands)])) or None,
        }

    def __str__(self) -> str:
        name = f"{self.project} {self.version} ({self.label or 'unreadable'})"
        return f"{name} {_VERDICTS[self.is_supported]}: {self.why}"


def diagnosed_in(folders: list[str], machine: Machine, wheels: Sequence[Path] = ()) -> tuple[Diagnosis, ...]:
    """The installed variants in *folders*, unsupported ones first, then by name.

    In folders of *wheels* the best one of their release is looked for, of plain wheels', too.
    """
    installed = _installed(folders)
    machine = replace(machine, installed=tuple((project, version) for project, (version, _) in installed.items()))
    diagnoses = (_diagnosis(project, *place, machine, wheels) for project, place in installed.items())
    order = (False, None, True)
    return tuple(sorted(filter(None, diagnoses), key=lambda found: (order.index(found.is_supported), found.project)))


def compared_with(selection: Selection, environment: Path) -> Selection:
    """*selection* with a note if *environment* has its version, but another wheel of it: installers leave that."""
    with suppress(RepackageError):  # no environment any more
        installed = _installed(map(str, Environment.at(environment).folders)).get(selection.name.project)
        if installed and (label := _other(selection, *installed)):
            note = f"{environment} has the {label} wheel of this version, which installers leave as it is: "
            note += f"{', or '.join(_replacing(selection))} replaces it"
            return replace(selection, notes=(*selection.notes, note))
    return selection


def _installed(folders: Iterable[str]) -> dict[str, tuple[str, Path]]:
    """The version of each installed project, and where that is."""
    installed: dict[str, tuple[str, Path]] = {}
    for folder in dict.fromkeys(folders):
        for dist_info in sorted(Path(folder).glob("*.dist-info")):
            name, _, version = dist_info.name.removesuffix(".dist-info").partition("-")
            # Python imports from the first folder
            installed.setdefault(canonicalize_name(name), (version, dist_info))
    return installed


def _other(selection: Selection, version: str, dist_info: Path) -> str | None:
    """What of the *selection*'s version is installed, if it is another wheel: a variant's label, or "plain".

    The layout ``local`` may have installed the variant as a local *version*.
    """
    chosen, (public, _, label) = selection.name.normalised(), version.partition("+")
    if chosen.version not in ({version, public} if chosen.variant else {version}):
        return None
    label = "" if chosen.version == version else label
    with suppress(FileNotFoundError):
        label = Document.parse(read_file(dist_info / VARIANT_JSON)).variants[0].label
    return None if label.replace("_", ".") == (chosen.variant or "").replace("_", ".") else label or "plain"


def _replacing(selection: Selection, *links: str) -> tuple[str, ...]:
    """What installs *selection* in place of another wheel of its version; uv does not choose by dependencies yet."""
    project = selection.name.project
    pin = f"{project}=={selection.name.normalised().version}"
    by_uv = () if selection.by_dependency else (" ".join((_UV, "--preview-features wheel-variants", *links, pin)),)
    return *by_uv, " ".join(("vbuild lock", project, *links, "--machine FILE"))


def _diagnosis(
    project: str, version: str, dist_info: Path, machine: Machine, wheels: Sequence[Path]
) -> Diagnosis | None:
    """The diagnosis of the distribution at *dist_info*, or None for a plain wheel if *wheels* have no better one."""
    of_variant = _diagnosed_variant(project, version, dist_info, machine)
    for release in dict.fromkeys((version, version.partition("+")[0])):
        with suppress(VariantError):  # none of it is there, or none fits
            selection = select(project, wheels, machine=machine, version=release)
            fitting = {candidate.name.variant for candidate in selection.ranking if candidate.fits}
            if of_variant and of_variant.is_supported is not False and of_variant.label not in fitting:
                continue  # not among those compared
            if other := _other(selection, version, dist_info):
                why = "no variant.json says"
                installed = Diagnosis(project, version, other, dist_info, is_supported=None, why=why)
                commands = _replacing(selection, f"-f {quote(str(selection.wheel.parent))}")
                advice = f"{selection.wheel} fits this machine best"
                return replace(of_variant or installed, advice=advice, commands=commands)
    return of_variant


def _diagnosed_variant(project: str, version: str, dist_info: Path, machine: Machine) -> Diagnosis | None:
    """The diagnosis of the variant at *dist_info*; None for another wheel."""
    pin = f"{project}=={version}"
    again = f"{_PIP} {pin}", f"{_UV} {pin}"
    try:
        document = Document.parse(read_file(dist_info / VARIANT_JSON))
        label = document.only(document.variants[0].label if document.variants else "").label
    except FileNotFoundError:
        return None
    except (OSError, VariantError) as error:
        why = f"{VARIANT_JSON}: {error.strerror if isinstance(error, OSError) else error}"
        diagnosis = Diagnosis(project, version, None, dist_info, is_supported=False, why=why)
        return replace(diagnosis, advice="damaged, reinstall it", commands=again)
    document = _with_providers(document)
    (rank,) = ranked(document, machine)
    is_supported, advice, reinstalls = _verdict(document, machine)
    commands = again if reinstalls else ()
    return Diagnosis(project, version, label, dist_info, is_supported, rank.why, advice, commands)


def _with_providers(document: Document) -> Document:
    """*document* with its optional providers on, as when it was chosen, or with the built-in ones."""
    metadata = document.metadata
    if not metadata.providers and all(namespace in BUILT_IN for namespace in metadata.namespaces):
        return replace(document, schema=Schema.PEP_850, metadata=metadata_for(metadata.namespaces))
    on = {namespace: replace(provider, optional=False) for namespace, provider in metadata.providers}
    return replace(document, metadata=VariantMetadata.of(metadata.namespaces, on))


def _verdict(document: Document, machine: Machine) -> tuple[bool | None, str | None, bool]:
    """Whether *machine* supports the variant, None if vbuild cannot know; what to do; whether that is to reinstall."""
    verdict: bool | None = True
    better = []
    others = set()
    for feature in document.variants[0].features:
        values = dict(supported_features(document.metadata, feature.namespace, machine)).get(feature.name, ())
        provider = document.metadata.provider(feature.namespace)
        is_abi = document.metadata.is_abi(feature.namespace)
        listed = is_abi or (provider and provider.static_properties) or machine.features(feature.namespace) is not None
        if not (provider and (listed or is_answered(feature.namespace, provider))):
            verdict = None if verdict else verdict
        elif not set(values) & set(feature.values):
            verdict = False
            others.add(feature.name if is_abi else "machine")
        elif feature.namespace in _CPUS and values[0] not in feature.values:
            better.append(f"{feature.namespace} :: {feature.name} :: {values[0]}")
    if verdict is False:
        advice = f"chosen for another {' and '.join(sorted(others))}"
        if others == {"machine"}:
            return verdict, f"{advice}, reinstall it without cache", True
        return verdict, f"{advice}; name a folder of its wheels as well, to see which of them fits", False
    if better:
        return verdict, f"the machine has {', '.join(better)}; if there is a wheel for that, get it", True
    return verdict, None, False
