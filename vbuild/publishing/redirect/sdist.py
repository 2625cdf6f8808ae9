"""The sdist that hands over finished wheels, as bytes.

    demo-1.0/pyproject.toml         no build requirements, the backend in the tree (PEP 517)
    demo-1.0/redirectbackend.py     the backend, as it stands in this package
    demo-1.0/redirecthardware.py    what a machine supports; only if hardware chooses
    demo-1.0/redirectinstalled.py   what is installed; only if that chooses
    demo-1.0/PKG-INFO               the METADATA of the wheels; dynamic only in what they disagree about (PEP 643)
    demo-1.0/wheels.json            every wheel that the backend hands over: file, size, sha256, tags, Pythons

The same wheels give the same bytes: no clock, no owner, one order. A machine gets the first variant that it supports,
in one order for all machines: a variant with several values of a feature is listed once for each.
https://packaging.python.org/en/latest/specifications/source-distribution-format/
https://peps.python.org/pep-0825/#variant-ordering
"""

import io
import json
import re
import tarfile
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from itertools import product
from textwrap import fill
from typing import Any

import deflate
from msgspec import Struct
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.config.requirements import read_requirement
from vbuild.errors import RepackageError
from vbuild.files.atomic import OLDEST, source_date_epoch
from vbuild.hardware.cpu import AARCH64_VERSIONS, X86_64_LEVELS
from vbuild.publishing.releases import OfferedRelease, OfferedWheel
from vbuild.recipe.matrix import local_label
from vbuild.variants.document import Document, combine
from vbuild.variants.model import Property, VariantMetadata
from vbuild.variants.providers import is_answered
from vbuild.wheel.metadata import MetadataHeaders
from vbuild.wheel.name import escaped

Place = tuple[int, int, int]

# the features that installers know, best first, and what is to be read of a value that redirecthardware.py can check
_FEATURES = {
    "x86_64": ("level",),
    "aarch64": ("version",),
    "nvidia": ("cuda_version_lower_bound", "cuda_version_upper_bound", "sm_arch"),
}
_LEVELS = (*X86_64_LEVELS, *AARCH64_VERSIONS)
_CUDA = re.compile(r"(?P<major>\d{1,4})(\.(?P<minor>\d{1,4}))?")
_GPU = re.compile(r"(?P<major>\d{1,3})(?P<minor>\d)_(?P<kind>real|virtual)")
_CHECKED = {"x86_64": re.compile("|".join(X86_64_LEVELS)), "nvidia": re.compile(f"{_CUDA.pattern}|\\d+_(real|virtual)")}
# a namespace that no property has: the backend asks its user
_UNKNOWN = "unknown "
_END: Place = (1 << 30, 0, 0)


class RedirectChoice(Struct, frozen=True):
    """The variant *label* for machines with all of *properties*; one that begins with ``unknown`` cannot be checked."""

    label: str
    properties: tuple[str, ...]

    def data(self) -> list[object]:
        return [self.label, list(self.properties)]


def release_order(offer: OfferedRelease) -> tuple[RedirectChoice, ...]:
    """The variants of *offer*, best first, without those of an optional provider, which are off (PEP 850)."""
    documents = [(str(wheel.name), wheel.document) for wheel in offer.variants if wheel.document]
    return ranked_choices(combine(documents)) if documents else ()


def ranked_choices(document: Document) -> tuple[RedirectChoice, ...]:
    metadata = document.metadata
    ranked = []
    for variant in document.variants:
        features = (
            [Property(feature.namespace, feature.name, value) for value in feature.values]
            for feature in variant.features
        )
        # with one value for each feature, in every way
        for properties in product(*features):
            if all(_may_be(prop, metadata) for prop in properties):
                places = (*sorted(_rank(prop, metadata) for prop in properties), _END)
                ranked.append((places, variant.label, properties))
    return tuple(RedirectChoice(label, tuple(_needed(properties, metadata))) for _, label, properties in sorted(ranked))


def _may_be(prop: Property, metadata: VariantMetadata) -> bool:
    """Whether some machine supports *prop*: no optional provider's, and none that static properties do not list."""
    provider = metadata.provider(prop.namespace)
    if provider is None or not provider.static_properties:
        return provider is None or not provider.optional
    return not provider.optional and prop.value in dict(provider.features).get(prop.feature, ())


