"""The wheels of shared libraries that a thin wheel requires: beside it or fetched, and whether its tags hold with them.

    Requires-Dist: demo-libs==1.0    demo_libs-1.0-py3-none-manylinux_2_28_x86_64.whl
    each platform tag of the wheel   that wheel has one as old for the same machine, or older: both install there
    its libraries                    take no symbol that is newer than the tags of the wheel that requires them

`auditwheel show` looks into one wheel only, and calls one whose libraries are in another linux_x86_64.
https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vbuild.config.requirements import admits, applies, read_requirement
from vbuild.elf.catalogue import PlatformPolicy, covers, frameworks, platforms_in
from vbuild.elf.code import Elf
from vbuild.elf.records import MAGIC
from vbuild.errors import BinaryError, WheelError
from vbuild.index_client.located import ListedFile
from vbuild.verification.model import Finding, Severity, VerifyRule
from vbuild.wheel.archive import Wheel, open_wheel
from vbuild.wheel.metadata import LIBS
from vbuild.wheel.name import WheelName
from vbuild.wheel.paths import installed_path

# downloads the file of a project with the lowest rank into a folder, as `download_best` does
Fetch = Callable[[str, Callable[[ListedFile], int | None], Path], Path | None]

# -libs wheels have no marker for Python
_ANY_MINOR = 11


class RequiredWheel(Struct, frozen=True):
    """A wheel, at *place*, that another requires, its *libraries* by installed path, and *findings* on the two."""

    name: str
    place: str
    libraries: dict[str, Elf]
    findings: tuple[Finding, ...] = ()


def required_wheels(wheel: Wheel, *, fetch: Fetch | None = None) -> Iterator[RequiredWheel]:
    """The required wheels beside *wheel* that have libraries; *fetch* brings missing -libs wheels.

    `WheelError` if one is damaged, `FetchError` if no index answers.
    """
    platforms = platforms_in(wheel.name.platform)
    beside = [*_named(path for path in wheel.path.parent.glob("*.whl") if path.name != wheel.path.name)]
    for line in wheel.metadata().requires_dist:
        requirement = read_requirement(line)
        if requirement is None or not _applies(requirement, platforms):
            continue
        project = canonicalize_name(requirement.name)
        if project in frameworks():  # no RPATH leads to their libraries: see `vbuild.verification.built_against`
            continue
        fitting = [
            (name, path) for name, path in beside if admits(requirement, name.project, name.version) and _is_for(name)
        ]
        if fitting:
            _, path = min(fitting, key=lambda pair: (not covers(pair[0].platform, wheel.name.platform), pair[1].name))
            if required := _read(path, wheel.name, "beside it"):
                yield required
        elif fetch and project.endswith(LIBS):
            with TemporaryDirectory() as folder:
                best = fetch(project, _ranking(requirement, wheel.name.platform), Path(folder))
                if best and (required := _read(best, wheel.name, "on the index")):
                    yield required


def _named(paths: Iterator[Path]) -> Iterator[tuple[WheelName, Path]]:
    for path in sorted(paths):
        try:
            yield WheelName.parse(path.name), path
        except WheelError:
            continue  # another tool's file, which no installer takes either


def _is_for(name: WheelName) -> bool:
    return name.variant is None and bool(platforms_in(name.platform))


def _applies(requirement: Requirement, platforms: Sequence[PlatformPolicy]) -> bool:
    try:
        return any(applies(requirement, _ANY_MINOR, machine=platform.machine) for platform in platforms)
    except WheelError:
        return False


def _ranking(requirement: Requirement, platform: str) -> Callable[[ListedFile], int | None]:
    def rank(listed: ListedFile) -> int | None:
        try:
            name = WheelName.parse(listed.file)
        except WheelError:
            return None
        if not admits(requirement, name.project, name.version) or not _is_for(name):
            return None
        return int(not covers(name.platform, platform))

    return rank


def _read(path: Path, by: WheelName, place: str) -> RequiredWheel | None:
    libraries: dict[str, Elf] = {}
    with open_wheel(path) as wheel:
        for member in wheel.members:
            if wheel.head(member, len(MAGIC)) != MAGIC or (installed := installed_path(member.path)) is None:
                continue
            with wheel.mapped(member) as data:
                try:
                    elf = Elf.parse(data)
                except BinaryError:
                    continue  # what is needed of it is said to be missing
            if elf.is_loadable:
                libraries[installed] = elf
        platforms, own = platforms_in(by.platform), platforms_in(wheel.name.platform)
    if not libraries:
        return None
    findings = []
    for platform in platforms:
        if not covers(wheel.name.platform, platform.tag):
            tags = ", ".join(older.tag for older in own)
            message = (
                f"requires {path.name}, {place}, which is for {tags} only: it does not install on all of "
                f"{platform.tag}, as this wheel does"
            )
            findings.append(Finding(Severity.ERROR, VerifyRule.NEEDED, (), message))
    return RequiredWheel(path.name, place, libraries, tuple(findings))
