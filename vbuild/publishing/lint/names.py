"""What PyPI refuses in METADATA and PKG-INFO, which platform tags it takes, and whom a wheel is for.

    packaging.metadata      unknown versions of the format, fields that came with a later one, values that mean nothing
    PyPI's own              a classifier that begins with Private ::, long summaries and labels, two kinds of licence

Requirements are checked in `vbuild.publishing.lint.metadata`, each with its line. Unknown fields are not sent, and
License-File before version 2.4 was written by setuptools for years and is left out by twine: neither is checked.

    any, win32, win_amd64, win_arm64                                     as they are
    manylinux1_, manylinux2010_, manylinux2014_, manylinux_X_Y_          glibc (PEP 513, 571, 599, 600)
    musllinux_X_Y_                                                       musl (PEP 656)
    macosx_10_Y_, macosx_X_0_ from X = 11 on                             two ways to count versions
    ios_X_Y_ARCH_DEVICE, android_X_ARCH, pyemscripten_X_Y_wasm32         PEP 730, 738, 783
    linux_armv6l, linux_armv7l                                           no other linux_: it does not name a libc

A slot is an interpreter, an ABI and a kind of machine, whatever the version of its system. A v3 wheel for
``cp312-cp312-manylinux_2_28_x86_64`` has its plain wheel in one for ``manylinux_2_17_x86_64`` and in one for
``cp39-abi3``.
https://packaging.python.org/en/latest/specifications/core-metadata/
https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/
and in https://github.com/pypi/warehouse warehouse/forklift/metadata.py, warehouse/utils/wheel.py.
"""

import re
from collections.abc import Iterator
from typing import Self

from msgspec import Struct
from packaging.metadata import InvalidMetadata, Metadata
from packaging.tags import Tag
from packaging.version import InvalidVersion, Version

from vbuild.wheel.metadata import MetadataHeaders
from vbuild.wheel.name import WheelName

_LICENSE_FILE_SINCE = Version("2.4")
_ELSEWHERE = frozenset({"requires-dist"})
_PRIVATE = "Private ::"
# characters
_SUMMARY = 512
_LABEL = 32
_MOST = 200


def refused(text: str, headers: MetadataHeaders) -> Iterator[str]:
    """What PyPI refuses of the METADATA *text* with these *headers*, a reason for each field, sorted."""
    found = [*_invalid(text, headers), *_own_rules(headers)]
    yield from sorted(map(shortened, found))


def shortened(text: str) -> str:
    """*text*, which may be anything that somebody wrote, in a few lines."""
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


def has_license_files(headers: MetadataHeaders) -> bool:
    """Whether License-File means a path in the file's licences (PEP 639), as it does from version 2.4 on."""
    try:
        return Version(headers.value("Metadata-Version") or "0") >= _LICENSE_FILE_SINCE
    except InvalidVersion:
        return False


def _invalid(text: str, headers: MetadataHeaders) -> Iterator[str]:
    try:
        Metadata.from_email(text)
    except ExceptionGroup as group:  # packaging tells all that is wrong at once
        for error in group.exceptions:
            if isinstance(error, InvalidMetadata) and not _is_let_pass(error, headers):
                yield _reason(error, headers)
    except RecursionError:
        yield "brackets in brackets, too deep to be read"


def _is_let_pass(error: InvalidMetadata, headers: MetadataHeaders) -> bool:
    if error.field in _ELSEWHERE or str(error).startswith("unrecognized field"):
        return True
    return error.field == "license-file" and not has_license_files(headers)


def _reason(error: InvalidMetadata, headers: MetadataHeaders) -> str:
    if error.field == "description-content-type":
        # packaging lists what is expected in another order each time
        value = headers.value(error.field)
        return f"Description-Content-Type {value!r}, expected text/plain, text/x-rst or text/markdown in UTF-8"
    return str(error)


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


