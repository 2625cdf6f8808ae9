"""Container images as values, and OCI image layouts on disk, whichever tool made them.

    Images (a folder of blobs)
        Family   cp311            what an index is made of: one image for each variant
            Image    cp311-x86_64_v3  layers of its base, then of files that the family shares, then its own

    oci-layout            {"imageLayoutVersion": "1.0.0"}
    index.json            names -> manifests, or indexes of them
    blobs/sha256/<hex>    manifests, indexes, configs, layers

The size and digest of a blob are checked before it is read. Platforms are spelled as in Go: ``amd64`` with the x86-64
level as variant, ``arm64`` with the Arm version; no variant means the baseline.

Layers are written on all cores, each blob once, however many images have it: tar archives that reuse the compressed
bytes of wheels.

    tar headers, padding, small files   deflated, gathered into gzip members of about 1 MiB
    a large member of a wheel           a gzip member of its own, around the member's deflate stream as it is

A gzip file is any number of members in a row (RFC 1952, 2.2). Everything is inflated once on the way, compared with
RECORD, and hashed for the diff_id. The same files give the same bytes: no clock, no user, no owner.
https://github.com/opencontainers/image-spec/blob/main/image-index.md
https://github.com/opencontainers/image-spec/blob/main/image-layout.md
https://github.com/opencontainers/image-spec/blob/main/config.md
https://github.com/opencontainers/image-spec/blob/main/manifest.md
https://github.com/opencontainers/image-spec/blob/main/layer.md
"""

import gzip
import hashlib
import io
import json
import re
import secrets
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Self

from deflate import gzip_compress
from msgspec import Struct
from msgspec.structs import replace

from vbuild.config.table import Table
from vbuild.errors import HardwareError, RecipeError, RepackageError, at
from vbuild.files import zstd
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import json_object, open_file, read_file
from vbuild.files.records import Buffer
from vbuild.hardware.cpu import Cpu, available_cores
from vbuild.wheel.archive import SharedWheels, Wheel, feed
from vbuild.wheel.metadata import unpadded
from vbuild.wheel.zip_read import ZipMethod

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


def folder_and_name(path: Path) -> tuple[Path, str | None]:
    """The folder of *path*, and the name behind a colon, ``DIR:name``, or None.

    Names have colons as well, ``DIR:python:3.11``: the shortest folder that exists counts, else the first colon.
    """
    text = str(path)
    if path.is_dir() or ":" not in text:
        return path, None
    pairs = [(Path(text[: colon.start()]), text[colon.end() :]) for colon in re.finditer(":", text)]
    return next((pair for pair in pairs if pair[0].is_dir()), pairs[0])


def ref_of(descriptor: Descriptor) -> str | None:
    return dict(descriptor.annotations).get(REF_NAME)


@contextmanager
def _reading(layout: str) -> Iterator[None]:
    with at(layout):
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


_LEVEL = 6
_GATHERED = 1 << 20
# bytes: smaller ones deflate better together with their neighbours, and cost nothing
_ALONE = 1 << 15
# deflate, no name, no time, no system (RFC 1952, 2.3)
_GZIP_HEADER = bytes.fromhex("1f8b08000000000000ff")
_GZIP_END = struct.Struct("<II")
_BLOCK = 512
_FOLDER_MODE = 0o755


class WrittenBlob(Struct, frozen=True):
    descriptor: Descriptor
    diff_id: str


