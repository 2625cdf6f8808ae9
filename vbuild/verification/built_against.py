"""Whether the releases of a dependency that are at hand have the symbols that a wheel takes from its libraries.

    NEEDED libc10.so, which torch brings    releases of torch at hand: wheels beside, and what is installed
    undefined symbols without a version     each release exports them, or lacks some
    abi_dependency :: torch :: 2.11         that release has to have them all (PEP 850, ABI dependencies)

CPython binds every symbol when it loads a module, so with one missing the import fails. With none missing the code may
still crash: symbols do not show how types are laid out.
"""

import mmap
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
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

    def provided(self, taken: TakenSymbols) -> frozenset[str]:
        """The libraries and symbols that *taken* needs and the release has, by name."""
        left, seen, provided = sorted(taken.needs), set[str](), set[str]()
        while left and not provided >= taken.symbols:
            name = left.pop(0)
            if name in seen or (facts := self.read(name)) is None:
                continue
            seen.add(name)
            provided |= ({name} & taken.needs) | (facts.exported & taken.symbols)
            left += facts.outline.needed
        return frozenset(provided.union(name for name in left if name in taken.needs and self.read(name)))


def available_releases(wheel: Wheel, projects: Collection[str], environment: Path | None) -> Iterator[AvailableRelease]:
    """The releases of *projects* in wheels beside *wheel*, and in *environment*; `WheelError` if one is damaged."""
    for path in sorted(wheel.path.parent.glob("*.whl")):
        with suppress(WheelError):  # of another tool's file, which no installer takes either
            name = WheelName.parse(path.name)
            if name.project in projects and name.variant is None and platforms_in(name.platform):
                yield AvailableRelease(name.project, name.version, "beside it", cache(partial(_in_wheel, path)))
    if environment:
        with suppress(RepackageError):  # no environment any more
            for package in Environment.at(environment).distributions():
                if (project := canonicalize_name(package.project)) in projects:
                    yield AvailableRelease(project, package.version, "installed", cache(partial(_installed, package)))


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
    """What the *releases* have of the symbols *taken*: an error for one that the wheel *claims*.

    *claims* are versions by project, as of PEP 850. *requirements* that admit a release that lacks one are a warning.
    """
    by_project: dict[str, list[tuple[AvailableRelease, list[frozenset[str]]]]] = {}
    for release in releases:
        provided = [release.provided(file) for file in taken]
        if any(names & file.needs for names, file in zip(provided, taken, strict=True)):
            by_project.setdefault(release.project, []).append((release, provided))
    for project in sorted(claims.keys() - by_project.keys()):
        message = f"claims {project} {' or '.join(sorted(claims[project]))}: cannot tell from symbols: "
        message += f"no {project} beside it or in the active environment has a library that it needs"
        yield Finding(Severity.NOTE, VerifyRule.DEPENDENCY, (), message)
    for project, rows in by_project.items():
        by_some = [frozenset().union(*names) for names in zip(*(provided for _, provided in rows), strict=True)]
        expected = [_expected(file, names) for file, names in zip(taken, by_some, strict=True)]
        severity, texts = Severity.NOTE, []
        for release, provided in rows:
            lacking = sorted(frozenset().union(*(all_ - has for all_, has in zip(expected, provided, strict=True))))
            state = "has all of them"
            if lacking:
                state = f"lacks {len(lacking)}, so it does not load there: {shown(lacking, _SHOWN)}"
                severity = min(severity, _severity(release, claims, requirements), key=list(Severity).index)
            texts.append(f"{release.version}, {release.place}, {state}")
        paths = tuple(file.path for file, names in zip(taken, expected, strict=True) if names)
        symbols = frozenset().union(*expected) - frozenset().union(*(file.needs for file in taken))
        claim = f"claims {project} {' or '.join(sorted(claims[project]))}, and " if project in claims else ""
        message = f"{claim}takes {counted(len(symbols), 'symbol')} from {project}: {'; '.join(texts)}"
        advice = f"build it against the {project} that it is for" if severity is not Severity.NOTE else ""
        yield Finding(severity, VerifyRule.DEPENDENCY, paths, message, advice)


def _expected(file: TakenSymbols, by_some: frozenset[str]) -> frozenset[str]:
    """The names that a release has to have: what some release has, or all if no other library can have them."""
    libraries = by_some & file.needs
    return by_some | file.symbols if file.known and libraries and libraries == file.needs else by_some


def _severity(
    release: AvailableRelease, claims: Mapping[str, Collection[str]], requirements: Sequence[Requirement]
) -> Severity:
    """How bad it is that the wheel does not load with *release*."""
    if values := claims.get(release.project):
        is_claimed = any(SpecifierSet(f"=={value}.*").contains(release.version, prereleases=True) for value in values)
        return Severity.ERROR if is_claimed else Severity.NOTE
    is_admitted = any(admits(requirement, release.project, release.version) for requirement in requirements)
    return Severity.WARNING if is_admitted else Severity.NOTE
