"""Read a folder that is an OCI image layout, whichever tool made it.

    oci-layout            {"imageLayoutVersion": "1.0.0"}
    index.json            names -> manifests, or indexes of them
    blobs/sha256/<hex>    manifests, indexes, configs, layers

The size and digest of a blob are checked before it is read.
https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from msgspec import Struct

from vbuild.config.table import Table
from vbuild.errors import RecipeError, RepackageError, at
from vbuild.files.hashing import sha256_of
from vbuild.files.json_text import json_object
from vbuild.publishing.oci.model import INDEX_TYPE, MANIFEST_TYPE, REF_NAME, Descriptor, OciPlatform

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_VERSION = "1.0.0"
# bytes of a manifest, an index or a config, as registries take them
_LARGEST = 1 << 22


class Manifest(Struct, frozen=True):
    """What an image consists of: its config, its layers from the lowest, and what is said of it."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    annotations: Mapping[str, str]
    subject: Descriptor | None


class ImageFolder(Struct, frozen=True):
    """An image layout in the folder *path*, and what its index.json names."""

    path: Path
    manifests: tuple[Descriptor, ...]

    @classmethod
    def of(cls, path: Path) -> Self:
        """The image layout at *path*; `RepackageError` if there is none, or a newer kind."""
        if not (path / "oci-layout").is_file():
            raise RepackageError(
                f"{path}: no OCI image layout; expected a folder with oci-layout, index.json and blobs"
            )
        with at(path):
            with _reading("oci-layout"):
                version = Table(json_object(_file(path / "oci-layout"), RepackageError)).text("imageLayoutVersion")
                if version != _VERSION:
                    raise RepackageError(f"imageLayoutVersion {version!r}; only {_VERSION} is known")
            with _reading("index.json"):
                return cls(path, _manifests(Table(json_object(_file(path / "index.json"), RepackageError))))

    @property
    def refs(self) -> tuple[str, ...]:
        """The names in its index.json, in order."""
        return tuple(name for name in map(ref_of, self.manifests) if name)

    def named(self, ref: str | None) -> Descriptor:
        """What index.json calls *ref*, or the one thing it has; `RepackageError` if that is not one."""
        if ref is None:
            found = self.manifests
            expected = "one image, or its name behind a colon"
        else:
            found = tuple(manifest for manifest in self.manifests if ref_of(manifest) == ref)
            expected = f"{ref!r}"
        if len(found) != 1:
            there = ", ".join(self.refs) or f"{len(self.manifests)} images without names"
            raise RepackageError(f"{self.path}: has {there}; expected {expected}")
        return found[0]

    def blob(self, descriptor: Descriptor) -> Path:
        """Where the blob lies that *descriptor* names."""
        return self.path / "blobs" / descriptor.digest.replace(":", "/")

    def check(self, descriptor: Descriptor) -> None:
        """`RepackageError` unless the blob is there, with the size and digest that *descriptor* says."""
        blob = self.blob(descriptor)
        with at(self.path), at(descriptor.digest):
            if not blob.is_file():
                raise RepackageError("no such blob; the layout is incomplete: copy it again")
            if (size := blob.stat().st_size) != descriptor.size:
                raise RepackageError(f"{size} bytes, expected {descriptor.size}: the blob is damaged, copy it again")
            if f"sha256:{sha256_of(blob)}" != descriptor.digest:
                raise RepackageError("its SHA-256 is another: the blob is damaged, copy it again")

    def read(self, descriptor: Descriptor) -> bytes:
        """The small blob, a manifest, index or config, that *descriptor* names, checked."""
        if descriptor.size > _LARGEST:
            raise RepackageError(
                f"{self.path}: {descriptor.digest}: {descriptor.size} bytes of JSON, {_LARGEST} at most"
            )
        self.check(descriptor)
        return self.blob(descriptor).read_bytes()

    def index(self, descriptor: Descriptor) -> tuple[tuple[Descriptor, ...], Mapping[str, str]]:
        """What the index that *descriptor* names lists, and its annotations."""
        with self._parsed(descriptor) as values:
            table = Table(values)
            return _manifests(table), dict(table.pairs("annotations"))

    def manifest(self, descriptor: Descriptor) -> Manifest:
        """The manifest that *descriptor* names; `RepackageError` if it is none of the OCI's."""
        if descriptor.media_type != MANIFEST_TYPE:
            raise RepackageError(f"{self.path}: {descriptor.digest}: {descriptor.media_type}; expected {MANIFEST_TYPE}")
        with self._parsed(descriptor) as values:
            table = Table(values)
            return Manifest(
                _descriptor(table.handed("config")),
                tuple(map(_descriptor, table.tables("layers"))),
                dict(table.pairs("annotations")),
                _descriptor(table.handed("subject")) if "subject" in table else None,
            )

    def config(self, descriptor: Descriptor) -> dict[str, Any]:
        """The config that *descriptor* names, as JSON has it; what vbuild reads of it has the right types."""
        with self._parsed(descriptor) as values:
            _check_config(Table(values))
            return values

    @contextmanager
    def _parsed(self, descriptor: Descriptor) -> Iterator[dict[str, Any]]:
        """The JSON object that *descriptor* names; what is wrong with it is told with its digest."""
        data = self.read(descriptor)
        with at(self.path), _reading(descriptor.digest):
            yield json_object(data, RepackageError)

    def images(self, descriptor: Descriptor) -> tuple[tuple[Descriptor, ...], Mapping[str, str]]:
        """The images behind *descriptor*, with platforms, and the annotations of their index.

        Manifests in an index without a platform, or of an unknown one (attestations), are not images.
        """
        if descriptor.media_type == INDEX_TYPE:
            listed, annotations = self.index(descriptor)
            return tuple(image for image in listed if _is_image(image)), annotations
        if descriptor.platform:
            return (descriptor,), {}
        config = self.config(self.manifest(descriptor).config)
        platform = OciPlatform(config["architecture"], config.get("variant"), config["os"])
        found = Descriptor(descriptor.media_type, descriptor.digest, descriptor.size, platform, descriptor.annotations)
        return (found,), {}


