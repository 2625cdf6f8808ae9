"""What is wrong with a folder of the layout extras: base and plugins that do not lead to one another.

    base      Provides-Extra: cu12     Requires-Dist: demo-cu12-plugin==1.0 ; extra == 'cu12'    that plugin is there
    plugin    Requires-Dist: demo==1.0    entry point in demo.backends    VERSION, BUILD as in the loader of its base

Contents are those that RECORD says, and no two wheels that are installed together have the same files.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from packaging.utils import canonicalize_name

from vbuild.errors import VbuildError
from vbuild.layout.extras.loader import MODULE, group
from vbuild.layout.indexes import index_problems, wheels_in
from vbuild.layout.offer import Offered
from vbuild.layout.siblings import read
from vbuild.publishing.collisions import collisions
from vbuild.publishing.files import found
from vbuild.publishing.model import Demand, Problem
from vbuild.publishing.releases import releases
from vbuild.publishing.slots import slots
from vbuild.wheel.archive import open_wheel

_AGAIN = "publish the wheels again into an empty folder: vbuild publish --layout extras"
# as loader.py.jinja has it, and vbuild.layout.extras.wheels in a plugin
_LOADER = re.compile(r'^_PROJECT, .* = "[^"]*", "(?P<version>[^"]*)", "(?P<build>[^"]*)", "', re.MULTILINE)
_CONSTANTS = re.compile(r'^VERSION = "(?P<version>[^"]*)"\nBUILD = "(?P<build>[^"]*)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Part:
    """A base or a plugin: its *wheel*, the version and build that its code is of, and its entry points."""

    wheel: Offered
    stamp: tuple[str, str]
    entry_points: str

    @classmethod
    def of(cls, wheel: Offered, pattern: re.Pattern[str], suffix: str) -> Self | None:
        """The part that *wheel* is by what *pattern* finds in its file at */suffix*; None where it is none."""
        paths = [row.path for row in wheel.rows if row.path.endswith(f"/{suffix}")]
        points = f"{wheel.dist_info}/entry_points.txt"
        with open_wheel(wheel.path) as opened:
            texts = (opened.read(path).decode(errors="replace") for path in sorted(paths))
            match = next((match for text in texts if (match := pattern.search(text))), None)
            said = opened.read(points).decode(errors="replace") if opened.find(points) else ""
        return cls(wheel, (match["version"], match["build"]), said) if match else None


def problems(folder: Path) -> Iterator[Problem]:
    """What is wrong with the wheels in *folder* and with its index."""
    wheels: list[Offered] = []
    yield from wheels_in(folder, wheels)
    yield from _damaged(wheels)
    bases = [part for wheel in wheels if (part := _Part.of(wheel, _LOADER, f"{MODULE}.py"))]
    plugins = [part for wheel in wheels if (part := _Part.of(wheel, _CONSTANTS, "__init__.py"))]
    if not (bases and plugins):
        yield _problem(Demand.PLAIN, folder.name, "has no base wheel with a loader, or no plugin; expected both")
        return
    for base in bases:
        yield from _extras(base, plugins)
    for plugin in plugins:
        yield from _plugin(plugin, bases)
    yield from collisions(releases(found(folder)))
    yield from index_problems(folder)


def _damaged(wheels: Sequence[Offered]) -> Iterator[Problem]:
    for wheel in wheels:
        try:
            with open_wheel(wheel.path, check=True):
                pass
        except VbuildError as error:
            yield _problem(Demand.ARCHIVE, wheel.path.name, str(error).removeprefix(f"{wheel.path.name}: "))


def _extras(base: _Part, plugins: Sequence[_Part]) -> Iterator[Problem]:
    """What is wrong with the extras of *base*."""
    wheel = base.wheel
    lines = {line: asked for line in wheel.metadata.requires_dist if (asked := read(line))}
    known = {plugin.wheel.name.project for plugin in plugins}
    asked_for = set()
    for line, asked in lines.items():
        project = canonicalize_name(asked.name)
        extra = _extra(project, of=wheel.name.project)
        if extra is None or asked.marker is None:
            continue
        asked_for.add(project)
        if str(asked.specifier) != f"=={wheel.metadata.version}":
            what = f"requires {line}; expected =={wheel.metadata.version}, its own version"
            yield _problem(Demand.REQUIREMENT, wheel.path.name, what)
        if project not in known:
            yield _problem(Demand.REQUIREMENT, wheel.path.name, f"requires {line}, and that plugin is not here")
        if extra not in {*map(str, map(canonicalize_name, wheel.metadata.headers.values("Provides-Extra")))}:
            yield _problem(Demand.METADATA, wheel.path.name, f"has no Provides-Extra: {extra}")
    for lacking in sorted(one for one in known - asked_for if _extra(one, of=wheel.name.project)):
        yield _problem(Demand.REQUIREMENT, wheel.path.name, f"has no extra that requires {lacking}")


def _extra(project: str, *, of: str) -> str | None:
    """The extra of the project *of* that the plugin *project* is for, by their names; None where it is none of its."""
    inner = project.removeprefix(f"{of}-").removesuffix("-plugin")
    return inner if project == f"{of}-{inner}-plugin" else None


def _plugin(plugin: _Part, bases: Sequence[_Part]) -> Iterator[Problem]:
    """What is wrong with *plugin*."""
    wheel = plugin.wheel
    fitting = [base for base in bases if slots(base.wheel.name) == slots(wheel.name)]
    fitting = [base for base in fitting if _extra(wheel.name.project, of=base.wheel.name.project)]
    if not fitting:
        yield _problem(Demand.PLAIN, wheel.path.name, "has no base wheel for the same Python and machine here")
        return
    base = fitting[0]
    project, version = base.wheel.name.project, base.wheel.metadata.version
    asked = (read(line) for line in wheel.metadata.requires_dist)
    pins = [str(one.specifier) for one in asked if one and canonicalize_name(one.name) == project]
    if pins != [f"=={version}"]:
        yield _problem(Demand.REQUIREMENT, wheel.path.name, f"does not require {project}=={version}, which it is for")
    if plugin.stamp != base.stamp:
        what = f"is for version and build {' '.join(plugin.stamp)}; {base.wheel.path.name} is of {' '.join(base.stamp)}"
        yield _problem(Demand.PLAIN, wheel.path.name, what)
    if f"[{group(project)}]" not in plugin.entry_points:
        yield _problem(Demand.METADATA, wheel.path.name, f"has no entry point in the group {group(project)}")


def _problem(demand: Demand, place: str, what: str) -> Problem:
    return Problem(demand, (place,), what, _AGAIN, is_error=True)
