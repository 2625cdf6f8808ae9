"""The files of a wheel's ``.dist-info`` folder as values: RECORD, WHEEL and METADATA.

RECORD is written again in one spelling; WHEEL and METADATA keep every letter that is not changed. Both are headers as
Python's email package reads them, by which installers do.
https://packaging.python.org/en/latest/specifications/binary-distribution-format/
https://packaging.python.org/en/latest/specifications/recording-installed-packages/#the-record-file
https://packaging.python.org/en/latest/specifications/core-metadata/
"""

import base64
import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Self

from msgspec import Struct
from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.errors import WheelError
from vbuild.wheel.name import WheelName

# possessive: to remember a million lines takes a hundred bytes for each
_FIELD = re.compile(r"(?P<name>[!-9;-~]+):[^\n]*\n?(?:[ \t][^\n]*\n?)*+")
# fields, and characters of them
_MOST, _LONGEST = 1 << 14, 1 << 20


class MetadataHeaders(Struct, frozen=True):
    """Fields in the order written, and everything after them."""

    fields: tuple[tuple[str, str], ...]
    rest: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """`WheelError` for thousands of fields."""
        fields: list[tuple[str, str]] = []
        end = 0
        while match := _FIELD.match(text, end):
            if len(fields) == _MOST or match.end() > _LONGEST:
                raise WheelError(f"more than {_MOST} fields or {_LONGEST} characters of them, as no project has")
            fields.append((match["name"].lower(), match[0]))
            end = match.end()
        return cls(tuple(fields), text[end:])

    def __str__(self) -> str:
        return "".join(text for _, text in self.fields) + self.rest

    def values(self, name: str) -> tuple[str, ...]:
        return tuple(text.partition(":")[2].strip() for field, text in self.fields if field == name.lower())

    def value(self, name: str) -> str | None:
        return next(iter(self.values(name)), None)

    def replacing(self, name: str, values: Sequence[str]) -> Self:
        """With *values* under *name*, in place of the first such field, else last."""
        if broken := [value for value in values if len(value.splitlines()) > 1]:
            raise WheelError(f"{name} {broken[0]!r}: expected one line")
        key = name.lower()
        if tuple(values) == self.values(name):
            return self
        newline = "\r\n" if any(text.endswith("\r\n") for _, text in self.fields) else "\n"
        fields = [(field, text if text.endswith("\n") else text + newline) for field, text in self.fields]
        places = [index for index, (field, _) in enumerate(fields) if field == key]
        index = places[0] if places else len(fields)
        added = [(key, f"{name}: {value}{newline}") for value in values]
        others = [field for field in fields[index:] if field[0] != key]
        # else that text would continue the field
        rest = newline + self.rest if self.rest.startswith((" ", "\t")) else self.rest
        return type(self)((*fields[:index], *added, *others), rest)

    def changing(self, name: str, change: Callable[[str], str]) -> Self:
        """With each field *name* changed; `WheelError` if *change* adds or removes lines."""
        fields = []
        for field, text in self.fields:
            value = text.partition(":")[2].strip()
            if field != name.lower() or (after := change(value)) == value:
                fields.append((field, text))
                continue
            if len(after.splitlines()) != len(value.splitlines()):
                raise WheelError(f"{text.partition(':')[0]} {after!r}: expected one line")
            start = text.index(":") + 1
            start += len(text[start:]) - len(text[start:].lstrip())
            fields.append((field, f"{text[:start]}{after}{text[start + len(value) :]}"))
        return type(self)(tuple(fields), self.rest)


_SHA256_SIZE = 32

# at the start of a requirement (PEP 508)
_PROJECT = re.compile(r"\s*(?P<name>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)", re.ASCII)
_DATA = ".data"
_COLUMNS = 3
_WHEEL_VERSION = re.compile(r"1(\.\d+)*", re.ASCII)
# signatures are over RECORD, which can therefore not list them (PEP 427)
_UNLISTED = ("RECORD", "RECORD.jws", "RECORD.p7s")


class RecordRow(Struct, frozen=True):
    """One file in RECORD: its hash as ``sha256=…`` in unpadded base64url, its size in bytes."""

    path: str
    hash: str | None = None
    size: int | None = None