def placed(place: Path) -> tuple[Path, str | None]:
    """The folder that *place* is, and the name behind a colon: ``DIR:name``, or None if there is none.

    Names have colons as well, ``DIR:python:3.11``: the shortest folder that is there counts, else the first colon.
    """
    text = str(place)
    if place.is_dir() or ":" not in text:
        return place, None
    pairs = [(Path(text[: colon.start()]), text[colon.end() :]) for colon in re.finditer(":", text)]
    return next((pair for pair in pairs if pair[0].is_dir()), pairs[0])


def ref_of(descriptor: Descriptor) -> str | None:
    """The name that index.json gives what *descriptor* names."""
    return dict(descriptor.annotations).get(REF_NAME)


def _is_image(descriptor: Descriptor) -> bool:
    platform = descriptor.platform
    return descriptor.media_type == MANIFEST_TYPE and platform is not None and platform.architecture != "unknown"


@contextmanager
def _reading(place: str) -> Iterator[None]:
    """Put *place* in front of what is wrong inside, a `RepackageError`."""
    with at(place):
        try:
            yield
        except RecipeError as error:
            raise RepackageError(str(error)) from error


def _check_config(values: Table) -> None:
    """`RecipeError` if what vbuild reads of a config is not of the type that it should be."""
    values.text("architecture")
    values.text("os")
    values.optional_text("variant")
    values.handed("rootfs").texts("diff_ids")
    if values.raw("history") is not None:
        values.tables("history")
    settings = values.handed("config") if values.raw("config") is not None else Table({})
    settings.texts("Env", ())
    if settings.raw("Labels") is not None:
        settings.pairs("Labels")


def _manifests(values: Table) -> tuple[Descriptor, ...]:
    return tuple(map(_descriptor, values.tables("manifests")))


def _descriptor(values: Table) -> Descriptor:
    digest = values.text("digest")
    if not _DIGEST.fullmatch(digest):
        raise values.refuse("digest", f"{digest!r}; expected sha256: and 64 hexadecimal digits")
    return Descriptor(
        values.text("mediaType"),
        digest,
        values.number("size"),
        _platform(values.handed("platform")) if "platform" in values else None,
        values.pairs("annotations"),
        values.optional_text("artifactType"),
    )


def _platform(values: Table) -> OciPlatform:
    return OciPlatform(values.text("architecture"), values.optional_text("variant") or None, values.text("os"))


def _file(path: Path) -> bytes:
    try:
        if (size := path.stat().st_size) > _LARGEST:
            raise RepackageError(f"{size} bytes of JSON, {_LARGEST} at most")
        return path.read_bytes()
    except OSError as error:
        raise RepackageError(f"cannot be read: {error.strerror}") from error


def digest_of(data: bytes) -> str:
    """The digest of *data* as descriptors write it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
