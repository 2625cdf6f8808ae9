"""METADATA of a wheel, or PKG-INFO of an sdist, so that two with the same meaning are equal.

Spelling does not count: the order of fields that may be repeated, blanks, and how a requirement is written. The
description counts by its hash.
https://packaging.python.org/en/latest/specifications/core-metadata/
"""

import hashlib
from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct
from packaging.requirements import InvalidRequirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from vbuild.config.requirements import parsed_requirement, read_requirement, spelled
from vbuild.errors import WheelError
from vbuild.publishing.lint.names import has_license_files, refused
from vbuild.wheel.metadata import Metadata

REQUIRES_DIST = "Requires-Dist"
# what installers choose by, and what they install besides
INSTALLER_FIELDS = (REQUIRES_DIST, "Requires-Python", "Provides-Extra")
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
    """A field that two files of a release state differently: what only the first says, and what only the second."""

    field: str
    lacks: tuple[str, ...]
    has: tuple[str, ...]

    def __str__(self) -> str:
        """The difference as said of the second file, in some lines: of texts only that they are others."""
        if self.field == _DESCRIPTION or any(len(value) > _LONG for value in (*self.lacks, *self.has)):
            return f"its {self.field.lower()} is another one"
        parts = [f"lacks {_listed(self.lacks)}"] if self.lacks else []
        parts += [f"has {_listed(self.has)}"] if self.has else []
        return f"{self.field}: {' and '.join(parts)}"


def _listed(values: tuple[str, ...]) -> str:
    more = len(values) - _MANY
    return ", ".join(map(repr, values[:_MANY])) + (f" and {more} more" if more > 0 else "")


class MetadataView(Struct, frozen=True):
    """What a file says of its release; *dynamic* are the fields that may differ from file to file, in lower case.

    *is_static* says that all other fields of an sdist are those of its wheels too. *unreadable* are the lines of
    Requires-Dist that installers of today cannot read, with the reason, and *direct* those that are URLs. *licenses*
    are the files that have to be there, and *refused* is what PyPI refuses of all but the requirements.
    """

    name: str
    version: str
    fields: tuple[tuple[str, tuple[str, ...]], ...]
    dynamic: frozenset[str]
    is_static: bool
    unreadable: tuple[tuple[str, str], ...] = ()
    direct: tuple[str, ...] = ()
    licenses: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def requires(self) -> tuple[str, ...]:
        """The lines of Requires-Dist, in one spelling and order."""
        return dict(self.fields).get(REQUIRES_DIST, ())

    def differences(self, other: "MetadataView") -> Iterator[MetadataDifference]:
        """What *other* states differently: what is installed by first, then by field."""
        mine, theirs = dict(self.fields), dict(other.fields)
        order = {name: index for index, name in enumerate(INSTALLER_FIELDS)}
        for field in sorted({*mine, *theirs}, key=lambda name: (order.get(name, len(order)), name)):
            here, there = mine.get(field, ()), theirs.get(field, ())
            if here != there:
                lacks = tuple(value for value in here if value not in there)
                yield MetadataDifference(field, lacks, tuple(value for value in there if value not in here))


@lru_cache(maxsize=256)
def metadata_view(data: bytes) -> MetadataView:
    """What the METADATA or PKG-INFO *data* states; `WheelError` if it is not UTF-8 or has no name or version."""
    try:
        text = data.decode()
        metadata = Metadata.parse(text)
    except UnicodeDecodeError as error:
        raise WheelError("not UTF-8") from error
    headers = metadata.headers
    names = dict.fromkeys(name for name, _ in headers.fields if name not in _OF_THE_FILE and name != "description")
    fields = {_NAMES.get(name, name.title()): _values(name, headers.values(name)) for name in names}
    description = "\n".join(headers.values("description")) + headers.rest
    if words := " ".join(description.split()):
        fields[_DESCRIPTION] = (hashlib.sha256(words.encode(errors="surrogatepass")).hexdigest(),)
    return MetadataView(
        metadata.name,
        metadata.version,
        tuple(fields.items()),
        frozenset(value.lower() for value in headers.values("dynamic")),
        is_static=_is_static(headers.value("metadata-version") or ""),
        unreadable=tuple(_unreadable(metadata.requires_dist)),
        direct=tuple(line for line in metadata.requires_dist if (found := read_requirement(line)) and found.url),
        licenses=headers.values("license-file") if has_license_files(headers) else (),
        refused=tuple(refused(text, headers)),
    )


def _values(name: str, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({_spelled(name, value) for value in values}))


def _spelled(name: str, value: str) -> str:
    match name:
        case "requires-dist":
            return spelled(value)
        case "requires-python":
            return _specifiers(value)
        case "provides-extra":
            return canonicalize_name(value)
        case _:
            return " ".join(value.split())


def _specifiers(text: str) -> str:
    try:
        return str(SpecifierSet(text))
    except InvalidSpecifier:
        return " ".join(text.split())


def _unreadable(lines: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for line in lines:
        try:
            parsed_requirement(line)
        except InvalidRequirement as error:
            yield line, str(error)


def _is_static(metadata_version: str) -> bool:
    try:
        return Version(metadata_version) >= _DYNAMIC_SINCE
    except InvalidVersion:
        return False