class Record(Struct, frozen=True):
    rows: tuple[RecordRow, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a RECORD file, with any line ends; `WheelError` naming the line that is not a row."""
        # decoded piece by piece: StringIO takes four bytes for each character
        lines = csv.reader(io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8", newline=""), strict=True)
        rows: dict[str, RecordRow] = {}
        try:
            for columns in lines:
                if not columns:
                    raise WheelError(f"line {lines.line_num}: blank, expected path, hash and size")
                row = _row(columns, lines.line_num)
                if row.path in rows:
                    raise WheelError(f"line {lines.line_num}: {row.path!r} is listed twice")
                rows[row.path] = row
        except csv.Error as error:
            raise WheelError(f"line {lines.line_num}: not comma-separated values: {error}") from error
        return cls(tuple(rows.values()))

    def warnings(self, own: str) -> Iterator[str]:
        """Yield what `installer` refuses and pip and uv do not; every rewriting mends it; *own* is the path of RECORD.

        Published wheels have it: padded hashes (catboost#2282), a RECORD that does not list itself (whey#14), rows
        without hashes.
        """
        if all(row.path != own for row in self.rows):
            yield f"does not list itself, which installer refuses; expected the row '{own},,'"
        padded = [row.path for row in self.rows if (row.hash or "").endswith("=")]
        if padded:
            yield f"{len(padded)} hashes end in '=', that of {padded[0]} first, which installer refuses"
        if unhashed := self.unhashed(own):
            yield f"{unhashed}, which installer refuses"
        unsized = [row.path for row in self.rows if row.hash and row.size is None]
        if unsized:
            yield f"{len(unsized)} files without size, {unsized[0]} first, which installer refuses"

    def unhashed(self, own: str) -> str | None:
        """Count the files without hash in RECORD, in words; None if it has one of all but itself."""
        bare = [row.path for row in self.rows if not row.hash and row.path not in unlisted(own.partition("/")[0])]
        return f"{len(bare)} files without hash, {bare[0]} first" if bare else None

    def __str__(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            (row.path, row.hash or "", "" if row.size is None else row.size) for row in self.rows
        )
        return text.getvalue()


def _row(columns: Sequence[str], line: int) -> RecordRow:
    if len(columns) != _COLUMNS:
        raise WheelError(f"line {line}: {len(columns)} columns, expected path, hash and size")
    path, hashed, size = columns
    if not path:
        raise WheelError(f"line {line}: no path")
    if size and not (size.isascii() and size.isdigit() and len(size) < len(str(2**64))):
        raise WheelError(f"line {line}: size {size!r}, expected a number of bytes")
    return RecordRow(path, hashed or None, int(size) if size else None)


class _HeaderFile(Struct, frozen=True):
    headers: MetadataHeaders

    def replacing(self, name: str, values: Iterable[str]) -> Self:
        return type(self)(self.headers.replacing(name, tuple(values)))

    def __str__(self) -> str:
        return str(self.headers)


class WheelFile(_HeaderFile, frozen=True):
    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the WHEEL file *text*; `WheelError` without the fields PEP 427 requires, or from a later format."""
        headers = wheel_headers(text)
        if not headers.value("Tag"):
            raise WheelError("no Tag")
        return cls(headers)

    @property
    def tags(self) -> tuple[str, ...]:
        """The compatibility tags, each ``python-abi-platform``, as written."""
        return self.headers.values("Tag")

    @property
    def root_is_purelib(self) -> bool:
        return (self.headers.value("Root-Is-Purelib") or "").lower() == "true"


class Metadata(_HeaderFile, frozen=True):
    @classmethod
    def parse(cls, text: str) -> Self:
        headers = MetadataHeaders.parse(text)
        for field in ("Metadata-Version", "Name", "Version"):
            if not headers.value(field):
                raise WheelError(f"no {field}")
        return cls(headers)

    @property
    def name(self) -> str:
        return self.headers.value("Name") or ""

    @property
    def version(self) -> str:
        return self.headers.value("Version") or ""

    @property
    def requires_python(self) -> str | None:
        return self.headers.value("Requires-Python")

    @property
    def requires_dist(self) -> tuple[str, ...]:
        return self.headers.values("Requires-Dist")


class Renaming(Struct, frozen=True):
    """What changes if the wheel *old*, with the ``.dist-info`` folder *dist_info*, becomes the wheel *new*."""

    old: WheelName
    new: WheelName
    dist_info: str
    project: str | None = None

    def path(self, path: str) -> str | None:
        folder, slash, rest = path.partition("/")
        if folder == self.dist_info and slash:
            is_stale = path in unlisted(self.dist_info) or (rest == VARIANT_JSON and self.new.variant is None)
            return None if is_stale else f"{self.new.dist_info}/{rest}"
        distribution, dash, version = folder.removesuffix(_DATA).rpartition("-")
        # the wheel's own .data folder, however it is spelled
        is_own = dash and canonicalize_name(distribution) == self.old.project and _same(version, self.old.version)
        if slash and folder.endswith(_DATA) and is_own:
            return f"{self.new.distribution}-{self.new.version}{_DATA}/{rest}"
        return path

    def metadata(self, metadata: Metadata, *, requirement: Callable[[str], str] | None = None) -> Metadata:
        """The METADATA of the new wheel, if the old one's is *metadata*.

        *requirement* changes each line of Requires-Dist first; then those that name the project itself follow its name.
        """
        stays = self.new.project == self.old.project
        name = self.project or (metadata.name if stays else self.new.project)
        version = metadata.version if _same(metadata.version, self.new.version) else self.new.version
        own = {} if stays else {self.old.project: name}

        def changed(line: str) -> str:
            return requirement_of(requirement(line) if requirement else line, own)

        headers = metadata.headers.changing("Name", lambda _: name).changing("Version", lambda _: version)
        return Metadata(headers.changing("Requires-Dist", changed))


def requirement_of(line: str, projects: Mapping[str, str]) -> str:
    """The requirement *line* with the project's name replaced by *projects*."""
    match = _PROJECT.match(line)
    if match and (new := projects.get(canonicalize_name(match["name"]))):
        return f"{line[: match.start('name')]}{new}{line[match.end('name') :]}"
    return line


def _same(version: str, other: str) -> bool:
    try:
        return Version(version) == Version(other)
    except ValueError:
        return False


def wheel_headers(text: str) -> MetadataHeaders:
    """Read the fields of the WHEEL file *text*; `WheelError` unless its format is known.

    Published wheels lack a Tag, and everybody installs them: ninja 1.11.1.1.
    """
    headers = MetadataHeaders.parse(text)
    # uv takes this field in this spelling alone
    if not (version := headers.value("Wheel-Version")) or "\nWheel-Version:" not in f"\n{headers}":
        raise WheelError("no Wheel-Version")
    if not _WHEEL_VERSION.fullmatch(version):
        raise WheelError(f"Wheel-Version {version}: only 1.x is known")
    return headers


def is_dist_info(path: str) -> bool:
    """Whether *path* is in the wheel's ``.dist-info`` folder; those of other projects lie deeper."""
    return path.partition("/")[0].endswith(".dist-info")


def unlisted(dist_info: str) -> frozenset[str]:
    """The paths that RECORD has without hash, or not at all."""
    return frozenset(f"{dist_info}/{name}" for name in _UNLISTED)


def dist_info_of(paths: Iterable[str]) -> str:
    """The ``.dist-info`` folder among *paths*; `WheelError` unless there is exactly one."""
    folders = sorted({path.partition("/")[0] for path in paths if "/" in path and is_dist_info(path)})
    if len(folders) != 1:
        raise WheelError(f"expected one .dist-info folder, found {', '.join(folders) or 'none'}")
    return folders[0]


def check_dist_info(dist_info: str, name: WheelName) -> None:
    """`WheelError` unless the folder is called after the same release as the file, both normalised."""
    distribution, _, version = dist_info.removesuffix(".dist-info").rpartition("-")
    if not _same(version, name.version) or canonicalize_name(distribution) != name.project:
        raise WheelError(f"{dist_info} is not of {name.distribution} {name.version}, which the file name says")


def unpadded(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def recorded_sha256(hash_: str | None) -> str | None:
    """The SHA-256 in *hash_*, as RECORD writes it, in hex; None for another algorithm, or no hash."""
    algorithm, _, digest = (hash_ or "").partition("=")
    digest = digest.rstrip("=")
    try:
        data = base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4))
    except ValueError:
        return None
    return data.hex() if algorithm == "sha256" and len(data) == _SHA256_SIZE else None


VARIANT_JSON = "variant.json"
"""The file in the ``.dist-info`` folder of a variant wheel that says what its label stands for (PEP 825)."""

GENERATOR = "vbuild split"
LIBS = "-libs"


def is_companion(metadata: Metadata, wheel_file: WheelFile) -> bool:
    """Whether a split made the wheel, and so leaves it alone."""
    is_ours = wheel_file.headers.value("Generator") == GENERATOR
    return is_ours and canonicalize_name(metadata.name).endswith(LIBS)
