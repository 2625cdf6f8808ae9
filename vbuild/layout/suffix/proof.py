"""What is wrong with a folder of the layout suffix: names that contradict each other, or bring two with the same files.

file name = .dist-info = Name in METADATA; no variant label
no wheel requires one with the same files: neither its old name, nor an extra of it
an empty wheel requires one that is there
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from vbuild.layout.indexes import index_problems, wheels_in
from vbuild.layout.offer import Offered
from vbuild.layout.siblings import read
from vbuild.publishing.model import Demand, Problem
from vbuild.wheel.distinfo import is_dist_info
from vbuild.wheel.installed import installed_path

_AGAIN = "publish the wheels again into an empty folder: vbuild publish --layout suffix"


def problems(folder: Path) -> Iterator[Problem]:
    """What is wrong with the wheels in *folder* and with its index."""
    wheels: list[Offered] = []
    yield from wheels_in(folder, wheels)
    if not wheels:
        yield _problem(Demand.ARCHIVE, folder.resolve().name, "has no wheel")
    files = {wheel: frozenset(_files(wheel)) for wheel in wheels}
    for wheel in wheels:
        yield from _names(wheel)
        yield from _requirements(wheel, files)
    yield from index_problems(folder)


def _names(wheel: Offered) -> Iterator[Problem]:
    if canonicalize_name(wheel.metadata.name) != wheel.name.project:
        what = f"its METADATA says Name: {wheel.metadata.name}, which the file name does not"
        yield _problem(Demand.NAME, wheel.path.name, what)
    if wheel.label:
        what = "has a variant label, which only installers of variants read"
        yield _problem(Demand.VARIANT, wheel.path.name, what)


def _files(wheel: Offered) -> Iterator[str]:
    """What *wheel* installs, but for its .dist-info."""
    paths = (installed_path(row.path) for row in wheel.rows if not is_dist_info(row.path))
    return (path for path in paths if path)


def _requirements(wheel: Offered, files: Mapping[Offered, frozenset[str]]) -> Iterator[Problem]:
    """What is wrong with what *wheel* requires of projects in the folder, where *files* of each wheel are given."""
    for line in wheel.metadata.requires_dist:
        found = read(line)
        known = [other for other in files if found and other.name.project == canonicalize_name(found.name)]
        if found is None or not known:
            continue
        there = [other for other in known if found.specifier.contains(other.name.version, prereleases=True)]
        same = frozenset[str]().union(*(files[wheel] & files[other] for other in there or known))
        if same and known[0].name.project != wheel.name.project:
            what = f"requires {line}, which has the same files: {min(same)}"
            yield _problem(Demand.REQUIREMENT, wheel.path.name, what)
        elif not there:
            what = f"requires {line}, and only other releases are here"
            yield Problem(Demand.REQUIREMENT, (wheel.path.name,), what, "publish that one, too", is_error=False)


def _problem(demand: Demand, place: str, what: str) -> Problem:
    return Problem(demand, (place,), what, _AGAIN, is_error=True)
