"""The companion wheels of a split, ``<project>-libs``, and the licence texts that go into them.

    LibsContents(project, files, platform).wheel(version) -> mumaxplus_libs-1.2.2-py3-none-manylinux_2_28_x86_64.whl
        mumaxplus_libs/lib/libfoo-1a2b3c4d.so.1     not at the old path, which pip removes after it installed this
        mumaxplus_libs-1.2.2.dist-info/licenses/…  texts that the libraries' licences require

The hash of its contents is in WHEEL, which each platform has its own of; METADATA is the same for all.

Licence texts are those in the ``.dist-info`` folder, those beside shared libraries, and those whose path, heading or
field, as in Debian's copyright files, names a library that moves. A library is called by

    its file name            libpng16.so.16.58.0: png16, png
    versions of its symbols  OPENSSL_3.0.0: openssl, of libcrypto.so.3
    auditwheel's bill        pkg:rpm/almalinux/krb5-libs@1.18.2#89a1...: behind the # is the SHA-256 of the path it was
                             copied from, such as /lib64/libkrb5.so.3.3

https://packaging.python.org/en/latest/specifications/core-metadata/ https://peps.python.org/pep-0639/
https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import PurePosixPath

from msgspec import Struct, field
from packaging.utils import canonicalize_name

from vbuild.elf.catalogue import is_shared_object, plain
from vbuild.errors import RepackageError, VbuildError
from vbuild.files.reading import json_object
from vbuild.splitting.bundle import WheelBinary
from vbuild.wheel.archive import Wheel
from vbuild.wheel.metadata import GENERATOR, LIBS, Metadata, WheelFile
from vbuild.wheel.name import WheelName, escaped
from vbuild.wheel.zip_read import Member

_CONTENTS, _PROJECT = "Contents", "Shared-By"
_SHA256 = "sha256="
# what a License-File may say: a path that is no glob, as packaging and the index check it
_SAFE_PATH = re.compile(r"[^*?\[\]\\:]+")


class Companion(Struct, frozen=True):
    """A -libs wheel; *licences* are texts by path in its licenses folder."""

    name: WheelName
    metadata: bytes
    wheel_file: bytes
    licences: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def project(self) -> str:
        return self.name.project

    @property
    def release(self) -> tuple[str, str]:
        return self.project, self.name.version

    @property
    def requirement(self) -> str:
        return "==".join(self.release)

    @property
    def members(self) -> Iterator[tuple[str, bytes]]:
        """The files of its ``.dist-info`` folder by path, without RECORD."""
        dist_info = self.name.dist_info
        for path, text in sorted(self.licences.items()):
            yield f"{dist_info}/licenses/{path}", text
        yield f"{dist_info}/METADATA", self.metadata
        yield f"{dist_info}/WHEEL", self.wheel_file


def libs_project(project: str) -> str:
    return canonicalize_name(project) + LIBS


def libs_folder(project: str) -> str:
    return f"{escaped(libs_project(project))}/lib"


class LibsContents(Struct, frozen=True):
    """The contents of a -libs wheel; *files* is a hash in hex by path, *licence* lines of METADATA.

    The *projects* of a base are in WHEEL: the names of its files may have theirs.
    """

    project: str
    files: Mapping[str, str]
    platform: str
    licence: tuple[str, ...] = ()
    texts: Mapping[str, bytes] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    is_pure: bool = False
    projects: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return libs_project(self.project)

    @property
    def contents(self) -> str:
        """A SHA-256 in hex over all that its users rely on: neither licence texts nor tags."""
        rows = [f"{digest} {path}" for path, digest in sorted(self.files.items())]
        return sha256("\n".join([*rows, str(self.is_pure), *sorted(set(self.requires))]).encode()).hexdigest()

    @property
    def body(self) -> tuple[str, ...]:
        """METADATA without its name and version."""
        project = " and ".join(self.projects or [canonicalize_name(self.project)])
        return (
            f"Summary: Shared libraries of {project}",
            *self.licence,
            *(f"License-File: {path}" for path in sorted(self.texts) if _SAFE_PATH.fullmatch(path)),
            *(f"Requires-Dist: {line}" for line in sorted(set(self.requires))),
            "Description-Content-Type: text/plain",
            "",
            f"Shared libraries that wheels of {project} load. There is nothing in here to import,",
            "and no reason to install it by hand: the wheels that need it require it.",
        )

    def wheel(self, version: str) -> Companion:
        if not self.files:
            raise RepackageError(f"{self.name}: no library to put in, expected one at least")
        about = [f"{_CONTENTS}: {_SHA256}{self.contents}", *(f"{_PROJECT}: {project}" for project in self.projects)]
        return self._companion(version, self.platform, is_pure=self.is_pure, about=about)

    def empty(self, version: str) -> Companion:
        """The wheel with *version* and the same METADATA that fits everywhere and has no library."""
        return self._companion(version, "any", is_pure=True)

    def _companion(self, version: str, platform: str, *, is_pure: bool, about: Sequence[str] = ()) -> Companion:
        """*about* are further lines of WHEEL."""
        name = WheelName(escaped(self.name), version, None, "py3", "none", platform)
        newest = bool(self.texts) or any(line.startswith("License-Expression:") for line in self.licence)
        metadata = [
            f"Metadata-Version: {'2.4' if newest else '2.1'}",
            f"Name: {self.name}",
            f"Version: {version}",
            *self.body,
        ]
        wheel_lines = [
            "Wheel-Version: 1.0",
            f"Generator: {GENERATOR}",
            f"Root-Is-Purelib: {str(is_pure).lower()}",
            *(f"Tag: {tag}" for tag in sorted(map(str, name.tags))),
            *about,
        ]
        metadata_file, wheel_file = (("\n".join(lines) + "\n").encode() for lines in (metadata, wheel_lines))
        return Companion(name, metadata_file, wheel_file, self.texts)


def projects_in(wheel_file: WheelFile) -> tuple[str, ...]:
    """The projects of a base, by the WHEEL of its -libs wheel."""
    return tuple(wheel_file.headers.values(_PROJECT))


def contents_in(wheel_file: WheelFile) -> str | None:
    stated = wheel_file.headers.value(_CONTENTS) or ""
    return stated.removeprefix(_SHA256) if stated.startswith(_SHA256) else None


_LICENCE = re.compile(r"(un)?licen[cs]es?|copying|notice|eula|copyright|authors", re.IGNORECASE)
# bytes; licence texts are smaller, and are held in memory
_LARGEST_TEXT = 1 << 24
_NOT_A_TEXT = frozenset({".py", ".pyi", ".pyc", ".so", ".c", ".h", ".json"})
_LICENCE_CLASSIFIER = "License ::"
_AUDITWHEEL = "sboms/auditwheel.cdx.json"
# where Linux has the libraries that auditwheel copies: CentOS and its kin, Debian, what an image built itself
_FOLDERS = ("/lib64", "/usr/lib64", "/usr/local/lib64", "/lib", "/usr/lib", "/usr/local/lib")
_DEBIAN_FOLDERS = ("/lib/{}-linux-gnu", "/usr/lib/{}-linux-gnu")
_STEM = re.compile(r"(?:lib)?(?P<name>.+?)(?:\.so(?:\.[\w.]*)?)?$", re.ASCII)
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9+]*", re.ASCII)
# letters of a name, and of one that another begins with
_SHORTEST, _SHORTEST_PART = 2, 4
_VERSIONED = re.compile(r"(?P<name>[A-Za-z]\w*?)_v?\d[\d._]*", re.ASCII)
_DECORATION = "=-*#_~ \t"
_DECORATED = re.compile(r"\s*(?:[=*#~-]{2,}\s*\S.*|#+\s+\S.*)")
_FIELD = re.compile(r"\s*(?:Name|Files?|Package|Project|Library|Component|Upstream-Name|Source)\s*:", re.IGNORECASE)
# characters; headings are shorter
_LONGEST = 120
# what a heading says besides a name
_SILENT = frozenset(
    (
        *("license", "licence", "licenses", "licences", "copyright", "notice", "notices", "terms", "the", "of", "for"),
        *("library", "libraries", "lib", "libs", "v", "version", "and", "end", "txt", "md", "text", "software"),
    )
)


def licence_files(wheel: Wheel, *, named: frozenset[str] = frozenset()) -> tuple[Member, ...]:
    """The licence texts of *wheel*, with those whose path has one of the words *named*, from `names_of`."""
    folders = {member.path.rpartition("/")[0] for member in wheel.members if is_shared_object(member.path)}

    def is_licence(path: str) -> bool:
        if path.startswith(f"{wheel.dist_info}/licenses/"):
            return True
        if not _LICENCE.match(path.rpartition("/")[2]) or PurePosixPath(path).suffix.lower() in _NOT_A_TEXT:
            return False
        is_near = path.startswith(f"{wheel.dist_info}/") or path.rpartition("/")[0] in folders
        return is_near or not named.isdisjoint(_words(path.partition("/")[2]))

    return tuple(member for member in wheel.members if member.size <= _LARGEST_TEXT and is_licence(member.path))


def licence_texts(wheel: Wheel, *, named: frozenset[str] = frozenset()) -> dict[str, bytes]:
    """The licence texts of *wheel* by path below a companion's licenses folder, others below their old folder."""
    texts: dict[str, bytes] = {}
    members = licence_files(wheel, named=named)
    for member in sorted(members, key=lambda member: not member.path.startswith(wheel.dist_info)):
        path = member.path.removeprefix(f"{wheel.dist_info}/").removeprefix("licenses/")
        text = wheel.read(member)
        if texts.setdefault(path, text) != text:  # a licenses folder, and another text of that name outside
            texts[f"{wheel.name.project}/{path}"] = text
    return texts


