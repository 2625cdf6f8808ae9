"""The sdist that hands over finished wheels, as bytes.

    demo-1.0/pyproject.toml         no build requirements, the backend in the tree (PEP 517)
    demo-1.0/redirectbackend.py     the backend, as it stands in this package
    demo-1.0/redirecthardware.py    what a machine supports; only where hardware chooses
    demo-1.0/PKG-INFO               the METADATA of the wheels; static but for what they disagree about (PEP 643)
    demo-1.0/wheels.json            every wheel that the backend hands over: file, size, sha256, tags, Pythons

Same wheels, same bytes: no clock, no owner, one order.
https://packaging.python.org/en/latest/specifications/source-distribution-format/
"""

import io
import json
import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from textwrap import fill
from typing import Any

import deflate
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from vbuild.digest import sha256_of
from vbuild.errors import LayoutError
from vbuild.layout.offer import Offer, Offered
from vbuild.layout.redirect.order import order
from vbuild.wheel.headers import Headers
from vbuild.wheel.name import escaped

TABLE, PKG_INFO = "wheels.json", "PKG-INFO"
_BACKEND, _HARDWARE = "redirectbackend.py", "redirecthardware.py"
HAZARD = (
    "It chooses by CPU and GPU, which the caches of pip and uv do not know: machines that share one get what the first "
    "of them chose. Install there with --no-cache-dir (pip) or --no-cache (uv); vbuild select --doctor finds what was "
    "chosen for another machine."
)

_ABOUT = "This sdist holds no source: its backend hands over the finished wheel that fits, from"
_WIDTH = 110
_PYPROJECT = b'[build-system]\nrequires = []\nbuild-backend = "redirectbackend"\nbackend-path = ["."]\n'
_LEVEL = 12
# 1980-01-01, the first day that every archive can say
_EPOCH = 315532800
# a day in 2242: what a tar archive says in eleven octal digits
_LATEST = 1 << 33
_VERSION = re.compile(r"\d{1,4}\.\d{1,4}", re.ASCII)
_STATIC_SINCE = "2.2"
_LEGACY = {"manylinux1": "manylinux_2_5", "manylinux2010": "manylinux_2_12", "manylinux2014": "manylinux_2_17"}
_LEGACY_TAG = re.compile("manylinux(1|2010|2014)(?=_)")
# the tags that the backend knows: CPython's since 3.9, which it needs itself, for any platform and for 64-bit Linux
_KNOWN = re.compile(
    r"(cp3\d+-abi3|cp3(9|\d\d+)-\w+|py3\d*-none)-(any|((many|musl)linux_\d+_\d+|linux)_(?!i\d86|arm)\w+)"
)
# said of the file
_OWN = frozenset({"metadata-version", "name", "version", "dynamic"})
# said of files that only wheels have, or long
_WHEELS_ONLY = ("License", "License-File", "Description", "Description-Content-Type")
# the Pythons that are tried: up to 3.49.49, and 4.0
_MINORS, _MICROS = 50, 50
_NEVER = (99, 0, 0)


@dataclass(frozen=True, slots=True)
class Source:
    """The sdist of *offer*, whose wheels are at *urls*, folders without a slash at the end, the first asked first."""

    offer: Offer
    urls: tuple[str, ...]
    by_hardware: bool

    @property
    def release(self) -> str:
        """What its one folder is called (PEP 625)."""
        return f"{escaped(self.offer.project)}-{self.offer.version}"

    @property
    def file(self) -> str:
        return f"{self.release}.tar.gz"

    @property
    def modules(self) -> tuple[str, ...]:
        """The files of this package that go into it."""
        return (_BACKEND, _HARDWARE) if self.by_hardware else (_BACKEND,)


def packed(source: Source) -> bytes:
    """The bytes of *source*; `LayoutError` where there is nothing to choose from, or nothing that tags alone choose."""
    if not source.offer.wheels:
        raise LayoutError("no wheel for CPython 3.9 or newer on 64-bit Linux, all that the backend knows; expected one")
    if not source.by_hardware and not source.offer.plain:
        labels = ", ".join(source.offer.labels)
        raise LayoutError(f"only variants ({labels}), and tags alone choose; expected a plain wheel, or --by-hardware")
    # in this order they take the least room
    members = {
        "pyproject.toml": _PYPROJECT,
        **{name: files("vbuild.layout.redirect").joinpath(name).read_bytes() for name in source.modules},
        PKG_INFO: _pkg_info(source).encode(),
        TABLE: _table(source).encode(),
    }
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, data in members.items():
            info = tarfile.TarInfo(f"{source.release}/{path}")
            info.size, info.mtime = len(data), _moment()
            archive.addfile(info, io.BytesIO(data))
    # without the zeros up to a whole record, which no reader needs
    return bytes(deflate.gzip_compress(file.getvalue()[: archive.offset], _LEVEL))


def is_handed_over(wheel: Offered) -> bool:
    """Whether the backend has a tag of *wheel*: one of CPython 3.9 or newer, for any platform or for 64-bit Linux."""
    return any(_KNOWN.fullmatch(tag) for tag in tags_of(wheel))


