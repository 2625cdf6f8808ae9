"""What the METADATA of a wheel, or the PKG-INFO of an sdist, says.

Spelling does not count: the order of repeated fields, blanks, and how a requirement is written. PyPI refuses what
packaging.metadata does, and by a few rules of its own. Not checked are unknown fields, which are not sent, and
License-File before version 2.4, which setuptools wrote for years and twine leaves out.
https://packaging.python.org/en/latest/specifications/core-metadata/
and https://github.com/pypi/warehouse warehouse/forklift/metadata.py.
"""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache

from msgspec import Struct
from packaging import metadata as packaging_metadata
from packaging.requirements import InvalidRequirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from vbuild.config.requirements import parsed_requirement, read_requirement, spelled
from vbuild.errors import WheelError
from vbuild.files.wording import shown
from vbuild.wheel.metadata import Metadata, MetadataHeaders

REQUIRES_DIST = "Requires-Dist"
# what installers choose by, and what they install besides
_REQUIRES_PYTHON = "Requires-Python"
INSTALLER_FIELDS = (REQUIRES_DIST, _REQUIRES_PYTHON, "Provides-Extra")
_DESCRIPTION = "Description"

# they say which file it is: checked against the file's name instead
_OF_THE_FILE = frozenset({"metadata-version", "name", "version", "dynamic"})
_NAMES = {
    name.lower(): name for name in (*INSTALLER_FIELDS, "License-File", "Project-URL", "Home-page", "Download-URL")
}
_DYNAMIC_SINCE = Version("2.2")
# what is longer, in characters, is a text, and more values than so many are no help
_LONG = 200
_MANY = 5


class MetadataDifference(Struct, frozen=True):
    """*lacks* are values of the first file alone, *has* those of the second."""

    field: str
    lacks: tuple[str, ...]
    has: tuple[str, ...]

    def __str__(self) -> str:
        if self.field == _DESCRIPTION or any(len(value) > _LONG for value in (*self.lacks, *self.has)):
            return f"its {self.field.lower()} is another one"
        parts = [f"lacks {shown([*map(repr, self.lacks)], _MANY)}"] if self.lacks else []
        parts += [f"has {shown([*map(repr, self.has)], _MANY)}"] if self.has else []
        return f"{self.field}: {' and '.join(parts)}"


class MetadataView(Struct, frozen=True):
    """What a file says of its release; *dynamic* are the fields that may differ from file to file, in lower case.

    *is_static* says that all other fields of an sdist are those of its wheels too. *unreadable* are fields that
    installers cannot read, with value and reason, *direct* requirements that are URLs, *licenses* files that must
    exist, and *refused* is what PyPI refuses apart from requirements.
    """

    name: str
    version: str
    fields: tuple[tuple[str, tuple[str, ...]], ...]
    dynamic: frozenset[str]
    is_static: bool
    unreadable: tuple[tuple[str, str, str], ...] = ()
    direct: tuple[str, ...] = ()
    licenses: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def requires(self) -> tuple[str, ...]:
        return dict(self.fields).get(REQUIRES_DIST, ())

    def differences(self, other: "MetadataView") -> Iterator[MetadataDifference]:
        """What installers choose by comes first."""
        mine, theirs = dict(self.fields), dict(other.fields)
        order = {name: index for index, name in enumerate(INSTALLER_FIELDS)}
        for field in sorted({*mine, *theirs}, key=lambda name: (order.get(name, len(order)), name)):
            values, other_values = mine.get(field, ()), theirs.get(field, ())
            if values != other_values:
                lacks = tuple(value for value in values if value not in other_values)
                yield MetadataDifference(field, lacks, tuple(value for value in other_values if value not in values))