def _needed(properties: tuple[Property, ...], metadata: VariantMetadata) -> Iterator[str]:
    """What a machine must be asked about: nothing that static properties have settled."""
    for prop in properties:
        provider, values = metadata.provider(prop.namespace), _CHECKED.get(prop.namespace)
        if provider and provider.static_properties:
            continue
        is_checked = (
            provider
            and values
            and is_answered(prop.namespace, provider)
            and prop.feature in _FEATURES[prop.namespace]
            and values.fullmatch(prop.value)
        )
        yield str(prop) if is_checked else f"{_UNKNOWN}{prop}"


def _rank(prop: Property, metadata: VariantMetadata) -> Place:
    """The position of *prop* by namespace, feature and value, each lower if better."""
    names = metadata.namespaces
    namespace = names.index(prop.namespace) if prop.namespace in names else len(names)
    provider = metadata.provider(prop.namespace)
    if provider and provider.static_properties:
        features = dict(provider.features)
        return namespace, list(features).index(prop.feature), features[prop.feature].index(prop.value)
    ranked = _FEATURES.get(prop.namespace, ())
    feature = ranked.index(prop.feature) if prop.feature in ranked else len(ranked)
    return namespace, feature, -_worth(prop.value)


def _worth(value: str) -> int:
    if value in _LEVELS:
        return _LEVELS.index(value)
    if gpu := _GPU.fullmatch(value):
        return int(gpu["major"]) * 100 + (int(gpu["minor"]) + 1 if gpu["kind"] == "real" else 0)
    if cuda := _CUDA.fullmatch(value):
        return int(cuda["major"]) * 10000 + (int(cuda["minor"]) + 1 if cuda["minor"] else 0)
    return 0


TABLE, PKG_INFO = "wheels.json", "PKG-INFO"
_BACKEND, _HARDWARE, _INSTALLED = "redirectbackend.py", "redirecthardware.py", "redirectinstalled.py"
HAZARD = (
    "It chooses by CPU and GPU, which the caches of pip and uv do not know: machines that share one get what the first "
    "of them chose. Install there with --no-cache-dir (pip) or --no-cache (uv); vbuild doctor finds what was "
    "chosen for another machine."
)
STALE = (
    "It chooses by what is installed, which the caches of pip and uv do not know: where another build was chosen "
    "before, install with --no-cache-dir (pip), or after uv cache clean and the project's name (uv)."
)

_ABOUT = "This sdist holds no source: its backend hands over the finished wheel that fits, from"
_WIDTH = 110
_PYPROJECT = b'[build-system]\nrequires = []\nbuild-backend = "redirectbackend"\nbackend-path = ["."]\n'
_LEVEL = 12
_VERSION = re.compile(r"\d{1,4}\.\d{1,4}", re.ASCII)
_STATIC_SINCE = "2.2"
_LEGACY = {"manylinux1": "manylinux_2_5", "manylinux2010": "manylinux_2_12", "manylinux2014": "manylinux_2_17"}
_LEGACY_TAG = re.compile("manylinux(1|2010|2014)(?=_)")
# the tags that the backend knows: CPython's since 3.9, which it needs itself, for any platform and for 64-bit Linux
_KNOWN = re.compile(
    r"(cp3\d+-abi3|cp3(9|\d\d+)-\w+|py3\d*-none)-(any|((many|musl)linux_\d+_\d+|linux)_(?!i\d86|arm)\w+)"
)
# they describe the file itself
_OWN = frozenset({"metadata-version", "name", "version", "dynamic"})
# they describe files that only wheels have, or are long
_WHEELS_ONLY = ("License", "License-File", "Description", "Description-Content-Type")
# the Pythons that are tried: up to 3.49.49, and 4.0
_MINORS, _MICROS = 50, 50
_NEVER = (99, 0, 0)


class RedirectSource(Struct, frozen=True):
    """The sdist of *offer*, whose wheels are in the folder *url*.

    With *values*, newest first, each wheel is in a folder named after what it was built against.
    """

    offer: OfferedRelease
    url: str
    by_hardware: bool
    values: tuple[str, ...] = ()

    @property
    def release(self) -> str:
        return f"{escaped(self.offer.project)}-{self.offer.version}"


