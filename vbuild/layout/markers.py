"""Lines of Requires-Dist where layouts have to decide them: for a minor version of CPython 3, a machine, a system.

    tomli; python_version < "3.11"     3.10: holds     3.11: does not
    click; extra == "cli"              never: whoever decides here asks for no extra

https://packaging.python.org/en/latest/specifications/dependency-specifiers/#environment-markers
"""

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement

from vbuild.errors import LayoutError, at

# a marker that the patch version decides holds where it does in the first one, or in one that never will be
_PATCHES = (0, 99)
SYSTEMS = {"linux": ("posix", "Linux"), "win32": ("nt", "Windows"), "darwin": ("posix", "Darwin")}


def requirement_of(line: str) -> Requirement:
    """The requirement that *line* is; `LayoutError` where it is none."""
    with at(f"Requires-Dist {line}"):
        try:
            return Requirement(line)
        except (InvalidRequirement, RecursionError) as error:
            raise LayoutError("expected a requirement as PEP 508 writes it") from error


def holds(requirement: Requirement, minor: int, *, machine: str, system: str = "linux") -> bool:
    """Whether *requirement* holds in some patch version of Python 3.*minor*; `LayoutError` where none can say."""
    if requirement.marker is None:
        return True
    try:
        return any(requirement.marker.evaluate(_environment(minor, patch, machine, system)) for patch in _PATCHES)
    except (UndefinedComparison, UndefinedEnvironmentName) as error:
        raise LayoutError(f"Requires-Dist {requirement}: its marker cannot be decided") from error


def _environment(minor: int, patch: int, machine: str, system: str) -> dict[str, str]:
    """Every marker variable, so that nothing of this machine is taken for the missing ones."""
    os_name, platform_system = SYSTEMS[system]
    full = f"3.{minor}.{patch}"
    return {
        "os_name": os_name,
        "sys_platform": system,
        "platform_system": platform_system,
        "platform_machine": machine,
        "platform_release": "",
        "platform_version": "",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "implementation_version": full,
        "python_version": f"3.{minor}",
        "python_full_version": full,
        "extra": "",
    }
