"""OCI image layouts made with the standard library, so that vbuild is never its own judge."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

from vbuild.files.zstd import compressed

LAYER = "application/vnd.oci.image.layer.v1.tar"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
REF_NAME = "org.opencontainers.image.ref.name"


def tar(files: Mapping[str, bytes | tuple[bytes, str]]) -> bytes:
    """A layer with *files*; a pair is a kind of link and its target."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.mode, info.uid, info.mtime = 0o755, 7, 1700000000
            info.pax_headers = {"SCHILY.xattr.user.note": "kept"}
            if isinstance(data, tuple):
                info.type, info.linkname = data
                archive.addfile(info)
            else:
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def layout(folder: Path, *layers: bytes, how: str = "+gzip") -> Path:
    """An image layout with one image, ``app``, of these *layers*."""
    (folder / "blobs" / "sha256").mkdir(parents=True)

    def pack(data: bytes) -> bytes:
        return gzip.compress(data) if how == "+gzip" else compressed(data, level=3) if how else data

    diff_ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    config = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids}}
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _blob(folder, "application/vnd.oci.image.config.v1+json", json.dumps(config).encode()),
        "layers": [_blob(folder, f"{LAYER}{how}", pack(layer)) for layer in layers],
    }
    named = _blob(folder, MANIFEST, json.dumps(manifest).encode())
    named["annotations"] = {REF_NAME: "app"}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [named]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def attach(folder: Path, ref: str, data: bytes) -> str:
    """Attach *data*, whose digest it returns, to the image *ref*: in a manifest with a subject, listed in an index.

    https://github.com/opencontainers/distribution-spec/blob/main/spec.md#referrers-tag-schema
    """
    listed = json.loads((folder / "index.json").read_bytes())
    (image,) = (entry for entry in listed["manifests"] if entry["annotations"][REF_NAME] == ref)
    kind = {"artifactType": "application/vnd.example.rules"}
    held = _blob(folder, "application/vnd.example.rules+json", data)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        **kind,
        "config": _blob(folder, "application/vnd.oci.empty.v1+json", b"{}"),
        "layers": [held],
        "subject": {key: image[key] for key in ("mediaType", "digest", "size")},
    }
    attached = _blob(folder, MANIFEST, json.dumps(manifest).encode()) | kind
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [attached]}
    named = {"annotations": {REF_NAME: f"{ref}.referrers"}}
    listed["manifests"].append(_blob(folder, INDEX, json.dumps(index).encode()) | kind | named)
    (folder / "index.json").write_text(json.dumps(listed))
    return str(held["digest"])


def _blob(folder: Path, media_type: str, data: bytes) -> dict[str, object]:
    digest = hashlib.sha256(data).hexdigest()
    (folder / "blobs" / "sha256" / digest).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}
