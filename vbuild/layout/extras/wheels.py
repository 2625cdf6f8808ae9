"""The wheels of base and plugins: what is in them beside the payload, and what their METADATA say of each other.

    base     demo-1.0-1extras-….whl
             Provides-Extra: cu12                                          demo/_vbuild_backend.py
             Requires-Dist: demo-cu12-plugin==1.0; extra == 'cu12'         from . import _vbuild_backend
    plugin   Requires-Dist: demo==1.0                                      demo_cu12_plugin/__init__.py: VERSION, BUILD
             [demo.backends] cu12 = demo_cu12_plugin                       licences as in the variant wheel

The build tag is for indexes that have the plain wheel as well, whose name it would be: installers that see both take
the one with a build tag, which has the extras.
https://packaging.python.org/en/latest/specifications/binary-distribution-format/#file-name-convention
https://packaging.python.org/en/latest/specifications/core-metadata/
https://packaging.python.org/en/latest/specifications/entry-points/
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from packaging.utils import canonicalize_name

from vbuild.errors import LayoutError, at
from vbuild.layout.extras.loader import MODULE, Backend, group, in_order, loader, with_loader
from vbuild.layout.extras.payload import BESIDE, Payload, installed
from vbuild.layout.model import Member, NewWheel, Put
from vbuild.layout.offer import Offered
from vbuild.layout.renamed import renamed
from vbuild.layout.siblings import read
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.distinfo import Metadata, is_dist_info
from vbuild.wheel.headers import Headers
from vbuild.wheel.name import WheelName, escaped
from vbuild.wheel.renaming import dist_info_of

_INIT = "__init__.py"
_ENTRY_POINTS = "entry_points.txt"
# of a variant's .dist-info folder, what speaks of the files that a plugin does not have
_OF_THE_BASE = (_ENTRY_POINTS, "top_level.txt")
# of a variant's METADATA, what holds for a plugin as well
_KEPT = frozenset(
    {
        *("metadata-version", "name", "version", "requires-python", "platform", "classifier"),
        *("author", "author-email", "maintainer", "maintainer-email", "home-page", "project-url"),
        *("license", "license-expression", "license-file"),
    }
)
_DIGITS = 16


def base_wheel(base: Offered, roots: Iterable[str], backends: Sequence[Backend]) -> NewWheel:
    """The plain wheel *base* with the loader of *backends* in those of *roots*, packages as folders, that it has.

    The first of *roots* is the one whose modules a plugin has directly in its folder.
    """
    first, *_ = ordered = tuple(roots)
    members = {path: member for path, (member, _) in installed(base).items()}
    build = build_of(base)
    changed: dict[str, Member | None] = {}
    with open_wheel(base.path) as wheel, at(base.path.name):
        metadata = _with_extras(base.metadata, backends)
        for root in ordered:
            if f"{root}/{MODULE}.py" in members:
                raise LayoutError(f"{root}/{MODULE}.py: is there already; give the wheels as they were built")
            if init := members.get(f"{root}/{_INIT}"):
                folder = "" if root == first else f"{BESIDE}/{root}"
                code = loader(root, backends, version=str(base.metadata.version), build=build, folder=folder)
                with at(init):
                    changed[init] = Put(init, with_loader(wheel.read(init)))
                file = f"{init.removesuffix(_INIT)}{MODULE}.py"
                changed[file] = Put(file, code)
    name = _tagged(base.name)
    about = f"{dist_info_of(name)}/WHEEL"
    changed[about] = Put(about, str(base.wheel_file.with_build(name.build)).encode())
    return renamed(base, name, metadata=metadata, changed=changed)


def plugin_wheel(found: Payload, base: Offered, backend: Backend, *, root: str) -> NewWheel:
    """The plugin with the payload *found*, which *base* is without; *root* is the first of its packages."""
    variant = found.variant
    name = replace(variant.name.plain(), distribution=escaped(backend.plugin))
    with at(variant.path.name):
        metadata = _of_plugin(variant.metadata, _requirements(variant, base), backend)
    dist_info = dist_info_of(name)
    left = {f"{dist_info}/{file}" for file in _OF_THE_BASE}
    whole = renamed(variant, name, metadata=metadata, project=backend.plugin)
    about = (member for member in whole.members if is_dist_info(member.path) and member.path not in left)
    constants = {"VERSION": str(base.metadata.version), "BUILD": build_of(base)}
    points = f"[{group(backend.project)}]\n{backend.extra} = {backend.package}\n"
    members = (
        Put(f"{backend.package}/{_INIT}", _constants(backend, constants)),
        *found.members(backend.package, root),
        *about,
        Put(f"{dist_info}/{_ENTRY_POINTS}", points.encode()),
    )
    return NewWheel(PurePosixPath(), name, variant.path, members)


def build_of(base: Offered) -> str:
    """A hash of what is in the plain wheel *base*: its plugins are for no other one of that version."""
    lines = (f"{path} {digest}\n" for path, (_, digest) in sorted(installed(base).items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:_DIGITS]


def _tagged(name: WheelName) -> WheelName:
    """*name* without a label, and with a build tag that is behind its own: of equal tags, the last one is taken."""
    return replace(name.plain(), build=f"{name.build or 1}extras")


def _constants(backend: Backend, constants: Mapping[str, str]) -> bytes:
    lines = (f"{name} = {json.dumps(value)}" for name, value in constants.items())
    about = f"Files of the backend {backend.extra} of {backend.project}, which loads them by itself."
    return "\n".join([f'"""{about}"""', "", *lines, ""]).encode()


def _with_extras(metadata: Metadata, backends: Sequence[Backend]) -> Metadata:
    """*metadata* with an extra for each of *backends* that requires its plugin."""
    headers = metadata.headers
    extras = headers.values("Provides-Extra")
    own = {str(canonicalize_name(extra)) for extra in extras}
    for backend in backends:
        if backend.extra in own:
            raise LayoutError(f"has an extra {backend.extra} of its own; give that variant another label")
    added = [f"{one.plugin}=={metadata.version} ; extra == '{one.extra}'" for one in in_order(backends)]
    headers = headers.replacing("Requires-Dist", (*metadata.requires_dist, *added))
    return Metadata(headers.replacing("Provides-Extra", (*extras, *(one.extra for one in in_order(backends)))))


def _of_plugin(metadata: Metadata, requires: Sequence[str], backend: Backend) -> Metadata:
    """The METADATA of the plugin, made of that of the variant wheel."""
    kept = Headers(tuple(field for field in metadata.headers.fields if field[0] in _KEPT), "")
    pinned = f"{backend.project}=={metadata.version}"
    headers = (
        kept.replacing("Name", [backend.plugin])
        .replacing("Summary", [f"Backend {backend.extra} of {backend.project}"])
        .replacing("Requires-Dist", [pinned, *requires])
        .replacing("Description-Content-Type", ["text/plain"])
    )
    how = f"Not to be installed by hand: pip install '{backend.project}[{backend.extra}]' brings it.\n"
    return Metadata(replace(headers, rest=f"\n{how}"))


def _requirements(variant: Offered, base: Offered) -> tuple[str, ...]:
    """What *variant* requires beyond *base*; `LayoutError` where a plugin cannot say it, or nothing could fulfil it."""
    mine, theirs = ({_spelled(line): line for line in wheel.metadata.requires_dist} for wheel in (variant, base))
    only_base = [line for key, line in theirs.items() if key not in mine]
    more = [line for key, line in mine.items() if key not in theirs]
    for line in more:
        found = read(line)
        if found is None or "extra" in str(found.marker):
            raise LayoutError(f"requires {line}, which the plain wheel does not; expected it without an extra")
        for other in _pinned(canonicalize_name(found.name), only_base):
            if "==" in line:
                raise LayoutError(f"requires {line}, and the plain wheel {other}; expected the same, for both are used")
    return tuple(more)


def _pinned(project: str, lines: Iterable[str]) -> Iterator[str]:
    """Those of *lines* that require *project* exactly."""
    for line in lines:
        if (found := read(line)) and canonicalize_name(found.name) == project and "==" in line:
            yield line


def _spelled(line: str) -> str:
    """*line* of Requires-Dist so that two that say the same are equal."""
    found = read(line)
    if found is None:
        return line
    found.name = canonicalize_name(found.name)
    return str(found)
