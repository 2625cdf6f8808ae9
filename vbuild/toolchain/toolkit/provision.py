"""The toolkit that a build gets: an installed one where it matches, or one of the package index.

    toolkit.path                             has to be there and to match
    CUDA_HOME, CUDA_PATH                     of the same version, with all that is asked for
    /usr/local/cuda-X.Y, cuda, nvcc on PATH  the same
    the package index                        pinned by hash: the same files on every machine

Who wants the last where a toolkit is installed sets CUDA_HOME to what ``vbuild toolkit path`` says.

Where builds get what a machine need not have: CUDA toolkits, and zig.
"""

import os
import platform
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from packaging.version import Version

from vbuild.errors import BuildError
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.cuda import ToolkitSpec
from vbuild.toolchain.toolkit.cache import OnProgress, Places, ToolkitCache, silently
from vbuild.toolchain.toolkit.installed import matching, named, passed_over
from vbuild.toolchain.toolkit.layout import is_complete
from vbuild.toolchain.toolkit.model import Toolkit, ToolkitPin
from vbuild.toolchain.toolkit.pins import MACHINES, asked, identity_of, known, releases, resolved
from vbuild.toolchain.zig import foreseen_zig, provided_zig


def provided(
    spec: ToolkitSpec,
    *,
    store: Path | None = None,
    indexes: Indexes | None = None,
    environment: Mapping[str, str] = os.environ,
    on_progress: OnProgress = silently,
) -> Toolkit:
    """The toolkit that *spec* asks for, fetched into *store* (the user's, where None) if it has to be.

    *indexes* are asked only then; they are pip's configured ones where None. *on_progress* hears of every step that
    takes time. `BuildError` or `FetchError` where there is none to be had.
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
    found = _installed(spec, environment) or _kept(spec, ToolkitCache.at(store))
    return found or Toolkit(spec.version, Path(f"CUDA-{spec}"), identity="")


def packaged(
    spec: ToolkitSpec, *, store: Path | None = None, indexes: Indexes | None = None, on_progress: OnProgress = silently
) -> Toolkit:
    """The toolkit of the package index that *spec* asks for, whatever is installed."""
    kept, places = ToolkitCache.at(store), _places(indexes)

    def ask(projects: tuple[str, ...], version: Version, machine: str) -> ToolkitPin:
        return kept.remembered(
            _name(projects, version, machine), lambda: asked(projects, version, machine, indexes=places())
        )

    machine = _machine(spec)
    pins = resolved(spec, machine=machine, ask=ask)
    return kept.toolkit(
        spec.version,
        pins,
        identity=identity_of(spec.version, pins),
        machine=machine,
        release=known(spec.version).name,
        places=places,
        on_progress=on_progress,
    )


def kept(spec: ToolkitSpec, *, store: Path | None = None) -> Toolkit:
    """The same, where it is in *store* already; `BuildError`, which says how to get it there, where it is not."""
    if found := _kept(spec, ToolkitCache.at(store)):
        return found
    command = shlex.join(("vbuild", "toolkit", "install", str(spec), *spec.libraries))
    what = f"not kept with {' and '.join(spec.libraries)}" if spec.libraries else "not kept"
    raise BuildError(f"CUDA {spec}: {what}; run first: {command}")


def _installed(spec: ToolkitSpec, environment: Mapping[str, str]) -> Toolkit | None:
    """The installed toolkit that *spec* names, or one that matches; None where the package index has to serve."""
    if spec.path is not None:
        return named(spec)
    found = matching(spec, environment)
    if found is None and spec.version not in releases():
        known(spec.version, instead=passed_over(spec, environment))
    return found


def _kept(spec: ToolkitSpec, store: ToolkitCache) -> Toolkit | None:
    """The toolkit of the package index that *spec* asks for; None where not all of it is in *store*."""
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
    """The kind of this machine; `BuildError` where the package index has nothing for it."""
    machine = platform.machine()
    if platform.system() != "Linux" or machine not in MACHINES:
        raise BuildError(
            f"CUDA {spec}: the package index has toolkits for Linux on {' and '.join(MACHINES)}, "
            f"not for {platform.system()} on {machine}"
        )
    return machine


def _name(projects: tuple[str, ...], version: Version, machine: str) -> str:
    return f"{projects[0]}-{version}-{machine}"


def _places(indexes: Indexes | None) -> Places:
    """What gives *indexes*, or pip's."""
    return lambda: indexes or Indexes.configured()


class ToolkitProvider(Protocol):
    """What gives a CUDA toolkit, and tells what it does for that."""

    def __call__(self, spec: ToolkitSpec, *, on_progress: Callable[[str], None]) -> Toolkit: ...


class Supply(Struct, frozen=True):
    """What gives toolkits and zig; *writes* where they are fetched for a build, and not only named in its plan."""

    toolkit: ToolkitProvider
    zig: Callable[[], Path]
    writes: bool


FETCHED = Supply(provided, provided_zig, writes=True)
FORESEEN = Supply(foreseen, foreseen_zig, writes=False)
