"""`vbuild slim oci:DIR`: the packages in images cut to the GPUs one names, and the layers that hold them written again.

    layers, from the lowest -> a tree of what `slim_environment` needs: ELF files, .dist-info, conda-meta; as last seen
                            -> the code and the lists of packages that have files of GPU code alone
                            -> files of the tree that changed, or are gone
                            -> the layers they come from, every other entry as it was
                            -> config with the new diff_ids, manifest, index

A file that a later layer hides stays. Layers in which nothing changes are linked.
https://github.com/opencontainers/image-spec/blob/main/layer.md
"""

import hashlib
import os
import posixpath
import tarfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from msgspec import Struct

from vbuild.errors import RepackageError, at
from vbuild.files import zstd
from vbuild.files.atomic import STAGE, linked, settle, settle_names, staging
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import BoundedInfo, json_object, open_file, read_file
from vbuild.hardware.cpu import available_cores
from vbuild.publishing.oci.model import (
    GZIP_TYPE,
    INDEX_TYPE,
    REF_NAME,
    WHITEOUT,
    ZSTD_TYPE,
    Descriptor,
    GzipMembers,
    ImageFolder,
    folder_and_name,
    packed_json,
    ref_of,
    uncompressed,
    write_blob,
)
from vbuild.sbom.model import FILE
from vbuild.slimming.device_files import is_alone, may_list, worth_reading
from vbuild.slimming.environment import slim_environment
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import FileLeft, SlimmedEnvironment
from vbuild.wheel.installed import Environment
from vbuild.wheel.licence import Accepted

_LISTS = (".dist-info", "conda-meta")
_CHUNK = 1 << 20
_RECORD = "/RECORD"
# bytes of a file that is not an ELF one, in a folder of lists
_LARGEST = 1 << 24
_LINKED = "another name of it is in the image, a hard link; install with UV_LINK_MODE=copy, or without a cache"


