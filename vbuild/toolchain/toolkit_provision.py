"""The toolkit that a build gets: an installed one if it matches, or one of the package index.

    toolkit.path                             has to be there and to match
    CUDA_HOME, CUDA_PATH                     of the same version, with all that is asked for
    /usr/local/cuda-X.Y, cuda, nvcc on PATH  the same
    the package index                        pinned by hash: the same files on every machine

To build with the package index's although one is installed, set CUDA_HOME to what ``vbuild toolkit path`` prints.

The library calls of `vbuild toolkit`:

    list                        toolkits in the cache, and installed ones
    install 13.0 [LIBRARY…]     the package index -> the shared cache
    path 13.0 [LIBRARY…]        the CUDA_HOME of one in the cache
    prune                       none is left
"""

import os
import platform
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct, to_builtins
from packaging.version import Version

from vbuild.errors import BuildError, HardwareError
from vbuild.files.cache import sweep_daily
from vbuild.hardware.driver import Dotted
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.cuda import ToolkitSpec
from vbuild.recipe.source import ToolkitLibrary
from vbuild.toolchain.toolkit import (
    MACHINES,
    Installed,
    Toolkit,
    ToolkitPin,
    asked,
    identity_of,
    installed,
    known,
    matching,
    named,
    passed_over,
    resolved,
)
from vbuild.toolchain.toolkit_cache import KeptToolkit, OnProgress, ToolkitCache, is_complete, kept_in, silently
from vbuild.toolchain.toolkit_cache import prune as prune_cache
from vbuild.toolchain.zig import foreseen_zig, provided_zig


def provided(
    spec: ToolkitSpec,
    *,
    store: Path | None = None,
    indexes: Indexes | None = None,
    environment: Mapping[str, str] = os.environ,
    on_progress: OnProgress = silently,
) -> Toolkit:
    """The toolkit that *spec* asks for, fetched into *store*, by default the user's, if it has to be.

    *indexes* are asked only then. `BuildError` or `FetchError` if the toolkit cannot be had.
    """
    return _installed(spec, environment) or packaged(spec, store=store, indexes=indexes, on_progress=on_progress)


def foreseen(
    spec: ToolkitSpec,
    *,
    store: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    on_progress: OnProgress = silently,  # noqa: ARG001 - nothing takes time here
) -> Toolkit:
    """The toolkit that `provided` would give, without fetching anything: one that is not kept has no folder yet.

    What `provided` refuses without asking an index is refused here as well.
    """
    toolkit = _installed(spec, environment) or _kept(spec, ToolkitCache.at(store))
    return toolkit or Toolkit(spec.version, Path(f"CUDA-{spec}"), identity="")


def packaged(
    spec: ToolkitSpec, *, store: Path | None = None, indexes: Indexes | None = None, on_progress: OnProgress = silently
) -> Toolkit:
    """The toolkit of the package index that *spec* asks for, whatever is installed."""
    cache = ToolkitCache.at(store)

    def places() -> Indexes:
        return indexes or Indexes.configured()

    def ask(projects: tuple[str, ...], version: Version, machine: str) -> ToolkitPin:
        return cache.remembered(
            _name(projects, version, machine), lambda: asked(projects, version, machine, indexes=places())
        )

    machine = _machine(spec)
    pins = resolved(spec, machine=machine, ask=ask)
    return cache.toolkit(
        spec.version,
        pins,
        identity=identity_of(spec.version, pins),
        machine=machine,
        release=known(spec).name,
        places=places,
        on_progress=on_progress,
    )


def kept(spec: ToolkitSpec, *, store: Path | None = None) -> Toolkit:
    """The same, if it is in *store* already; else `BuildError`, which says how to get it there."""
    if toolkit := _kept(spec, ToolkitCache.at(store)):
        return toolkit
    command = shlex.join(("vbuild", "toolkit", "install", str(spec), *spec.libraries))
    problem = f"not kept with {' and '.join(spec.libraries)}" if spec.libraries else "not kept"
    raise BuildError(f"CUDA {spec}: {problem}; run first: {command}")


def _installed(spec: ToolkitSpec, environment: Mapping[str, str]) -> Toolkit | None:
    """The installed toolkit that *spec* names, or one that matches, or None if it is the package index's turn."""
    if spec.path is not None:
        return named(spec)
    toolkit = matching(spec, environment)
    if toolkit is None:
        known(spec, instead=passed_over(spec, environment))
    return toolkit


def _kept(spec: ToolkitSpec, store: ToolkitCache) -> Toolkit | None:
    """The toolkit of the package index that *spec* asks for, or None if not all of it is in *store*."""
    unknown = list[str]()

    def ask(projects: tuple[str, ...], version: Version, machine: str) -> ToolkitPin | None:
        name = _name(projects, version, machine)
        pin = store.pin(name)
        unknown.extend([] if pin else [name])
        return pin

    pins = resolved(spec, machine=_machine(spec), ask=ask)
    identity = identity_of(spec.version, pins)
    root = store.root(spec.version, identity)
    return Toolkit(spec.version, root, identity, pins) if not unknown and is_complete(root) else None


