"""Which image of an OCI image layout a machine gets, and why: ranked as wheels are.

    index -> each image's annotations, or its platform's variant -> variants ranked -> the first one

Other tools' indexes (buildah, buildx) have platforms alone: ``linux/amd64/v3`` is read as x86_64 :: level :: v3. An
image without variant fits every machine of its architecture, after all others.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from vbuild.errors import RepackageError, at
from vbuild.hardware.machine import Machine
from vbuild.publishing.oci.model import (
    DOCUMENT,
    INDEX_TYPE,
    Descriptor,
    ImageFolder,
    OciPlatform,
    ref_of,
)
from vbuild.variants.document import Document, Schema
from vbuild.variants.model import Property, Variant, VariantProvider
from vbuild.variants.providers import BUILT_IN, metadata_for
from vbuild.variants.select import ranked

_PLAIN = "no variant: after every variant that fits"
# what a variant is called whose index does not say; never shown
_NAMELESS = "image{}"
_LAST = ("x86_64", "aarch64")


class ImageCandidate(Struct, frozen=True):
    digest: str
    ref: str | None
    label: str | None
    platform: OciPlatform
    fits: bool
    why: str

    @property
    def shown(self) -> str:
        return self.ref or self.digest


class ImageSelection(Struct, frozen=True):
    folder: Path
    ref: str | None
    image: ImageCandidate
    ranking: tuple[ImageCandidate, ...]

    @property
    def digest(self) -> str:
        return self.image.digest

    @property
    def reference(self) -> str | None:
        """The name for container tools, or None if only its index has a name."""
        return self._reference(self.image)

    @property
    def lines(self) -> tuple[str, ...]:
        lines = [self.digest]
        for rank, candidate in enumerate(self.ranking, 1):
            called = self._reference(candidate) or f"{candidate.label or ''} {candidate.digest[:19]}".lstrip()
            lines += [f"{rank:3}. {called} ({candidate.platform})", f"     {candidate.why}"]
        return tuple(lines)

    def _reference(self, candidate: ImageCandidate) -> str | None:
        return f"oci:{self.folder}:{candidate.ref}" if candidate.ref else None

    def data(self) -> dict[str, Any]:
        return {
            "digest": self.digest,
            "label": self.image.label,
            "ref": self.image.ref,
            "index": self.ref,
            "reference": self.reference,
            "ranking": [{**asdict(candidate), "platform": str(candidate.platform)} for candidate in self.ranking],
        }


class _Listed(Struct, frozen=True):
    image: Descriptor
    platform: OciPlatform
    variant: Variant | None
    label: str | None


def select_image(folder: Path, machine: Machine, *, ref: str | None = None) -> ImageSelection:
    """The image for *machine* in the image layout *folder*, of the index called *ref* if it has several.

    `RepackageError` if there is no such layout or index, or no image fits, with the reason for each; `VariantError` for
    annotations that are not PEP 825's properties.
    """
    layout = ImageFolder.of(folder)
    descriptor = layout.named(ref) if ref else _only(layout)
    images, annotations = layout.images(descriptor)
    refs = {manifest.digest: ref_of(manifest) for manifest in layout.manifests}
    with at(folder):
        listed = [_listed(image, number) for number, image in enumerate(images)]
        candidates = [
            ImageCandidate(entry.image.digest, refs.get(entry.image.digest), entry.label, entry.platform, fits, why)
            for entry, fits, why in _ranked(listed, annotations, machine)
        ]
        if not candidates or not candidates[0].fits:
            reasons = "; ".join(
                f"{candidate.platform} {candidate.label or ''}".strip() + f": {candidate.why}"
                for candidate in candidates
            )
            raise RepackageError(f"none of {len(candidates)} images fits this machine: {reasons or 'there is none'}")
    return ImageSelection(folder, ref_of(descriptor), candidates[0], tuple(candidates))


def _only(layout: ImageFolder) -> Descriptor:
    images = [image for image in layout.manifests if image.artifact_type is None]
    entries = [image for image in images if image.media_type == INDEX_TYPE] or images
    if len(entries) != 1:
        names = ", ".join(ref_of(image) or image.digest for image in entries) or "no image"
        raise RepackageError(f"{layout.path}: has {names}; expected one: say which, as in oci:{layout.path}:NAME")
    return entries[0]


def _listed(image: Descriptor, number: int) -> _Listed:
    platform = image.platform or OciPlatform("unknown", None, "unknown")
    with at(image.digest):
        if image.variant:
            label, properties = image.variant
            return _Listed(image, platform, Variant.of(label, map(Property.parse, properties)), label)
        cpu = platform.cpu
        if platform.variant is None or cpu is None or cpu.is_baseline:
            return _Listed(image, platform, None, None)
        level = [Property.parse(cpu.variant_property)]
        return _Listed(image, platform, Variant.of(_NAMELESS.format(number), level), None)


def _ranked(
    listed: Sequence[_Listed], annotations: Mapping[str, str], machine: Machine
) -> list[tuple[_Listed, bool, str]]:
    """The images, the best for *machine* first, each with whether it fits, and why."""
    here = _architecture(machine)
    document = _document([entry for entry in listed if entry.platform.architecture == here], annotations)
    if machine.cpu and machine.cpu.machine == "aarch64" and machine.features("aarch64") is None:
        # containers' runtimes take every version, installers' provider knows none above 8.4a
        versions = ("aarch64", (("version", machine.cpu.supported_levels),))
        machine = replace(machine, supported=(*machine.supported, versions))
    items = ranked(document, machine) if document else ()
    places = {item.variant.properties: (rank, item) for rank, item in enumerate(items)}
    rows = []
    for entry in listed:
        rank, fits, why = len(items), True, _PLAIN
        if (entry.platform.os, entry.platform.architecture) != ("linux", here):
            fits, why = False, f"is for {entry.platform}, the machine is linux/{here}"
        elif entry.platform.variant and entry.platform.cpu is None:
            fits, why = False, f"variant {entry.platform.variant!r} of {entry.platform.architecture} is not known"
        elif entry.variant:
            rank, item = places[entry.variant.properties]
            fits, why = item.is_supported, item.why
        rows.append((not fits, rank, entry, why))
    rows.sort(key=lambda row: row[:2])
    return [(entry, not unfit, why) for unfit, _, entry, why in rows]


def _architecture(machine: Machine) -> str:
    """As platforms spell it."""
    for name, architecture in (("x86_64", "amd64"), ("aarch64", "arm64")):
        if machine.cpu.machine == name if machine.cpu else any(tag.endswith(f"_{name}") for tag in machine.tags):
            return architecture
    raise RepackageError("the machine's CPU is not known; expected x86_64 or aarch64 in its description")


def _document(listed: Sequence[_Listed], annotations: Mapping[str, str]) -> Document | None:
    variants = {entry.variant.properties: entry.variant for entry in listed if entry.variant}
    if not variants:
        return None
    text = annotations.get(DOCUMENT)
    if text and any(entry.image.variant for entry in listed):
        with at(DOCUMENT):
            document = Document.parse(text.encode())
        if set(variants.values()) <= set(document.variants):
            return document
    namespaces = {namespace for variant in variants.values() for namespace in variant.namespaces}
    # accelerators count more than levels of CPUs
    order = sorted(namespaces, key=lambda name: (name in _LAST, name not in BUILT_IN, name))
    providers = {name: VariantProvider(requires=(f"{name.replace('_', '-')}-variant-provider",)) for name in order}
    foreign = {name: provider for name, provider in providers.items() if name not in BUILT_IN}
    return Document(Schema.PEP_850, metadata_for(order, foreign), tuple(variants.values()))
