"""Libraries that are not part of a CUDA Toolkit: asked of the index once, and pinned by the hash that it states."""

from collections.abc import Iterable
from itertools import islice

from packaging.version import Version

from vbuild.errors import ToolkitError
from vbuild.fetching.indexes import Indexes
from vbuild.fetching.listing import Listed, files_of
from vbuild.toolkit.model import Pin

_SHOWN = 5


def asked(projects: tuple[str, ...], version: Version, machine: str, *, indexes: Indexes) -> Pin:
    """The wheel of *version* for Linux on *machine*, of the first of *projects* that the package index has.

    `ToolkitError`, with what is there, where it has none, or states no hash for it.
    """
    for project in projects:
        wheels = [listed for listed in files_of(project, indexes=indexes) if _fits(listed, machine)]
        if not wheels:
            continue
        what = f"{project}=={version}"
        if not (found := [listed for listed in wheels if listed.version == version]):
            raise ToolkitError(f"{what}: not on the package index; of {project} it has {_versions(wheels)}")
        if not found[0].sha256:
            raise ToolkitError(
                f"{what}: the package index states no SHA-256 for {found[0].file}; "
                "expected an index that does, as nothing else pins it"
            )
        return Pin(project, str(version), found[0].file, found[0].sha256)
    raise ToolkitError(f"the package index has no wheel for Linux on {machine} of {' or '.join(projects)}")


def _fits(listed: Listed, machine: str) -> bool:
    """Whether it is a wheel for any Python on *machine*, and more than a placeholder, which 0.0.0a0 is."""
    name = listed.file
    fits = name.endswith("-any.whl") or ("manylinux" in name and name.endswith(f"_{machine}.whl"))
    return fits and "py3-none-" in name and any(listed.version.release)


def _versions(wheels: Iterable[Listed]) -> str:
    """The newest releases of *wheels*, which are in that order."""
    versions = list(dict.fromkeys(str(listed.version) for listed in wheels if not listed.version.is_prerelease))
    more = f" and {len(versions) - _SHOWN} older" if len(versions) > _SHOWN else ""
    return f"{', '.join(islice(versions, _SHOWN))}{more}"
