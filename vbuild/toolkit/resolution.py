"""From a toolkit as a recipe asks for it to the wheels that it is made of.

13.0                                 nvcc, crt, nvvm, cudart and cccl, as pinned
cublas, nvidia-cublas                a component of the toolkit, as pinned, with what it needs of the others
nccl==2.28.9                         the package nvidia-nccl-cu13, pinned by the hash that the index states
nccl==2.28.9 sha256:4b0d… sha256:…   the same, held against the hashes given, one for each machine
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator

from packaging.version import Version

from vbuild.errors import ToolkitError, at
from vbuild.hardware.driver import Dotted
from vbuild.recipe.cuda import ToolkitSpec
from vbuild.recipe.library import Library
from vbuild.toolkit.model import Pin
from vbuild.toolkit.pins import Release, releases

# of one of these projects the wheel of a version, for a machine; None where nobody knows yet, and that may be
Ask = Callable[[tuple[str, ...], Version, str], Pin | None]

CORE = ("nvcc", "crt", "nvvm", "cudart", "cccl")

# counts the ways in which components were laid out, so that no build takes one for another
_LAYOUT = 1


def resolved(spec: ToolkitSpec, *, machine: str, ask: Ask) -> tuple[Pin, ...]:
    """The wheels of *spec* for Linux on *machine*, by project; *ask* is for those that are not in pins.json.

    Of what *ask* does not know there is none.

    `ToolkitError` for a version that the index has no compiler of, or a library that is not there.
    """
    release = known(spec.version)
    with at(f"CUDA {spec.version}"):
        pins = {pin.project: pin for name in CORE for pin in _pinned(release, name, machine)}
        for library in map(Library.parse, spec.libraries):
            pins |= {pin.project: pin for pin in _library(library, release, machine, ask)}
    return tuple(sorted(pins.values()))


def known(version: Dotted, *, instead: Iterable[str] = ()) -> Release:
    """The release of CUDA *version*; `ToolkitError` where the package index has no nvcc for it.

    It says what there is, and what is installed *instead*.
    """
    if release := releases().get(version):
        return release
    oldest, newest = min(releases()), max(releases())
    why = f"no nvcc for CUDA before {oldest}" if version < oldest else "nothing for it that this vbuild knows of"
    raise ToolkitError(
        f"CUDA {version}: the package index has {why}, only {oldest} to {newest}; "
        f'install CUDA {version} and set CUDA_HOME, or write toolkit = {{ path = "…", version = "{version}" }}'
        + "".join(f"; there is {other}" for other in instead)
    )


def identity_of(version: Dotted, pins: Iterable[Pin]) -> str:
    """What a build with these *pins* depends on, 64 hex digits."""
    lines = (f"toolkit {_LAYOUT}", str(version), *(f"{pin} {pin.sha256}" for pin in sorted(pins)))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _library(library: Library, release: Release, machine: str, ask: Ask) -> Iterator[Pin]:
    """The wheels of *library*: of a component with a version of its own that one, and the others as pinned."""
    projects = release.projects(library.name)
    if not projects and library.version is None:
        raise ToolkitError(
            f"{library}: not one of its components, which are {', '.join(sorted(release.extras))}; "
            f"expected one of them, or a version, as in {library}==VERSION"
        )
    if library.version is None:
        yield from _pinned(release, library.name, machine)
        return
    main = _main(library.name, projects)
    candidates = (main,) if main else _candidates(library.name, release.version)
    own = release.pin(main, machine) if main else None
    found = own if own and Version(own.version) == library.version else ask(candidates, library.version, machine)
    if found and library.hashes and found.sha256 not in library.hashes:
        raise ToolkitError(
            f"{library.release}: the package index states sha256 {found.sha256} for {found.file}; "
            f"expected {' or '.join(sorted(library.hashes))}"
        )
    yield from (pin for project in projects if project != main and (pin := release.pin(project, machine)))
    if found:
        yield found


def _pinned(release: Release, name: str, machine: str) -> Iterator[Pin]:
    for project in release.projects(name):
        if not (pin := release.pin(project, machine)):
            raise ToolkitError(f"{name}: {project} is not there for Linux on {machine}")
        yield pin


def _main(name: str, projects: tuple[str, ...]) -> str | None:
    """The one of *projects* whose version is that of the extra *name*."""
    named = [project for project in projects if project.endswith(f"-{name}")]
    return next(iter(named or projects), None)


def _candidates(name: str, version: Dotted) -> tuple[str, ...]:
    if name.startswith("nvidia-"):
        return (name,)
    return (f"nvidia-{name}-cu{version.major}", f"nvidia-{name}")