def write_layer(layer: Layer, blobs: Path, *, moment: int, wheels: SharedWheels) -> WrittenBlob:
    """Write *layer*, all its files as of *moment*, into the folder *blobs* under its SHA-256."""
    # folders stand before what is in them
    entries: dict[str, File | None] = {}
    for file in layer.files:
        entries |= {str(folder): None for folder in PurePosixPath(file.path).parents[:-1]}
    entries |= {file.path: file for file in layer.files}
    part = blobs / f".{secrets.token_hex(8)}.part"
    with part.open("xb") as opened, ExitStack() as stack:
        gzip, tar = GzipMembers(opened), hashlib.sha256()
        opened_wheels: dict[Path, Wheel] = {}
        for path, entry in sorted(entries.items(), key=lambda item: item[0].split("/")):
            _add(_header(path, entry, moment), gzip, tar)
            if isinstance(entry, MemberFile):
                if entry.wheel not in opened_wheels:
                    opened_wheels[entry.wheel] = stack.enter_context(wheels.open(entry.wheel))
                _take(opened_wheels[entry.wheel], entry, gzip, tar)
            elif entry:
                _add(entry.data, gzip, tar)
            if entry:
                _add(bytes(-entry.size % _BLOCK), gzip, tar)
        _add(bytes(2 * _BLOCK), gzip, tar)
        gzip.flush()
    digest = gzip.digest.hexdigest()
    if (blobs / digest).exists():  # perhaps a link: another layer is the same, or one of a base
        part.unlink()
    else:
        part.replace(blobs / digest)
    descriptor = Descriptor(GZIP_TYPE, f"sha256:{digest}", (blobs / digest).stat().st_size)
    return WrittenBlob(descriptor, f"sha256:{tar.hexdigest()}")


def _header(path: str, file: File | None, moment: int) -> bytes:
    """The header of *file*, or of the folder at *path*: PAX records only where ustar has no room."""
    info = tarfile.TarInfo(path)
    info.mtime = moment
    if file:
        info.size, info.mode = file.size, file.mode
    else:
        info.type, info.mode = tarfile.DIRTYPE, _FOLDER_MODE
    return info.tobuf(tarfile.PAX_FORMAT)


def _add(data: bytes, gzip: "GzipMembers", tar: "hashlib._Hash") -> None:
    tar.update(data)
    gzip.add(data)


def _take(wheel: Wheel, file: MemberFile, gzip: "GzipMembers", tar: "hashlib._Hash") -> None:
    member = wheel.find(file.member)
    with at(wheel.path.name), at(file.member):
        if member is None or member.size != file.size:
            raise RepackageError(
                "is not what it was when this was planned; leave wheels alone while they are published"
            )
    is_alone = member.header.method == ZipMethod.DEFLATED and member.compressed_size >= _ALONE
    for chunk in feed(tar.update, wheel.chunks(member), in_thread=is_alone):
        if not is_alone:
            gzip.add(chunk)
    if is_alone:
        raw = wheel.source.raw(member)
        gzip.add_deflated(raw, crc=member.header.crc, size=member.size)


class GzipMembers:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._gathered = bytearray()
        self.digest = hashlib.sha256()

    def add(self, data: Buffer) -> None:
        self._gathered += data
        if len(self._gathered) >= _GATHERED:
            self.flush()

    def add_deflated(self, chunks: Iterable[bytes], *, crc: int, size: int) -> None:
        """Append a member of the deflate stream in *chunks*, which inflates to *size* bytes with that CRC-32."""
        self.flush()
        self._write(_GZIP_HEADER)
        for chunk in chunks:
            self._write(chunk)
        self._write(_GZIP_END.pack(crc, size & 0xFFFFFFFF))

    def flush(self) -> None:
        if self._gathered:
            self._write(bytes(gzip_compress(self._gathered, _LEVEL)))
            self._gathered.clear()

    def _write(self, data: bytes) -> None:
        self.digest.update(data)
        self._file.write(data)


# a place for everything else, where an image brings none of its own
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SEARCH = "PYTHONPATH="
_BASE_DIGEST = "org.opencontainers.image.base.digest"


