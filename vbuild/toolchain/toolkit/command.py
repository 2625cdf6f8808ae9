"""`vbuild toolkit`: the CUDA toolkits that are kept or installed, and those that are fetched or taken away.

list                        kept ones and installed ones
install 13.0 [LIBRARY…]     the package index -> the shared cache
path 13.0 [LIBRARY…]        the CUDA_HOME of a kept one
prune --unused-for DAYS     kept ones that no build used for so long, and components that no other has
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from vbuild.errors import BuildError, HardwareError
from vbuild.files.cache import sweep_daily
from vbuild.hardware.driver import Dotted
from vbuild.recipe.cuda import ToolkitSpec
from vbuild.recipe.native import ToolkitLibrary
from vbuild.toolchain.toolkit.cache import KeptToolkit, OnProgress, ToolkitCache, kept_in, silently
from vbuild.toolchain.toolkit.cache import prune as taken_away
from vbuild.toolchain.toolkit.installed import Installed, installed
from vbuild.toolchain.toolkit.model import Toolkit
from vbuild.toolchain.toolkit.provision import kept, packaged


class Listing(Struct, frozen=True):
    """The toolkits of this machine: those of the shared cache *store*, and those that are installed."""

    store: Path
    kept: tuple[KeptToolkit, ...]
    installed: tuple[Installed, ...]

    def data(self) -> dict[str, Any]:
        """The listing for JSON; sizes in bytes, times as ISO 8601 has them."""
        return {
            "store": str(self.store),
            "kept": [_kept(one) for one in self.kept],
            "installed": [{"version": str(one.version), "path": str(one.root)} for one in self.installed],
        }

    def lines(self) -> Iterator[str]:
        for one in self.kept:
            yield f"{one.version}  {one.size / 1e6:.0f} MB, last used {one.used:%Y-%m-%d}"
            yield f"      {one.root}"
            yield from (f"      {pin}" for pin in one.pins)
        yield from (f"{one.version}  installed: {one.root}" for one in self.installed)
        if not (self.kept or self.installed):
            yield "no CUDA toolkit, kept or installed; vbuild toolkit install 13.0 fetches one"


class Provision(Struct, frozen=True):
    """A toolkit that is there now."""

    toolkit: Toolkit

    def data(self) -> dict[str, Any]:
        toolkit = self.toolkit
        return {
            "version": str(toolkit.version),
            "path": str(toolkit.root),
            "identity": toolkit.identity,
            "new": toolkit.is_new,
            "components": [to_builtins(pin) for pin in toolkit.pins],
            "licence": toolkit.licence,
        }

    def lines(self) -> Iterator[str]:
        """The CUDA_HOME, and the licence's place where it was laid out just now."""
        yield str(self.toolkit.root)
        if self.toolkit.is_new:
            yield self.toolkit.licence


class Pruned(Struct, frozen=True):
    """The toolkits that were taken away, and the bytes of disk that are free now."""

    removed: tuple[KeptToolkit, ...]
    size: int

    def data(self) -> dict[str, Any]:
        return {"removed": [_kept(one) for one in self.removed], "size": self.size}

    def lines(self) -> Iterator[str]:
        yield from (f"{one.version}  removed: {one.root}" for one in self.removed)
        yield f"{self.size / 1e6:.0f} MB free now"


def listing(*, store: Path | None = None, environment: Mapping[str, str] = os.environ) -> Listing:
    """The toolkits kept in *store* (the user's, where None), and those that are installed."""
    place = ToolkitCache.at(store)
    return Listing(place.folder, kept_in(place), installed(environment))


def install(
    version: str, libraries: Iterable[str] = (), *, store: Path | None = None, on_progress: OnProgress = silently
) -> Provision:
    """The toolkit *version* of the package index with *libraries*, fetched unless it is kept."""
    provision = Provision(packaged(_spec(version, libraries), store=store, on_progress=on_progress))
    sweep_daily()
    return provision


def path(version: str, libraries: Iterable[str] = (), *, store: Path | None = None) -> Provision:
    """The kept toolkit *version* with *libraries*; `BuildError` where there is none."""
    return Provision(kept(_spec(version, libraries), store=store))


def prune(*, unused_for: float | None = None, store: Path | None = None) -> Pruned:
    """Take away the kept toolkits that no build used for so many days; all of them for None.

    Builds that run should be done: none of them holds on to its toolkit.
    """
    # a day from now is later than any use
    before = datetime.now(UTC) - timedelta(days=-1 if unused_for is None else unused_for)
    return Pruned(*taken_away(ToolkitCache.at(store), before=before))


def _spec(version: str, libraries: Iterable[str]) -> ToolkitSpec:
    try:
        return ToolkitSpec(
            Dotted.parse(version), libraries=tuple(str(ToolkitLibrary.parse(text)) for text in libraries)
        )
    except HardwareError as error:
        raise BuildError(f"no CUDA version {version!r}; expected two numbers with a dot, as in 13.0") from error


def _kept(one: KeptToolkit) -> dict[str, Any]:
    return {
        "version": str(one.version),
        "path": str(one.root),
        "size": one.size,
        "used": one.used.isoformat(timespec="seconds"),
        "components": [to_builtins(pin) for pin in one.pins],
    }
