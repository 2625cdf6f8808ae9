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
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(media_type: str, data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    def pack(data: bytes) -> bytes:
        return gzip.compress(data) if how == "+gzip" else compressed(data, level=3) if how else data

    diff_ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    config = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids}}
    vendor = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{vendor}.manifest.v1+json",
        "config": blob(f"{vendor}.config.v1+json", json.dumps(config).encode()),
        "layers": [blob(f"{LAYER}{how}", pack(layer)) for layer in layers],
    }
    named = blob(f"{vendor}.manifest.v1+json", json.dumps(manifest).encode())
    named["annotations"] = {"org.opencontainers.image.ref.name": "app"}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [named]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder
