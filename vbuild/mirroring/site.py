"""The folder of a mirror, which any web server serves: an index, a lock for each machine, and what was done.

    site/index.html                what is here, for people
    site/simple/...                the index
    site/pylock.h100.toml          what h100 installs (PEP 751), files named by relative path, or by URL if served
    site/constraints.h100.txt      the versions alone
    site/attestations/...          what the original's index attests of it (PEP 740)
    site/mirror.json               where each file came from, and what was done to it
    site/provenance.json           the same as an in-toto statement, to be signed

Readers see the old site or the new one, never a part of it.

`vbuild mirror oci` makes an OCI artifact of what each machine installs, for registries that are there anyway:

    layout/index.json              a name for each machine: H100
    layout/blobs/sha256/...        each wheel is a layer of its own, as it is: a registry keeps what machines share once

A layer's title is the path that the file has in the site, so what a client pulls is the site with this machine's files,
whose lock names them by their paths.
https://github.com/opencontainers/image-spec/blob/main/manifest.md#guidelines-for-artifact-usage
"""

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec
from msgspec import Struct

from vbuild.config.table import toml
from vbuild.errors import RepackageError, at
from vbuild.files.atomic import linked, replace_folder, turn_for
from vbuild.files.hashing import Digests, sha256_of
from vbuild.files.reading import read_file
from vbuild.files.templates import rendered
from vbuild.files.wording import counted, sized
from vbuild.mirroring.making import Made
from vbuild.mirroring.model import MirroredFile, Site, SiteMachine, check_name
from vbuild.publishing.oci.model import (
    EMPTY_TYPE,
    INDEX_TYPE,
    MANIFEST_TYPE,
    REF_NAME,
    Descriptor,
    packed_json,
    write_blob,
)
from vbuild.sbom.statement import PROVENANCE, dependency, statement
from vbuild.variants.index import index
from vbuild.wheel.name import WheelName
from vbuild.wheel.simple_index import fill_index

MIRROR = "mirror.json"
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"[A-Za-z0-9.!+_-]+")
_PYTHON = re.compile(r"[0-9]+(\.[0-9]+)*")
_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z)?")


def read_site(folder: Path) -> Site:
    """The site in *folder*, empty if the folder is new or empty; `RepackageError` if it has something else."""
    path = folder / MIRROR
    try:
        data = read_file(path)
    except FileNotFoundError:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RepackageError(f"{folder}: has no {MIRROR}; expected a mirror, or a new folder") from None
        return Site()
    except OSError as error:
        raise RepackageError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        site = msgspec.json.decode(data, type=Site)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RepackageError(f"{path}: is not what vbuild wrote: {error}") from error
    with at(path):
        for file in site.files:
            _check(file)
        paths = {file.path for file in site.files}
        for machine in site.machines:
            if strange := next((path for path in machine.files if path not in paths), None):
                raise RepackageError(f"is not what vbuild wrote: {machine.name} installs {strange!r}, which it lacks")
            _check_text("a name of a machine", machine.name, _NAME)
            _check_text("a version of Python", machine.python, _PYTHON)
    return site


def write_site(
    folder: Path, site: Site, made: Mapping[str, Made], *, before: Site, question: Mapping[str, object]
) -> None:
    """Make *folder* the *site*, of the files *made*, by path, and of files of the old site, *before*.

    *question* is what the run was called with, for the provenance.
    """
    old_files = {file.path: file for file in before.files}
    files = {file.path: file for file in site.files}
    with replace_folder(folder) as new, Digests() as digests:
        sources = {}
        for path, file in files.items():
            source = made[path].path if path in made else folder / old_files[path].path
            digests.know(source, file.sha256)
            sources[path] = source
        if site.files:
            times = {file.file: file.original.uploaded for file in site.files if file.original.uploaded}
            wheels = [*sources.values()]
            with variant_documents(wheels) as documents:
                fill_index([*wheels, *documents], new / "simple", digests=digests, uploaded=times)
        for file in site.files:
            target = new / file.attestation
            if file.attestation and not target.exists():
                target.parent.mkdir(exist_ok=True)
                new_file = made.get(file.path)
                linked((new_file and new_file.attestation) or folder / file.attestation, target)
        for machine in site.machines:
            (new / machine.lock).write_text(lock_of(machine, files, url=site.url), encoding="utf-8")
            (new / machine.constraints).write_text(constraints_of(machine, files), encoding="utf-8")
        (new / "index.html").write_text(page(site), encoding="utf-8")
        (new / MIRROR).write_bytes(site.packed())
        changed = [file for file in site.files if file.is_changed]
        originals = [
            dependency(file.original.file, uri=file.original.url, sha256=file.original.sha256) for file in changed
        ]
        provenance = statement([new / file.path for file in changed], earlier=originals, verb="mirror", asked=question)
        (new / PROVENANCE).write_bytes(provenance)


def page(site: Site) -> str:
    """The commands for each machine of *site*, and its files; without an URL those that take paths."""
    lines = [install_lines(".", machine, url=site.url or ".") for machine in site.machines]
    uses = [(machine, own if site.url else own[:-1]) for machine, own in zip(site.machines, lines, strict=True)]
    return rendered(
        "vbuild.mirroring",
        "site.html.jinja",
        styles=(),
        scripts=(),
        filters={"sized": sized, "counted": counted, "url": quote},
        uses=uses,
        files=sorted(site.files, key=lambda file: -file.size),
        size=sum(file.size for file in site.files),
        saved=sum(file.original.size - file.size for file in site.files if file.is_changed),
    )


@contextmanager
def variant_documents(wheels: Iterable[Path]) -> Iterator[tuple[Path, ...]]:
    """The variants.json of each release that has variants among *wheels*, which lie in one folder for each project."""
    labelled = [path for path in wheels if path.name.endswith(".whl") and WheelName.parse(path.name).variant]
    if not labelled:
        yield ()
        return
    with tempfile.TemporaryDirectory(prefix="vbuild-mirror-") as text:
        folder = Path(text)
        for path in labelled:
            (folder / path.name).symlink_to(path.resolve())
        yield tuple(written.path for written in index(folder, verify=False))


def _check(file: MirroredFile) -> None:
    """`RepackageError` for a file that would not lie where files of a site do."""
    original = file.original
    for name in (original.file, file.file):
        check_name(original.project, name)
    for sha256 in (original.sha256, file.sha256):
        _check_text("a SHA-256", sha256, _SHA256)
    _check_text("a version", original.version, _VERSION)
    _check_text("a time", original.uploaded or "", _TIME)
    if file.attestation not in {"", f"attestations/{original.file}.provenance"}:
        raise RepackageError(f"{file.attestation!r}: no place of an attestation")


def _check_text(expected: str, text: str, pattern: re.Pattern[str]) -> None:
    """`RepackageError` for what is not *expected*: it becomes a path, or a part of a lock."""
    if not pattern.fullmatch(text):
        raise RepackageError(f"is not what vbuild wrote: {text!r} is not {expected}")


# to installers the wheel as published, of the same version, is the same wheel
REINSTALLING = ("uv pip sync --reinstall", "pip install --force-reinstall -r")
_OVER = "# Where wheels as published are installed, these replace them with\n#   {}\n#   {}\n"
_HEAD = 'lock-version = "1.0"\ncreated-by = "vbuild"\nrequires-python = {python}\n'


def lock_of(machine: SiteMachine, files: Mapping[str, MirroredFile], *, url: str | None) -> str:
    """The lock of *machine*; *files* are the site's by path."""
    packages = (_package(files[path], url) for path in machine.files)
    over = _OVER.format(*REINSTALLING) if any(files[path].is_changed for path in machine.files) else ""
    return over + _HEAD.format(python=toml(f">={machine.python}")) + "".join(packages)


def constraints_of(machine: SiteMachine, files: Mapping[str, MirroredFile]) -> str:
    return "".join(f"{files[path].original.project}=={files[path].version}\n" for path in machine.files)


def _package(file: MirroredFile, url: str | None) -> str:
    original = file.original
    served_at = f"{url.rstrip('/')}/{quote(file.path)}" if url else ""
    location = f"url = {toml(served_at)}" if url else f"path = {toml(file.path)}"
    uploaded = f"upload-time = {original.uploaded}, " if original.uploaded else ""
    entry = f"{{ {location}, {uploaded}size = {file.size}, hashes = {toml({'sha256': file.sha256})} }}"
    field = f"wheels = [{entry}]" if original.is_wheel else f"sdist = {entry}"
    name = f"name = {toml(original.project)}\nversion = {toml(file.version)}"
    return f"\n[[packages]]\n{name}\n{field}\n"


def install_lines(site: str, machine: SiteMachine, *, url: str | None) -> tuple[str, ...]:
    location = url.rstrip("/") if url else site
    base = location if url else Path(site).absolute().as_uri()
    return (
        f"uv pip sync {location}/{machine.lock}",
        f"pip install -r {location}/{machine.lock}",
        f"pip install --index-url {base}/simple/ -c {location}/{machine.constraints} NAME",
    )


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