@lru_cache(maxsize=256)
def metadata_view(data: bytes) -> MetadataView:
    try:
        text = data.decode()
        metadata = Metadata.parse(text)
    except UnicodeDecodeError as error:
        raise WheelError("not UTF-8") from error
    headers = metadata.headers
    names = dict.fromkeys(name for name, _ in headers.fields if name not in _OF_THE_FILE and name != "description")
    fields = {
        _NAMES.get(name, name.title()): tuple(sorted({spelled_value(name, value) for value in headers.values(name)}))
        for name in names
    }
    description = "\n".join(headers.values("description")) + headers.rest
    if words := " ".join(description.split()):
        fields[_DESCRIPTION] = (hashlib.sha256(words.encode(errors="surrogatepass")).hexdigest(),)
    unreadable: list[tuple[str, str, str]] = []
    for line in metadata.requires_dist:
        try:
            parsed_requirement(line)
        except InvalidRequirement as error:
            unreadable.append((REQUIRES_DIST, line, str(error)))
    for value in headers.values("requires-python"):
        try:
            SpecifierSet(value)
        except InvalidSpecifier as error:
            unreadable.append((_REQUIRES_PYTHON, value, str(error)))
    return MetadataView(
        metadata.name,
        metadata.version,
        tuple(fields.items()),
        frozenset(value.lower() for value in headers.values("dynamic")),
        is_static=_is_since(headers, _DYNAMIC_SINCE),
        unreadable=tuple(unreadable),
        direct=tuple(
            line for line in metadata.requires_dist if (requirement := read_requirement(line)) and requirement.url
        ),
        licenses=headers.values("license-file") if _is_since(headers, _LICENSE_FILE_SINCE) else (),
        refused=tuple(refused(text, headers)),
    )


def spelled_value(name: str, value: str) -> str:
    """*value* in the one spelling in which views compare it."""
    match name:
        case "requires-dist":
            return spelled(value)
        case "requires-python":
            with suppress(InvalidSpecifier):
                return str(SpecifierSet(value))
        case "provides-extra":
            return canonicalize_name(value)
    return " ".join(value.split())


_LICENSE_FILE_SINCE = Version("2.4")
_ELSEWHERE = frozenset({"requires-dist"})
_PRIVATE = "Private ::"
# characters
_SUMMARY = 512
_LABEL = 32
_MOST = 200


def refused(text: str, headers: MetadataHeaders) -> Iterator[str]:
    """What PyPI refuses of the METADATA *text* with these *headers*, a reason for each field, sorted."""
    reasons = [*_invalid(text, headers), *_own_rules(headers)]
    yield from sorted(map(shortened, reasons))


def shortened(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


def _is_since(headers: MetadataHeaders, version: Version) -> bool:
    try:
        return Version(headers.value("metadata-version") or "0") >= version
    except InvalidVersion:
        return False


def _invalid(text: str, headers: MetadataHeaders) -> Iterator[str]:
    try:
        packaging_metadata.Metadata.from_email(text)
    except ExceptionGroup as group:  # packaging tells all that is wrong at once
        for error in group.exceptions:
            if not isinstance(error, packaging_metadata.InvalidMetadata):
                continue
            is_elsewhere = error.field in _ELSEWHERE or str(error).startswith("unrecognized field")
            is_old = error.field == "license-file" and not _is_since(headers, _LICENSE_FILE_SINCE)
            if not (is_elsewhere or is_old):
                # packaging lists the content types that are expected in another order each time
                value = headers.value(error.field)
                fault = f"Description-Content-Type {value!r}, expected text/plain, text/x-rst or text/markdown in UTF-8"
                yield fault if error.field == "description-content-type" else str(error)
    except RecursionError:
        yield "brackets in brackets, too deep to be read"


def _own_rules(headers: MetadataHeaders) -> Iterator[str]:
    for classifier in headers.values("Classifier"):
        if classifier.startswith(_PRIVATE):
            yield f"Classifier {classifier!r}, which says that it is not to be uploaded"
    if (length := len(headers.value("Summary") or "")) > _SUMMARY:
        yield f"Summary of {length} characters, expected {_SUMMARY} at most"
    for line in headers.values("Project-URL"):
        if len(label := line.partition(",")[0].strip()) > _LABEL:
            yield f"Project-URL {label!r}, expected a label of {_LABEL} characters at most"
    if headers.value("License") and headers.value("License-Expression"):
        yield "License beside License-Expression, expected the latter alone (PEP 639)"