_AS_THEY_ARE = frozenset({"any", "win32", "win_amd64", "win_arm64", "win_ia64", "linux_armv6l", "linux_armv7l"})
_JOINT = "x86_64|i686|aarch64|armv7l|ppc64le|s390x|riscv64"
_MAC = "ppc|ppc64|i386|x86_64|arm64|intel|fat|fat3|fat64|universal|universal2"
_TAKEN = re.compile(
    rf"""
    manylinux(1|2010)_(x86_64|i686)
    | manylinux2014_(x86_64|i686|aarch64|armv7l|ppc64|ppc64le|s390x)
    | manylinux_\d+_\d+_({_JOINT}|ppc64) | musllinux_\d+_\d+_({_JOINT})
    | macosx_10_\d+_({_MAC}) | macosx_(1[1-5]|26)_0_({_MAC})
    | ios_\d+_\d+_(arm64|x86_64)_(iphoneos|iphonesimulator)
    | android_\d+_(armeabi_v7a|arm64_v8a|x86|x86_64)
    | pyemscripten_\d+_\d+_wasm32
    """,
    re.VERBOSE | re.ASCII,
)
_SYSTEMS = "manylinux|musllinux|macosx|ios|android|pyemscripten"
_VERSIONED = re.compile(rf"(?P<system>{_SYSTEMS})\d*(_\d+)*_(?P<machine>.+)", re.ASCII)
_BARE_LINUX = "linux_"
_UNIVERSAL = "macosx_universal2"
_OF_UNIVERSAL = frozenset({"macosx_x86_64", "macosx_arm64"})


def is_taken(platform: str) -> bool:
    """Whether PyPI takes wheels with this platform tag, one of those that dots join."""
    return platform in _AS_THEY_ARE or _TAKEN.fullmatch(platform) is not None


def is_bare_linux(platform: str) -> bool:
    """Whether the tag is of the Linux machine that the wheel was built on, whatever its libc."""
    return platform.startswith(_BARE_LINUX) and platform not in _AS_THEY_ARE


def machine(platform: str) -> str:
    """The platform tag without the version of its system: what all wheels for that kind of machine share."""
    match = _VERSIONED.fullmatch(platform)
    return f"{match['system']}_{match['machine']}" if match else platform


def serves(offered: str, wanted: str) -> bool:
    """Whether a wheel for the machine *offered* is one for *wanted* too; both as `machine` has them."""
    return offered in {"any", wanted} or (offered == _UNIVERSAL and wanted in _OF_UNIVERSAL)


_PYTHON = re.compile(r"(?P<implementation>[a-z]+)(?P<major>\d)(?P<minor>\d*)", re.ASCII)


class FileSlot(Struct, frozen=True, order=True):
    """An interpreter, an ABI and a kind of machine."""

    python: str
    abi: str
    machine: str

    def __str__(self) -> str:
        return f"{self.python}-{self.abi}-{self.machine}"

    @classmethod
    def of(cls, tag: Tag) -> Self:
        return cls(tag.interpreter, tag.abi, machine(tag.platform))

    def serves(self, wanted: Self) -> bool:
        """Whether who asks for *wanted* can have a wheel of this slot instead."""
        return serves(self.machine, wanted.machine) and self._runs_on(wanted)

    def _runs_on(self, wanted: Self) -> bool:
        if (self.python, self.abi) == (wanted.python, wanted.abi):
            return True
        mine, theirs = _PYTHON.fullmatch(self.python), _PYTHON.fullmatch(wanted.python)
        if not (mine and theirs) or mine["major"] != theirs["major"]:
            return False
        if int(mine["minor"] or 0) > int(theirs["minor"] or 0):
            return False
        if self.abi == "abi3":
            # free-threaded interpreters, whose ABI ends in t, have no stable ABI (PEP 703)
            return mine["implementation"] == theirs["implementation"] and not wanted.abi.endswith("t")
        return self.abi == "none" and mine["implementation"] in {"py", theirs["implementation"]}


def slots(name: WheelName) -> tuple[FileSlot, ...]:
    """The slots of the wheel called *name*, sorted."""
    return tuple(sorted({FileSlot.of(tag) for tag in name.tags}))


def covers(offered: tuple[FileSlot, ...], wanted: tuple[FileSlot, ...]) -> bool:
    """Whether a wheel for *offered* can stand in for one for *wanted*."""
    return all(any(slot.serves(asked) for slot in offered) for asked in wanted)
