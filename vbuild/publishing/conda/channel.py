"""A folder of conda packages as a channel: its packages, and the repodata that clients read.

    channel/linux-64/demo-1.0-h1_0.conda, demo-1.0-h0_0.tar.bz2
    channel/linux-64/repodata.json, repodata.json.zst      packages.conda, packages: index.json, SHA-256, size
    channel/noarch/repodata.json, repodata.json.zst        there always: clients refuse a channel without

https://github.com/conda/ceps/blob/main/cep-0036.md
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from vbuild.errors import RepackageError, at
from vbuild.files.atomic import replacing
from vbuild.files.hashing import sha256_of
from vbuild.files.turns import turn
from vbuild.publishing.conda.file_names import packages_in, stem_of
from vbuild.publishing.conda.reading import NOARCH
from vbuild.publishing.conda.unpacked import INDEX, checked_index, information_at
from vbuild.publishing.conda.writing import packed_repodata, repodata

_REPODATA = "repodata.json"


class IndexedSubdir(Struct, frozen=True):
    """A folder of a channel, by its name, the *packages* in it, and the *path* of the repodata that lists them."""

    subdir: str
    packages: tuple[str, ...]
    path: Path

    def data(self) -> dict[str, Any]:
        """The result for JSON."""
        return {"subdir": self.subdir, "packages": list(self.packages), "path": str(self.path)}


def index_channel(folder: Path) -> tuple[IndexedSubdir, ...]:
    """Write the repodata of the channel *folder*, of the packages in its folders; returns what each lists.

    Each file is the old or the new one. `RepackageError` if a package is damaged, lies in *folder* itself or in the
    folder of another platform; then nothing is written.
    """
    with turn(folder):
        if astray := [path for path in packages_in(folder) if path.parent == folder]:
            raise RepackageError(
                f"{astray[0]}: expected in a folder for its platform, {folder / 'linux-64'} or the like"
            )
        subdirs: dict[str, list[Path]] = {NOARCH: []}
        for path in packages_in(folder):
            subdirs.setdefault(path.parent.name, []).append(path)
        made = {subdir: repodata(subdir, dict(_listed(paths))) for subdir, paths in subdirs.items()}
        indexed = []
        for subdir, data in sorted(made.items()):
            target = folder / subdir / _REPODATA
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                for path, content in ((target.with_name(f"{_REPODATA}.zst"), packed_repodata(data)), (target, data)):
                    with replacing(path) as part:
                        part.write_bytes(content)
            except OSError as error:
                raise RepackageError(f"{target}: cannot be written: {error.strerror}") from error
            indexed.append(IndexedSubdir(subdir, tuple(path.name for path in subdirs[subdir]), target))
        return tuple(indexed)


def _listed(packages: Sequence[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What repodata says of each of *packages*, by file name."""
    for path in packages:
        with at(path.parent.name), at(path.name):
            index = checked_index(information_at(path)[INDEX], stem_of(path))
            if (subdir := index["subdir"]) != path.parent.name:
                raise RepackageError(f"is for {subdir}; expected in the folder of that name")
            yield path.name, {**index, "sha256": sha256_of(path), "size": path.stat().st_size}
