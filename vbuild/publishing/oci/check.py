"""Check a folder of the layout oci: each image layout in it, from its index down to the last layer.

    blobs          exist, with their size and SHA-256, and are needed
    configs        the platform of the index, as many diff_ids as layers, each the SHA-256 of a layer uncompressed
    annotations    properties and label as in the config's labels, and as in the index's variants.json
    indexes        a plain image for each architecture, the first of it; layers that its images share

https://github.com/opencontainers/image-spec
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vbuild.errors import RepackageError, VbuildError
from vbuild.publishing.model import PublishRule
from vbuild.publishing.oci.model import (
    DOCUMENT,
    INDEX_TYPE,
    LABEL,
    LAYER_TYPES,
    MANIFEST_TYPE,
    PROPERTIES,
    Descriptor,
    ImageFolder,
    Manifest,
    OciPlatform,
    uncompressed,
)
from vbuild.variants.document import Document
from vbuild.variants.model import Property, Variant
from vbuild.verification.model import Finding, Severity

_AGAIN = "lay the wheels out again"


def problems(folder: Path) -> Iterator[Finding]:
    layouts = (
        [folder] if (folder / "oci-layout").is_file() else sorted(path.parent for path in folder.glob("*/oci-layout"))
    )
    if not layouts:
        yield _error(PublishRule.IMAGE, folder.name, "holds no OCI image layout")
    for path in layouts:
        yield from _LayoutCheck(path).problems()


class _LayoutCheck:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: set[str] = set()
        self._sound: dict[str, str | None] = {}

    def problems(self) -> Iterator[Finding]:
        try:
            folder = ImageFolder.of(self._path)
        except VbuildError as error:
            yield _error(PublishRule.IMAGE, self._path.name, str(error))
            return
        index = f"{self._path.name}/index.json"
        if not folder.manifests:
            yield _error(PublishRule.IMAGE, index, "lists nothing")
        for ref in sorted({ref for ref in folder.refs if folder.refs.count(ref) > 1}):
            yield _error(PublishRule.IMAGE, index, f"has several images called {ref}")
        for descriptor in folder.manifests:
            yield from self._descriptor(folder, descriptor)
        for blob in sorted((self._path / "blobs" / "sha256").glob("*")):
            if f"sha256:{blob.name}" not in self._seen:
                places, fault = (self._name(f"sha256:{blob.name}"),), "nothing in the layout needs it"
                yield Finding(Severity.WARNING, PublishRule.BLOB, places, fault, _AGAIN)

    def _descriptor(self, folder: ImageFolder, descriptor: Descriptor) -> Iterator[Finding]:
        blob = self._name(descriptor.digest)
        self._seen.add(descriptor.digest)
        try:
            if descriptor.media_type == INDEX_TYPE:
                yield from self._index(folder, descriptor)
            elif descriptor.media_type == MANIFEST_TYPE:
                yield from self._manifest(folder, descriptor, folder.manifest(descriptor))
            else:
                yield _error(PublishRule.IMAGE, blob, f"{descriptor.media_type}, expected an index or a manifest")
        except VbuildError as error:
            yield _error(PublishRule.BLOB, blob, str(error))

    def _index(self, folder: ImageFolder, descriptor: Descriptor) -> Iterator[Finding]:
        images, annotations = folder.index(descriptor)
        blob = self._name(descriptor.digest)
        for image in images:
            yield from self._descriptor(folder, image)
        for architecture in dict.fromkeys(image.platform.architecture for image in images if image.platform):
            variants = [image for image in images if image.platform and image.platform.architecture == architecture]
            # clients may take the first that fits
            plain = [image for image in variants if _is_plain(image)]
            if not plain:
                fault = f"has no image for plain {architecture}"
                yield _error(PublishRule.PLAIN, blob, fault, "publish the plain wheel as well")
            elif variants[0] is not plain[0]:
                yield _error(PublishRule.PLAIN, blob, f"does not list the image for plain {architecture} first")
            layers = [{layer.digest for layer in folder.manifest(image).layers} for image in variants]
            if len(layers) > 1 and not set.intersection(*layers):
                fault = f"its images of {architecture} have no layer in common"
                advice = "lay wheels of one release out together"
                yield Finding(Severity.WARNING, PublishRule.IMAGE, (blob,), fault, advice)
        yield from _undocumented(blob, images, annotations)

    def _manifest(self, folder: ImageFolder, descriptor: Descriptor, manifest: Manifest) -> Iterator[Finding]:
        blob = self._name(descriptor.digest)
        self._seen |= {manifest.config.digest, *(layer.digest for layer in manifest.layers)}
        if manifest.subject:
            self._seen.add(manifest.subject.digest)
            folder.check(manifest.subject)
            folder.check(manifest.config)
            for layer in manifest.layers:
                folder.check(layer)
            return
        config = folder.config(manifest.config)
        digests = config["rootfs"]["diff_ids"]
        if len(digests) != len(manifest.layers):
            yield _error(PublishRule.IMAGE, blob, f"{len(manifest.layers)} layers and {len(digests)} diff_ids")
        for layer, expected in zip(manifest.layers, digests, strict=False):
            if wrong := self._layer(folder, layer, expected):
                yield _error(PublishRule.BLOB, self._name(layer.digest), wrong)
        platform, listed = OciPlatform.of_config(config), descriptor.platform
        # an image may be listed as what it is, or as less
        if listed and listed not in {platform, OciPlatform(platform.architecture, None, platform.os)}:
            yield _error(PublishRule.IMAGE, blob, f"is listed as {listed}, and its config says {platform}")
        labels = dict((config.get("config") or {}).get("Labels") or {})
        annotations = dict(descriptor.annotations)
        for name in (PROPERTIES, LABEL) if descriptor.variant else ():
            if labels.get(name) != annotations[name]:
                label = repr(labels[name]) if name in labels else "nothing"
                fault = f"{name} is {annotations[name]!r} in the index, {label} in the config"
                yield _error(PublishRule.LABELS, blob, fault)

    def _layer(self, folder: ImageFolder, layer: Descriptor, expected: str) -> str | None:
        """What is wrong with *layer*, whose uncompressed SHA-256 should be *expected*."""
        key = f"{layer.digest} {expected}"
        if key not in self._sound:
            folder.check(layer)
            actual = expected
            if layer.media_type in LAYER_TYPES:
                try:
                    with uncompressed(folder.blob(layer), layer.media_type) as file:
                        actual = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
                except RepackageError:
                    actual = "damaged"
            is_sound = actual == expected
            self._sound[key] = None if is_sound else f"uncompressed it is {actual}, and the config says {expected}"
        return self._sound[key]

    def _name(self, digest: str) -> str:
        return f"{self._path.name}/blobs/{digest.replace(':', '/')[:19]}"


def _is_plain(image: Descriptor) -> bool:
    """Whether every machine of its architecture can run *image*, as far as the index says."""
    cpu = image.platform.cpu if image.platform else None
    _, properties = image.variant or ("", [])
    return cpu is not None and cpu.is_baseline and all(line.endswith((":: v1", ":: 8a")) for line in properties)


def _undocumented(blob: str, images: Sequence[Descriptor], index_annotations: Mapping[str, str]) -> Iterator[Finding]:
    """The variants of *images* that the index's variants.json does not list, or that are invalid."""
    for image in images:
        if not image.variant:
            continue
        label, properties = image.variant
        try:
            variant = Variant.of(label, map(Property.parse, properties))
            text = index_annotations.get(DOCUMENT)
            if text and variant not in Document.parse(text.encode()).variants:
                fault = f"its variants.json does not list {label!r} with these properties"
                yield _error(PublishRule.VARIANT, blob, fault)
        except VbuildError as error:
            yield _error(PublishRule.VARIANT, blob, f"{label}: {error}")


def _error(rule: PublishRule, blob: str, fault: str, advice: str = _AGAIN) -> Finding:
    return Finding(Severity.ERROR, rule, (blob,), fault, advice)