def names_of(binary: WheelBinary, packages: Mapping[str, str]) -> frozenset[str]:
    """The words by which a text may call the library *binary*."""
    named = [plain(binary.name), binary.loading.outline.soname or ""]
    named += [match["name"] for version in binary.loading.given if (match := _VERSIONED.fullmatch(version))]
    if package := package_of(binary, packages):
        named.append(package)
    return frozenset(word for name in named for word in _spelled(name))


def packages_in(wheel: Wheel) -> dict[str, str]:
    """The packages in auditwheel's bill of *wheel*, by the SHA-256 of the paths of their libraries."""
    member = wheel.find(f"{wheel.dist_info}/{_AUDITWHEEL}")
    if member is None or member.size > _LARGEST_TEXT:
        return {}
    try:
        components = json_object(wheel.read(member), VbuildError)["components"]
        references = ((str(part["bom-ref"]).rpartition("#"), str(part["name"])) for part in components)
        return {digest: name for (_, mark, digest), name in references if mark}
    except (VbuildError, KeyError, TypeError):
        return {}


def package_of(binary: WheelBinary, packages: Mapping[str, str]) -> str | None:
    parts = plain(binary.name).split(".")
    names = [".".join(parts[:end]) for end in range(len(parts), 1, -1)]
    folders = [*_FOLDERS, *(folder.format(binary.loading.outline.machine) for folder in _DEBIAN_FOLDERS)]
    paths = (f"{folder}/{name}" for folder in folders for name in names)
    matches = (packages.get(sha256(path.encode()).hexdigest()) for path in (paths if packages else ()))
    return next(filter(None, matches), None)


