"""The bill of materials of a thin wheel: which of its libraries went where, as CycloneDX 1.4 has it.

    dist-info/sboms/auditwheel.cdx.json     what auditwheel wrote when it bundled them; stays as it is
    dist-info/sboms/vbuild-split.cdx.json   this: one component per library that went, one per wheel it went to

The same input gives the same bytes: no time, no serial number, all sorted.
https://cyclonedx.org/docs/1.4/json/
https://peps.python.org/pep-0770/
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name

from vbuild.wheel.name import WheelName

FILE = "sboms/vbuild-split.cdx.json"
_PROPERTY = "vbuild:split:"


@dataclass(frozen=True, slots=True)
class Origin:
    """The wheel that a library is in now: its project, version, and file name where one is known."""

    project: str
    version: str
    file: str | None = None

    @property
    def purl(self) -> str:
        """As the package URL specification spells it."""
        name, version = quote(canonicalize_name(self.project), safe=""), quote(self.version, safe="")
        file = f"?file_name={quote(self.file, safe='')}" if self.file else ""
        return f"pkg:pypi/{name}@{version}{file}"

    @classmethod
    def of(cls, name: WheelName) -> "Origin":
        return cls(name.project, name.version, str(name))


@dataclass(frozen=True, slots=True)
class Moved:
    """A library that the wheel had at *path* with the SHA-256 *sha256*, in hex, and that is at *target* of *origin*.

    *version* is the library's own, where its file name says one; *evidence* is how an official library was told.
    """

    path: str
    sha256: str
    origin: Origin
    target: str
    name: str
    version: str | None = None
    evidence: str | None = None


def bill(wheel: WheelName, moved: Iterable[Moved], *, earlier: bytes | None = None) -> bytes:
    """The bill of materials of the thin *wheel*, from which *moved* went; UTF-8, ends with a line break.

    What an *earlier* split of it wrote down stays in it.
    """
    libraries = sorted(set(moved), key=lambda library: library.path)
    whole = _package(Origin.of(wheel))
    parts = {purl: _package(origin) for purl, origin in _origins(libraries).items()}
    parts |= {_reference(library): _library(library) for library in libraries}
    for part in _earlier(earlier):
        parts.setdefault(part["bom-ref"], part)
    inside: dict[str, list[str]] = {ref: [] for ref in sorted(parts) if "#" not in ref}
    for ref in sorted(parts.keys() - inside.keys(), key=lambda ref: _place(parts[ref])):
        inside.setdefault(ref.partition("#")[0], []).append(ref)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.4",
        "version": 1,
        "metadata": {"component": whole, "tools": [{"name": "vbuild split"}]},
        "components": [parts[ref] for ref in sorted(parts, key=lambda ref: ("#" in ref, _place(parts[ref])))],
        "dependencies": [
            {"ref": whole["bom-ref"], "dependsOn": list(inside)},
            *({"ref": purl, "dependsOn": references} for purl, references in inside.items()),
            *({"ref": ref} for references in inside.values() for ref in references),
        ],
    }
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _origins(libraries: Iterable[Moved]) -> dict[str, Origin]:
    return {library.origin.purl: library.origin for library in libraries}


def _earlier(text: bytes | None) -> Iterator[dict[str, Any]]:
    """The components of an earlier bill; none of one that nobody can read."""
    with suppress(ValueError, TypeError, AttributeError):
        for part in json.loads(text or b"{}").get("components", ()):
            if isinstance(part.get("bom-ref"), str):
                yield part


def _place(part: Mapping[str, Any]) -> tuple[str, str]:
    """Where a component stands in the list: packages by their names, libraries by their paths."""
    paths = (each["value"] for each in part.get("properties", ()) if each.get("name") == f"{_PROPERTY}path")
    return next(paths, ""), part["bom-ref"]


def _package(origin: Origin) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": origin.purl,
        "name": canonicalize_name(origin.project),
        "version": origin.version,
        "purl": origin.purl,
    }


def _library(library: Moved) -> dict[str, Any]:
    properties = {"path": library.path, "target": library.target, "evidence": library.evidence}
    return {
        "type": "library",
        "bom-ref": _reference(library),
        "name": library.name,
        **({"version": library.version} if library.version else {}),
        "hashes": [{"alg": "SHA-256", "content": library.sha256}],
        "purl": library.origin.purl,
        "properties": [
            {"name": _PROPERTY + name, "value": value} for name, value in sorted(properties.items()) if value
        ],
    }


def _reference(library: Moved) -> str:
    """One that no two components share, as auditwheel makes them: the package and a hash of the path."""
    return f"{library.origin.purl}#{sha256(library.path.encode()).hexdigest()}"
