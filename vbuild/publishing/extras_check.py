"""Check a folder of the layout extras: bases and plugins have to lead to one another.

    base      Provides-Extra: cu12     Requires-Dist: demo-cu12-plugin==1.0 ; extra == 'cu12'    that plugin exists
    plugin    Requires-Dist: demo==1.0    entry point in demo.backends    VERSION, BUILD as in the loader of its base

Contents match RECORD, and no two wheels that are installed together contain the same files.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.config.requirements import read_requirement
from vbuild.errors import VbuildError
from vbuild.publishing.extras_plugin import MODULE, group
from vbuild.publishing.lint.agreement import collisions
from vbuild.publishing.lint.files import files_in, releases_among
from vbuild.publishing.lint.index import index_problems, layout_problem, wheels_in
from vbuild.publishing.lint.metadata import slots
from vbuild.publishing.model import PublishRule
from vbuild.publishing.releases import OfferedWheel
from vbuild.verification.model import Finding
from vbuild.wheel.archive import Wheel, open_wheel
from vbuild.wheel.name import escaped

_problem = partial(layout_problem, "extras")
_FILE = f"/{MODULE}.py"
_INIT = "__init__.py"
# as loader.py.jinja has it, and vbuild.publishing.extras in a plugin
_LOADER = re.compile(r'^_PROJECT, .* = "[^"]*", "(?P<version>[^"]*)", "(?P<build>[^"]*)", "', re.MULTILINE)
_CONSTANTS = re.compile(r'^VERSION = "(?P<version>[^"]*)"\nBUILD = "(?P<build>[^"]*)"', re.MULTILINE)


class _Part(Struct, frozen=True):
    """A base or a plugin: its *wheel*, the version and build that its code is of, and its entry points.

    *unhooked* are the packages of a base that have a loader and do not import it.
    """

    wheel: OfferedWheel
    stamp: tuple[str, str]
    entry_points: str
    unhooked: tuple[str, ...] = ()

    @property
    def version(self) -> Version:
        """The version of its wheel."""
        return Version(self.wheel.name.version)

    @classmethod
    def base(cls, wheel: OfferedWheel) -> Self | None:
        """The base that *wheel* is, or None if it has no loader."""
        packages = sorted(row.path.removesuffix(_FILE) for row in wheel.rows if row.path.endswith(_FILE))
        with open_wheel(wheel.path) as opened:
            stamps = (_LOADER.search(_text(opened, f"{package}{_FILE}")) for package in packages)
            stamp = next(filter(None, stamps), None)
            inits = (f"{package}/{_INIT}" for package in packages)
            unhooked = tuple(init for init in inits if f"import {MODULE}" not in _text(opened, init))
            points = _text(opened, f"{opened.dist_info}/entry_points.txt")
            return cls(wheel, (stamp["version"], stamp["build"]), points, unhooked) if stamp else None

    @classmethod
    def plugin(cls, wheel: OfferedWheel) -> Self | None:
        """The plugin that *wheel* is, or None if the package called as it is of no version and build."""
        with open_wheel(wheel.path) as opened:
            stamp = _CONSTANTS.search(_text(opened, f"{escaped(wheel.name.project)}/{_INIT}"))
            points = _text(opened, f"{opened.dist_info}/entry_points.txt")
            return cls(wheel, (stamp["version"], stamp["build"]), points) if stamp else None


def _text(wheel: Wheel, path: str) -> str:
    """The text of the member at *path*, empty if the wheel has no such member."""
    return wheel.read(path).decode(errors="replace") if wheel.find(path) else ""


def problems(folder: Path) -> Iterator[Finding]:
    """What is wrong with the wheels in *folder* and with its index."""
    readable: list[OfferedWheel] = []
    yield from wheels_in(folder, readable)
    wheels: list[OfferedWheel] = []
    for wheel in readable:
        try:
            with open_wheel(wheel.path, check=True):
                wheels.append(wheel)
        except VbuildError as error:
            yield _problem(PublishRule.ARCHIVE, wheel.path.name, str(error).removeprefix(f"{wheel.path.name}: "))
    yield from index_problems(folder)
    bases = [part for wheel in wheels if (part := _Part.base(wheel))]
    others = [wheel for wheel in wheels if all(wheel is not base.wheel for base in bases)]
    plugins = [part for wheel in others if (part := _Part.plugin(wheel))]
    if not (bases and plugins):
        yield _problem(PublishRule.PLAIN, folder.name, "has no base wheel with a loader, or no plugin; expected both")
        return
    for base in bases:
        yield from _extras(base, plugins)
        for init in base.unhooked:
            yield _problem(
                PublishRule.PLAIN, base.wheel.path.name, f"{init}: does not import {MODULE}, so no plugin is used"
            )
    for plugin in plugins:
        yield from _plugin(plugin, bases)
    parts = {part.wheel.name.project for part in (*bases, *plugins)}
    for problem in collisions([release for release in releases_among(files_in(folder)) if release.project in parts]):
        yield replace(_problem(PublishRule.SHARED_FILES, "", problem.what), places=problem.places)


def _extras(base: _Part, plugins: Sequence[_Part]) -> Iterator[Finding]:
    """What is wrong with the extras of *base*."""
    wheel = base.wheel
    lines = {line: asked for line in wheel.metadata.requires_dist if (asked := read_requirement(line))}
    known = {plugin.wheel.name.project for plugin in plugins if plugin.version == base.version}
    asked_for = set()
    for line, asked in lines.items():
        project = canonicalize_name(asked.name)
        extra = _extra(project, of=wheel.name.project)
        if extra is None or asked.marker is None:
            continue
        asked_for.add(project)
        if str(asked.specifier) != f"=={wheel.metadata.version}":
            what = f"requires {line}; expected =={wheel.metadata.version}, its own version"
            yield _problem(PublishRule.REQUIREMENT, wheel.path.name, what)
        if project not in known:
            yield _problem(
                PublishRule.REQUIREMENT, wheel.path.name, f"requires {line}, and that plugin is not here, or damaged"
            )
        if extra not in {*map(str, map(canonicalize_name, wheel.metadata.headers.values("Provides-Extra")))}:
            yield _problem(PublishRule.METADATA, wheel.path.name, f"has no Provides-Extra: {extra}")
    for lacking in sorted(one for one in known - asked_for if _extra(one, of=wheel.name.project)):
        yield _problem(PublishRule.REQUIREMENT, wheel.path.name, f"has no extra that requires {lacking}")


def _extra(project: str, *, of: str) -> str | None:
    """The extra of the project *of* that the plugin *project* is for, by their names, or None if it is not for that."""
    inner = project.removeprefix(f"{of}-").removesuffix("-plugin")
    return inner if project == f"{of}-{inner}-plugin" else None


def _plugin(plugin: _Part, bases: Sequence[_Part]) -> Iterator[Finding]:
    """What is wrong with *plugin*."""
    wheel = plugin.wheel
    fitting = [base for base in bases if _extra(wheel.name.project, of=base.wheel.name.project)]
    fitting = [base for base in fitting if base.version == plugin.version]
    fitting = [base for base in fitting if slots(base.wheel.name) == slots(wheel.name)]
    if not fitting:
        what = "has no base wheel of the same version, Python and machine here"
        yield _problem(PublishRule.PLAIN, wheel.path.name, what)
        return
    base = fitting[0]
    project, version = base.wheel.name.project, base.wheel.metadata.version
    asked = (read_requirement(line) for line in wheel.metadata.requires_dist)
    pins = [str(one.specifier) for one in asked if one and canonicalize_name(one.name) == project]
    if pins != [f"=={version}"]:
        yield _problem(
            PublishRule.REQUIREMENT, wheel.path.name, f"does not require {project}=={version}, which it is for"
        )
    if plugin.stamp != base.stamp:
        what = f"is for version and build {' '.join(plugin.stamp)}; {base.wheel.path.name} is of {' '.join(base.stamp)}"
        yield _problem(PublishRule.PLAIN, wheel.path.name, what)
    point = f"{_extra(wheel.name.project, of=project)} = {escaped(wheel.name.project)}"
    if f"[{group(project)}]\n{point}\n" not in plugin.entry_points:
        yield _problem(
            PublishRule.METADATA, wheel.path.name, f"has no entry point {point} in the group {group(project)}"
        )
