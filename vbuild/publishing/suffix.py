"""The layout suffix: variants as distributions of their own, ``demo-cu12`` next to ``demo``, as many projects do.

    suffix/demo_cu12-1.0-….whl      renamed: file, .dist-info, .data, Name, its own extras, siblings of the same label
    suffix/demo-1.0-….whl           the plain wheel as it was
    suffix/simple/demo-cu12/…       an index of all of them

    demo, cu12.6          -> demo-cu12-6         indexes read runs of -, _ and . as one dash
    demo/__init__.py:3    version("demo")        PackageNotFoundError under the new name: a note names the call

Import packages keep their names, so two of these wheels contain the same files, and no installer notices.
https://packaging.python.org/en/latest/specifications/name-normalization/
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import InvalidName, canonicalize_name

from vbuild.config.requirements import admits, read_requirement, required_project
from vbuild.errors import RepackageError
from vbuild.publishing.lint.index import index_problems, layout_problem, wheels_in
from vbuild.publishing.model import (
    RIVALS,
    ConsumerUse,
    LinkedFile,
    NewWheel,
    PublishPlan,
    PublishRule,
    SimpleIndex,
    install_commands,
    renamed,
)
from vbuild.publishing.releases import (
    OfferedRelease,
    OfferedWheel,
    check_siblings,
    exact_pins,
    labels_of,
    latest,
    releases_with_variants,
    variants_of,
    without_variants,
)
from vbuild.verification.model import Finding, Severity
from vbuild.wheel.metadata import is_dist_info, requirement_of
from vbuild.wheel.name import escaped
from vbuild.wheel.paths import installed_path

_problem = partial(layout_problem, "suffix")


def problems(folder: Path) -> Iterator[Finding]:
    wheels: list[OfferedWheel] = []
    yield from wheels_in(folder, wheels)
    if not wheels:
        yield _problem(PublishRule.ARCHIVE, folder.resolve().name, "has no wheel")
    files: dict[OfferedWheel, frozenset[str]] = {}
    for wheel in wheels:
        paths = (installed_path(row.path) for row in wheel.rows if not is_dist_info(row.path))
        files[wheel] = frozenset(path for path in paths if path)
    for wheel in wheels:
        if canonicalize_name(wheel.metadata.name) != wheel.name.project:
            fault = f"its METADATA says Name: {wheel.metadata.name}, which the file name does not"
            yield _problem(PublishRule.NAME, wheel.path.name, fault)
        if wheel.label:
            fault = "has a variant label, which only installers of variants read"
            yield _problem(PublishRule.VARIANT, wheel.path.name, fault)
        yield from _requirements(wheel, files)
    yield from index_problems(folder)


def _requirements(wheel: OfferedWheel, files: Mapping[OfferedWheel, frozenset[str]]) -> Iterator[Finding]:
    for line in wheel.metadata.requires_dist:
        requirement = read_requirement(line)
        project = required_project(line)
        of_project = [other for other in files if other.name.project == project]
        if not of_project:
            continue
        admitted = [other for other in of_project if admits(requirement, project or "", other.name.version)]
        same = frozenset[str]().union(*(files[wheel] & files[other] for other in admitted or of_project))
        if same and project != wheel.name.project:
            fault = f"requires {line}, which has the same files: {min(same)}"
            yield _problem(PublishRule.REQUIREMENT, wheel.path.name, fault)
        elif not admitted:
            fault = f"requires {line}, and only other releases are here"
            yield Finding(Severity.WARNING, PublishRule.REQUIREMENT, (wheel.path.name,), fault, "publish that one, too")


_HOW = "with pip and with uv; what else is required comes from the index that they have:"
# who asks for a distribution: importlib.metadata, its backport, and pkg_resources
_CALL = re.compile(
    r"\b(version|metadata|files|requires|distribution|from_name|get_distribution|require)\(\s*"
    r"((distribution_name|name|dist)\s*=\s*)?(__name__|__package__|([\"'])(?P<text>[^\"'\n]+)\5)"
)
# one of these is in every source that asks
_MODULES = (b"metadata", b"pkg_resources")


class Suffix(Struct, frozen=True):
    url: str | None = None
    name: str = "suffix"

    def plan(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        releases = releases_with_variants(offers)
        names = _new_names(offers)
        check_siblings(offers)
        wheels: list[LinkedFile | NewWheel] = []
        for offer in offers:
            wheels += (LinkedFile(PurePosixPath(wheel.path.name), wheel.path) for wheel in offer.plain)
            if offer.sdist:
                wheels.append(LinkedFile(PurePosixPath(offer.sdist.name), offer.sdist))
            for wheel in offer.variants:
                names_of_label = {project: name for (project, label), name in names.items() if label == wheel.label}
                new_name = replace(
                    wheel.name.normalised().plain(), distribution=escaped(names_of_label[wheel.name.project])
                )
                requirement = partial(requirement_of, projects=names_of_label)
                wheels.append(renamed(wheel, new_name, requirement=requirement))
        index = SimpleIndex(PurePosixPath("simple"), tuple(wheel.target for wheel in wheels))
        notes = tuple(_notes(releases, names))
        return PublishPlan(self.name, (*wheels, index), tuple(self._uses(offers, names)), notes)

    def _uses(self, offers: Sequence[OfferedRelease], names: Mapping[tuple[str, str], str]) -> Iterator[ConsumerUse]:
        last = latest(offers)
        for label, variant in variants_of(last, labels_of(last)).items():
            with_label = [offer for offer in last if label in offer.labels]
            pins = " ".join(f"{names[offer.project, label]}=={offer.version}" for offer in with_label)
            yield ConsumerUse(f"{variant}, {_HOW}", install_commands(pins, url=self.url))
        plain, others = without_variants(last)
        if others:
            yield ConsumerUse(
                f"{plain.capitalize()}, for every machine{RIVALS}; {_HOW}",
                install_commands(exact_pins(others), url=self.url, has_rivals=True),
            )


def _new_names(offers: Sequence[OfferedRelease]) -> dict[tuple[str, str], str]:
    names: dict[tuple[str, str], str] = {}
    taken = {offer.project: f"the project {offer.project}" for offer in offers}
    for project, label in dict.fromkeys((offer.project, label) for offer in offers for label in offer.labels):
        try:
            name = canonicalize_name(f"{project}-{label}", validate=True)
        except InvalidName as error:
            raise RepackageError(f"{error}; expected a label that ends in a letter or digit") from error
        names[project, label] = name
        if name in taken:
            raise RepackageError(
                f"{name} would be {project} {label} and {taken[name]}; expected a name for each: stamp one under "
                "another label"
            )
        taken[name] = f"{project} {label}"
    return names


def _notes(releases: Sequence[OfferedRelease], names: Mapping[tuple[str, str], str]) -> Iterator[str]:
    for offer in releases:
        new_names = [names[offer.project, label] for label in offer.labels]
        alike = [offer.project, *new_names] if offer.plain else new_names
        if len(alike) > 1:
            yield (
                f"{', '.join(alike)} have the same files, which no installer notices: uninstall one before the "
                "other is installed."
            )
        for call in _calls(offer):
            yield f"{call} finds no {offer.project} where only {' or '.join(new_names)} is installed."
        if any("/headers/" in row.path and ".data/" in row.path for wheel in offer.variants for row in wheel.rows):
            yield f"{offer}: its headers are installed into a folder called after the new name."
    yield f"Anybody may take these names on an index that has none: register {', '.join(names.values())} there first."


def _calls(offer: OfferedRelease) -> list[str]:
    """The calls in the code of variants that ask for their distribution by the old name, with file and line."""
    calls: set[tuple[str, int, str]] = set()
    seen: set[tuple[str, str | None]] = set()
    for wheel in offer.variants:
        rows = [row for row in wheel.rows if row.path.endswith(".py") and (row.path, row.hash) not in seen]
        seen |= {(row.path, row.hash) for row in rows}
        with wheel.opened() as opened:
            for row in rows:
                path, data = installed_path(row.path), opened.read(row.path)
                if not path or not any(module in data for module in _MODULES):
                    continue
                source = data.decode(errors="replace")
                for call in _CALL.finditer(source):
                    # without a text it is the name of a module, of which the first part counts
                    text = call["text"] or path.partition("/")[0].removesuffix(".py")
                    if (required_project(text) or canonicalize_name(text)) == offer.project:
                        calls.add((path, source.count("\n", 0, call.start()) + 1, f"{call[0]})"))
    return [f"{path}:{line}: {call}" for path, line, call in sorted(calls)]
