"""A bill of materials: the files of wheels, what these were before, what it took to build them; as CycloneDX 1.6 JSON.

    metadata.component           the release; its sources as externalReferences, a git commit in its pedigree
    components                   native dependencies, compiled files, and libraries that went, with scope excluded
      pedigree.ancestors         the file before each change
    dependencies                 the release on all that is in it, and on the packages that have what moved
    formulation                  of each build: source, compilers, packages, toolkit; target and flags as properties

The same bill gives the same bytes: all is sorted, there is no time, and the serial number is made of the rest.
https://cyclonedx.org/docs/1.6/json/ https://peps.python.org/pep-0770/
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from msgspec import Struct, json
from packaging.utils import canonicalize_name

from vbuild.files.reading import parsed_json


class MaterialRole(StrEnum):
    SOURCE = "source"
    NATIVE = "native dependency"
    REQUIREMENT = "build requirement"
    COMPILER = "compiler"
    TOOLKIT = "toolkit"


class Treatment(StrEnum):
    """What became of a library that a wheel no longer has."""

    MOVED = "moved"
    DROPPED = "dropped"


class GpuCut(Struct, frozen=True):
    """What a cut left: architectures, the GPUs that it was *cut_to*, and *fillers* as `vbuild.gpu_code` has them."""

    gpus: tuple[str, ...] = ()
    cut_to: tuple[str, ...] = ()
    fillers: str = ""

    @property
    def properties(self) -> dict[str, str | None]:
        listed = {"gpus": ", ".join(self.gpus), "cut_to": ", ".join(self.cut_to), "fillers": self.fillers}
        return {name: text or None for name, text in listed.items()}


class BillChange(Struct, frozen=True):
    """One step that a file went through; hash, and the last cut, are those before it."""

    sha256: str
    how: str
    cut: GpuCut = GpuCut()


class BillFile(Struct, frozen=True):
    """*before* are the changes in their order, *cut* is the last one of its GPU code."""

    path: str
    sha256: str
    before: tuple[BillChange, ...] = ()
    cut: GpuCut = GpuCut()


class Gone(Struct, frozen=True):
    """A library that the wheel had at *path*; one that moved is at *target* of the package *purl*.

    *version* is the library's own; *evidence* is what proves that a library is the official one.
    """

    path: str
    sha256: str
    name: str
    fate: Treatment
    purl: str | None = None
    target: str | None = None
    version: str | None = None
    evidence: str | None = None


class Material(Struct, frozen=True):
    """Something that a build took; *identity* is a hash of vbuild's own where nothing else pins it, as of a folder."""

    role: MaterialRole
    name: str
    version: str | None = None
    purl: str | None = None
    sha256: str | None = None
    url: str | None = None
    commit: str | None = None
    identity: str | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.version}" if self.version else self.name


class Making(Struct, frozen=True):
    """One build; *settings* are such as target and flags."""

    materials: tuple[Material, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()


class Bill(Struct, frozen=True):
    """What wheels of a release are made of; *tool* is the vbuild that says so."""

    project: str
    version: str
    tool: str
    files: tuple[BillFile, ...] = ()
    gone: tuple[Gone, ...] = ()
    makings: tuple[Making, ...] = ()

    @property
    def purl(self) -> str:
        """The package's URL, without the file's name: a label, or other tags, make no other bill."""
        return package_url(self.project, self.version)


def package_url(project: str, version: str, *, file: str | None = None) -> str:
    """The package URL of a release on the Python package index, or of one *file* of it."""
    purl = f"pkg:pypi/{quote(canonicalize_name(project), safe='')}@{quote(version, safe='')}"
    return f"{purl}?file_name={quote(file, safe='')}" if file else purl


def public_url(url: str) -> str | None:
    """*url* without user, password, query and fragment; None for a place on this machine."""
    parts = urlsplit(url)
    if "://" not in url or parts.scheme == "file" or not parts.hostname:
        return None
    host = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


FILE = "sboms/vbuild.cdx.json"

_PREFIX = "vbuild:"
_BUNDLED = ".libs/"
_GONE = "#gone-"
_KEYED = ("name", "version", "purl", "sha256", "url", "commit", "identity")
_Json = dict[str, Any]


def packed(bill: Bill) -> bytes:
    """*bill* as CycloneDX 1.6; UTF-8, ends with a line break."""
    parts = [*_parts(bill)]
    references = [part["bom-ref"] for part in parts]
    # the libraries that moved to a package, by the reference of the package
    moved: dict[str, list[str]] = {}
    for reference in references:
        package, gone, _ = reference.rpartition(_GONE)
        if gone:
            moved.setdefault(package, []).append(reference)
    whole = {"type": "library", "bom-ref": bill.purl, "name": bill.project, "version": bill.version}
    document: _Json = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "vbuild", "version": bill.tool}]},
            "component": {**whole, "purl": bill.purl, **stated(**_sources(bill))},
        },
        "components": parts,
        "dependencies": [
            {"ref": bill.purl, "dependsOn": [part["bom-ref"] for part in parts if part.get("scope") != "excluded"]},
            *(stated(ref=reference, dependsOn=moved.get(reference)) for reference in references),
        ],
    }
    if bill.makings:
        document["formulation"] = [_formula(making, number) for number, making in enumerate(bill.makings)]
    serial = uuid.UUID(bytes=sha256(_text(document)).digest()[:16], version=5)
    return _text({"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": serial.urn} | document)


