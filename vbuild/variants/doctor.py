"""`vbuild doctor`: whether installed variants fit this machine.

    folders of an environment -> *.dist-info/variant.json -> supported here or not, and what is better

Shared caches and disks bring variants to machines that cannot run them, and no installer checks again. Installed wheels
keep their variant.json (PEP 825).
"""

from contextlib import suppress
from pathlib import Path
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
from vbuild.variants.select import Selection, ranked, supported_features
from vbuild.wheel.installed import Environment
from vbuild.wheel.metadata import VARIANT_JSON

_VERDICTS = {True: "runs here", None: "may run here or not", False: "is NOT for this machine"}
_CPUS = ("x86_64", "aarch64")
_PIP = "pip install --force-reinstall --no-deps --no-cache-dir"
_UV = "uv pip install --reinstall --no-deps --no-cache"


class Diagnosis(Struct, frozen=True):
    """An installed variant, and whether it runs here.

    *is_supported* is None if vbuild cannot know; *why* is what the machine supports or lacks, and *advice* why to
    install it again, if so. A variant.json that cannot be read has no *label*, and is not supported.
    """

    project: str
    version: str
    label: str | None
    folder: Path
    is_supported: bool | None
    why: str
    advice: str | None = None

    def data(self) -> dict[str, Any]:
        return {
            "name": self.project,
            "version": self.version,
            "label": self.label,
            "folder": str(self.folder),
            "supported": self.is_supported,
            "why": self.why,
            "do": f"{self.advice}: {', or '.join(self.commands)}" if self.advice else None,
        }

    @property
    def commands(self) -> tuple[str, str]:
        """How to install it again with pip and uv, without their caches."""
        pin = f"{self.project}=={self.version}"
        return f"{_PIP} {pin}", f"{_UV} {pin}"

    def __str__(self) -> str:
        name = f"{self.project} {self.version} ({self.label or 'unreadable'})"
        return f"{name} {_VERDICTS[self.is_supported]}: {self.why}"


def diagnosed_in(folders: list[str], machine: Machine) -> tuple[Diagnosis, ...]:
    """The installed variants in *folders*, unsupported ones first, then by name."""
    installed: dict[str, tuple[str, Path]] = {}
    for folder in dict.fromkeys(folders):
        for dist_info in sorted(Path(folder).glob("*.dist-info")):
            name, _, version = dist_info.name.removesuffix(".dist-info").partition("-")
            # Python imports from the first folder
            installed.setdefault(canonicalize_name(name), (version, dist_info))
    machine = replace(machine, installed=tuple((project, version) for project, (version, _) in installed.items()))
    variants = filter(None, (_diagnosis(project, *place, machine) for project, place in installed.items()))
    order = (False, None, True)
    return tuple(sorted(variants, key=lambda variant: (order.index(variant.is_supported), variant.project)))


def compared_with(selection: Selection, environment: Path) -> Selection:
    """*selection* with a note if *environment* has its version, but another wheel of it: installers leave that."""
    chosen = selection.name
    try:
        folders = Environment.at(environment).folders
    except RepackageError:  # no environment any more
        return selection
    for dist_info in (path for folder in folders for path in sorted(folder.glob("*.dist-info"))):
        name, _, version = dist_info.name.removesuffix(".dist-info").partition("-")
        if (canonicalize_name(name), version) != (chosen.project, chosen.normalised().version):
            continue
        label = None
        with suppress(FileNotFoundError):
            label = Document.parse(read_file(dist_info / VARIANT_JSON)).variants[0].label
        if label != chosen.variant:
            note = f"{environment} has {label or 'the plain wheel'} of this version, which installers leave as it is: "
            note += f"{_UV} --preview-features wheel-variants {chosen.project}=={version}, or vbuild lock, replaces it"
            return replace(selection, notes=(*selection.notes, note))
    return selection


def _diagnosis(project: str, version: str, dist_info: Path, machine: Machine) -> Diagnosis | None:
    """The diagnosis of the distribution at *dist_info*, or None if it is not a variant."""
    try:
        document = Document.parse(read_file(dist_info / VARIANT_JSON))
        label = document.only(document.variants[0].label if document.variants else "").label
    except FileNotFoundError:
        return None
    except (OSError, VariantError) as error:
        why = f"{VARIANT_JSON}: {error.strerror if isinstance(error, OSError) else error}"
        return Diagnosis(project, version, None, dist_info, is_supported=False, why=why, advice="damaged, reinstall it")
    document = _with_providers(document)
    (rank,) = ranked(document, machine)
    is_supported, advice = _verdict(document, machine)
    return Diagnosis(project, version, label, dist_info, is_supported=is_supported, why=rank.why, advice=advice)


def _with_providers(document: Document) -> Document:
    """*document* with its optional providers on, as when it was chosen, or with the built-in ones."""
    metadata = document.metadata
    if not metadata.providers and all(namespace in BUILT_IN for namespace in metadata.namespaces):
        return replace(document, schema=Schema.PEP_850, metadata=metadata_for(metadata.namespaces))
    on = {namespace: replace(provider, optional=False) for namespace, provider in metadata.providers}
    return replace(document, metadata=VariantMetadata.of(metadata.namespaces, on))


def _verdict(document: Document, machine: Machine) -> tuple[bool | None, str | None]:
    """Whether *machine* supports the variant, None if vbuild cannot know, and what would be better."""
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
        return verdict, f"chosen for another {' and '.join(sorted(others))}, reinstall it without cache"
    return verdict, f"the machine has {', '.join(better)}; if there is a wheel for that, get it" if better else None
