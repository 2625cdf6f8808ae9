"""What the shared cache of toolkits has, how long ago it was used, and taking it away."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from vbuild.errors import ToolkitError, VbuildError
from vbuild.hardware.driver import Dotted
from vbuild.toolkit.integrity import STAMP, stamp_of
from vbuild.toolkit.model import Pin
from vbuild.toolkit.store import COMPONENTS, EVERYTHING, PINS, Store, component_name, remove


@dataclass(frozen=True, slots=True)
class Kept:
    """A toolkit of the cache: its size in bytes, with what it shares with others, and when it was last *used*."""

    version: Dotted
    root: Path
    pins: tuple[Pin, ...]
    size: int
    used: datetime

    @classmethod
    def at(cls, root: Path) -> Self | None:
        """The toolkit in *root*; None where there is no complete one."""
        if not (stamp := stamp_of(root)):
            return None
        with suppress(KeyError, TypeError, ValueError, OSError, VbuildError):
            pins = tuple(Pin(**pin) for pin in stamp["pins"])
            return cls(Dotted.parse(stamp["version"]), root, pins, int(stamp["size"]), _used(root / STAMP))
        return None


def kept_in(store: Store) -> tuple[Kept, ...]:
    """The toolkits of *store*, the newest version first."""
    found = [kept for root in store.folder.glob("cuda-*") if (kept := Kept.at(root))]
    return tuple(sorted(found, key=lambda kept: (kept.version, kept.root), reverse=True))


def prune(store: Store, *, before: datetime) -> tuple[tuple[Kept, ...], int]:
    """Take away what nobody used since *before*, and what processes that were killed left; gives what, and bytes.

    `ToolkitError` where a process is making a toolkit now. One that uses a toolkit does not show: *before* has to be
    longer ago than the longest build.
    """
    if not store.folder.is_dir():
        return (), 0
    with store.locked(EVERYTHING, wait=False) as is_ours:
        if not is_ours:
            raise ToolkitError(f"{store.folder}: a toolkit is being fetched there; try again when it is done")
        toolkits = kept_in(store)
        old = tuple(kept for kept in toolkits if kept.used < before)
        needed = {component_name(pin) for kept in toolkits if kept not in old for pin in kept.pins}
        try:
            freed = sum(_removed(folder) for folder in (*(kept.root for kept in old), *_remains(store)))
            freed += sum(_removed(folder) for folder in _unused(store, needed, before))
            for file in (store.folder / PINS).glob("*.json"):
                if _used(file) < before:
                    file.unlink()
        except OSError as error:
            raise ToolkitError(f"{error.filename}: cannot be removed: {error.strerror}") from error
    return old, freed


def _unused(store: Store, needed: set[str], before: datetime) -> Iterator[Path]:
    for folder in (store.folder / COMPONENTS).glob("[!.]*"):
        stamp = folder / STAMP
        if folder.name not in needed and not (stamp.exists() and _used(stamp) >= before):
            yield folder


def _remains(store: Store) -> Iterator[Path]:
    """What a process that was killed left behind, and toolkits without a stamp."""
    for place in (store.folder, store.folder / COMPONENTS):
        for pattern in (".*.part", ".*.part.fetched", ".*.removed"):
            yield from place.glob(pattern)
    yield from (root for root in store.folder.glob("cuda-*") if not Kept.at(root))


def _removed(folder: Path) -> int:
    """Take *folder* away, at once for those who look; gives the bytes of what no hard link keeps."""
    gone = folder if folder.name.startswith(".") else folder.rename(folder.with_name(f".{folder.name}.removed"))
    files = (Path(parent, name).lstat() for parent, _, names in os.walk(gone) for name in names)
    size = sum(file.st_size for file in files if file.st_nlink == 1)
    remove(gone)
    return size


def _used(file: Path) -> datetime:
    return datetime.fromtimestamp(file.stat().st_mtime, UTC)