def read(data: bytes) -> Bill | None:
    """The bill that `packed` made *data* of; None for anything else."""
    try:
        bill = _read(parsed_json(data))
        packed(bill)  # a lone surrogate can be read, and not be written
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return bill


def _text(document: _Json) -> bytes:
    return json.format(json.encode(document)) + b"\n"


def _parts(bill: Bill) -> Iterator[_Json]:
    """The components, each once: packages that have what moved, native dependencies, files, and what went."""
    origins = sorted({gone.purl for gone in bill.gone if gone.purl})
    for purl in origins:
        name, _, version = purl.removeprefix("pkg:pypi/").partition("?")[0].partition("@")
        yield {"type": "library", "bom-ref": purl, "name": name, "version": unquote(version), "purl": purl}
    natives = {part for making in bill.makings for part in making.materials if part.role is MaterialRole.NATIVE}
    yield from _numbered(natives, "native")
    for file in sorted(bill.files, key=lambda file: file.path):
        yield _file(file, bill.purl)
    for gone in sorted(bill.gone, key=lambda gone: (gone.path, gone.sha256)):
        yield _gone(gone, bill.purl)


def _file(file: BillFile, whole: str) -> _Json:
    name = file.path.rpartition("/")[2]
    # an empty list says that there is no GPU code any more
    had_gpus = any(change.cut.gpus for change in file.before)
    cut = file.cut.properties | ({"gpus": ", ".join(file.cut.gpus)} if had_gpus else {})
    ancestors = [
        stated(
            type="library",
            name=name,
            hashes=_hashes(change.sha256),
            properties=_properties(changed=change.how, **change.cut.properties),
        )
        for change in file.before
    ]
    return {
        "type": "library",
        "bom-ref": f"{whole}#{sha256(file.path.encode()).hexdigest()}",
        "name": name,
        "hashes": _hashes(file.sha256),
        "properties": _properties(path=file.path, bundled="true" if _BUNDLED in file.path else None, **cut),
        **stated(pedigree=stated(ancestors=ancestors)),
    }


def _gone(gone: Gone, whole: str) -> _Json:
    about = f"{gone.path}\0{gone.sha256}"
    return {
        "type": "library",
        "bom-ref": f"{gone.purl or whole}{_GONE}{sha256(about.encode()).hexdigest()}",
        "name": gone.name,
        **stated(version=gone.version, scope="excluded", hashes=_hashes(gone.sha256), purl=gone.purl),
        "properties": _properties(path=gone.path, fate=gone.fate, target=gone.target, evidence=gone.evidence),
    }


def _formula(making: Making, number: int) -> _Json:
    materials = {part for part in making.materials if part.role is not MaterialRole.NATIVE}
    natives = sorted(_key(part) for part in making.materials if part.role is MaterialRole.NATIVE)
    settings = [*making.settings, *(("native", key) for key in natives)]
    return {
        "bom-ref": f"build-{number}",
        "components": [*_numbered(materials, f"build-{number}")],
        "properties": [{"name": _PREFIX + name, "value": value} for name, value in sorted(settings)],
    }


def _numbered(materials: Iterable[Material], prefix: str) -> Iterator[_Json]:
    for part in sorted(materials, key=_key):
        yield _material(part, f"{prefix}:{_key(part)}")


def _key(material: Material) -> str:
    """Return 16 hex digits that tell *material* from others.

    The text that is hashed belongs to the format: another one would change every bill that has been written.
    """
    values = ", ".join(f"{name}={getattr(material, name)!r}" for name in _KEYED)
    text = f"Material(role=<Role.{material.role.name}: {material.role.value!r}>, {values})"
    return sha256(text.encode()).hexdigest()[:16]