def unnamed(
    libraries: Mapping[str, frozenset[str]], texts: Mapping[str, bytes], *, projects: Iterable[str]
) -> tuple[str, ...]:
    """Those of *libraries*, words by file name, that no path, heading or field of *texts* names.

    A heading also names the parts of a project: BROTLI libbrotlicommon. The names of the wheels' *projects* do not
    count: their own licence is not that of a library.
    """
    own = {word for project in projects for word in _words(project)}
    paths = {word for path in texts for word in _words(path)} - own
    headings = {word for text in texts.values() for word in _headings(text.decode(errors="replace"))} - own

    def is_part(word: str) -> bool:
        return any(
            min(len(word), len(heading)) >= _SHORTEST_PART and (word.startswith(heading) or heading.startswith(word))
            for heading in headings
        )

    return tuple(
        name for name, words in libraries.items() if words.isdisjoint(paths | headings) and not any(map(is_part, words))
    )


def _spelled(name: str) -> Iterator[str]:
    """The stem of the file *name*, its first part, and both without the number at the end."""
    match = _STEM.match(name)
    lowered = match["name"].lower() if match else ""
    for text in (re.sub(r"[\W_]", "", lowered), re.split(r"[\W_]", lowered)[0]):
        bare = text.removeprefix("lib")
        yield from (word for word in (bare, bare.rstrip("0123456789")) if len(word) >= _SHORTEST)


def _words(text: str) -> set[str]:
    words = _tokens(text)
    return words | {word.rstrip("0123456789+") for word in words}


def _tokens(text: str) -> set[str]:
    words = {word.lower().removeprefix("lib") for word in _WORD.findall(text.replace("_", " "))}
    return words - _SILENT - {""}


def _headings(text: str) -> set[str]:
    """The words of headings and fields: lines that are decorated, or hardly more than a name."""
    words: set[str] = set()
    for line in text.splitlines():
        if not line.strip(_DECORATION) or len(line) > _LONGEST:
            continue
        if _FIELD.match(line) or _DECORATED.fullmatch(line) or len(_tokens(line)) == 1:
            words |= _words(line)
        if field := _FIELD.match(line):
            # patterns of files: numpy.libs/libscipy_openblas*.so
            files = (item.rpartition("/")[2].replace("*", "") for item in re.split(r"[\s,]+", line[field.end() :]))
            words.update(word for file in files if ".so" in file for word in _spelled(file))
    return words


def licence_lines(several: Iterable[Metadata]) -> tuple[str, ...]:
    """The lines of METADATA for the licences of *several*: one SPDX expression, or License and Classifier lines."""
    metadatas = sorted(several, key=lambda metadata: canonicalize_name(metadata.name))
    expressions = dict.fromkeys(metadata.headers.value("License-Expression") for metadata in metadatas)
    if None not in expressions:
        joined = " AND ".join(f"({text})" for text in sorted(filter(None, expressions)))
        return (f"License-Expression: {joined if len(expressions) > 1 else joined[1:-1]}",)
    # a text of many lines is copied with its continuation lines; the field may occur only once
    stated = [text.strip() for metadata in metadatas for name, text in metadata.headers.fields if name == "license"]
    classifiers = {line for metadata in metadatas for line in metadata.headers.values("Classifier")}
    licences = sorted(line for line in classifiers if line.startswith(_LICENCE_CLASSIFIER))
    single = [text for text in dict.fromkeys(stated) if len({*stated}) == 1]
    return (*(line for text in single for line in text.splitlines()), *(f"Classifier: {line}" for line in licences))
