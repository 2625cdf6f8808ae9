"""Finished work in the user's cache: repaired builds, wheels that are verified and tested.

    builds/<kind>/<key>/entry.json          which wheel, its SHA-256, and what is known of it
    builds/<kind>/<key>/demo-1.0-….whl

    looked/<bare key>                       which builds with that key there are, and what each has looked for
    benches/<key>                           what a bench has measured

The hash is checked at each use; a damaged entry is dropped.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct, convert, field, to_builtins

from vbuild.build.identity import BuildKeys, canonical
from vbuild.build.watching import Looked
from vbuild.files.atomic import linked
from vbuild.files.cache import Cache, Part
from vbuild.files.hashing import key_of, seal, sha256_of, unseal
from vbuild.files.reading import read_file
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.model import Check, Verify
from vbuild.recipe.target import Target

_ENTRY = "entry.json"
_LOOKED = "looked"
_MOST_LOOKED = 4  # builds with one bare key


class BuildKind(StrEnum):
    """A build's portable, plain wheel; a finished wheel with its verdict; a plain wheel joined of several; one that
    could not be repaired.
    """

    BUILD = "builds"
    PRODUCT = "products"
    JOINED = "joined"
    UNREPAIRED = "unrepaired"


class KeptBuild(Struct, frozen=True):
    wheel: Path
    record: Mapping[str, Any]


class BuildCache(Struct, frozen=True):
    """The entries below *root*, by default the user's. *fresh* ignores and replaces them."""

    root: Path = field(default_factory=lambda: Cache.of(Part.BUILDS).folder)
    fresh: bool = False

    def taken(self, kind: BuildKind, key: str, into: Path) -> KeptBuild | None:
        """The entry under *key*, with its wheel in the folder *into*, or None without a whole one.

        The wheel may be a hard link to the entry, so it must not be written to.
        """
        entry = self.root / kind / key
        if self.fresh or not entry.is_dir():
            return None
        try:
            entry_taken = _taken(entry, into)
        except (FileNotFoundError, ValueError, LookupError, TypeError):  # damaged, or being removed by another process
            with suppress(OSError):
                self._cache.drop(entry)
        except OSError:  # not to be read, or no room for the wheel: no reason to remove anything
            pass
        else:
            self._cache.mark(entry)
            return entry_taken
        return None

    def keep(self, kind: BuildKind, key: str, wheel: Path, record: Mapping[str, Any]) -> str | None:
        """Keep *wheel*, which must not be written to any more, under *key*; None, or in a few words why it is not."""
        try:
            with self._cache.locked(f"{kind}/{key}"), self._cache.replacing(f"{kind}/{key}") as new:
                new.mkdir()
                _put(wheel, new / wheel.name)
                payload = json.dumps({"wheel": wheel.name, "sha256": sha256_of(new / wheel.name), "record": record})
                (new / _ENTRY).write_text(seal(payload), encoding="utf-8")
        except OSError as error:
            return f"{wheel.name}: not kept in {self.root}: {error.strerror}"
        return None

    def key(self, keys: BuildKeys) -> str:
        """The key of an earlier build that would find the same here, or the own one of *keys*.

        If the build with the own key looked for what has changed since, that key gets what is there now.
        """
        key = keys.whole
        for earlier, looked in () if self.fresh else self._looked(keys.bare):
            now = looked.now(keys.path, keys.rust)
            if now == looked:
                return earlier
            if earlier == keys.whole:
                key = key_of([keys.whole, to_builtins(now)])
        return key

    def keep_looked(self, bare: str, key: str, looked: Looked) -> None:
        others = [entry for entry in self._looked(bare) if entry[0] != key]
        self.keep_text(_LOOKED, bare, json.dumps(to_builtins([(key, looked), *others][:_MOST_LOOKED])))

    def text(self, folder: str, key: str) -> str | None:
        return None if self.fresh else self._cache.text(f"{folder}/{key}")

    def keep_text(self, folder: str, key: str, text: str) -> None:
        with suppress(OSError):
            self._cache.keep_text(f"{folder}/{key}", text)

    def _looked(self, bare: str) -> tuple[tuple[str, Looked], ...]:
        with suppress(ValueError):
            return convert(json.loads(self._cache.text(f"{_LOOKED}/{bare}") or "[]"), tuple[tuple[str, Looked], ...])
        return ()

    @property
    def _cache(self) -> Cache:
        return Cache(Part.BUILDS, self.root)


def product_key(
    build: str,
    target: Target,
    *,
    document: bytes | None,
    verify: Verify,
    check: Check,
    baseline: str | None,
    cpu: Cpu | None,
    emulator: str | None,
) -> str:
    """The key of the wheel that becomes of the build with the key *build*, verified and tested.

    *baseline* is the key of the build that it was compared with, *cpu* that of the machine that tests it.
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
            "emulator": emulator,
        }
    )


def _taken(entry: Path, into: Path) -> KeptBuild:
    payload = json.loads(unseal(read_file(entry / _ENTRY)))
    into.mkdir(parents=True, exist_ok=True)
    wheel = into / payload["wheel"]
    _put(entry / wheel.name, wheel)
    if sha256_of(wheel) != payload["sha256"]:
        wheel.unlink()
        raise ValueError(wheel.name)
    return KeptBuild(wheel, payload["record"])


def _put(wheel: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    linked(wheel, target)