def differing(wheels: tuple[Offered, ...]) -> tuple[str, ...]:
    """The fields, in lower case and sorted, in which the METADATA of *wheels* say different things."""
    names = {name for wheel in wheels for name, _ in wheel.metadata.headers.fields} - _OWN - _lowered(left_out(wheels))
    return tuple(sorted(name for name in names if len({wheel.metadata.headers.values(name) for wheel in wheels}) > 1))


def left_out(wheels: tuple[Offered, ...]) -> tuple[str, ...]:
    """The fields of *wheels* that the sdist does not have: what is said of their files, and whole texts."""
    return tuple(name for name in _WHEELS_ONLY if any(_is_left_out(wheel.metadata.headers, name) for wheel in wheels))


@cache
def admitted(requires_python: str | None) -> list[list[list[int]]]:
    """The Pythons that Requires-Python admits, as ranges: first version, and first version after.

    What cannot be read admits all, as installers have it. ``>=3.9,!=3.10.*`` is [[3, 9], [3, 10]], [[3, 11], [99]].
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
            short = _short(python)
            if admits:
                ranges.append([short])
            else:
                ranges[-1].append(short)
        before = admits
    return ranges


def _short(python: tuple[int, ...]) -> list[int]:
    while len(python) > 1 and not python[-1]:
        python = python[:-1]
    return list(python)


def _pkg_info(source: Source) -> str:
    wheels = source.offer.wheels
    headers = wheels[0].metadata.headers
    differ, lacks = differing(wheels), left_out(wheels)
    versions = (wheel.metadata.headers.value("metadata-version") or "" for wheel in wheels)
    dynamic = _OWN | {*differ} | _lowered(lacks)
    lines = [
        f"Metadata-Version: {_newest(versions)}\n",
        f"Name: {wheels[0].metadata.name}\n",
        f"Version: {wheels[0].metadata.version}\n",
        *(_line(text) for name, text in headers.fields if name not in dynamic),
        *(f"Dynamic: {name.title()}\n" for name in (*differ, *lacks)),
        "Description-Content-Type: text/plain\n\n",
        _filled(f"{_ABOUT} {source.urls[-1]} or another place, as pinned in {TABLE}."),
    ]
    if source.by_hardware:
        lines.append(f"\n{_filled(HAZARD)}")
    return "".join(lines)


def _filled(text: str) -> str:
    return fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def _lowered(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


def _is_left_out(headers: Headers, name: str) -> bool:
    value = headers.value(name)
    match name:
        case "License":
            return "\n" in (value or "")
        case "Description":
            return value is not None or bool(headers.rest.strip())
        case _:
            return value is not None


def _newest(versions: Iterable[str]) -> str:
    """The highest of the metadata *versions* that is one, and at least the first in which sdists can be static."""
    known = [version for version in versions if _VERSION.fullmatch(version)]
    return max([*known, _STATIC_SINCE], key=Version)


def _table(source: Source) -> str:
    """wheels.json: what concerns all wheels on the first line, then a line for each."""
    about: dict[str, Any] = {"release": source.release, "urls": source.urls}
    if source.by_hardware:
        about["order"] = [choice.data() for choice in order(source.offer)]
    differ = differing(source.offer.wheels)
    rows = ",\n".join(json.dumps(_row(wheel, differ)) for wheel in _preferred(source.offer.wheels))
    return f'{json.dumps(about)[:-1]}, "wheels": [\n{rows}\n]}}\n'


def _preferred(wheels: tuple[Offered, ...]) -> list[Offered]:
    """The *wheels* so that of two that fit alike the first counts: the highest build, then the one of fewer tags."""
    ordered = sorted(wheels, key=lambda wheel: (len(wheel.name.tags) > 1, wheel.path.name))
    return sorted(ordered, key=lambda wheel: wheel.name.build_order, reverse=True)


def row_of(wheel: Offered) -> dict[str, Any]:
    """What wheels.json says of *wheel*, but for the fields that wheels disagree about."""
    row: dict[str, Any] = {
        "file": wheel.path.name,
        "size": wheel.size,
        "sha256": sha256_of(wheel.path),
        "tags": list(tags_of(wheel)),
        "python": admitted(wheel.metadata.requires_python),
    }
    return {**row, "label": wheel.label} if wheel.label else row


def _row(wheel: Offered, differ: tuple[str, ...]) -> dict[str, Any]:
    fields = "".join(_line(text) for name, text in wheel.metadata.headers.fields if name in differ)
    return {**row_of(wheel), "fields": fields} if differ else row_of(wheel)


def tags_of(wheel: Offered) -> Iterator[str]:
    """The tags of *wheel*, expanded and sorted, the platforms of PEPs 513, 571 and 599 as PEP 600 calls them."""
    tags = {(tag.interpreter, tag.abi, _LEGACY_TAG.sub(_modern, tag.platform)) for tag in wheel.name.tags}
    return map("-".join, sorted(tags))


def _modern(match: re.Match[str]) -> str:
    return _LEGACY[match[0]]


def _line(text: str) -> str:
    return text.replace("\r\n", "\n").rstrip("\n") + "\n"


def _moment() -> int:
    """When the files say they were made: SOURCE_DATE_EPOCH, never the clock."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or str(_EPOCH)
    if not (epoch.isascii() and epoch.isdigit() and int(epoch) < _LATEST):
        raise LayoutError(f"SOURCE_DATE_EPOCH is {epoch!r}, expected seconds since 1970")
    return int(epoch)
