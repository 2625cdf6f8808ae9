"""`vbuild doctor`: whether installed variants fit this machine.

    folders of an environment -> *.dist-info/variant.json -> supported here, or not, and what is better

Caches and disks that machines share bring variants to machines that cannot run them, and no installer checks again
(redirecting sdists that choose by hardware; folders on a network). A variant wheel keeps its variant.json when it is
installed, whatever its file was called (PEP 825).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import canonicalize_name

from vbuild.errors import VariantError
from vbuild.files.reading import read_file
from vbuild.hardware.machine import Machine
from vbuild.variants.document import Document, Schema
from vbuild.variants.metadata import VariantMetadata
from vbuild.variants.order import ranked, supported_features
from vbuild.variants.providers import BUILT_IN, is_answered, metadata_for
from vbuild.wheel.metadata import VARIANT_JSON

_VERDICTS = {True: "runs here", None: "may run here or not", False: "is NOT for this machine"}
_CPUS = ("x86_64", "aarch64")
_PIP = "pip install --force-reinstall --no-deps --no-cache-dir"
_UV = "uv pip install --reinstall --no-deps --no-cache"


class Diagnosis(Struct, frozen=True):
    """An installed variant: the project and *version*, its *label*, the folder it is in, and whether it runs here.

    *is_supported* is None if nobody can say; *why* is what the machine supports or lacks, and *advice* why it should
    be installed again, or None if all is well. A variant.json that cannot be read has no label, and is not supported.
    """

    project: str
    version: str
    label: str | None
    folder: Path
    is_supported: bool | None
    why: str
    advice: str | None = None

    def data(self) -> dict[str, Any]:
        """The diagnosis as JSON holds it."""
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
        """How pip and uv install it again, past their caches."""
        pin = f"{self.project}=={self.version}"
        return f"{_PIP} {pin}", f"{_UV} {pin}"

    def __str__(self) -> str:
        """The diagnosis in a sentence."""
        return (
            f"{self.project} {self.version} ({self.label or 'unreadable'}) {_VERDICTS[self.is_supported]}: {self.why}"
        )


def diagnosed_in(folders: list[str], machine: Machine) -> tuple[Diagnosis, ...]:
    """Every distribution with a variant.json in *folders*, by name; of a project in several the first counts.

    Those that *machine* does not support come first.
    """
    found = (_diagnosis(*installed, machine) for installed in _installed(folders))
    order = (False, None, True)
    return tuple(sorted(filter(None, found), key=lambda one: (order.index(one.is_supported), one.project)))


def _installed(path: list[str]) -> Iterator[tuple[str, str, Path]]:
    """Project and version of what is in the folders of *path*, with its dist-info; of each project the first counts."""
    seen: set[str] = set()
    for folder in dict.fromkeys(path):
        for place in sorted(Path(folder).glob("*.dist-info")):
            name, _, version = place.name.removesuffix(".dist-info").partition("-")
            if (project := canonicalize_name(name)) not in seen:
                seen.add(project)
                yield project, version, place


def _diagnosis(project: str, version: str, place: Path, machine: Machine) -> Diagnosis | None:
    """What there is to say of the distribution in *place*, or None if it is not a variant."""
    try:
        document = Document.parse(read_file(place / VARIANT_JSON))
        variant = document.only(document.variants[0].label if document.variants else "")
    except FileNotFoundError:
        return None
    except (OSError, VariantError) as error:
        why = f"{VARIANT_JSON}: {error.strerror if isinstance(error, OSError) else error}"
        return Diagnosis(project, version, None, place, is_supported=False, why=why, advice="damaged, reinstall it")
    document = _asked_for(document)
    found = ranked(document, machine)[0]
    is_supported, advice = _verdict(document, machine)
    return Diagnosis(project, version, variant.label, place, is_supported=is_supported, why=found.why, advice=advice)


def _asked_for(document: Document) -> Document:
    """*document* with its providers on, as they were when it was chosen; the built-in ones where it has none."""
    metadata = document.metadata
    if not metadata.providers and all(namespace in BUILT_IN for namespace in metadata.namespaces):
        return replace(document, schema=Schema.PEP_850, metadata=metadata_for(metadata.namespaces))
    on = {namespace: replace(provider, optional=False) for namespace, provider in metadata.providers}
    return replace(document, metadata=VariantMetadata.of(metadata.namespaces, on))


def _verdict(document: Document, machine: Machine) -> tuple[bool | None, str | None]:
    """Whether *machine* supports the one variant of *document*, or None if nobody can say, and what would be better."""
    verdict: bool | None = True
    better = []
    for feature in document.variants[0].features:
        values = dict(supported_features(document.metadata, feature.namespace, machine)).get(feature.name, ())
        provider = document.metadata.provider(feature.namespace)
        listed = provider and (provider.static_properties or machine.features(feature.namespace) is not None)
        if not (provider and (listed or is_answered(feature.namespace, provider))):
            verdict = None if verdict else verdict
        elif not set(values) & set(feature.values):
            verdict = False
        elif feature.namespace in _CPUS and values[0] not in feature.values:
            better.append(f"{feature.namespace} :: {feature.name} :: {values[0]}")
    if verdict is False:
        return verdict, "chosen for another machine, reinstall it without cache"
    return verdict, f"the machine has {', '.join(better)}; if there is a wheel for that, get it" if better else None
