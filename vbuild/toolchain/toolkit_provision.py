"""The toolkit that a build gets: an installed one if it matches, or one of the package index; and `vbuild toolkit`.

toolkit.path                             has to be there and to match
CUDA_HOME, CUDA_PATH                     of the same version, with all that is asked for
/usr/local/cuda-X.Y, cuda, nvcc on PATH  the same
the package index                        pinned by hash: the same files on every machine
"""

import os
import platform
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from packaging.version import Version

from vbuild.errors import BuildError, HardwareError
from vbuild.files.cache import sweep_daily
from vbuild.hardware.driver import Dotted
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.compiling import ToolkitSpec
from vbuild.recipe.source import ToolkitLibrary
from vbuild.toolchain.compilers import foreseen_zig, provided_zig
from vbuild.toolchain.toolkit import (
    MACHINES,
    Installed,
    Toolkit,
    ToolkitPin,
    identity_of,
    installed,
    matching_toolkit,
    passed_over,
    pin_of_index,
    release_of,
    resolved_pins,
    toolkit_at_path,
)
from vbuild.toolchain.toolkit_cache import KeptToolkit, OnProgress, ToolkitCache, is_complete, kept_in, silently


def provided_toolkit(
    spec: ToolkitSpec,
    *,
    store: Path | None = None,
    indexes: Indexes | None = None,
    environment: Mapping[str, str] = os.environ,
    on_progress: OnProgress = silently,
) -> Toolkit:
    """The toolkit that *spec* asks for, fetched into *store*, by default the user's, if needed."""
    return _installed(spec, environment) or packaged_toolkit(
        spec, store=store, indexes=indexes, on_progress=on_progress
    )


def foreseen_toolkit(
    spec: ToolkitSpec,
    *,
    store: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    on_progress: OnProgress = silently,  # noqa: ARG001 - nothing takes time here
) -> Toolkit:
    """What `provided_toolkit` would give, without fetching: it may have no folder yet."""
    toolkit = _installed(spec, environment) or _cached_toolkit(spec, ToolkitCache.at(store))
    return toolkit or Toolkit(spec.version, Path(f"CUDA-{spec}"), identity="")


def packaged_toolkit(
    spec: ToolkitSpec, *, store: Path | None = None, indexes: Indexes | None = None, on_progress: OnProgress = silently
) -> Toolkit:
    """The toolkit of the package index that *spec* asks for, whatever is installed."""
    cache = ToolkitCache.at(store)

    def places() -> Indexes:
        return indexes or Indexes.configured()

    def ask(projects: tuple[str, ...], version: Version, machine: str) -> ToolkitPin:
        return cache.remembered(
            _name(projects, version, machine), lambda: pin_of_index(projects, version, machine, indexes=places())
        )

    machine = _machine(spec)
    pins = resolved_pins(spec, machine=machine, ask=ask)
    return cache.toolkit(
        spec.version,
        pins,
        identity=identity_of(spec.version, pins),
        machine=machine,
        release=release_of(spec).name,
        places=places,
        on_progress=on_progress,
    )


def kept_toolkit(spec: ToolkitSpec, *, store: Path | None = None) -> Toolkit:
    """The toolkit of the package index in *store*; `BuildError` says how to get it there."""
    if toolkit := _cached_toolkit(spec, ToolkitCache.at(store)):
        return toolkit
    command = shlex.join(("vbuild", "toolkit", "install", str(spec), *spec.libraries))
    problem = f"not kept with {' and '.join(spec.libraries)}" if spec.libraries else "not kept"
    raise BuildError(f"CUDA {spec}: {problem}; run first: {command}")


def _installed(spec: ToolkitSpec, environment: Mapping[str, str]) -> Toolkit | None:
    if spec.path is not None:
        return toolkit_at_path(spec)
    toolkit = matching_toolkit(spec, environment)
    if toolkit is None:
        release_of(spec, instead=passed_over(spec, environment))
    return toolkit


def _cached_toolkit(spec: ToolkitSpec, store: ToolkitCache) -> Toolkit | None:
    unknown = list[str]()

    def ask(projects: tuple[str, ...], version: Version, machine: str) -> ToolkitPin | None:
        name = _name(projects, version, machine)
        pin = store.pin(name)
        unknown.extend([] if pin else [name])
        return pin

    pins = resolved_pins(spec, machine=_machine(spec), ask=ask)
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
    def __call__(self, spec: ToolkitSpec, *, on_progress: Callable[[str], None]) -> Toolkit: ...


class Supply(Struct, frozen=True):
    """What gives toolkits and zig; *writes* if they are fetched, not only named in a plan."""

    toolkit: ToolkitProvider
    zig: Callable[[], Path]
    writes: bool


FETCHED = Supply(provided_toolkit, provided_zig, writes=True)
FORESEEN = Supply(foreseen_toolkit, foreseen_zig, writes=False)


class Listing(Struct, frozen=True):
    kept: tuple[KeptToolkit, ...]
    installed: tuple[Installed, ...]

    def lines(self) -> Iterator[str]:
        for toolkit in self.kept:
            yield f"{toolkit.version}  {toolkit.size / 1e6:.0f} MB, last used {toolkit.used:%Y-%m-%d}"
            yield f"      {toolkit.root}"
            yield from (f"      {pin}" for pin in toolkit.pins)
        yield from (f"{toolkit.version}  installed: {toolkit.root}" for toolkit in self.installed)
        if not (self.kept or self.installed):
            yield "no CUDA toolkit, kept or installed; vbuild toolkit install 13.0 fetches one"


class Provision(Struct, frozen=True):
    toolkit: Toolkit

    def lines(self) -> Iterator[str]:
        yield str(self.toolkit.root)
        if self.toolkit.is_new:
            yield self.toolkit.licence


def listing(*, store: Path | None = None, environment: Mapping[str, str] = os.environ) -> Listing:
    return Listing(kept_in(ToolkitCache.at(store)), installed(environment))


def install(
    version: str, libraries: Iterable[str] = (), *, store: Path | None = None, on_progress: OnProgress = silently
) -> Provision:
    """The toolkit *version* of the package index with *libraries*, fetched unless it is kept."""
    provision = Provision(packaged_toolkit(_spec(version, libraries), store=store, on_progress=on_progress))
    sweep_daily()
    return provision


def path(version: str, libraries: Iterable[str] = (), *, store: Path | None = None) -> Provision:
    """The kept toolkit *version* with *libraries*; `BuildError` if there is none."""
    return Provision(kept_toolkit(_spec(version, libraries), store=store))


def _spec(version: str, libraries: Iterable[str]) -> ToolkitSpec:
    try:
        return ToolkitSpec(
            Dotted.parse(version), libraries=tuple(str(ToolkitLibrary.parse(text)) for text in libraries)
        )
    except HardwareError as error:
        raise BuildError(f"no CUDA version {version!r}; expected two numbers with a dot, as in 13.0") from error
