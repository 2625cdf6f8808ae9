"""Finished work, kept from run to run in the user's cache: repaired builds, and wheels that were proved and tested.

    builds/<kind>/<key>/entry.json          which wheel, its SHA-256, and what is known of it
    builds/<kind>/<key>/demo-1.0-….whl

An entry is complete or not there: it is made aside and renamed. Nothing is flushed to the disk for it, which would cost
seconds for every large wheel: what a power failure tears is found by its hash when it is asked for, like all other
damage, and is built again. Everything here may happen in several processes at once.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from msgspec import Struct
from platformdirs import user_cache_path

from vbuild.build.identity import canonical
from vbuild.files.atomic import linked
from vbuild.files.hashing import sealed, sha256_of, unsealed
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.model import Check, Verify
from vbuild.recipe.target import Target
from vbuild.toolchain.probes import key_of

KEPT = 30 * 86400  # seconds that an entry stays without being used
LIMIT = 50 * 10**9  # bytes that all entries may take

_ENTRY = "entry.json"
_ASIDE = ".keeping-"
_LOCK = ".lock"
_LEFT = 86400  # seconds after which what is aside has lost its process


class BuildKind(StrEnum):
    """What is kept: a build with its portable wheel, still plain; a wheel as it is published, with its proof.

    A plain wheel that is joined of several is none of either: it is kept under what it was joined of.
    """

    BUILD = "builds"
    PRODUCT = "products"
    JOINED = "joined"


class KeptBuild(Struct, frozen=True):
    """A finished wheel, and what was written down of it, a value as JSON takes it."""

    wheel: Path
    record: Mapping[str, Any]


class BuildCache(Struct, frozen=True):
    """The entries below *root*; with *fresh*, those that are there are passed over and replaced."""

    root: Path
    fresh: bool = False

    @classmethod
    def of_user(cls, *, fresh: bool = False) -> Self:
        """The store that all runs of this user share."""
        return cls(user_cache_path("vbuild") / "builds", fresh)

    def taken(self, kind: BuildKind, key: str, into: Path) -> KeptBuild | None:
        """What is kept under *key*, its wheel put into the folder *into*; None where there is nothing whole.

        The wheel may share its bytes on the disk with the entry, so it must not be written to.
        """
        entry = self._entry(kind, key)
        if self.fresh or not entry.is_dir():
            return None
        try:
            return _taken(entry, into)
        except (FileNotFoundError, ValueError, LookupError, TypeError):  # damaged, or being removed by another process
            self._remove(entry)
        except OSError:  # not to be read, or no room for the wheel: no reason to remove anything
            pass
        return None

    def keep(self, kind: BuildKind, key: str, wheel: Path, record: Mapping[str, Any]) -> str | None:
        """Keep *wheel* under *key*, in the place of what was there; None, or in a few words why it is not kept.

        The wheel must not be written to any more.
        """
        entry = self._entry(kind, key)
        try:
            with self._aside() as folder:
                new = folder / "new"
                new.mkdir()
                _put(wheel, new / wheel.name)
                payload = json.dumps({"wheel": wheel.name, "sha256": sha256_of(new / wheel.name), "record": record})
                (new / _ENTRY).write_text(sealed(payload), encoding="utf-8")
                entry.parent.mkdir(parents=True, exist_ok=True)
                with self._replacing():
                    with suppress(FileNotFoundError):
                        entry.rename(folder / "old")
                    new.rename(entry)
        except OSError as error:
            return f"{wheel.name}: not kept in {self.root}: {error.strerror}"
        return None

    def sweep(self, *, kept: float = KEPT, limit: int = LIMIT) -> None:
        """Remove the entries not used for *kept* seconds, then those used longest ago, down to *limit* bytes."""
        now = time.time()
        with suppress(OSError):
            for left in self.root.glob(f"{_ASIDE}*"):
                if left.stat().st_mtime < now - _LEFT:
                    shutil.rmtree(left, ignore_errors=True)
        total = 0
        for used, size, entry in sorted(self._entries(), reverse=True):
            total += size
            if used < now - kept or total > limit:
                self._remove(entry)

    def _entry(self, kind: BuildKind, key: str) -> Path:
        return self.root / kind / key

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """When each entry was used last, its size in bytes, and where it is."""
        for kind in BuildKind:
            for entry in (self.root / kind).glob("*"):
                with suppress(OSError):
                    size = sum(file.stat().st_size for file in entry.iterdir())
                    yield entry.stat().st_mtime, size, entry

    def _remove(self, entry: Path) -> None:
        """Take *entry* out at once, so that nobody finds half of it, and remove it."""
        with suppress(OSError), self._aside() as folder:
            entry.rename(folder / "old")

    @contextmanager
    def _replacing(self) -> Iterator[None]:
        """One process at a time, as a folder cannot take the place of another in one step."""
        with (self.root / _LOCK).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _aside(self) -> Iterator[Path]:
        self.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.root, prefix=_ASIDE, ignore_cleanup_errors=True) as folder:
            yield Path(folder)


def product_key(
    build: str,
    target: Target,
    *,
    document: bytes | None,
    verify: Verify,
    check: Check,
    baseline: str | None,
    cpu: Cpu | None,
) -> str:
    """The key of the wheel that becomes of the build with the key *build*, verified and tested.

    *document* is its variant.json, None for a plain wheel; *baseline* the key of the build that it was held against;
    *cpu* the processor of the machine that tests it.
    """
    return key_of(
        {
            "build": build,
            "label": target.label,
            "properties": target.properties,
            "cpu": canonical(target.cpu),
            "gpus": canonical(target.gpus),
            "document": None if document is None else hashlib.sha256(document).hexdigest(),
            "verify": canonical(verify),
            "check": canonical(check),
            "baseline": baseline,
            "machine": canonical(cpu),
        }
    )


def _taken(entry: Path, into: Path) -> KeptBuild:
    """What is in *entry*; `ValueError`, or what reading it raises, where it is not what was kept."""
    payload = json.loads(unsealed((entry / _ENTRY).read_bytes()))
    into.mkdir(parents=True, exist_ok=True)
    wheel = into / payload["wheel"]
    _put(entry / wheel.name, wheel)
    if sha256_of(wheel) != payload["sha256"]:
        wheel.unlink()
        raise ValueError(wheel.name)
    os.utime(entry)  # it has been used
    return KeptBuild(wheel, payload["record"])


def _put(wheel: Path, target: Path) -> None:
    """*wheel* at *target*: the same file where that can be, else a copy."""
    target.unlink(missing_ok=True)
    linked(wheel, target)
