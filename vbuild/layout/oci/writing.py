"""Write images as an OCI image layout: blobs under their digests, and the index that names them.

    layers, all cores      blobs/sha256/<hex>     each once, however many images have it
    image                  config -> manifest     and what refers to it: manifests with it as subject, and their index
    family                 index                  listed in index.json under the family's name; each image under its own

Blobs of a base are the plan's to link. JSON is compact, in the order of the specification, the same bytes every time.
https://github.com/opencontainers/image-spec/blob/main/config.md
https://github.com/opencontainers/image-spec/blob/main/manifest.md
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vbuild.hardware.cpu import available_cores
from vbuild.layout.oci.layers import Written, write_layer
from vbuild.layout.oci.model import (
    CONFIG_TYPE,
    EMPTY_TYPE,
    INDEX_TYPE,
    MANIFEST_TYPE,
    REF_NAME,
    REFERRERS,
    Artifact,
    Descriptor,
    Family,
    Image,
    Images,
)
from vbuild.layout.oci.reading import digest_of

# a place for everything else, where an image brings none of its own
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SEARCH = "PYTHONPATH="
_BASE_DIGEST = "org.opencontainers.image.base.digest"


def write_images(images: Images, folder: Path) -> None:
    """Write *images* into *folder*, all but the blobs of their bases; `VbuildError` where a wheel is damaged."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(available_cores()) as executor:
        layers = list(executor.map(lambda layer: write_layer(layer, blobs, moment=images.moment), images.layers))
    writer = _Writer(images, blobs, layers)
    named = [descriptor for family in images.families for descriptor in writer.family(family)]
    index = _packed({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [one.data() for one in named]})
    (folder / "oci-layout").write_bytes(_packed({"imageLayoutVersion": "1.0.0"}))
    (folder / "index.json").write_bytes(index)


class _Writer:
    """Puts the small blobs of *images*, whose *layers* are written, into the folder *blobs*."""

    def __init__(self, images: Images, blobs: Path, layers: Sequence[Written]) -> None:
        self._images = images
        self._blobs = blobs
        self._layers = layers
        self._created = datetime.fromtimestamp(images.moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def family(self, family: Family) -> list[Descriptor]:
        """What index.json is to name: the family's index, its images, and the indexes of what refers to them."""
        listed, referring = [], []
        for image in family.images:
            manifest = self._image(image)
            listed.append(replace(manifest, platform=image.listed, annotations=image.said))
            if image.artifacts:
                referring.append(self._referrers(image, manifest))
        index = self._json(
            INDEX_TYPE,
            {
                "schemaVersion": 2,
                "mediaType": INDEX_TYPE,
                "manifests": [image.data() for image in listed],
                "annotations": dict((*self._images.said, *family.said)),
            },
        )
        named = [
            replace(manifest, annotations=((REF_NAME, image.ref), *manifest.annotations))
            for manifest, image in zip(listed, family.images, strict=True)
        ]
        return [replace(index, annotations=((REF_NAME, family.ref),)), *named, *referring]

    def _image(self, image: Image) -> Descriptor:
        layers = [self._layers[place] for place in image.layers]
        below = image.base.layers if image.base else ()
        said = dict((*self._images.said, *image.said))
        base = {_BASE_DIGEST: image.base.digest} if image.base else {}
        config = self._json(CONFIG_TYPE, self._config(image, layers, said))
        return self._json(
            MANIFEST_TYPE,
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": config.data(),
                "layers": [*(layer.data() for layer in below), *(layer.descriptor.data() for layer in layers)],
                "annotations": {**said, **base},
            },
        )

    def _config(self, image: Image, layers: Sequence[Written], said: Mapping[str, str]) -> dict[str, Any]:
        below: dict[str, Any] = json.loads(image.base.config) if image.base else {}
        settings = dict(below.get("config") or {})
        settings["Env"] = _environment(settings.get("Env") or [], image.search)
        settings["Labels"] = {**(settings.get("Labels") or {}), **said}
        history = [
            {"created": self._created, "created_by": "vbuild publish", "comment": self._images.layers[place].what}
            for place in image.layers
        ]
        return {
            **{key: value for key, value in below.items() if key not in {"variant", "id", "parent", "container"}},
            "created": self._created,
            **image.platform.data(),
            "config": settings,
            "rootfs": {
                "type": "layers",
                "diff_ids": [*below.get("rootfs", {}).get("diff_ids", ()), *(layer.diff_id for layer in layers)],
            },
            "history": [*(below.get("history") or ()), *history],
        }

    def _referrers(self, image: Image, subject: Descriptor) -> Descriptor:
        """The index of what refers to *image*, the manifest *subject*, as a registry without an API for it has it.

        https://github.com/opencontainers/distribution-spec/blob/main/spec.md#referrers-tag-schema
        """
        attached = [self._attached(artifact, subject).data() for artifact in image.artifacts]
        index = self._json(INDEX_TYPE, {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": attached})
        said = ((REF_NAME, f"{image.ref}{REFERRERS}"),)
        return replace(index, annotations=said, artifact_type=image.artifacts[0].artifact_type)

    def _attached(self, artifact: Artifact, subject: Descriptor) -> Descriptor:
        """A manifest that says of *subject* what *artifact* holds (image-spec, guidelines for artifact usage)."""
        manifest = self._json(
            MANIFEST_TYPE,
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "artifactType": artifact.artifact_type,
                "config": self._blob(EMPTY_TYPE, b"{}").data(),
                "layers": [self._blob(artifact.media_type, artifact.data).data()],
                "subject": subject.data(),
            },
        )
        return replace(manifest, artifact_type=artifact.artifact_type)

    def _json(self, media_type: str, values: Mapping[str, Any]) -> Descriptor:
        return self._blob(media_type, _packed(values))

    def _blob(self, media_type: str, data: bytes) -> Descriptor:
        digest = digest_of(data)
        if not (target := self._blobs / digest.removeprefix("sha256:")).exists():
            target.write_bytes(data)
        return Descriptor(media_type, digest, len(data))


def _environment(below: Sequence[str], search: str) -> list[str]:
    """The variables of an image over one with those *below*, where Python searches the folder *search* first."""
    kept = [line for line in below if not line.startswith(_SEARCH)]
    if not any(line.startswith("PATH=") for line in kept):
        kept.append(_PATH)
    before = (part for line in below if line.startswith(_SEARCH) for part in line.removeprefix(_SEARCH).split(":"))
    return [*kept, _SEARCH + ":".join(dict.fromkeys((search, *filter(None, before))))]


def _packed(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()
