"""The layout extras: one base wheel for everybody, and plugins with what differs: ``pip install 'demo[cu12]'``.

    extras/demo-1.0-1extras-….whl            the plain wheel, with a loader
        Provides-Extra: cu12                                          demo/_vbuild_backend.py
        Requires-Dist: demo-cu12-plugin==1.0; extra == 'cu12'         from . import _vbuild_backend
    extras/demo_cu12_plugin-1.0-….whl        the files of the variant cu12 that differ, and its licences
        Requires-Dist: demo==1.0                                      demo_cu12_plugin/__init__.py: VERSION, BUILD
        [demo.backends] cu12 = demo_cu12_plugin
    extras/simple/…                          an index of them

Files are compared by their hashes in RECORD. A plugin belongs to one build of its base: each requires the other's exact
version, and the loader refuses any other combination. Installers that also see the plain wheel prefer the base, whose
name differs by its build tag.
https://packaging.python.org/en/latest/specifications/core-metadata/#provides-extra-multiple-use
https://packaging.python.org/en/latest/specifications/entry-points/
https://packaging.python.org/en/latest/specifications/binary-distribution-format/#file-name-convention
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Self

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.config.requirements import read_requirement, required_project, spelled
from vbuild.elf.read import Loading
from vbuild.errors import RepackageError, at
from vbuild.hardware.cpu import available_cores
from vbuild.process.threads import in_threads
from vbuild.publishing.extras_plugin import (
    MODULE,
    OUTSIDE,
    PLAIN,
    Payload,
    PluginBackend,
    group,
    in_order,
    installed,
    loader,
    payload,
    variable,
    with_loader,
)
from vbuild.publishing.lint.metadata import slots
from vbuild.publishing.model import (
    ConsumerUse,
    LinkedFile,
    Member,
    NewWheel,
    PublishPlan,
    Put,
    SimpleIndex,
    install_commands,
    renamed,
)
from vbuild.publishing.releases import OfferedRelease, OfferedWheel, releases_with_variants
from vbuild.splitting.bundle import WheelReader
from vbuild.variants.model import NULL_LABEL
from vbuild.wheel.metadata import Metadata, MetadataHeaders, is_dist_info
from vbuild.wheel.name import escaped

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


def base_wheel(base: OfferedWheel, roots: Iterable[str], backends: Sequence[PluginBackend]) -> NewWheel:
    """The plain wheel *base* with the loader of *backends* in those of *roots*, packages as folders, that it has.

    The first of *roots* is the one whose modules a plugin has directly in its folder.
    """
    first, *_ = ordered = tuple(roots)
    members = {path: member for path, (member, _) in installed(base).items()}
    build = build_of(base)
    changed: dict[str, Member | None] = {}
    with base.opened() as wheel, at(base.path.name):
        metadata = _with_extras(base.metadata, backends)
        for root in ordered:
            if f"{root}/{MODULE}.py" in members:
                raise RepackageError(f"{root}/{MODULE}.py: is there already; give the wheels as they were built")
            if init := members.get(f"{root}/{_INIT}"):
                folder = "" if root == first else f"{OUTSIDE}/{root}"
                code = loader(backends, version=str(base.metadata.version), build=build, folder=folder)
                with at(init):
                    changed[init] = Put(init, with_loader(wheel.read(init)))
                file = f"{init.removesuffix(_INIT)}{MODULE}.py"
                changed[file] = Put(file, code)
    # of equal tags, installers take the last build tag
    name = replace(base.name.plain(), build=f"{base.name.build or 1}extras")
    about = f"{name.dist_info}/WHEEL"
    wheel_file = base.wheel_file.replacing("Build", [name.build] if name.build else [])
    changed[about] = Put(about, str(wheel_file).encode())
    return renamed(base, name, metadata=metadata, changed=changed)


def plugin_wheel(found: Payload, base: OfferedWheel, backend: PluginBackend, *, root: str) -> NewWheel:
    """The plugin with the payload *found*, which *base* is without; *root* is the first of its packages."""
    variant = found.variant
    name = replace(variant.name.plain(), distribution=escaped(backend.plugin))
    with at(variant.path.name):
        metadata = _of_plugin(variant.metadata, _requirements(variant, base), backend)
    dist_info = name.dist_info
    left = {f"{dist_info}/{file}" for file in _OF_THE_BASE}
    whole = renamed(variant, name, metadata=metadata, project=backend.plugin)
    about = (member for member in whole.members if is_dist_info(member.path) and member.path not in left)
    code = (
        f'"""Files of the backend {backend.extra} of {backend.project}, which loads them by itself."""\n\n'
        f"VERSION = {json.dumps(str(base.metadata.version))}\nBUILD = {json.dumps(build_of(base))}\n"
    )
    points = f"[{group(backend.project)}]\n{backend.extra} = {backend.package}\n"
    members = (
        Put(f"{backend.package}/{_INIT}", code.encode()),
        *found.members(backend.package, root),
        *about,
        Put(f"{dist_info}/{_ENTRY_POINTS}", points.encode()),
    )
    return NewWheel(PurePosixPath(), name, variant.path, members)


def build_of(base: OfferedWheel) -> str:
    """A hash of what is in the plain wheel *base*: its plugins are for no other one of that version."""
    lines = (f"{path} {digest}\n" for path, (_, digest) in sorted(installed(base).items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:_DIGITS]


def _with_extras(metadata: Metadata, backends: Sequence[PluginBackend]) -> Metadata:
    """*metadata* with an extra for each of *backends* that requires its plugin."""
    headers = metadata.headers
    extras = headers.values("Provides-Extra")
    own = {str(canonicalize_name(extra)) for extra in extras}
    for backend in backends:
        if backend.extra in own:
            raise RepackageError(f"has an extra {backend.extra} of its own; give that variant another label")
    added = [f"{one.plugin}=={metadata.version} ; extra == '{one.extra}'" for one in in_order(backends)]
    headers = headers.replacing("Requires-Dist", (*metadata.requires_dist, *added))
    return Metadata(headers.replacing("Provides-Extra", (*extras, *(one.extra for one in in_order(backends)))))


def _of_plugin(metadata: Metadata, requires: Sequence[str], backend: PluginBackend) -> Metadata:
    """The METADATA of the plugin, made of that of the variant wheel."""
    kept = MetadataHeaders(tuple(field for field in metadata.headers.fields if field[0] in _KEPT), "")
    pinned = f"{backend.project}=={metadata.version}"
    headers = (
        kept.replacing("Name", [backend.plugin])
        .replacing("Summary", [f"Backend {backend.extra} of {backend.project}"])
        .replacing("Requires-Dist", [pinned, *requires])
        .replacing("Description-Content-Type", ["text/plain"])
    )
    how = f"Not to be installed by hand: pip install '{backend.project}[{backend.extra}]' brings it.\n"
    return Metadata(replace(headers, rest=f"\n{how}"))


def _requirements(variant: OfferedWheel, base: OfferedWheel) -> tuple[str, ...]:
    """What *variant* requires beyond *base*; `RepackageError` if a plugin cannot say it, or nothing could fulfil it."""
    mine, theirs = ({spelled(line): line for line in wheel.metadata.requires_dist} for wheel in (variant, base))
    only_base = [line for key, line in theirs.items() if key not in mine]
    more = [line for key, line in mine.items() if key not in theirs]
    for line in more:
        found = read_requirement(line)
        if found is None or "extra" in str(found.marker):
            raise RepackageError(f"requires {line}, which the plain wheel does not; expected it without an extra")
        project = canonicalize_name(found.name)
        pinned = [other for other in only_base if required_project(other) == project and "==" in other]
        if pinned and "==" in line:
            raise RepackageError(
                f"requires {line}, and the plain wheel {pinned[0]}; expected the same, for both are used"
            )
    return tuple(more)


_EXTRA = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


class Extras(Struct, frozen=True):
    """The layout of base and plugins; *url* is where its folder will be served."""

    url: str | None = None
    name: str = "extras"

    def planned(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        """The base wheels and a plugin for each variant wheel; companions and releases without variants as they are.

        `RepackageError` if what differs cannot be loaded from another package, naming the file.
        """
        reader = WheelReader(_unasked)
        releases = {offer: _Release.of(offer, reader) for offer in releases_with_variants(offers)}
        wheels: list[NewWheel | LinkedFile] = []
        for offer in offers:
            if release := releases.get(offer):
                wheels += [base_wheel(base, release.roots, release.backends) for base in release.bases]
                for backend, base, found in release.payloads:
                    wheels.append(plugin_wheel(found, base, backend, root=release.roots[0]))
            else:
                wheels += [LinkedFile(PurePosixPath(wheel.path.name), wheel.path) for wheel in offer.wheels]
        index = SimpleIndex(PurePosixPath("simple"), tuple(wheel.target for wheel in wheels))
        latest = {
            offer.project: releases[offer] for offer in sorted(releases, key=lambda offer: Version(offer.version))
        }
        uses = tuple(use for release in latest.values() for use in self._uses(release))
        return PublishPlan(self.name, (*wheels, index), uses, tuple(_notes(latest.values())))

    def _uses(self, release: "_Release") -> Iterator[ConsumerUse]:
        project, root = release.offer.project, release.roots[0].replace("/", ".")
        ask = f"python -c 'from {root} import {MODULE}; print({MODULE}.backend())'"
        pinned = release.offer.version
        wanted = {f"{project} for {one.extra}": f"'{project}[{one.extra}]=={pinned}'" for one in release.backends}
        for what, asked in (wanted | {f"{project} alone, which runs on every machine": f"{project}=={pinned}"}).items():
            yield ConsumerUse(
                f"{what}, with pip and with uv; what else is required comes from the index that they have:",
                install_commands(asked, url=self.url),
            )
        yield ConsumerUse("Which backend is in use; an extra that was misspelt shows here:", ask)
        yield ConsumerUse(
            "Without a backend, for one run; so another is named, too:", f"{variable(project)}={PLAIN} {ask}"
        )


class _Release(Struct, frozen=True):
    """The wheels of *offer* as base and plugins: the *payloads*, each with its backend and its plain wheel.

    *roots* are the packages that load plugins, as folders; a plugin has the modules of the first directly in its own.
    """

    offer: OfferedRelease
    bases: tuple[OfferedWheel, ...]
    backends: tuple[PluginBackend, ...]
    payloads: tuple[tuple[PluginBackend, OfferedWheel, Payload], ...]
    roots: tuple[str, ...]

    @classmethod
    def of(cls, offer: OfferedRelease, reader: WheelReader) -> Self:
        """The same of *offer*, whose wheels *reader* reads."""
        known = {label: PluginBackend(offer.project, label, wheel.properties) for label, wheel in _served(offer)}
        _check_names(known.values())
        # null variants too if there is no plain wheel for the same
        plain = {slots(wheel.name) for wheel in offer.plain}
        null = (wheel for wheel in offer.variants if wheel.label == NULL_LABEL and slots(wheel.name) not in plain)
        bases = (*offer.plain, *null)
        served = [(known[label], wheel, _base_of(wheel, bases)) for label, wheel in _served(offer)]

        def read(row: tuple[PluginBackend, OfferedWheel, OfferedWheel]) -> tuple[PluginBackend, OfferedWheel, Payload]:
            backend, wheel, base = row
            return backend, base, payload(wheel, base, reader=reader)

        payloads = in_threads(read, served, size=lambda row: row[1].size, threads=available_cores())
        roots = {root for _, _, found in payloads for root in found.roots}
        named = escaped(offer.project)
        ordered = tuple(sorted(roots, key=lambda root: (root != named, root)))
        return cls(offer, bases, in_order(tuple(known.values())), tuple(payloads), ordered)


def _served(offer: OfferedRelease) -> Iterator[tuple[str, OfferedWheel]]:
    """The variant wheels that become plugins, with their labels."""
    for wheel in offer.variants:
        if wheel.label is not None and wheel.label != NULL_LABEL:
            yield wheel.label, wheel


def _base_of(variant: OfferedWheel, bases: Sequence[OfferedWheel]) -> OfferedWheel:
    """The plain wheel for the same Python and machine, which is installed together with the plugin of *variant*."""
    found = [base for base in bases if slots(base.name) == slots(variant.name)]
    if len(found) != 1:
        text = ", ".join(base.path.name for base in found) or "none"
        raise RepackageError(
            f"{variant.path.name}: plain wheels for the same Python and machine: {text}; expected one, which a plugin "
            "is made for: build it, or give the others apart"
        )
    return found[0]


def _check_names(backends: Collection[PluginBackend]) -> None:
    """Refuse labels that are not extras, or that are the same one (PEP 685)."""
    extras: dict[str, str] = {PLAIN: "the wheel without a backend"}
    for backend in backends:
        if not _EXTRA.fullmatch(backend.extra):
            raise RepackageError(
                f"label {backend.label!r}: no name of an extra; expected it to begin and end with a-z, 0-9"
            )
        if other := extras.get(backend.extra):
            raise RepackageError(
                f"label {backend.label!r}: as an extra it is {backend.extra!r}, as is {other}; rename one"
            )
        extras[backend.extra] = f"the label {backend.label!r}"


def _notes(releases: Iterable[_Release]) -> Iterator[str]:
    for release in releases:
        project, named = release.offer.project, variable(release.offer.project)
        extras = ", ".join(backend.extra for backend in release.backends)
        yield f"Extras of {project}: {extras}; pip and uv only warn, at most, about an extra that it does not have."
        yield (
            f"The wheel of {project} here has a build tag: installers prefer it to the plain wheel of the same tags. "
            "Publish it next to that one, or instead of it."
        )
        plugins = ", ".join(backend.plugin for backend in release.backends)
        yield f"Anybody may take these names on an index that has none: register {plugins} there first."
        if len(release.backends) == 1:
            continue
        yield (
            f"If several backends are installed that differ in the x86-64 level only, {project} takes the best that "
            f"the CPU runs; of others, {named} has to name one. The loader does not look for GPUs."
        )


def _unasked(_name: str, _loading: Loading, _data: memoryview, _sha256: str, /) -> None:
    """Where bundled libraries come from does not matter here."""
