"""The companion wheels of a split: shared libraries in ``<project>-libs``, the rest in -dev and -bin.

    LibsContents(project, files, platform).wheel(version) -> mumaxplus_libs-1.2.2-py3-none-manylinux_2_28_x86_64.whl
        mumaxplus_libs/lib/libfoo-1a2b3c4d.so.1     not at the old path, which pip removes after it installed this
        mumaxplus_libs-1.2.2.dist-info/licenses/…  texts that the libraries' licences require
    output_companion(name, DEV, platform=, like=) -> mumaxplus_dev-1.2.2-py3-none-any.whl
    output_companion(name, BIN, platform=, like=) -> mumaxplus_bin-1.2.2-py3-none-manylinux_2_28_x86_64.whl

A -libs wheel has the version of the release that first needs its contents (`vbuild.splitting.libs_versions`). The hash
of its contents is in its WHEEL, where each platform has its own, and METADATA stays the same for all.
https://packaging.python.org/en/latest/specifications/core-metadata/
https://peps.python.org/pep-0639/
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256

from msgspec import Struct, field
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from vbuild.errors import RepackageError
from vbuild.splitting.licences import licence_lines
from vbuild.wheel.metadata import BIN, DEV, GENERATOR, LIBS, Metadata, WheelFile
from vbuild.wheel.name import WheelName, escaped

_ANY = "any"
_CONTENTS = "Contents"
_SHA256 = "sha256="
# what a License-File may say: a path that is no glob, as packaging and the index check it
_SAFE_PATH = re.compile(r"[^*?\[\]\\:]+")


class Companion(Struct, frozen=True):
    """A -libs, -dev or -bin wheel: its name, METADATA, WHEEL, and licence texts by path in licenses/."""

    name: WheelName
    metadata: bytes
    wheel_file: bytes
    licences: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def project(self) -> str:
        return self.name.project

    @property
    def requirement(self) -> str:
        """How a thin wheel requires this one: ``mumaxplus-libs==1.2.2``."""
        return f"{self.project}=={self.name.version}"

    @property
    def members(self) -> Iterator[tuple[str, bytes]]:
        """The files of its ``.dist-info`` folder by path, in order, without RECORD."""
        dist_info = self.name.dist_info
        for path, text in sorted(self.licences.items()):
            yield f"{dist_info}/licenses/{path}", text
        yield f"{dist_info}/METADATA", self.metadata
        yield f"{dist_info}/WHEEL", self.wheel_file


def libs_project(project: str) -> str:
    """Return the name of the -libs wheel of *project*, as package indexes spell it."""
    return canonicalize_name(project) + LIBS


def libs_folder(project: str) -> str:
    """Return the folder in site-packages with the libraries of the -libs wheel of *project*."""
    return f"{escaped(libs_project(project))}/lib"


class LibsContents(Struct, frozen=True):
    """The contents of a -libs wheel; *project* is the one whose wheels share it, or the requested name.

    *files* is a hash in hex by path, *platform* its platform tag, *licence* lines of METADATA, *texts* licence texts by
    path below its licenses folder, and *requires* its Requires-Dist lines.
    """

    project: str
    files: Mapping[str, str]
    platform: str
    licence: tuple[str, ...] = ()
    texts: Mapping[str, bytes] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    is_pure: bool = False

    @property
    def name(self) -> str:
        return libs_project(self.project)

    @property
    def contents(self) -> str:
        """A SHA-256 in hex over all that wheels which require it rely on; licence texts and tags are not."""
        rows = [f"{digest} {path}" for path, digest in sorted(self.files.items())]
        return sha256("\n".join([*rows, str(self.is_pure), *sorted(set(self.requires))]).encode()).hexdigest()

    @property
    def body(self) -> tuple[str, ...]:
        """METADATA without its name and version."""
        project = canonicalize_name(self.project)
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
        """Return the wheel with *version*; raises `RepackageError` if it has no library."""
        if not self.files:
            raise RepackageError(f"{self.name}: no library to put in, expected one at least")
        name = WheelName(escaped(self.name), version, None, "py3", "none", self.platform)
        about = f"{_CONTENTS}: {_SHA256}{self.contents}"
        return _companion(name, self.name, self.body, self.texts, is_pure=self.is_pure, about=(about,))

    def empty(self, version: str) -> Companion:
        """Return the wheel with *version* that fits everywhere and has no library, and the same METADATA."""
        name = WheelName(escaped(self.name), version, None, "py3", "none", "any")
        return _companion(name, self.name, self.body, self.texts, is_pure=True)


def contents_in(wheel_file: WheelFile) -> str | None:
    """Return the hash of contents in the WHEEL of a -libs wheel, or None if there is none."""
    stated = wheel_file.headers.value(_CONTENTS) or ""
    return stated.removeprefix(_SHA256) if stated.startswith(_SHA256) else None


# description and summary of the wheels with these suffixes, to be completed by the project's name
_SAID = {
    DEV: ("What compilers and build systems read of {}", "Headers, static libraries and build system files of {}"),
    BIN: ("Programs of {}", "Programs of {}"),
}


def output_companion(
    like_name: WheelName,
    suffix: str,
    *,
    platform: str,
    like: Metadata,
    licences: Mapping[str, bytes] | None = None,
    tag: tuple[str, str] = ("py3", "none"),
) -> Companion:
    """Return the -dev or -bin wheel, by its *suffix*, of the wheel *like_name*, whose METADATA is *like*.

    It has the same version and build, and requires exactly that release; *tag* is its Python and ABI tag. Raises
    `RepackageError` if the version is not valid by PEP 440.
    """
    project = canonicalize_name(like.name)
    try:
        version = str(Version(like.version))
    except InvalidVersion as error:
        raise RepackageError(f"{like.name}: version {like.version!r}, expected one as PEP 440 writes it") from error
    texts = dict(licences or {})
    description, summary = (text.format(project) for text in _SAID[suffix])
    body = [
        f"Summary: {summary}",
        *licence_lines([like]),
        *(f"License-File: {path}" for path in sorted(texts) if _SAFE_PATH.fullmatch(path)),
        f"Requires-Dist: {project}=={version}",
        "Description-Content-Type: text/plain",
        "",
        f"{description}, at the places where its own wheels had it.",
    ]
    name = WheelName(escaped(project + suffix), version, like_name.build, *tag, platform)
    return _companion(name, project + suffix, body, texts, is_pure=platform == _ANY)


def _companion(
    name: WheelName,
    project: str,
    body: Sequence[str],
    licences: Mapping[str, bytes],
    *,
    is_pure: bool,
    about: Sequence[str] = (),
) -> Companion:
    """Return the wheel *name* of *project*; *body* is METADATA without its name and version, *about* lines of WHEEL."""
    newest = bool(licences) or any(line.startswith("License-Expression:") for line in body)
    metadata = [
        f"Metadata-Version: {'2.4' if newest else '2.1'}",
        f"Name: {project}",
        f"Version: {name.version}",
        *body,
    ]
    wheel_lines = [
        "Wheel-Version: 1.0",
        f"Generator: {GENERATOR}",
        f"Root-Is-Purelib: {str(is_pure).lower()}",
        *(f"Tag: {tag}" for tag in sorted(map(str, name.tags))),
        *([f"Build: {name.build}"] if name.build else []),
        *about,
    ]
    metadata_file, wheel_file = (("\n".join(lines) + "\n").encode() for lines in (metadata, wheel_lines))
    return Companion(name, metadata_file, wheel_file, licences)