class ImageTree:
    """The files of an image that say what is installed, or may have GPU code, below the folder *root*.

    *owners* are the layers that they come from, *first* the lowest that have something there, by path. If some are
    *wanted*, it has these alone. It has no links, so that nothing leads out: *links* are their paths.
    """

    def __init__(self, root: Path, wanted: Collection[str] | None = None) -> None:
        self._root, self._wanted = root, wanted
        self.owners: dict[str, int] = {}
        self.first: dict[str, int] = {}
        self.links: set[str] = set()
        # the files below each folder, however deep: a layer of ten thousands of files asks for each name
        self._below: dict[str, set[str]] = defaultdict(set)
        self._inodes: dict[str, int] = {}
        self._linked: set[str] = set()

    def add(self, archive: tarfile.TarFile, number: int) -> None:
        for entry in archive:
            path = _entry_path(entry.name)
            folder, _, name = path.rpartition("/")
            if name == _OPAQUE:
                self._remove(folder, below=number)
            elif name.startswith(WHITEOUT):
                gone = posixpath.join(folder, name.removeprefix(WHITEOUT))
                if gone:  # empty are names that lead nowhere, and the root
                    self._remove(gone, below=number)
                    self._forget(gone)
            elif entry.isdir():
                self._forget(path)
            else:
                if path:
                    self._remove(path, below=number + 1)
                self._forget(path)
                self.first.setdefault(path, number)
                self._linked.discard(path)
                self.links.discard(path)
                if entry.islnk() or entry.issym():
                    self.links.add(path)
                if entry.islnk():
                    self._linked |= {path, _entry_path(entry.linkname)}
                elif entry.isreg() and path:
                    self._take(archive, entry, path, number)

    def settle(self) -> Iterator[FileLeft]:
        """Take out the files that have a second name, and yield those that might have been cut."""
        for path in sorted(self._linked):
            if path in self.owners:
                if not _is_listed(path):
                    yield FileLeft(path, _LINKED)
                self._forget(path)
        for folder, _, _ in os.walk(self._root, topdown=False):  # those all of whose files went
            with suppress(OSError):
                Path(folder).rmdir()
        self._root.mkdir(exist_ok=True)
        self._inodes = {path: (self._root / path).stat().st_ino for path in self.owners}

    def changed(self) -> list[str]:
        places = ((self._root / path, path, inode) for path, inode in self._inodes.items())
        return [path for file, path, inode in places if not file.exists() or file.stat().st_ino != inode]

    def alone(self) -> Iterator[str]:
        """The files of GPU code alone."""
        for path in self.owners:
            with open_file(self._root / path) as file:
                size = os.fstat(file.fileno()).st_size
                if not _is_listed(path) and is_alone(path, size, partial(_head, file.fileno())):
                    yield path

    def _take(self, archive: tarfile.TarFile, entry: tarfile.TarInfo, path: str, number: int) -> None:
        if self._wanted is not None and path not in self._wanted:
            return
        is_listed = self._wanted is not None or (_is_listed(path) and entry.size <= _LARGEST)
        file = archive.extractfile(entry)
        head = file.read(_CHUNK) if file else b""
        if not file or not (is_listed or worth_reading(path, lambda size: head[:size])):
            return
        target = self._root / path
        folders = _folders(path)
        if not self.owners.keys().isdisjoint(folders):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as stream:
            while head:
                stream.write(head)
                head = file.read(_CHUNK)
        target.chmod(entry.mode & 0o777 | 0o400)
        os.utime(target, (entry.mtime, entry.mtime))
        self.owners[path] = number
        for folder in folders:
            self._below[folder].add(path)

    def _remove(self, folder: str, *, below: int) -> None:
        """Forget the files in *folder*, however deep, that come from layers *below* that one."""
        for path in [path for path in self._below.get(folder, ()) if self.owners[path] < below]:
            self._forget(path)

    def _forget(self, path: str) -> None:
        if self.owners.pop(path, None) is not None:
            (self._root / path).unlink()
            for folder in _folders(path):
                self._below[folder].discard(path)


def _add(archive: tarfile.TarFile, entry: tarfile.TarInfo, file: Path) -> None:
    """Add *file* as *entry*, but for its size."""
    entry.size = file.stat().st_size
    entry.pax_headers = {key: text for key, text in entry.pax_headers.items() if key != "size"}
    with open_file(file) as stream:
        archive.addfile(entry, stream)


def _head(file: int, size: int) -> bytes:
    return os.pread(file, size, 0)


def _folders(path: str) -> tuple[str, ...]:
    parts = path.split("/")
    return tuple("/".join(parts[:depth]) for depth in range(len(parts)))


def _is_listed(path: str) -> bool:
    return any(part.endswith(_LISTS) for part in path.split("/")[:-1])


# an entry of this name hides all that a folder had in layers below
_OPAQUE = f"{WHITEOUT}{WHITEOUT}.opq"

_ZSTD_LEVEL = 3


@contextmanager
def _opened_layer(blob: Path, media_type: str) -> Iterator[tarfile.TarFile]:
    with (
        uncompressed(blob, media_type) as file,
        tarfile.open(fileobj=file, mode="r|", tarinfo=BoundedInfo) as archive,
    ):
        yield archive


def _entry_path(name: str) -> str:
    """Where in the image the entry *name* is; empty for a place outside of it."""
    path = posixpath.normpath(f"/{name}").lstrip("/")
    return "" if ".." in name.split("/") else path


class _LayerWriter:
    """A layer being written: hashed as it is, and compressed into *file* as *media_type* says."""

    def __init__(self, file: BinaryIO, media_type: str) -> None:
        self.plain = hashlib.sha256()
        self._gzip = GzipMembers(file) if media_type == GZIP_TYPE else None
        self._zstd = (
            zstd.writing(file, level=_ZSTD_LEVEL, threads=available_cores()) if media_type == ZSTD_TYPE else None
        )
        self._file = file

    def write(self, data: bytes) -> int:
        self.plain.update(data)
        if self._gzip:
            self._gzip.add(data)
        else:
            (self._zstd or self._file).write(data)
        return len(data)

    def finish(self) -> None:
        if self._gzip:
            self._gzip.flush()
        if self._zstd:
            self._zstd.close()


