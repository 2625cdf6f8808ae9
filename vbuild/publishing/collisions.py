"""Distributions that install the same files: no installer notices, whichever order they come in.

    levels-1.0-….whl              levels/__init__.py, levels/_core.so
    levels_x86_64_v3-1.0-….whl    the same paths: who installs both has the last one's, and after uninstalling either
                                  a distribution that is listed as installed and whose files are gone

Files of one project are alternatives, whatever their versions, Pythons and labels: installers have one at a time.
Wheels that no environment takes together do not meet. An ``__init__.py`` that is the same in both is how packages of
several distributions were made before PEP 420, and is not worth a word by itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from posixpath import basename

from vbuild.publishing.files import ReadyWheel
from vbuild.publishing.model import Demand, Problem
from vbuild.publishing.releases import Published
from vbuild.publishing.slots import Slot

_SHOWN = 3
_INIT = "__init__.py"


@dataclass(slots=True)
class _Group:
    """The wheels of one *project* for the same Pythons and machines, and all that they install."""

    project: str
    slots: tuple[Slot, ...]
    wheels: list[ReadyWheel] = field(default_factory=list)
    installs: dict[str, str] = field(default_factory=dict)

    def meets(self, other: "_Group") -> bool:
        """Whether an environment takes wheels of both."""
        pairs = ((one, another) for one in self.slots for another in other.slots)
        return any(one.serves(another) or another.serves(one) for one, another in pairs)


def collisions(known: Iterable[Published]) -> Iterator[Problem]:
    """The projects among *known* that install the same files; those that are linked so are named together."""
    groups = _groups(known)
    paths = _paths(groups)
    shared = dict(_meetings(groups, paths))
    linked: dict[str, set[str]] = {}
    for one, other in shared:
        linked.setdefault(groups[one].project, set()).add(groups[other].project)
        linked.setdefault(groups[other].project, set()).add(groups[one].project)
    left = set(linked)
    while left:
        projects = _reached(min(left), linked)
        left -= projects
        pairs = [pair for pair in shared if groups[pair[0]].project in projects]
        wheels = {
            wheel.file for number in {number for pair in pairs for number in pair} for wheel in groups[number].wheels
        }
        owners = {several for pair in pairs for several in shared[pair]}
        yield _problem(sorted(projects), sorted(wheels), sorted(path for several in owners for path in paths[several]))


def _groups(known: Iterable[Published]) -> list[_Group]:
    groups: dict[tuple[str, tuple[Slot, ...]], _Group] = {}
    for release in known:
        for wheel in release.wheels:
            key = release.project, wheel.slots
            group = groups.setdefault(key, _Group(*key))
            group.wheels.append(wheel)
            group.installs |= wheel.installs
    return list(groups.values())


def _paths(groups: Sequence[_Group]) -> dict[tuple[int, ...], list[str]]:
    """What is installed by several of *groups*, by the numbers of these: mostly, files come and go together."""
    owners: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        for path in group.installs:
            owners.setdefault(path, []).append(number)
    found: dict[tuple[int, ...], list[str]] = {}
    for path, several in owners.items():
        if len(several) > 1:
            found.setdefault(tuple(several), []).append(path)
    return found


def _meetings(
    groups: Sequence[_Group], paths: Mapping[tuple[int, ...], Sequence[str]]
) -> Iterator[tuple[tuple[int, int], list[tuple[int, ...]]]]:
    """The pairs of *groups* of different projects that meet in an environment and in *paths*, and by what key there."""
    found: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for owners in paths:
        for pair in combinations(owners, 2):
            found.setdefault(pair, []).append(owners)
    for pair, several in found.items():
        one, other = (groups[number] for number in pair)
        files = (path for owners in several for path in paths[owners])
        if one.project != other.project and one.meets(other) and not _is_namespace(files, one.installs, other.installs):
            yield pair, several


def _is_namespace(paths: Iterable[str], *installs: Mapping[str, str]) -> bool:
    """Whether all that is shared is ``__init__.py`` with the same contents."""
    return all(basename(path) == _INIT and len({found[path] for found in installs}) == 1 for path in paths)


def _reached(project: str, linked: Mapping[str, set[str]]) -> set[str]:
    """*project*, and all that share files with it or with one of these."""
    found, left = {project}, [project]
    while left:
        new = linked[left.pop()] - found
        found |= new
        left += new
    return found


def _problem(projects: Sequence[str], wheels: Sequence[str], paths: Sequence[str]) -> Problem:
    first, *others = projects
    return Problem(
        Demand.SHARED_FILES,
        tuple(wheels),
        f"{first} has files shared with {_listed(others)}: {_listed(paths)}",
        "say that one excludes the others: no installer notices, the last one's files win, and go with any of them",
        is_error=False,
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