def check_choice(source: RedirectSource) -> None:
    """`RepackageError` if *source* has nothing to choose from, or nothing that tags alone choose."""
    if not source.offer.wheels:
        raise RepackageError(
            "no wheel for CPython 3.9 or newer on 64-bit Linux, all that the backend knows; expected one"
        )
    if not source.by_hardware and not source.offer.plain:
        labels = ", ".join(source.offer.labels)
        raise RepackageError(
            f"only variants ({labels}), and tags alone choose; expected a plain wheel, or --by-hardware"
        )


def packed(source: RedirectSource) -> bytes:
    modules = (_BACKEND, *[_HARDWARE][: source.by_hardware], *[_INSTALLED][: bool(source.values)])
    # in this order they take the least room
    members = {
        "pyproject.toml": _PYPROJECT,
        **{name: files("vbuild.publishing.redirect").joinpath(name).read_bytes() for name in modules},
        PKG_INFO: _pkg_info(source).encode(),
        TABLE: _table(source).encode(),
    }
    moment = source_date_epoch()
    moment = OLDEST if moment is None else moment
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, data in members.items():
            info = tarfile.TarInfo(f"{source.release}/{path}")
            info.size, info.mtime = len(data), moment
            archive.addfile(info, io.BytesIO(data))
    # without the zeros up to a whole record, which no reader needs
    return bytes(deflate.gzip_compress(file.getvalue()[: archive.offset], _LEVEL))


def built_against(offer: OfferedRelease) -> tuple[str, str]:
    """What the version of *offer* names and its wheels require, as ``torch2.15``, and the version without that."""
    version = Version(offer.version)
    local = version.local or ""
    names = [name for name, _, _ in _needed_of(offer.wheels[0], local)]
    for name in names:
        local = re.sub(rf"(?<![^.]){re.escape(name)}\.?", "", local).removesuffix(".")
    return ".".join(names), f"{version.public}+{local}" if local else version.public


def _needed_of(wheel: OfferedWheel, local: str) -> Iterator[tuple[str, str, str]]:
    """The names in *local* of projects that *wheel* requires: ``torch2.15``, the project, the specifier."""
    for requirement in filter(None, map(read_requirement, wheel.metadata.requires_dist)):
        match = re.search(
            rf"(?<![^.]){local_label([(canonicalize_name(requirement.name), '')])}\d+(\.\d+)*(?![^.])", local
        )
        if match and requirement.specifier and not requirement.marker:
            yield match[0], canonicalize_name(requirement.name), str(requirement.specifier)


def is_handed_over(wheel: OfferedWheel) -> bool:
    """Whether the backend knows a tag of *wheel*."""
    return any(_KNOWN.fullmatch(tag) for tag in tags_of(wheel))


def differing(wheels: tuple[OfferedWheel, ...]) -> tuple[str, ...]:
    names = {name for wheel in wheels for name, _ in wheel.metadata.headers.fields} - _OWN - _lowered(left_out(wheels))
    return tuple(sorted(name for name in names if len({wheel.metadata.headers.values(name) for wheel in wheels}) > 1))


def left_out(wheels: tuple[OfferedWheel, ...]) -> tuple[str, ...]:
    """The fields of *wheels* that the sdist does not have."""
    return tuple(name for name in _WHEELS_ONLY if any(_is_left_out(wheel.metadata.headers, name) for wheel in wheels))


@cache
def admitted(requires_python: str | None) -> list[list[list[int]]]:
    """The Pythons that Requires-Python admits, as ranges: first version, and first version after.

    If it cannot be read it admits all, as for installers. ``>=3.9,!=3.10.*`` is [[3, 9], [3, 10]], [[3, 11], [99]].
    """
    try:
        wanted = SpecifierSet(requires_python or "")
    except InvalidSpecifier:
        wanted = SpecifierSet()
    pythons = [(3, minor, micro) for minor in range(_MINORS) for micro in range(_MICROS)]
    ranges: list[list[list[int]]] = []
    before = False
    for python in [*pythons, (4, 0, 0), _NEVER]:
        admits = python != _NEVER and wanted.contains(".".join(map(str, python)), prereleases=True)
        if admits != before:
            short = list(python)
            while len(short) > 1 and not short[-1]:
                short.pop()
            if admits:
                ranges.append([short])
            else:
                ranges[-1].append(short)
        before = admits
    return ranges


