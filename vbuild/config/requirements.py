"""Requirements of METADATA, recipes and variants: read, spelled alike, and evaluated for one Python and machine.

    tomli; python_version < "3.11"     3.10: applies     3.11: does not
    click; extra == "cli"              never applies: no extra is asked for

https://packaging.python.org/en/latest/specifications/dependency-specifiers/
"""

from collections.abc import Iterable

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidName, canonicalize_name

from vbuild.errors import VbuildError, WheelError

SYSTEMS = {"linux": ("posix", "Linux"), "win32": ("nt", "Windows"), "darwin": ("posix", "Darwin")}
"""By ``sys_platform``: ``os_name`` and ``platform_system``."""

# suffixes of files that no project's name has: ruamel.yaml and web.py are projects
_SUFFIXES = (
    *(".txt", ".in", ".toml", ".lock", ".json", ".whl", ".conda"),
    *(".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".lzma"),
)

# patch versions for which markers are evaluated: the first, and one after all
_PATCHES = (0, 99)


def is_path(text: str) -> bool:
    """Whether *text* names a file or folder, which may not exist, rather than a project.

        requirements.txt    ./demo    dist/demo    ~/demo    ..                                  a file or a folder
        demo    ruamel.yaml    demo==1.0    demo.zip==1.0    demo.txt[all]    demo @ https://…   a project

    Anybody can register a project with the name of a misspelt file.
    """
    name = (text.partition("@")[0] if "://" in text else text).strip()
    return name.startswith((".", "~")) or "/" in name or "\\" in name or name.lower().endswith(_SUFFIXES)


def asked_project(text: str, refusal: type[VbuildError]) -> str:
    """*text* if it names a project and not a file; else raises *refusal*."""
    if is_path(text):
        raise refusal(f"{text!r} is the name of a file; expected that of a project, as in numpy")
    return checked_project(text, refusal)


def checked_project(text: str, refusal: type[VbuildError]) -> str:
    """*text* if it is the name of a project (PEP 508); else raises *refusal*."""
    try:
        canonicalize_name(text, validate=True)
    except InvalidName as error:
        raise refusal(f"no project name {text!r}; expected letters and digits, and - _ . between them") from error
    return text


def parsed_requirement(line: str) -> Requirement:
    """The requirement in *line*; `InvalidRequirement`, with the reason in one line, if it cannot be read."""
    try:
        return Requirement(line)
    except InvalidRequirement as error:
        raise InvalidRequirement(str(error).partition("\n")[0]) from error
    except RecursionError as error:
        raise InvalidRequirement("brackets in brackets, too deep to be read") from error


def read_requirement(line: str) -> Requirement | None:
    """The requirement in *line*, or None if packaging cannot read it, as in old METADATA."""
    try:
        return parsed_requirement(line)
    except InvalidRequirement:
        return None


def checked_requirement(line: str, refusal: type[VbuildError]) -> Requirement:
    """The requirement in *line*; raises *refusal* if it cannot be read."""
    try:
        return parsed_requirement(line)
    except InvalidRequirement as error:
        raise refusal(f"{line!r} is not a requirement: {error}") from error


def requirement_lines(lines: Iterable[str], refusal: type[VbuildError]) -> str:
    """The text of a file of requirements with *lines*; raises *refusal* for another line.

    An option of installers, such as ``-e .`` or ``--index-url``, is none.
    """
    return "".join(f"{checked_requirement(line, refusal)}\n" for line in lines)


def required_project(line: str) -> str | None:
    """The project that *line* requires, in the spelling of package indexes, or None if *line* cannot be read."""
    requirement = read_requirement(line)
    return canonicalize_name(requirement.name) if requirement else None


def spelled(line: str) -> str:
    """*line* in packaging's spelling, so that equal requirements are equal texts; else with single blanks."""
    if (requirement := read_requirement(line)) is None:
        return " ".join(line.split())
    requirement.name = canonicalize_name(requirement.name)
    return str(requirement)


def admits(requirement: Requirement | None, project: str, version: str) -> bool:
    """Whether *requirement* is for *project* and admits *version*, pre-releases included."""
    if requirement is None or canonicalize_name(requirement.name) != project:
        return False
    return requirement.specifier.contains(version, prereleases=True)


def applies(requirement: Requirement, minor: int, *, machine: str, system: str = "linux") -> bool:
    """Whether *requirement* applies to some patch version of CPython 3.*minor*, without extras.

    `WheelError` if its marker cannot be evaluated.
    """
    if requirement.marker is None:
        return True
    os_name, platform_system = SYSTEMS[system]
    # all, so that packaging takes none from this machine
    known = {
        "os_name": os_name,
        "sys_platform": system,
        "platform_system": platform_system,
        "platform_machine": machine,
        "platform_release": "",
        "platform_version": "",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "python_version": f"3.{minor}",
        "extra": "",
    }
    versions = (f"3.{minor}.{patch}" for patch in _PATCHES)
    try:
        return any(
            requirement.marker.evaluate({**known, "implementation_version": full, "python_full_version": full})
            for full in versions
        )
    except (UndefinedComparison, UndefinedEnvironmentName) as error:
        raise WheelError(f"Requires-Dist {requirement}: its marker cannot be decided") from error
