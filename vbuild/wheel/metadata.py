"""The files of a wheel's ``.dist-info`` folder as values: RECORD, WHEEL and METADATA.

RECORD is written again in one spelling; WHEEL and METADATA keep every letter that is not changed. Both are headers as
Python's email package reads them, by which installers do.
https://packaging.python.org/en/latest/specifications/binary-distribution-format/
https://packaging.python.org/en/latest/specifications/recording-installed-packages/#the-record-file
https://packaging.python.org/en/latest/specifications/core-metadata/
"""

import base64
import csv
import hashlib
import io
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Self

from msgspec import Struct
from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.errors import WheelError
from vbuild.files.wording import counted
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


# "sha256 or better; specifically, md5, sha1 and sha224 are not permitted" (PEP 427)
_WEAK = ("md5", "sha1", "sha224")
_DIGEST_SIZES = {name: hashlib.new(name, usedforsecurity=False).digest_size for name in hashlib.algorithms_guaranteed}
_USUAL_HASH = re.compile(r"sha256=[A-Za-z0-9_-]{43}")
_TO_URLSAFE = str.maketrans("+/", "-_")
_BYTE_ORDER_MARK = "\ufeff"


class RecordRow(Struct, frozen=True):
    """One file in RECORD: its hash as ``sha256=…`` in unpadded base64url, its size in bytes."""

    path: str
    hash: str | None = None
    size: int | None = None

    @property
    def algorithm(self) -> str | None:
        """The algorithm of its hash; None if it is not known."""
        name = (self.hash or "").partition("=")[0]
        return name if _DIGEST_SIZES.get(name) else None

    @property
    def is_weak(self) -> bool:
        return self.algorithm in _WEAK


class Record(Struct, frozen=True):
    """The rows of RECORD, one for each path; *quirks* has the paths of those that were written in another way."""

    rows: tuple[RecordRow, ...]
    quirks: Mapping[str, Sequence[str]] = {}

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a RECORD file, with any line ends; `WheelError` naming the line that is not a row."""
        # decoded piece by piece: StringIO takes four bytes for each character
        file = io.TextIOWrapper(io.BytesIO(text.removeprefix(_BYTE_ORDER_MARK).encode()), "utf-8", newline="")
        lines = csv.reader(file, strict=True)
        rows: dict[str, RecordRow] = {}
        quirks = defaultdict[str, list[str]](list)
        try:
            for columns in lines:
                if not columns:
                    raise WheelError(f"line {lines.line_num}: blank, which pip refuses; expected path, hash and size")
                row = _row(columns, lines.line_num)
                if row.path != columns[0]:
                    quirks["has backslashes in the path of"].append(row.path)
                if (row.hash or "") != columns[1]:
                    quirks["has hashes that are not unpadded base64url, of"].append(row.path)
                if (other := rows.setdefault(row.path, row)) is not row:
                    quirks["lists twice:"].append(row.path)
                if other != row:
                    raise WheelError(f"line {lines.line_num}: {row.path!r} is listed twice, and not alike")
        except csv.Error as error:
            raise WheelError(f"line {lines.line_num}: not comma-separated values: {error}") from error
        if text.startswith(_BYTE_ORDER_MARK):
            quirks["begins with a byte order mark, before"] += list(rows)[:1]
        return cls(tuple(rows.values()), quirks)

    def warnings(self, own: str, members: Collection[str]) -> Iterator[str]:
        """Yield what PEP 427 does not allow, and leaves no doubt; *own* is the path of RECORD among *members*.

        pip and uv install such wheels. Published ones have it: padded hashes (catboost#2282), a RECORD that does not
        list itself (whey#14), or not a file that was added later.
        """
        hashless = unlisted(own.partition("/")[0])
        listed = {row.path: row for row in self.rows}
        rows = [row for row in self.rows if row.path in members and row.path not in hashless]
        for words, paths in (
            *self.quirks.items(),
            ("does not list", [path for path in members if path not in listed and path not in {*hashless} - {own}]),
            ("lists what is not in the archive:", [path for path in listed if path not in members]),
            ("lists the signature over it,", [path for path in listed if path in hashless and path != own]),
            ("has a hash or a size of itself,", [own] if listed.get(own, RecordRow(own)) != RecordRow(own) else []),
            ("has no hash of", [row.path for row in rows if not row.hash]),
            ("has no size of", [row.path for row in rows if row.hash and row.size is None]),
            ("has a hash that is weaker than SHA-256, of", [row.path for row in rows if row.is_weak]),
        ):
            if paths:
                yield f"{words} {paths[0]}" + (f" and {counted(len(paths) - 1, 'other')}" if paths[1:] else "")

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
    # no member has a backslash in its path
    return RecordRow(path.replace("\\", "/"), _in_base64url(hashed) or None, int(size) if size else None)


def _in_base64url(hashed: str) -> str:
    """*hashed* as PEP 427 spells it; unchanged if it is not another spelling of a hash.

    Published are hexadecimal digits (flit 0.8, uv_build 0.8.12) and padding.
    """
    if _USUAL_HASH.fullmatch(hashed):
        return hashed
    name, _, digest = hashed.partition("=")
    size = _DIGEST_SIZES.get(name.lower(), 0)
    try:
        if len(digest) == 2 * size:
            data = bytes.fromhex(digest)
        else:
            digest = digest.rstrip("=").translate(_TO_URLSAFE)
            data = base64.b64decode(digest + "=" * (-len(digest) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return hashed
    return f"{name.lower()}={unpadded(data)}" if size and len(data) == size else hashed


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