def _pkg_info(source: RedirectSource) -> str:
    wheels = source.offer.wheels
    headers = wheels[0].metadata.headers
    differ, lacks = differing(wheels), left_out(wheels)
    versions = [wheel.metadata.headers.value("metadata-version") or "" for wheel in wheels]
    # what is not a version does not count, and only since 2.2 can an sdist be static
    newest = max([_STATIC_SINCE, *(version for version in versions if _VERSION.fullmatch(version))], key=Version)
    dynamic = _OWN | {*differ} | _lowered(lacks)
    lines = [
        f"Metadata-Version: {newest}\n",
        f"Name: {wheels[0].metadata.name}\n",
        f"Version: {wheels[0].metadata.version}\n",
        *(_line(text) for name, text in headers.fields if name not in dynamic),
        *(f"Dynamic: {name.title()}\n" for name in (*differ, *lacks)),
        "Description-Content-Type: text/plain\n\n",
        _filled(f"{_ABOUT} {source.url} or another place, as pinned in {TABLE}."),
    ]
    lines += [f"\n{_filled(HAZARD)}"] * source.by_hardware
    lines += [f"\n{_filled(STALE)}"] * bool(source.values)
    return "".join(lines)


def _filled(text: str) -> str:
    return fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def _lowered(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


def _is_left_out(headers: MetadataHeaders, name: str) -> bool:
    value = headers.value(name)
    match name:
        case "License":
            return "\n" in (value or "")
        case "Description":
            return value is not None or bool(headers.rest.strip())
        case _:
            return value is not None


def _table(source: RedirectSource) -> str:
    about: dict[str, Any] = {"release": source.release, "urls": [source.url]}
    if source.by_hardware:
        about["order"] = [choice.data() for choice in release_order(source.offer)]
    if source.values:
        about["values"] = source.values
    differ = differing(source.offer.wheels)
    rows = []
    # of two that fit alike the first counts: the highest build, then the one of fewer tags
    preferred = sorted(source.offer.wheels, key=lambda wheel: (len(wheel.name.tags) > 1, wheel.path.name))
    for wheel in sorted(preferred, key=lambda wheel: wheel.name.build_order, reverse=True):
        row = row_of(wheel, has_value=bool(source.values))
        if differ:
            fields = wheel.metadata.headers.fields
            row["fields"] = "".join(_line(text) for name, text in fields if name in differ)
        rows.append(json.dumps(row))
    lines = ",\n".join(rows)
    return f'{json.dumps(about)[:-1]}, "wheels": [\n{lines}\n]}}\n'


def row_of(wheel: OfferedWheel, *, has_value: bool = False) -> dict[str, Any]:
    """The row of *wheel* in wheels.json, without the fields that wheels disagree about."""
    row: dict[str, Any] = {
        "file": wheel.path.name,
        "size": wheel.size,
        "sha256": wheel.sha256,
        "tags": list(tags_of(wheel)),
        "python": admitted(wheel.metadata.requires_python),
    }
    if has_value:
        value = wheel.path.parent.name
        needs = {project: specifier for _, project, specifier in _needed_of(wheel, value)}
        row |= {"file": f"{value}/{wheel.path.name}", "value": value, "needs": needs}
    return {**row, "label": wheel.label} if wheel.label else row


def tags_of(wheel: OfferedWheel) -> Iterator[str]:
    """The tags of *wheel*, the platforms of PEPs 513, 571 and 599 as PEP 600 calls them."""
    tags = {
        (tag.interpreter, tag.abi, _LEGACY_TAG.sub(lambda legacy: _LEGACY[legacy[0]], tag.platform))
        for tag in wheel.name.tags
    }
    return map("-".join, sorted(tags))


def _line(text: str) -> str:
    return text.replace("\r\n", "\n").rstrip("\n") + "\n"
