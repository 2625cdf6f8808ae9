"""`vbuild check`: find everything that keeps the files of a folder from being published.

files, folder, page of links, simple index -> wheels, sdists, variants.json -> releases
                                           -> what an index refuses, what confuses installers
folder of a layout that `vbuild publish` made -> what is wrong with it
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from vbuild.errors import RepackageError
from vbuild.index_client.located import all_files_at, connected, shown_place
from vbuild.publishing import local, suffix, variants
from vbuild.publishing.conda import channel as conda
from vbuild.publishing.hwcaps import plan as hwcaps
from vbuild.publishing.lint.agreement import collisions, label_problems, metadata_problems, sdist_problems
from vbuild.publishing.lint.files import (
    broken_tags,
    files_in,
    files_of,
    lacking_companions,
    library_clashes,
    releases_among,
    served_problems,
    spelling_twins,
    stray_documents,
)
from vbuild.publishing.lint.index import DEFAULT_LIMIT, IndexRules, refusals, totals
from vbuild.publishing.oci import check as oci
from vbuild.publishing.publish import README
from vbuild.publishing.redirect import plan as redirect
from vbuild.verification.model import Finding, merged

_CHECKS: Mapping[str, Callable[[Path], Iterator[Finding]]] = {
    "hwcaps": hwcaps.problems,
    "redirect": redirect.problems,
    "local": local.problems,
    "suffix": suffix.problems,
    "oci": oci.problems,
    "conda": conda.problems,
    "variants": variants.problems,
}


class Checklist(Struct, frozen=True):
    """Releases at *place*, a folder or a URL without its password, how many *files*, and problems, errors first."""

    place: str
    releases: tuple[str, ...]
    files: int
    problems: tuple[Finding, ...]

    @property
    def errors(self) -> int:
        return sum(problem.is_error for problem in self.problems)

    @property
    def warnings(self) -> int:
        return len(self.problems) - self.errors

    @property
    def failed(self) -> bool:
        return self.errors > 0

    def data(self) -> dict[str, Any]:
        return {
            "releases": list(self.releases),
            "files": self.files,
            "failed": self.failed,
            "findings": [
                {
                    "severity": problem.severity,
                    "rule": problem.rule,
                    "files": list(problem.places),
                    "what": problem.what,
                    "do": problem.advice,
                }
                for problem in self.problems
            ],
        }


def check_layout(folder: Path, layout: str) -> Checklist:
    """What is wrong with *folder*, or the folder in it, that `vbuild publish` made in that *layout*."""
    layout_folder = folder / layout if (folder / layout).is_dir() else folder
    if not layout_folder.is_dir():
        raise RepackageError(f"{folder}: no such folder; expected one that vbuild publish --layout {layout} made")
    if layout not in _CHECKS:
        raise RepackageError(f"no layout {layout!r}; expected one of {', '.join(_CHECKS)}")
    count = sum(path.is_file() for path in layout_folder.rglob("*"))
    # findings about the folder as a whole name it, and "." has no name
    return Checklist(str(layout_folder), (), count, merged_findings(_CHECKS[layout](layout_folder.absolute())))


def check(*places: Path | str, pypi: bool = False, limit: int = DEFAULT_LIMIT) -> Checklist:
    """What is wrong with the releases at *places*: for any index, or with *pypi* for that one.

    A place is a file, a folder, or the URL of a page of links or a simple index, of which all projects are checked. One
    file may have *limit* MB of 1024 x 1024 bytes. Wheels of this machine are compared with RECORD; of those on a server
    only what is read. A folder that `vbuild publish` made is checked as its layout, by its name. `RepackageError` if
    there is nothing to publish, or a limit that PyPI never grants; `FetchError` if there is no such page.
    """
    terms = IndexRules(is_pypi=pypi, limit=limit)
    if len(places) == 1 and isinstance(folder := places[0], Path) and (folder / README).is_file():
        layout = folder.absolute().name
        if layout in _CHECKS:
            if terms != IndexRules(is_pypi=False, limit=DEFAULT_LIMIT):
                raise RepackageError(
                    f"{folder}: made by vbuild publish; expected no limits, which are for files uploaded as they are"
                )
            return check_layout(folder, layout)
    with connected(*places):
        return _checked(places, terms)


def _checked(places: Sequence[Path | str], terms: IndexRules) -> Checklist:
    shown = ", ".join(map(shown_place, places))
    files = files_in(
        [file for place in places for file in (files_of(place) if isinstance(place, Path) else all_files_at(place))],
        shown,
    )
    releases = releases_among(files)
    beside = {release.project for release in releases}
    problems = [
        *files.damaged,
        *stray_documents(files, releases),
        *spelling_twins(releases),
        *totals(releases, terms),
        *collisions(releases),
        *library_clashes(releases),
    ]
    for release in releases:
        problems += refusals(release, terms)
        problems += broken_tags(release)
        problems += label_problems(release)
        problems += lacking_companions(release, releases=releases)
        problems += metadata_problems(release, beside=beside - {release.project})
        problems += sdist_problems(release, terms)
        problems += served_problems(release)
    return Checklist(shown, tuple(map(str, releases)), files.count, merged_findings(problems))


def merged_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(merged(findings), key=lambda finding: (not finding.is_error, finding.places, finding.what)))
