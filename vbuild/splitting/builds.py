"""Libraries of several wheels that are one library but for their builds: one of them stays, and the others leave.

    fiona-1.10.1-cp310-…  libcrypto-fiona-a474b82d.so.1.1   built on: Mon Sep 16 16:56:39 2024
                          libssl-fiona-6c758070.so.1.1      NEEDED libcrypto-fiona-a474b82d.so.1.1
    fiona-1.10.1-cp311-…  libcrypto-fiona-4b285575.so.1.1   built on: Mon Sep 16 16:56:40 2024
                          libssl-fiona-6c758070.so.1.1      NEEDED libcrypto-fiona-4b285575.so.1.1

Two are compared if their names are the same without hashes, and without the name of a project before it, which
some projects put there. They are one if `comparison.compared` says so, if they have the same RPATH, and if what they
need is one in turn: libcrypto is compared before libssl. The one that most wheels have stays, else the one whose name
comes first; all that needs another is linked to it.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import permutations
from pathlib import Path

from msgspec.structs import replace

from vbuild.elf.catalogue import plain
from vbuild.errors import BinaryError
from vbuild.splitting.bundle import Bundle, SameLibrary, WheelBinary
from vbuild.splitting.comparison import Comparison, compared, difference_of, headers_differ
from vbuild.splitting.decisions import name_obstacle
from vbuild.splitting.official import Provenance
from vbuild.splitting.pools import Place, place_of
from vbuild.wheel.metadata import LIBS

# libraries that may be one: of wheels that can share, by the name that they have in common; and the project, if apart
_Group = tuple[Place, str, str]
_Copy = tuple[Bundle, WheelBinary]


def common_name(name: str, projects: Iterable[str]) -> str:
    """The file name of a library without its hash, and one of *projects* before: libproj of libproj-demo-1a2b3c4d."""
    stem, dot, rest = plain(name).partition(".so")
    infix = max((f"-{project}" for project in projects if stem.endswith(f"-{project}")), key=len, default="")
    return f"{stem.removesuffix(infix)}{dot}{rest}"


def with_builds(
    bundles: Sequence[Bundle],
    projects: Collection[str],
    *,
    room: Path | None,
    published: Sequence[Bundle] = (),
    apart: Collection[tuple[str, str]] = (),
) -> tuple[Bundle, ...]:
    """*bundles* in which a library knows which one stays for it, or how it differs; *room* is for inflated files.

    Those of *published* -libs wheels stay for all others. File names may have one of *projects* in them. What is
    *apart*, a project and the name of a library, is compared with that of the project only.
    """

    def group_of(bundle: Bundle, library: WheelBinary) -> _Group:
        project, name = bundle.wheel.name.project.removesuffix(LIBS), common_name(library.file_name, projects)
        return place_of(bundle), name, project if (project, name) in apart else ""

    groups: dict[_Group, dict[str, list[_Copy]]] = {}
    needs: dict[_Group, set[_Group]] = {}
    for bundle in (*published, *bundles):
        for library in bundle.libraries:
            copies = groups.setdefault(group_of(bundle, library), {})
            copies.setdefault(library.sha256, []).append((bundle, library))
            edges = bundle.graph.needs(library.path)
            providers = (bundle.binaries[edge.provider] for edge in edges if edge.provider)
            needs.setdefault(group_of(bundle, library), set()).update(group_of(bundle, other) for other in providers)
    order = [*groups]
    with suppress(CycleError):  # what is compared before what it needs differs from all others
        order = [group for group in TopologicalSorter(needs).static_order() if group in groups]
    builds = _Builds(published, projects)
    for group in order:
        if len(groups[group]) > 1:
            most_first = sorted(groups[group].values(), key=builds.order)
            builds.compare([copies[0] for copies in most_first], room)
    return tuple(
        dataclasses.replace(
            bundle, binaries={path: builds.known(bundle, file) for path, file in bundle.binaries.items()}
        )
        for bundle in bundles
    )


@dataclass(slots=True)
class _Builds:
    """What is known of libraries, by the place of their wheels and their SHA-256."""

    published: Sequence[Bundle]
    projects: Collection[str]
    results: dict[tuple[Place, str], SameLibrary | str] = field(default_factory=dict)

    def order(self, copies: Sequence[_Copy]) -> tuple[bool, int, str]:
        bundle, library = copies[0]
        return bundle not in self.published, -len(copies), library.file_name

    def known(self, bundle: Bundle, library: WheelBinary) -> WheelBinary:
        result = self.results.get((place_of(bundle), library.sha256), "")
        same_as = None if isinstance(result, str) else result
        return replace(library, same_as=same_as, differs="" if same_as else result)

    def compare(self, copies: Sequence[_Copy], room: Path | None) -> None:
        """Compare *copies* with the first of them, those that are not the same with the first of these, and so on."""
        with ExitStack() as stack:
            views: dict[str, memoryview] = {}
            left = [*copies]
            while left:
                stays, *others = left
                left = []
                for other in others:
                    comparison = Comparison(next(self._obstacles(stays, other), ""))
                    if not comparison.difference:
                        for bundle, library in (stays, other):
                            if library.sha256 not in views:
                                view = stack.enter_context(bundle.wheel.mapped(library.member, folder=room))
                                views[library.sha256] = view
                        comparison = self._comparison(stays, other, views)
                    if comparison.difference:
                        left.append(other)
                        for (bundle, library), (_, rival) in permutations((other, stays)):
                            why = f"{rival.file_name} is not the same: {comparison.difference}"
                            self.results.setdefault((place_of(bundle), library.sha256), why)
                    else:
                        (bundle, library), (_, stay) = other, stays
                        traces = {str(trace): size for trace, size in comparison.traces.items()}
                        same_as = SameLibrary(stay.sha256, stay.file_name, traces, stays[0] in self.published)
                        self.results[place_of(bundle), library.sha256] = same_as

    def _comparison(self, stays: _Copy, other: _Copy, views: Mapping[str, memoryview]) -> Comparison:
        files = (views[library.sha256] for _, library in (stays, other))
        try:
            return compared(*files, called=(self._names(stays), self._names(other)))
        except BinaryError as error:
            return Comparison(f"it cannot be compared: {error}")

    def _names(self, copy: _Copy) -> dict[str, str]:
        """What is the same for the same library, by the names by which that of *copy* needs it."""
        bundle, library = copy
        # a published library is led to its neighbours by what loads it
        besides = self.published if bundle in self.published else ()
        providers = [(other.soname, other) for published in besides for other in published.libraries]
        providers += [(other.soname, other) for other in bundle.libraries if other.folder == library.folder]
        edges = bundle.graph.needs(library.path)
        providers += [(edge.name, bundle.binaries[edge.provider]) for edge in edges if edge.provider]
        names: dict[str, str] = {}
        for name, provider in providers:
            contents = self.known(bundle, provider).contents
            names |= dict.fromkeys((name, provider.file_name, provider.soname), contents)
        return names

    def _obstacles(self, stays: _Copy, other: _Copy) -> Iterator[str]:
        """Why *other* is another library than the one that *stays*, by what is known of both already."""
        (_, library), (other_owner, replaced) = stays, other
        here, there = library.loading.outline, replaced.loading.outline
        if isinstance(library.origin, Provenance) or isinstance(replaced.origin, Provenance):
            yield "one of them is official"
        # a split has led published libraries of a project to those of a base
        folders = tuple(f"/{other.folder}" for bundle in self.published for other in bundle.libraries)
        if tuple(entry for entry in here.search_path if not entry.endswith(folders)) != there.search_path:
            yield "its RPATH is another"
        if common_name(library.soname, self.projects) != common_name(replaced.soname, self.projects):
            yield f"its SONAME is {replaced.soname}"
        if library.file_name != replaced.file_name and name_obstacle(other_owner, replaced):
            yield "it cannot get another name"
        ours, theirs = self._names(stays), self._names(other)
        for name, other_name in zip(here.needed, there.needed, strict=False):
            if ours.get(name, name) != theirs.get(other_name, other_name):
                needed, other_needed = (common_name(needed, self.projects) for needed in (name, other_name))
                yield f"it needs another {needed}" if needed == other_needed else "it needs other libraries"
        for section, copy in zip(here.sections, there.sections, strict=False):
            if section.name == copy.name and section.is_loaded and headers_differ(section, copy):
                yield difference_of(section, copy)