_ATTESTED = "vnd.docker.reference.digest"

OnProgress = Callable[[str, int, int], None]


class SlimmedImage(Struct, frozen=True, kw_only=True):
    """An image before and after: *packed* are the bytes of its stored layers, *rewritten* of them are new.

    *linked* are the files that were left for a second name in the image.
    """

    ref: str
    packed_before: int
    packed: int
    rewritten: int
    layers: int
    environment: SlimmedEnvironment
    linked: tuple[FileLeft, ...] = ()

    def data(self) -> dict[str, Any]:
        return {
            **self.environment.data(),
            "environment": self.ref,
            "packed": {"before": self.packed_before, "after": self.packed},
            "layers": {"all": self.layers, "rewritten": self.rewritten},
            "linked_files": [left.path for left in self.linked],
        }


def slim_images(
    place: Path,
    output: Path | None,
    share: Share,
    cuts: Cuts,
    *,
    accept_license: Accepted = False,
    on_progress: OnProgress = lambda _what, _done, _total: None,
) -> tuple[SlimmedImage, ...]:
    """Write the images of the layout *place*, ``DIR`` or ``DIR:NAME``, into the layout *output*, slimmed.

    Without *output* nothing is written. `RepackageError` if *place* is no layout, a blob is damaged, an image has no
    packages, or *output* exists and is not empty.
    """
    folder, ref = folder_and_name(place)
    layout = ImageFolder.of(folder)
    if output and not _is_free(output):
        raise RepackageError(f"{output}: there already, and not empty; expected a new folder")
    with staging(output or folder.parent) as stage:
        writer = _Layout(layout, stage, share, cuts, accept_license=accept_license, on_progress=on_progress)
        with at(folder):
            named = [layout.named(ref)] if ref else [entry for entry in layout.manifests if entry.artifact_type is None]
            digests = {entry.digest for entry in named}
            index = json_object(read_file(folder / "index.json"), RepackageError)
            entries = [entry for entry in index["manifests"] if entry["digest"] in digests]
            manifests = writer.listed(entries, "image")
        if output:
            (stage / "index.json").write_bytes(packed_json({**index, "manifests": manifests}))
            (stage / "oci-layout").write_bytes(read_file(folder / "oci-layout"))
            (output / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
            settle(writer.blobs, stage / "oci-layout", stage / "index.json")
            for blob in writer.blobs.iterdir():
                blob.rename(output / "blobs" / "sha256" / blob.name)
            # index.json is last: it makes the layout
            for name in ("oci-layout", "index.json"):
                (stage / name).rename(output / name)
            settle_names(output)
    return tuple(writer.images)


def _is_free(output: Path) -> bool:
    """Whether *output* has nothing but what a killed run leaves: a stage, or a layout without index."""
    if not output.is_dir():
        return not output.exists()
    return {entry.name for entry in output.iterdir() if not entry.name.startswith(STAGE)} <= {"blobs", "oci-layout"}


class _Layout:
    def __init__(
        self,
        layout: ImageFolder,
        stage: Path,
        share: Share,
        cuts: Cuts,
        *,
        accept_license: Accepted,
        on_progress: OnProgress,
    ) -> None:
        self._layout = layout
        self._stage = stage
        self.blobs = stage / "blobs" / "sha256"
        self.blobs.mkdir(parents=True)
        self._slim = (share, cuts)
        self._accept_license = accept_license
        self._on_progress = on_progress
        self._known: dict[str, dict[str, Any]] = {}
        self._names = {entry.digest: ref for entry in layout.manifests if (ref := ref_of(entry))}
        self.images: list[SlimmedImage] = []

    def listed(self, entries: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
        descriptors = []
        for entry in entries:
            attested = (entry.get("annotations") or {}).get(_ATTESTED)
            if attested is None or self._known.get(attested, {}).get("digest") == attested:
                descriptors.append({**entry, **self._after(entry, name)})
        return descriptors

    def _after(self, entry: Mapping[str, Any], name: str) -> dict[str, Any]:
        if (digest := str(entry["digest"])) not in self._known:
            own = (entry.get("annotations") or {}).get(REF_NAME)
            called = own or self._names.get(digest, name)
            descriptor = Descriptor(str(entry["mediaType"]), digest, int(entry["size"]))
            attested = (entry.get("annotations") or {}).get(_ATTESTED)
            if descriptor.media_type == INDEX_TYPE:
                values = json_object(self._layout.read(descriptor), RepackageError)
                self._known[digest] = self._json({**values, "manifests": self.listed(values["manifests"], called)})
            elif attested or self._layout.manifest(descriptor).subject:
                self._known[digest] = self._copied(descriptor)
            else:
                self._known[digest] = self._image(descriptor, called)
        return self._known[digest]

    def _copied(self, descriptor: Descriptor) -> dict[str, Any]:
        manifest = self._layout.manifest(descriptor)
        for blob in (descriptor, manifest.config, *manifest.layers):
            self._link(blob)
        return {"digest": descriptor.digest, "size": descriptor.size}

    def _image(self, descriptor: Descriptor, name: str) -> dict[str, Any]:
        manifest = self._layout.manifest(descriptor)
        raw = json_object(self._layout.read(descriptor), RepackageError)
        config = self._layout.config(manifest.config)
        diff_ids = list(config["rootfs"]["diff_ids"])
        if len(diff_ids) != len(manifest.layers):
            raise RepackageError(f"{descriptor.digest}: {len(manifest.layers)} layers, but {len(diff_ids)} diff_ids")
        root = self._stage / f"tree-{len(self.images)}"
        root.mkdir()
        tree = ImageTree(root)
        for layer in manifest.layers:
            self._layout.check(layer)
        self._add(manifest.layers, tree)
        doubled = tuple(tree.settle())
        with at(name):
            share, cuts = self._slim
            environment = Environment.under(root)
            unread = self._with_lists(environment, tree, manifest.layers)
            owned = {
                str(distribution.path_of(row.path))
                for distribution in environment.distributions()
                for row in distribution.rows
            }
            left = tuple(file for file in doubled if str(environment.root / file.path) in owned)
            slimmed = slim_environment(
                environment,
                share,
                cuts,
                accept_license=self._accept_license,
                unread=unread,
                on_progress=self._on_progress,
            )
        changed = tree.changed()
        records = (root / path for path in tree.owners if path.endswith(_RECORD))
        new_bills = {path.parent / FILE for path in records} - {root / path for path in tree.owners}
        layers, rewritten = list(raw["layers"]), 0
        for number, layer in enumerate(manifest.layers):
            mine = {path: root / path for path in changed if tree.owners[path] == number}
            if mine:
                hidden = {path for path in mine if tree.first[path] < number}
                layers[number], diff_ids[number] = self._rewritten(layer, mine, hidden, new_bills)
                rewritten += 1
            else:
                self._link(layer)
        if rewritten:
            new = self._json({**config, "rootfs": {**config["rootfs"], "diff_ids": diff_ids}})
            written = self._json({**raw, "config": {**raw["config"], **new}, "layers": layers})
        else:
            written = self._copied(descriptor)
        self.images.append(
            SlimmedImage(
                ref=name,
                packed_before=sum(layer.size for layer in manifest.layers),
                packed=sum(layer["size"] for layer in layers),
                rewritten=rewritten,
                layers=len(layers),
                environment=slimmed,
                linked=left,
            )
        )
        return written

    def _add(self, layers: Sequence[Descriptor], tree: ImageTree) -> None:
        for number, layer in enumerate(layers):
            with at(layer.digest), _opened_layer(self._layout.blob(layer), layer.media_type) as archive:
                tree.add(archive, number)

    def _with_lists(self, environment: Environment, tree: ImageTree, layers: Sequence[Descriptor]) -> frozenset[Path]:
        """Put into *tree* the code and lists of packages with files of GPU code alone.

        Returns the listings of those of which some is a link.
        """
        alone = {str(environment.root / path) for path in tree.alone()}
        wanted: dict[str, set[Path]] = {}
        for distribution in environment.distributions():
            if any(str(distribution.path_of(row.path)) in alone for row in distribution.rows):
                for row in distribution.rows:
                    if may_list(row.path, row.size or 0):
                        path = os.path.relpath(distribution.path_of(row.path), environment.root)
                        wanted.setdefault(path, set()).add(distribution.listing)
        if not wanted:
            return frozenset()
        root = environment.root.with_name(f"{environment.root.name}-lists")
        root.mkdir()
        lists = ImageTree(root, frozenset(wanted))
        self._add(layers, lists)
        for path in lists.owners.keys() - tree.owners.keys():
            (environment.root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).rename(environment.root / path)
        return frozenset().union(*(wanted[path] for path in lists.links & wanted.keys()))

    def _rewritten(
        self, layer: Descriptor, files: Mapping[str, Path], hidden: Collection[str], new_bills: Collection[Path]
    ) -> tuple[dict[str, Any], str]:
        """The descriptor and the diff_id of *layer* with the contents of *files* instead of those of that name.

        A missing file is left out, or, if layers below have one *hidden* there, replaced by what hides it. *new_bills*
        that are there go into the layer of their RECORD.
        """
        part = self._stage / "layer"
        with part.open("wb") as opened, _opened_layer(self._layout.blob(layer), layer.media_type) as archive:
            writer = _LayerWriter(opened, layer.media_type)
            with tarfile.open(fileobj=cast(IO[bytes], writer), mode="w|", format=tarfile.PAX_FORMAT) as new:
                for entry in archive:
                    file = files.get(_entry_path(entry.name)) if entry.isreg() else None
                    if file and not file.exists():
                        if _entry_path(entry.name) in hidden:
                            folder, slash, last = entry.name.rpartition("/")
                            entry.name, entry.size = f"{folder}{slash}{WHITEOUT}{last}", 0
                            entry.pax_headers = {}
                            new.addfile(entry)
                    elif file:
                        _add(new, entry, file)
                        # the bill of materials that a package gets lies beside its RECORD
                        bill = file.parent / FILE
                        if entry.name.endswith(_RECORD) and bill in new_bills and bill.exists():
                            entry.name = entry.name.removesuffix(_RECORD) + f"/{FILE}"
                            entry.pax_headers = {key: text for key, text in entry.pax_headers.items() if key != "path"}
                            _add(new, entry, bill)
                    else:
                        new.addfile(entry, cast(IO[bytes], archive.extractfile(entry)) if entry.isreg() else None)
            writer.finish()
        sha256, size = sha256_of(part), part.stat().st_size
        part.replace(self.blobs / sha256)
        # no annotation: those of some layers are tables of what was in them
        descriptor = {"mediaType": layer.media_type, "digest": f"sha256:{sha256}", "size": size}
        return descriptor, f"sha256:{writer.plain.hexdigest()}"

    def _link(self, descriptor: Descriptor) -> None:
        target = self.blobs / descriptor.digest.removeprefix("sha256:")
        if not target.exists():
            self._layout.check(descriptor)
            linked(self._layout.blob(descriptor), target)

    def _json(self, values: Mapping[str, Any]) -> dict[str, Any]:
        data = packed_json(values)
        return {"digest": write_blob(self.blobs, data), "size": len(data)}
