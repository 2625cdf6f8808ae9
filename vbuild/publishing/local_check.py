"""Check a folder of the layout local: an index for each label, of wheels that belong together.

x86_64_v3/*.whl    all wheels of a release are +x86.64.v3, or none is, if the release has no such variant
                   METADATA of a version is the same in all its wheels; siblings are pinned to that label
x86_64_v3/simple   lists each file as it is
index.html         exists
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace
from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.config.requirements import admits, read_requirement
from vbuild.errors import RepackageError
from vbuild.publishing.lint.index import index_problems, wheels_in
from vbuild.publishing.lint.metadata import INSTALLER_FIELDS, metadata_view
from vbuild.publishing.local import PLAIN, check_labels, local_part
from vbuild.publishing.model import PublishRule
from vbuild.publishing.releases import EXACT_OPERATORS, OfferedWheel
from vbuild.verification.model import Finding, Severity

_AGAIN = "publish the wheels again into an empty folder: vbuild publish --layout local"


def problems(folder: Path) -> Iterator[Finding]:
    """What is wrong with the indexes in *folder*."""
    places = sorted(path for path in folder.iterdir() if path.is_dir())
    labels = [place.name for place in places if place.name != PLAIN]
    if not labels:
        yield _problem(PublishRule.LABELS, folder.resolve().name, "has no index of a label; expected a folder for each")
    try:
        check_labels(labels)
    except RepackageError as error:
        yield _problem(PublishRule.LABELS, folder.resolve().name, str(error))
        return
    if labels and not (folder / "index.html").is_file():
        yield _problem(
            PublishRule.INDEX,
            "index.html",
            "is missing; expected the page that lists which index is for which machines",
        )
    for place in places:
        for problem in _place(place, labels):
            yield replace(problem, places=tuple(f"{place.name}/{file}" for file in problem.places))


def _place(place: Path, labels: Sequence[str]) -> Iterator[Finding]:
    """What is wrong in the folder *place* of one index."""
    wheels: list[OfferedWheel] = []
    yield from wheels_in(place, wheels)
    if place.name == PLAIN:
        yield from (_labelled(wheel) for wheel in wheels if wheel.label)
    else:
        yield from _checked_index(wheels, place.name, labels)
    yield from _unlike_index(wheels)
    yield from index_problems(place)


def _checked_index(wheels: Sequence[OfferedWheel], label: str, labels: Sequence[str]) -> Iterator[Finding]:
    """What is wrong among the *wheels* in the index of *label*, one of *labels*."""
    own = {_release(wheel) for wheel in wheels if _is_of(wheel, label)}
    if not own:
        yield _problem(PublishRule.LOCAL_VERSION, "*.whl", f"none is of a version +{local_part(label)}")
    for wheel in wheels:
        if wheel.label:
            yield _labelled(wheel)
        if not _is_of(wheel, label):
            if _release(wheel) in own:
                what = f"is not +{local_part(label)}, as others of {' '.join(_release(wheel))} in this index are"
                yield _problem(PublishRule.LOCAL_VERSION, wheel.path.name, what)
            elif other := next((other for other in labels if _is_of(wheel, other)), None):
                yield _problem(PublishRule.LOCAL_VERSION, wheel.path.name, f"is of the index {other}")
        yield from _pins(wheel, wheels, label)


def _pins(wheel: OfferedWheel, wheels: Sequence[OfferedWheel], label: str) -> Iterator[Finding]:
    """The requirements of *wheel* for siblings that are not pinned to *label*, or to what is not there."""
    varied = {other.name.project for other in wheels if _is_of(other, label)} - {wheel.name.project}
    for line in wheel.metadata.requires_dist:
        found = read_requirement(line)
        project = canonicalize_name(found.name) if found else ""
        if (
            not found
            or project not in varied
            or not (tied := [one for one in found.specifier if one.operator in EXACT_OPERATORS])
        ):
            continue
        admitted = [
            other for other in wheels if other.name.project == project and admits(found, project, other.name.version)
        ]
        is_pinned = any(one.operator == "==" and _ends(one.version, label) for one in tied)
        if not admitted:
            what = f"requires {line}, and only other releases are in this index"
            yield Finding(Severity.WARNING, PublishRule.REQUIREMENT, (wheel.path.name,), what, "publish that one, too")
        elif not is_pinned and any(_is_of(other, label) for other in admitted):
            what = f"requires {line}, which other builds than +{local_part(label)} are, too"
            yield _problem(PublishRule.REQUIREMENT, wheel.path.name, what)


def _unlike_index(wheels: Sequence[OfferedWheel]) -> Iterator[Finding]:
    first: dict[tuple[str, Version], OfferedWheel] = {}
    for wheel in wheels:
        like = first.setdefault((wheel.name.project, Version(wheel.name.version)), wheel)
        one, other = (metadata_view(str(each.metadata).encode()) for each in (like, wheel))
        for difference in one.differences(other):
            if difference.field in INSTALLER_FIELDS and not wheel.is_companion:
                what = f"not as in {like.path.name}: {difference}"
                advice = "state the same in all: uv takes one wheel's METADATA for all of a version"
                # the plain wheels are as their publisher made them
                is_error = Version(wheel.name.version).local is not None
                yield Finding(
                    Severity.ERROR if is_error else Severity.WARNING,
                    PublishRule.METADATA,
                    (wheel.path.name,),
                    what,
                    advice,
                )


def _release(wheel: OfferedWheel) -> tuple[str, str]:
    """Project and version of *wheel*, without the local part of that."""
    return wheel.name.project, Version(wheel.name.version).public


def _is_of(wheel: OfferedWheel, label: str) -> bool:
    return _ends(wheel.name.version, label)


def _ends(version: str, label: str) -> bool:
    """Whether *version* is a local one of *label*, whatever local part it had before."""
    try:
        local = Version(version).local or ""
    except ValueError:  # ==1.*
        return False
    return f".{local}".endswith(f".{local_part(label)}")


def _labelled(wheel: OfferedWheel) -> Finding:
    what = "has a variant label, which only installers of variants read"
    return _problem(PublishRule.VARIANT, wheel.path.name, what)


def _problem(demand: PublishRule, place: str, what: str) -> Finding:
    return Finding(Severity.ERROR, demand, (place,), what, _AGAIN)
