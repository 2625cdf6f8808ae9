"""Container images as values: files in layers, layers in images, images in families, families in one folder.

    Images (a folder of blobs)
        Family   cp311            what an index is made of: one image for each variant
            Image    cp311-x86_64_v3  layers of its base, then of files that the family shares, then its own
        Layer    files, sorted by path

Platforms are spelled as in Go: ``amd64`` with the x86-64 level as variant, ``arm64`` with the Arm version; no variant
means the baseline.
https://github.com/opencontainers/image-spec/blob/main/image-index.md
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Self

from msgspec import Struct

from vbuild.errors import HardwareError
from vbuild.hardware.cpu import Cpu
from vbuild.wheel.metadata import unpadded

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
GZIP_TYPE, ZSTD_TYPE = f"{LAYER_TYPE}+gzip", f"{LAYER_TYPE}+zstd"
REF_NAME = "org.opencontainers.image.ref.name"

# what the name of an image ends with where it is the index of what refers to the image
REFERRERS = ".referrers"
KEY = "dev.wheelnext.variant.properties"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_MACHINES = {architecture: machine for machine, architecture in _ARCHITECTURES.items()}
_ARM = re.compile(r"v(?P<major>[89])(?:\.(?P<minor>\d))?")


class OciPlatform(Struct, frozen=True):
    """What an image is for, as an index says it."""

    architecture: str
    variant: str | None = None
    os: str = "linux"

    @classmethod
    def of(cls, cpu: Cpu) -> Self:
        """The platform of *cpu*; baselines have no variant, so that clients that ask for none find them."""
        return cls(_ARCHITECTURES[cpu.machine], None if cpu.is_baseline else _variant(cpu))

    @property
    def cpu(self) -> Cpu | None:
        """The processors it is for, or None if vbuild knows no such processors."""
        machine = _MACHINES.get(self.architecture)
        if machine is None:
            return None
        try:
            return Cpu.known(machine, self._level(machine))
        except HardwareError:
            return None

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)

    def data(self) -> dict[str, str]:
        """The platform as an index and a config hold it."""
        values = {"architecture": self.architecture, "os": self.os}
        return {**values, "variant": self.variant} if self.variant else values

    def _level(self, machine: str) -> str:
        if machine == "x86_64":
            return self.variant or "v1"
        if not (match := _ARM.fullmatch(self.variant or "v8")):
            return ""
        major, minor = match["major"], match["minor"]
        return f"{major}.{minor or 0}a" if major == "9" or minor not in {None, "0"} else "8a"


def _variant(cpu: Cpu) -> str:
    return cpu.level if cpu.machine == "x86_64" else f"v{cpu.level.removesuffix('a').removesuffix('.0')}"


class Descriptor(Struct, frozen=True):
    """What names a blob: its media type, its digest as ``sha256:…``, its size in bytes, and what is said of it."""

    media_type: str
    digest: str
    size: int
    platform: OciPlatform | None = None
    annotations: tuple[tuple[str, str], ...] = ()
    artifact_type: str | None = None

    def data(self) -> dict[str, object]:
        """The descriptor as manifests and indexes hold it."""
        values: dict[str, object] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.artifact_type:
            values["artifactType"] = self.artifact_type
        if self.platform:
            values["platform"] = self.platform.data()
        if self.annotations:
            values["annotations"] = dict(self.annotations)
        return values


class MemberFile(Struct, frozen=True):
    """The file at *path* of an image that is the member *member* of the wheel at *wheel*.

    *digest* is RECORD's, *size* in bytes, *mode* its permissions.
    """

    path: str
    mode: int
    size: int
    digest: str
    wheel: Path
    member: str


class NewFile(Struct, frozen=True):
    """The file at *path* of an image with new bytes."""

    path: str
    mode: int
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def digest(self) -> str:
        """The hash as RECORD writes it."""
        return f"sha256={unpadded(sha256(self.data).digest())}"


File = MemberFile | NewFile


class Layer(Struct, frozen=True):
    """Files that come and go together, sorted by path; *what* says in a few words which."""

    files: tuple[File, ...]
    what: str


class Base(Struct, frozen=True):
    """The image that another is built on: its manifest's digest, its config as JSON, and its layers."""

    digest: str
    config: bytes
    layers: tuple[Descriptor, ...]


class Artifact(Struct, frozen=True):
    """What is attached to an image: bytes of *media_type* in a manifest of *artifact_type* that names the image."""

    artifact_type: str
    media_type: str
    data: bytes


class OciImage(Struct, frozen=True):
    """One image: *layers* are places in the folder's, *annotations* its annotations and labels.

    *listed* is the platform under which the family's index lists it, *platform* what its config says: an image that
    needs more than a platform can say may be listed as less than it is, for no client to take it by chance. *search*
    is the folder where Python finds its modules.
    """

    ref: str
    listed: OciPlatform
    platform: OciPlatform
    layers: tuple[int, ...]
    annotations: tuple[tuple[str, str], ...]
    search: str
    base: Base | None = None
    artifacts: tuple[Artifact, ...] = ()


class ImageFamily(Struct, frozen=True):
    """The images of one Python, in the order of their index; *annotations* are the index's annotations."""

    ref: str
    images: tuple[OciImage, ...]
    annotations: tuple[tuple[str, str], ...]


def label_key(key: str) -> str:
    """Where the label stands that belongs to the properties under *key*."""
    return f"{_stem(key)}.label"


def document_key(key: str) -> str:
    """Where an index holds the variants.json whose variants' properties stand under *key*."""
    return f"{_stem(key)}.document"


def properties_key(annotations: Mapping[str, str]) -> str | None:
    """Returns the key of *annotations* that holds properties, or None; the label next to it tells which that is."""
    return next((key for key in annotations if label_key(key) in annotations), None)


def _stem(key: str) -> str:
    return key.removesuffix(".properties")