def _machine(spec: ToolkitSpec) -> str:
    machine = platform.machine()
    if platform.system() != "Linux" or machine not in MACHINES:
        raise BuildError(
            f"CUDA {spec}: the package index has toolkits for Linux on {' and '.join(MACHINES)}, "
            f"not for {platform.system()} on {machine}"
        )
    return machine


def _name(projects: tuple[str, ...], version: Version, machine: str) -> str:
    return f"{projects[0]}-{version}-{machine}"


class ToolkitProvider(Protocol):
    """Gives a CUDA toolkit, and reports its progress."""

    def __call__(self, spec: ToolkitSpec, *, on_progress: Callable[[str], None]) -> Toolkit: ...


class Supply(Struct, frozen=True):
    """What gives toolkits and zig; *writes* if they are fetched for a build, and not only named in its plan."""

    toolkit: ToolkitProvider
    zig: Callable[[], Path]
    writes: bool


FETCHED = Supply(provided, provided_zig, writes=True)
FORESEEN = Supply(foreseen, foreseen_zig, writes=False)


class Listing(Struct, frozen=True):
    """The toolkits of this machine: those of the shared cache *store*, and those that are installed."""

    store: Path
    kept: tuple[KeptToolkit, ...]
    installed: tuple[Installed, ...]

    def data(self) -> dict[str, Any]:
        """For JSON; sizes in bytes, times as ISO 8601 has them."""
        return {
            "store": str(self.store),
            "kept": [_kept_data(toolkit) for toolkit in self.kept],
            "installed": [{"version": str(toolkit.version), "path": str(toolkit.root)} for toolkit in self.installed],
        }

    def lines(self) -> Iterator[str]:
        for toolkit in self.kept:
            yield f"{toolkit.version}  {toolkit.size / 1e6:.0f} MB, last used {toolkit.used:%Y-%m-%d}"
            yield f"      {toolkit.root}"
            yield from (f"      {pin}" for pin in toolkit.pins)
        yield from (f"{toolkit.version}  installed: {toolkit.root}" for toolkit in self.installed)
        if not (self.kept or self.installed):
            yield "no CUDA toolkit, kept or installed; vbuild toolkit install 13.0 fetches one"


class Provision(Struct, frozen=True):
    """A toolkit that is there now."""

    toolkit: Toolkit

    def lines(self) -> Iterator[str]:
        """The CUDA_HOME, and the licence's place if it was laid out just now."""
        yield str(self.toolkit.root)
        if self.toolkit.is_new:
            yield self.toolkit.licence


class Pruned(Struct, frozen=True):
    """The toolkits that were removed, and the bytes of disk that are free now."""

    removed: tuple[KeptToolkit, ...]
    size: int

    def lines(self) -> Iterator[str]:
        yield from (f"{toolkit.version}  removed: {toolkit.root}" for toolkit in self.removed)
        yield f"{self.size / 1e6:.0f} MB free now"


def listing(*, store: Path | None = None, environment: Mapping[str, str] = os.environ) -> Listing:
    cache = ToolkitCache.at(store)
    return Listing(cache.folder, kept_in(cache), installed(environment))


def install(
    version: str, libraries: Iterable[str] = (), *, store: Path | None = None, on_progress: OnProgress = silently
) -> Provision:
    """The toolkit *version* of the package index with *libraries*, fetched unless it is kept."""
    provision = Provision(packaged(_spec(version, libraries), store=store, on_progress=on_progress))
    sweep_daily()
    return provision


def path(version: str, libraries: Iterable[str] = (), *, store: Path | None = None) -> Provision:
    """The kept toolkit *version* with *libraries*; `BuildError` if there is none."""
    return Provision(kept(_spec(version, libraries), store=store))


def prune(*, store: Path | None = None) -> Pruned:
    """Remove all kept toolkits.

    Builds that run should be done: none of them holds on to its toolkit.
    """
    return Pruned(*prune_cache(ToolkitCache.at(store)))


def _spec(version: str, libraries: Iterable[str]) -> ToolkitSpec:
    try:
        return ToolkitSpec(
            Dotted.parse(version), libraries=tuple(str(ToolkitLibrary.parse(text)) for text in libraries)
        )
    except HardwareError as error:
        raise BuildError(f"no CUDA version {version!r}; expected two numbers with a dot, as in 13.0") from error


def _kept_data(one: KeptToolkit) -> dict[str, Any]:
    return {
        "version": str(one.version),
        "path": str(one.root),
        "size": one.size,
        "used": one.used.isoformat(timespec="seconds"),
        "components": [to_builtins(pin) for pin in one.pins],
    }