def _material(material: Material, reference: str) -> _Json:
    is_tool = material.role in {MaterialRole.COMPILER, MaterialRole.TOOLKIT}
    reference_to = {"type": "vcs" if material.commit else "source-distribution", "url": material.url}
    return {
        "type": "application" if is_tool else "library",
        "bom-ref": reference,
        "name": material.name,
        **stated(
            version=material.version,
            hashes=material.sha256 and _hashes(material.sha256),
            purl=material.purl,
            externalReferences=material.url and [reference_to],
        ),
        "properties": _properties(role=material.role, commit=material.commit, identity=material.identity),
    }


def _sources(bill: Bill) -> _Json:
    """Where the release's source is, for programs that read only this component."""
    sources = sorted(
        {part for making in bill.makings for part in making.materials if part.role is MaterialRole.SOURCE}, key=_key
    )
    archives = [
        {"type": "source-distribution", "url": part.purl, "hashes": _hashes(part.sha256)}
        for part in sources
        if part.purl and part.sha256
    ]
    histories = [{"type": "vcs", "url": part.url} for part in sources if part.url and part.commit]
    commits = [stated(uid=part.commit, url=part.url) for part in sources if part.commit]
    return {"pedigree": stated(commits=commits), "externalReferences": [*archives, *histories]}


def _hashes(digest: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": digest}]


def _properties(**values: str | None) -> list[dict[str, str]]:
    return [{"name": _PREFIX + name, "value": value} for name, value in sorted(values.items()) if value is not None]


def stated(**values: object) -> dict[str, Any]:
    """Those of *values* that are not empty."""
    return {name: value for name, value in values.items() if value}


def _read(document: Mapping[str, Any]) -> Bill:
    about = document["metadata"]
    [tool] = [tool["version"] for tool in about["tools"]["components"] if tool["name"] == "vbuild"]
    parts = document["components"]
    natives = {_key(material): material for material in _materials(parts)}
    makings = []
    for formula in document.get("formulation", ()):
        settings = [(_str(prop["name"]).removeprefix(_PREFIX), _str(prop["value"])) for prop in formula["properties"]]
        used = (natives[value] for name, value in settings if name == "native")
        others = tuple((name, value) for name, value in settings if name != "native")
        makings.append(Making((*_materials(formula["components"]), *used), others))
    return Bill(
        project=_str(about["component"]["name"]),
        version=_str(about["component"]["version"]),
        tool=_str(tool),
        files=tuple(
            _file_of(part) for part in parts if "path" in _own_properties(part) and "fate" not in _own_properties(part)
        ),
        gone=tuple(_gone_of(part) for part in parts if "fate" in _own_properties(part)),
        makings=tuple(makings),
    )


def _materials(parts: Iterable[Mapping[str, Any]]) -> Iterator[Material]:
    for part in parts:
        properties = _own_properties(part)
        if "role" in properties:
            yield Material(
                MaterialRole(properties["role"]),
                _str(part["name"]),
                version=_optional(part, "version"),
                purl=_optional(part, "purl"),
                sha256=_digest(part) if "hashes" in part else None,
                url=next((_str(reference["url"]) for reference in part.get("externalReferences", ())), None),
                commit=properties.get("commit"),
                identity=properties.get("identity"),
            )


def _file_of(part: Mapping[str, Any]) -> BillFile:
    ancestors = part.get("pedigree", {}).get("ancestors", ())
    before = tuple(
        BillChange(_digest(ancestor), _own_properties(ancestor)["changed"], _cut(ancestor)) for ancestor in ancestors
    )
    return BillFile(_own_properties(part)["path"], _digest(part), before, _cut(part))


def _gone_of(part: Mapping[str, Any]) -> Gone:
    properties = _own_properties(part)
    return Gone(
        properties["path"],
        _digest(part),
        _str(part["name"]),
        Treatment(properties["fate"]),
        purl=_optional(part, "purl"),
        target=properties.get("target"),
        version=_optional(part, "version"),
        evidence=properties.get("evidence"),
    )


def _own_properties(part: Mapping[str, Any]) -> dict[str, str]:
    return {
        _str(prop["name"]).removeprefix(_PREFIX): _str(prop["value"])
        for prop in part.get("properties", ())
        if _str(prop["name"]).startswith(_PREFIX)
    }


def _cut(part: Mapping[str, Any]) -> GpuCut:
    own = _own_properties(part)
    gpus, cut_to = (tuple(filter(None, own.get(name, "").split(", "))) for name in ("gpus", "cut_to"))
    return GpuCut(gpus, cut_to, own.get("fillers", ""))


def _digest(part: Mapping[str, Any]) -> str:
    [digest] = [_str(digest["content"]) for digest in part["hashes"] if digest["alg"] == "SHA-256"]
    return digest


def _optional(part: Mapping[str, Any], key: str) -> str | None:
    # an empty text is written as none
    return _str(part[key]) or None if key in part else None


def _str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
