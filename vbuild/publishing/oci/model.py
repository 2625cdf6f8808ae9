"""Container images as values, and OCI image layouts on disk, whichever tool made them.

    Images (a folder of blobs)
        Family   cp311            what an index is made of: one image for each variant
            Image    cp311-x86_64_v3  layers of its base, then of files that the family shares, then its own

    oci-layout            {"imageLayoutVersion": "1.0.0"}
    index.json            names -> manifests, or indexes of them
    blobs/sha256/<hex>    manifests, indexes, configs, layers

The size and digest of a blob are checked before it is read. Platforms are spelled as in Go: ``amd64`` with the x86-64
level as variant, ``arm64`` with the Arm version; no variant means the baseline.
https://github.com/opencontainers/image-spec/blob/main/image-index.md
https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

import gzip
import hashlib
import io
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.config.table import Table
from vbuild.errors import HardwareError, RecipeError, RepackageError, at
from vbuild.files import zstd
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import json_object, open_file, read_file
from vbuild.hardware.cpu import Cpu
from vbuild.wheel.metadata import unpadded

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
GZIP_TYPE, ZSTD_TYPE = f"{LAYER_TYPE}+gzip", f"{LAYER_TYPE}+zstd"
LAYER_TYPES = (LAYER_TYPE, GZIP_TYPE, ZSTD_TYPE)
# in a layer an entry of this name hides one of a layer below (image-spec, layer.md)
WHITEOUT = ".wh."
REF_NAME = "org.opencontainers.image.ref.name"

# annotations of an image, also labels of its config: a variant's properties, a line each, and its label
PROPERTIES, LABEL = "dev.wheelnext.variant.properties", "dev.wheelnext.variant.label"
# annotation of an index: the variants.json of its images
DOCUMENT = "dev.wheelnext.variant.document"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_MACHINES = {architecture: machine for machine, architecture in _ARCHITECTURES.items()}
_ARM = re.compile(r"v(?P<major>[89])(?:\.(?P<minor>\d))?")


class OciPlatform(Struct, frozen=True):
    architecture: str
    variant: str | None = None
    os: str = "linux"

    @classmethod
    def of(cls, cpu: Cpu) -> Self:
        """The platform of *cpu*; baselines have no variant, so that clients that ask for none find them."""
        variant = cpu.level if cpu.machine == "x86_64" else f"v{cpu.level.removesuffix('a').removesuffix('.0')}"
        return cls(_ARCHITECTURES[cpu.machine], None if cpu.is_baseline else variant)

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Self:
        return cls(config["architecture"], config.get("variant"), config["os"])

    @property
    def cpu(self) -> Cpu | None:
        """The processors it is for, or None if vbuild does not know them."""
        machine = _MACHINES.get(self.architecture)
        if machine == "aarch64":
            if not (match := _ARM.fullmatch(self.variant or "v8")):
                return None
            major, minor = match["major"], match["minor"] or "0"
            level = f"{major}.{minor}a" if (major, minor) != ("8", "0") else "8a"
        else:
            level = self.variant or "v1"
        try:
            return Cpu.known(machine, level) if machine else None
        except HardwareError:
            return None

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)

    def data(self) -> dict[str, str]:
        values = {"architecture": self.architecture, "os": self.os}
        return {**values, "variant": self.variant} if self.variant else values


class Descriptor(Struct, frozen=True):
    """Names a blob: digest as ``sha256:…``, size in bytes."""

    media_type: str
    digest: str
    size: int
    platform: OciPlatform | None = None
    annotations: tuple[tuple[str, str], ...] = ()
    artifact_type: str | None = None

    @property
    def variant(self) -> tuple[str, list[str]] | None:
        """The label and properties in its annotations."""
        annotations = dict(self.annotations)
        if LABEL not in annotations or PROPERTIES not in annotations:
            return None
        return annotations[LABEL], annotations[PROPERTIES].splitlines()

    def data(self) -> dict[str, object]:
        values: dict[str, object] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.artifact_type:
            values["artifactType"] = self.artifact_type
        if self.platform:
            values["platform"] = self.platform.data()
        if self.annotations:
            values["annotations"] = dict(self.annotations)
        return values


class MemberFile(Struct, frozen=True):
    path: str
    mode: int
    size: int
    digest: str
    wheel: Path
    member: str


class NewFile(Struct, frozen=True):
    path: str
    mode: int
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def digest(self) -> str:
        return f"sha256={unpadded(hashlib.sha256(self.data).digest())}"


File = MemberFile | NewFile


class Layer(Struct, frozen=True):
    files: tuple[File, ...]
    what: str


class Base(Struct, frozen=True):
    digest: str
    config: bytes
    layers: tuple[Descriptor, ...]


class OciImage(Struct, frozen=True):
    """One image: *layers* are indexes into the folder's, *annotations* its annotations and labels.

    *listed* is the platform in the family's index, *platform* that in its config. Python searches *search*.
    """

    ref: str
    listed: OciPlatform
    platform: OciPlatform
    layers: tuple[int, ...]
    annotations: tuple[tuple[str, str], ...]
    search: str
    base: Base | None = None


class ImageFamily(Struct, frozen=True):
    ref: str
    images: tuple[OciImage, ...]
    annotations: tuple[tuple[str, str], ...]


_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_VERSION = "1.0.0"
# bytes of a manifest, an index or a config, as registries take them
_LARGEST = 1 << 22


class Manifest(Struct, frozen=True):
    config: Descriptor
    layers: tuple[Descriptor, ...]
    annotations: Mapping[str, str]
    subject: Descriptor | None


class ImageFolder(Struct, frozen=True):
    """An image layout; *manifests* is what its index.json names."""

    path: Path
    manifests: tuple[Descriptor, ...]

    @classmethod
    def of(cls, path: Path) -> Self:
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
                index = Table(json_object(_file(path / "index.json"), RepackageError))
                return cls(path, _descriptors(index, "manifests"))

    @property
    def refs(self) -> tuple[str, ...]:
        return tuple(name for name in map(ref_of, self.manifests) if name)

    def named(self, ref: str | None) -> Descriptor:
        manifests = [manifest for manifest in self.manifests if ref in {None, ref_of(manifest)}]
        if len(manifests) != 1:
            names = ", ".join(self.refs) or f"{len(self.manifests)} images without names"
            expected = "one image, or its name behind a colon" if ref is None else f"{ref!r}"
            raise RepackageError(f"{self.path}: has {names}; expected {expected}")
        return manifests[0]

    def blob(self, descriptor: Descriptor) -> Path:
        return self.path / "blobs" / descriptor.digest.replace(":", "/")

    def check(self, descriptor: Descriptor) -> None:
        """`RepackageError` unless the blob exists, with the size and digest that *descriptor* says."""
        blob = self.blob(descriptor)
        with at(self.path), at(descriptor.digest):
            if not blob.is_file():
                raise RepackageError("no such blob; the layout is incomplete: copy it again")
            if (size := blob.stat().st_size) != descriptor.size:
                raise RepackageError(f"{size} bytes, expected {descriptor.size}: the blob is damaged, copy it again")
            if f"sha256:{sha256_of(blob)}" != descriptor.digest:
                raise RepackageError("its SHA-256 is another: the blob is damaged, copy it again")

    def read(self, descriptor: Descriptor) -> bytes:
        if descriptor.size > _LARGEST:
            raise RepackageError(
                f"{self.path}: {descriptor.digest}: {descriptor.size} bytes of JSON, {_LARGEST} at most"
            )
        self.check(descriptor)
        return read_file(self.blob(descriptor))

    def index(self, descriptor: Descriptor) -> tuple[tuple[Descriptor, ...], Mapping[str, str]]:
        with self._parsed(descriptor) as values:
            table = Table(values)
            return _descriptors(table, "manifests"), dict(table.pairs("annotations"))

    def manifest(self, descriptor: Descriptor) -> Manifest:
        if descriptor.media_type != MANIFEST_TYPE:
            raise RepackageError(f"{self.path}: {descriptor.digest}: {descriptor.media_type}; expected {MANIFEST_TYPE}")
        with self._parsed(descriptor) as values:
            table = Table(values)
            return Manifest(
                _descriptor(table.handed("config")),
                _descriptors(table, "layers"),
                dict(table.pairs("annotations")),
                _descriptor(table.handed("subject")) if "subject" in table else None,
            )

    def config(self, descriptor: Descriptor) -> dict[str, Any]:
        """The config that *descriptor* names, with the right types as far as vbuild reads it."""
        with self._parsed(descriptor) as values:
            table = Table(values)
            table.text("architecture")
            table.text("os")
            table.optional_text("variant")
            table.handed("rootfs").texts("diff_ids")
            if table.raw("history") is not None:
                table.tables("history")
            settings = table.handed("config") if table.raw("config") is not None else Table({})
            settings.texts("Env", ())
            if settings.raw("Labels") is not None:
                settings.pairs("Labels")
            return values

    @contextmanager
    def _parsed(self, descriptor: Descriptor) -> Iterator[dict[str, Any]]:
        data = self.read(descriptor)
        with at(self.path), _reading(descriptor.digest):
            yield json_object(data, RepackageError)

    def images(self, descriptor: Descriptor) -> tuple[tuple[Descriptor, ...], Mapping[str, str]]:
        """The images behind *descriptor*, with platforms, and the annotations of their index.

        Manifests in an index without a platform, or of an unknown one (attestations), are not images.
        """
        if descriptor.media_type == INDEX_TYPE:
            entries, annotations = self.index(descriptor)
            manifests = (entry for entry in entries if entry.media_type == MANIFEST_TYPE)
            images = (image for image in manifests if image.platform and image.platform.architecture != "unknown")
            return tuple(images), annotations
        if descriptor.platform:
            return (descriptor,), {}
        config = self.config(self.manifest(descriptor).config)
        return (replace(descriptor, platform=OciPlatform.of_config(config), artifact_type=None),), {}


def folder_and_name(place: Path) -> tuple[Path, str | None]:
    """The folder of *place*, and the name behind a colon, ``DIR:name``, or None.

    Names have colons as well, ``DIR:python:3.11``: the shortest folder that exists counts, else the first colon.
    """
    text = str(place)
    if place.is_dir() or ":" not in text:
        return place, None
    pairs = [(Path(text[: colon.start()]), text[colon.end() :]) for colon in re.finditer(":", text)]
    return next((pair for pair in pairs if pair[0].is_dir()), pairs[0])


def ref_of(descriptor: Descriptor) -> str | None:
    return dict(descriptor.annotations).get(REF_NAME)


@contextmanager
def _reading(place: str) -> Iterator[None]:
    with at(place):
        try:
            yield
        except RecipeError as error:
            raise RepackageError(str(error)) from error


def _descriptors(values: Table, key: str) -> tuple[Descriptor, ...]:
    return tuple(map(_descriptor, values.tables(key)))


def _descriptor(values: Table) -> Descriptor:
    digest = values.text("digest")
    if not _DIGEST.fullmatch(digest):
        raise values.refuse("digest", f"{digest!r}; expected sha256: and 64 hexadecimal digits")
    media_type, size, platform = values.text("mediaType"), values.number("size"), None
    if "platform" in values:
        table = values.handed("platform")
        platform = OciPlatform(table.text("architecture"), table.optional_text("variant") or None, table.text("os"))
    annotations, artifact_type = values.pairs("annotations"), values.optional_text("artifactType")
    return Descriptor(media_type, digest, size, platform, annotations, artifact_type)


def _file(path: Path) -> bytes:
    try:
        if (size := path.stat().st_size) > _LARGEST:
            raise RepackageError(f"{size} bytes of JSON, {_LARGEST} at most")
        return read_file(path)
    except OSError as error:
        raise RepackageError(f"cannot be read: {error.strerror}") from error


@contextmanager
def uncompressed(blob: Path, media_type: str) -> Iterator[io.BufferedIOBase]:
    if media_type not in LAYER_TYPES:
        raise RepackageError(f"a layer of type {media_type}; expected {', '.join(LAYER_TYPES)}")
    with ExitStack() as stack:
        file: Any = stack.enter_context(open_file(blob))
        if media_type == GZIP_TYPE:
            file = stack.enter_context(gzip.open(file))
        elif media_type == ZSTD_TYPE:
            file = stack.enter_context(zstd.reading(file))
        try:
            yield file
        except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, zstd.ZstdError) as error:
            raise RepackageError(f"not a layer that can be read: {error}") from error
