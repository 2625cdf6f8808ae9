"""Whether the releases of a dependency that are at hand have the symbols that a wheel takes from its libraries.

    NEEDED libc10.so, which torch brings    releases of torch at hand: wheels beside, and what is installed
    undefined symbols without a version     each release exports them, or lacks some
    abi_dependency :: torch :: 2.11         that release has to have them all (PEP 850, ABI dependencies)

CPython binds every symbol when it loads a module, so with one missing the import fails. With none missing the code may
crash still: how types are laid out no symbol says.
"""

import mmap
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from vbuild.binary.outline import BinaryFacts
from vbuild.config.requirements import admits
from vbuild.elf.catalogue import platforms_in
from vbuild.elf.read import read_facts
from vbuild.errors import BinaryError, RepackageError, WheelError
from vbuild.files.reading import open_file
from vbuild.files.wording import counted, shown
from vbuild.verification.model import Finding, Severity, VerifyRule
from vbuild.wheel.archive import Wheel, open_wheel
from vbuild.wheel.installed import Environment, InstalledDistribution
from vbuild.wheel.name import WheelName

_SHOWN = 2


class TakenSymbols(Struct, frozen=True):
    """The *symbols* without a version that the file at *path* takes from others, and the libraries that it *needs*.

    If it is *known* which symbols glibc and Python have, the others are of these libraries.
    """

    path: str
    needs: frozenset[str]
    symbols: frozenset[str]
    known: bool


class AvailableRelease(Struct, frozen=True):
    """A release of *project* whose libraries can be read by name, at *place*."""

    project: str
    version: str
    place: str
    read: Callable[[str], BinaryFacts | None]

    def given(self, taken: TakenSymbols) -> tuple[frozenset[str], frozenset[str]]:
        """The libraries of those that *taken* needs, and the symbols, that the release has."""
        left, seen = sorted(taken.needs), set[str]()
        libraries, symbols = set[str](), set[str]()
        while left and not symbols >= taken.symbols:
            name = left.pop(0)
            if name in seen or (facts := self.read(name)) is None:
                continue
            seen.add(name)
            libraries |= {name} & taken.needs
            symbols |= facts.exported & taken.symbols
            left += facts.outline.needed
        libraries |= {name for name in left if name in taken.needs and self.read(name)}
        return frozenset(libraries), frozenset(symbols)


def available_releases(wheel: Wheel, projects: Collection[str], environment: Path | None) -> Iterator[AvailableRelease]:
    """The releases of *projects* in wheels beside *wheel*, and in *environment*; `WheelError` if one is damaged."""
    for path in sorted(wheel.path.parent.glob("*.whl")):
        with suppress(WheelError):  # of another tool's file, which no installer takes either
            name = WheelName.parse(path.name)
            if name.project in projects and name.variant is None and platforms_in(name.platform):
                yield AvailableRelease(name.project, name.version, "beside it", partial(_in_wheel, path))
    if environment:
        with suppress(RepackageError):  # no environment any more
            for package in Environment.at(environment).distributions():
                if (project := canonicalize_name(package.project)) in projects:
                    yield AvailableRelease(project, package.version, "installed", partial(_installed, package))


def _in_wheel(path: Path, library: str) -> BinaryFacts | None:
    with open_wheel(path) as wheel:
        for member in wheel.members:
            if posixpath.basename(member.path) == library:
                with suppress(BinaryError), wheel.mapped(member) as data:
                    return read_facts(data)[0]
    return None


def _installed(package: InstalledDistribution, library: str) -> BinaryFacts | None:
    for row in package.rows:
        if posixpath.basename(row.path) == library:
            with (
                suppress(BinaryError, OSError, ValueError),  # damaged, gone, or empty
                open_file(package.path_of(row.path)) as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages,
                memoryview(pages) as data,
            ):
                return read_facts(data)[0]
    return None


def symbol_findings(
    taken: Sequence[TakenSymbols],
    releases: Iterable[AvailableRelease],
    claims: Mapping[str, Collection[str]],
    requirements: Sequence[Requirement],
) -> Iterator[Finding]:
    """What the *releases* have of the symbols *taken*: an error for one that the wheel *claims* to be built against.

    *claims* are versions by project, as of PEP 850. *requirements* that admit a release that lacks one are a warning.
    """
    by_project: dict[str, list[tuple[AvailableRelease, list[tuple[frozenset[str], frozenset[str]]]]]] = {}
    for release in releases:
        given = [release.given(file) for file in taken]
        if any(libraries for libraries, _ in given):
            by_project.setdefault(release.project, []).append((release, given))
    for project in sorted(claims.keys() - by_project.keys()):
        what = f"claims {project} {' or '.join(sorted(claims[project]))}: cannot tell from symbols: "
        what += f"no {project} beside it or in the active environment has a library that it needs"
        yield Finding(Severity.NOTE, VerifyRule.DEPENDENCY, (), what)
    for project, rows in by_project.items():
        wanted = []  # of each file: what some release has, or all that is taken if no other library can have it
        for number, file in enumerate(taken):
            libraries, symbols = (frozenset().union(*(given[number][part] for _, given in rows)) for part in (0, 1))
            is_all = file.known and libraries == file.needs
            wanted.append(libraries | (file.symbols if libraries and is_all else symbols))
        severity, texts = Severity.NOTE, []
        for release, given in rows:
            lacking = sorted(
                {name for names, parts in zip(wanted, given, strict=True) for name in names.difference(*parts)}
            )
            texts.append(f"{release.version}, {release.place}, {_lacks(lacking)}")
            if lacking:
                severity = min(severity, _severity(release, claims, requirements), key=list(Severity).index)
        places = tuple(file.path for file, names in zip(taken, wanted, strict=True) if names)
        count = counted(len(frozenset().union(*wanted) - frozenset().union(*(file.needs for file in taken))), "symbol")
        claim = f"claims {project} {' or '.join(sorted(claims[project]))}, and " if project in claims else ""
        what = f"{claim}takes {count} from {project}: {'; '.join(texts)}"
        advice = f"build it against the {project} that it is for" if severity is not Severity.NOTE else ""
        yield Finding(severity, VerifyRule.DEPENDENCY, places, what, advice)


def _lacks(names: Sequence[str]) -> str:
    return f"lacks {len(names)}, so it does not load there: {shown(names, _SHOWN)}" if names else "has all of them"


def _severity(
    release: AvailableRelease, claims: Mapping[str, Collection[str]], requirements: Sequence[Requirement]
) -> Severity:
    """How bad it is that the wheel does not load with *release*."""
    if values := claims.get(release.project):
        is_claimed = any(SpecifierSet(f"=={value}.*").contains(release.version, prereleases=True) for value in values)
        return Severity.ERROR if is_claimed else Severity.NOTE
    is_admitted = any(admits(requirement, release.project, release.version) for requirement in requirements)
    return Severity.WARNING if is_admitted else Severity.NOTE
