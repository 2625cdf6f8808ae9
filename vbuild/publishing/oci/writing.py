"""Write images as an OCI image layout: layers, configs, manifests, and the index that names them.

    layers, all cores      blobs/sha256/<hex>     each once, however many images have it
    image                  config -> manifest
    family                 index                  in index.json under the family's name; each image under its own

Layers are tar archives that reuse the compressed bytes of wheels:

    tar headers, padding, small files   deflated, gathered into gzip members of about 1 MiB
    a large member of a wheel           a gzip member of its own, around the member's deflate stream as it is

A gzip file is any number of members in a row (RFC 1952, 2.2). Everything is inflated once on the way, compared with
RECORD, and hashed for the diff_id. The same files give the same bytes: no clock, no user, no owner.
https://github.com/opencontainers/image-spec/blob/main/config.md
https://github.com/opencontainers/image-spec/blob/main/manifest.md
https://github.com/opencontainers/image-spec/blob/main/layer.md
"""

import hashlib
import json
import secrets
import struct
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from deflate import gzip_compress
from msgspec import Struct
from msgspec.structs import replace

from vbuild.errors import RepackageError, at
from vbuild.files.hashing import Digests
from vbuild.files.records import Buffer
from vbuild.hardware.cpu import available_cores
from vbuild.publishing.oci.model import (
    CONFIG_TYPE,
    GZIP_TYPE,
    INDEX_TYPE,
    MANIFEST_TYPE,
    REF_NAME,
    Descriptor,
    File,
    ImageFamily,
    Layer,
    MemberFile,
    OciImage,
)
from vbuild.wheel.archive import SharedWheels, Wheel, feed
from vbuild.wheel.zip_read import ZipMethod

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
        raw = wheel.source.raw(wheel.source.data_offset(member), member.compressed_size)
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

    def write(self, folder: Path, *, digests: Digests, wheels: SharedWheels) -> None:  # noqa: ARG002 - as all are
        layout = (folder / self.target).parent
        blobs = layout / "blobs" / "sha256"
        blobs.mkdir(parents=True, exist_ok=True)
        write = partial(write_layer, blobs=blobs, moment=self.moment, wheels=wheels)
        with ThreadPoolExecutor(available_cores()) as executor:
            layers = list(executor.map(write, self.layers))
        writer = _Writer(self, blobs, layers)
        named = [descriptor for family in self.families for descriptor in writer.family(family)]
        index = packed_json(
            {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [descriptor.data() for descriptor in named]}
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
        named = [
            replace(manifest, annotations=((REF_NAME, image.ref), *manifest.annotations))
            for manifest, image in zip(listed, family.images, strict=True)
        ]
        return [replace(index, annotations=((REF_NAME, family.ref),)), *named]

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
