"""`vbuild mirror oci`: the files that each machine installs as an OCI artifact, for registries that are there anyway.

    layout/index.json              a name for each machine: H100
    layout/blobs/sha256/...        each wheel is a layer of its own, as it is: a registry keeps what machines share once

A layer's title is the path that the file has in the site, so what a client pulls is the site with this machine's files,
whose lock names them by their paths.
https://github.com/opencontainers/image-spec/blob/main/manifest.md#guidelines-for-artifact-usage
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from vbuild.errors import RepackageError
from vbuild.files.atomic import linked, replace_folder, turn_for
from vbuild.files.hashing import sha256_of
from vbuild.mirroring.model import SiteMachine
from vbuild.mirroring.site import MIRROR, lock_of, read_site
from vbuild.publishing.oci.model import EMPTY_TYPE, INDEX_TYPE, MANIFEST_TYPE, REF_NAME, Descriptor
from vbuild.publishing.oci.writing import packed_json, write_blob

_ARTIFACT_TYPE = "application/vnd.vbuild.mirror.v1"
_TITLE = "org.opencontainers.image.title"
_TYPES = {
    ".whl": "application/zip",
    ".gz": "application/gzip",
    ".toml": "application/toml",
    ".json": "application/json",
}


class MirrorArtifacts(Struct, frozen=True):
    """The image layout in *folder*, with an artifact for each of *machines*; *size* is of all blobs, in bytes."""

    folder: Path
    machines: tuple[str, ...]
    size: int

    def lines(self) -> Iterator[str]:
        """The commands that push each artifact to a registry and pull it."""
        for name in self.machines:
            yield f"skopeo copy oci:{self.folder}:{name} docker://REGISTRY/mirror:{name}"
            yield f"oras pull REGISTRY/mirror:{name}"


def write_artifacts(site_folder: Path, folder: Path) -> MirrorArtifacts:
    """Write into *folder*, new or an older such layout, an artifact for each machine of the mirror in *site_folder*."""
    site = read_site(site_folder)
    if not site.machines:
        raise RepackageError(f"{site_folder}: no {MIRROR}; expected what `vbuild mirror` wrote")
    files = {file.path: file for file in site.files}
    with turn_for(folder):
        if any(folder.iterdir()) and not (folder / "oci-layout").exists():
            raise RepackageError(f"{folder}: exists and is not an image layout; choose another folder")
        with replace_folder(folder) as new:
            blobs = new / "blobs/sha256"
            blobs.mkdir(parents=True)
            record = _file(blobs, site_folder / MIRROR, MIRROR)
            manifests = []
            for machine in site.machines:
                lock = lock_of(machine, files, url=None).encode()
                layers = [_file(blobs, site_folder / path, path, sha256=files[path].sha256) for path in machine.files]
                layers += [_layer(write_blob(blobs, lock), len(lock), machine.lock), record]
                manifests.append(_manifest(blobs, machine, layers).data())
            index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests}
            (new / "index.json").write_bytes(packed_json(index))
            (new / "oci-layout").write_bytes(packed_json({"imageLayoutVersion": "1.0.0"}))
            size = sum(blob.stat().st_size for blob in blobs.iterdir())
    return MirrorArtifacts(folder, tuple(machine.name for machine in site.machines), size)


def _file(blobs: Path, path: Path, title: str, *, sha256: str | None = None) -> Descriptor:
    try:
        digest, size = sha256_of(path), path.stat().st_size
    except OSError as error:
        raise RepackageError(f"{path}: cannot be read: {error.strerror}; run vbuild mirror again") from error
    if sha256 not in {None, digest}:
        raise RepackageError(f"{path}: has other bytes than {MIRROR} says; delete it, and run vbuild mirror again")
    if not (blobs / digest).exists():
        linked(path, blobs / digest)
    return _layer(f"sha256:{digest}", size, title)


def _manifest(blobs: Path, machine: SiteMachine, layers: Iterable[Descriptor]) -> Descriptor:
    data = packed_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": _ARTIFACT_TYPE,
            "config": Descriptor(EMPTY_TYPE, write_blob(blobs, b"{}"), 2).data(),
            "layers": [layer.data() for layer in layers],
            "annotations": {"dev.vbuild.gpus": ",".join(machine.gpus), "dev.vbuild.python": machine.python},
        }
    )
    names = ((REF_NAME, machine.name),)
    return Descriptor(MANIFEST_TYPE, write_blob(blobs, data), len(data), None, names, _ARTIFACT_TYPE)


def _layer(digest: str, size: int, title: str) -> Descriptor:
    return Descriptor(
        _TYPES.get(Path(title).suffix, "application/octet-stream"), digest, size, None, ((_TITLE, title),)
    )