class Images(Struct, frozen=True):
    """An OCI image layout whose index is *target*; *moment* is in seconds since 1970."""

    target: PurePosixPath
    layers: tuple[Layer, ...]
    families: tuple[ImageFamily, ...]
    annotations: tuple[tuple[str, str], ...]
    moment: int

    @property
    def files(self) -> tuple[PurePosixPath, ...]:
        return ()

    def write(self, folder: Path, *, wheels: SharedWheels) -> None:
        layout = (folder / self.target).parent
        blobs = layout / "blobs" / "sha256"
        blobs.mkdir(parents=True, exist_ok=True)
        write = partial(write_layer, blobs=blobs, moment=self.moment, wheels=wheels)
        with ThreadPoolExecutor(available_cores()) as executor:
            layers = list(executor.map(write, self.layers))
        writer = _Writer(self, blobs, layers)
        manifests = [descriptor for family in self.families for descriptor in writer.family(family)]
        index = packed_json(
            {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [descriptor.data() for descriptor in manifests]}
        )
        (layout / "oci-layout").write_bytes(packed_json({"imageLayoutVersion": "1.0.0"}))
        (layout / "index.json").write_bytes(index)


class _Writer:
    def __init__(self, images: Images, blobs: Path, layers: Sequence[WrittenBlob]) -> None:
        self._images = images
        self._blobs = blobs
        self._layers = layers
        self._created = datetime.fromtimestamp(images.moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def family(self, family: ImageFamily) -> list[Descriptor]:
        """The entries of index.json: the family's index and its images."""
        listed = [
            replace(self._image(image), platform=image.listed, annotations=image.annotations) for image in family.images
        ]
        index = self._json(
            INDEX_TYPE,
            {
                "schemaVersion": 2,
                "mediaType": INDEX_TYPE,
                "manifests": [image.data() for image in listed],
                "annotations": dict((*self._images.annotations, *family.annotations)),
            },
        )
        with_names = [
            replace(manifest, annotations=((REF_NAME, image.ref), *manifest.annotations))
            for manifest, image in zip(listed, family.images, strict=True)
        ]
        return [replace(index, annotations=((REF_NAME, family.ref),)), *with_names]

    def _image(self, image: OciImage) -> Descriptor:
        layers = [self._layers[number] for number in image.layers]
        below = image.base.layers if image.base else ()
        annotations = dict((*self._images.annotations, *image.annotations))
        base = {_BASE_DIGEST: image.base.digest} if image.base else {}
        config = self._json(CONFIG_TYPE, self._config(image, layers, annotations))
        return self._json(
            MANIFEST_TYPE,
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": config.data(),
                "layers": [*(layer.data() for layer in below), *(layer.descriptor.data() for layer in layers)],
                "annotations": {**annotations, **base},
            },
        )

    def _config(self, image: OciImage, layers: Sequence[WrittenBlob], annotations: Mapping[str, str]) -> dict[str, Any]:
        below: dict[str, Any] = json.loads(image.base.config) if image.base else {}
        settings = dict(below.get("config") or {})
        settings["Env"] = _environment(settings.get("Env") or [], image.search)
        settings["Labels"] = {**(settings.get("Labels") or {}), **annotations}
        history = [
            {"created": self._created, "created_by": "vbuild publish", "comment": self._images.layers[number].what}
            for number in image.layers
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

    def _json(self, media_type: str, values: Mapping[str, Any]) -> Descriptor:
        data = packed_json(values)
        return Descriptor(media_type, write_blob(self._blobs, data), len(data))


def _environment(below: Sequence[str], search: str) -> list[str]:
    """The variables of an image over one with those *below*; Python searches the folder *search* first."""
    variables = [line for line in below if not line.startswith(_SEARCH)]
    if not any(line.startswith("PATH=") for line in variables):
        variables.append(_PATH)
    before = (part for line in below if line.startswith(_SEARCH) for part in line.removeprefix(_SEARCH).split(":"))
    return [*variables, _SEARCH + ":".join(dict.fromkeys((search, *filter(None, before))))]


def write_blob(blobs: Path, data: bytes) -> str:
    sha256 = hashlib.sha256(data).hexdigest()
    if not (blobs / sha256).exists():
        (blobs / sha256).write_bytes(data)
    return f"sha256:{sha256}"


def packed_json(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()
