"""Libraries by file name: hashes that bundling tools put into names, official packages, and promises of platform tags.

    libx.so.1             as the library was built
    libx-1a2b3c4d.so.1    auditwheel: the first digits of the SHA-256 of the file that it copied, before the first dot
    libx-1a2b3c4d.3.so    the same of libx.3.so
    libx.1a2b3c4d.so.1    other tools' way
    x-1a2b…(32 digits).dll   delvewheel, the same of x.dll

catalogue.toml lists the official packages; `.ci/list-libraries` writes that file:

    libcufft.so.11    CUDA 12   nvidia-cufft-cu12   cuda-toolkit[cufft]   nvidia/cufft/lib   "cufft" of cuda-pathfinder
    libcurand.so.10   in CUDA 11, 12 and 13: a SONAME alone does not always say the CUDA major
    libtorch_cpu.so   a framework's
    libcuda.so.1      the driver's: of the machine, never of a package

https://github.com/pypa/auditwheel/blob/main/src/auditwheel/repair.py
https://docs.nvidia.com/cuda/cuda-installation-guide-linux/#pip-wheels

A platform promises libraries, and how new the symbols are that may be taken:

    manylinux_2_28_x86_64 -> libc.so.6, libstdc++.so.6 ...; GLIBC_2.28, GLIBCXX_3.4.24 and older

Those lists are data of auditwheel. A newer tag gets the newest list, and its own glibc version (PEP 600).
https://peps.python.org/pep-0600/ and https://peps.python.org/pep-0656/
"""

import ctypes
import json
import posixpath
import re
import tomllib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Self

from msgspec import Struct

from vbuild.errors import BinaryError

# libabsl-20240722.so has a date: one hash in fifty thousand looks like that
_DATE = r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"
_HASHED = re.compile(
    rf"(?P<stem>[^/]+?)[-.](?!{_DATE}\.)(?P<digest>[0-9a-f]{{8}})(?P<rest>(?:\.[\w+-]+)*?\.so(?:\.[\w+-]+)*)", re.ASCII
)
_HASHED_DLL = re.compile(r"(?P<stem>[^/]+)-(?P<digest>[0-9a-f]{32})(?P<rest>\.dll)", re.ASCII)
# how the name of a shared library, or of a module, ends
_SHARED = re.compile(r"\.so(\.[\w.]+)?$")
_LONGEST = 255  # bytes, NAME_MAX


class Hashed(Struct, frozen=True):
    """A file name without its hash, and the hash: ``libx.so.1`` and ``1a2b3c4d``."""

    name: str
    digest: str


def is_shared_object(path: str) -> bool:
    """Whether *path* is named as a shared library or extension module."""
    name = path.rpartition("/")[2]
    return len(name) <= _LONGEST and _SHARED.search(name) is not None


def hashed(file_name: str) -> Hashed | None:
    name = posixpath.basename(file_name)
    match = (_HASHED.fullmatch(name) or _HASHED_DLL.fullmatch(name)) if len(name) <= _LONGEST else None
    return Hashed(match["stem"] + match["rest"], match["digest"]) if match else None


def plain(file_name: str) -> str:
    parts = hashed(file_name)
    return parts.name if parts else posixpath.basename(file_name)


# the package that pins the parts of a CUDA Toolkit, by its extras
TOOLKIT = "cuda-toolkit"

_NAME = re.compile(r"(?P<stem>.+?)\.so(?![^.])(?:\.(?P<number>\d+(?:\.\d+)*))?", re.ASCII)


class CatalogueEntry(Struct, frozen=True):
    """A library of an official package; *folder* is a hint, only RECORD is right."""

    soname: str
    project: str
    cuda: int | None
    extra: str | None
    pathfinder: str | None
    folder: str


class Framework(Struct, frozen=True):
    """A package whose libraries others need but do not bundle: it is imported first."""

    project: str
    folder: str


def by_soname(name: str) -> tuple[CatalogueEntry, ...]:
    """One library of each CUDA major, the oldest first."""
    return _entries().get(name, ())


def by_stem(name: str) -> tuple[CatalogueEntry, ...]:
    """The libraries of all CUDA majors that the file *name* may be, nearest version first."""
    stem, number = _parts(name)
    return tuple(
        sorted(_entries(by_stem=True).get(stem, ()), key=lambda entry: _distance(number, _parts(entry.soname)[1]))
    )


@lru_cache(maxsize=64)
def is_driver(name: str) -> bool:
    bare = plain(name)
    return any(fnmatchcase(bare, pattern) for pattern in driver_libraries())


def driver_libraries() -> tuple[str, ...]:
    """As patterns for file names."""
    return tuple(_data()["driver"]["libraries"])


def is_official(project: str) -> bool:
    return any(package["project"] == project for package in _data()["package"])


def cuda_of(names: Iterable[str]) -> int | None:
    left: set[int] | None = None
    for name in names:
        # by the SONAME, or by the first number of a file name such as libx.so.11.2.1
        number = _parts(name)[1][:1]
        fitting = by_soname(plain(name)) or [
            entry for entry in by_stem(name) if number and _parts(entry.soname)[1][:1] == number
        ]
        majors = {entry.cuda for entry in fitting if entry.cuda}
        if majors:
            left = majors if left is None else left & majors
    return left.pop() if left and len(left) == 1 else None


def frameworks() -> tuple[str, ...]:
    return tuple(entry["project"] for entry in _data()["framework"])


def framework(name: str) -> Framework | None:
    for entry in _data()["framework"]:
        if any(fnmatchcase(name, pattern) for pattern in entry["libraries"]):
            return Framework(entry["project"], entry["folder"])
    return None


def _parts(name: str) -> tuple[str, tuple[int, ...]]:
    match = _NAME.match(plain(name))
    if not match:
        return name, ()
    # a damaged file's name may have more digits than int() takes
    return match["stem"], tuple(int(part[:9]) for part in (match["number"] or "").split(".") if part)


def _distance(version: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return (
        tuple(abs(first - second) for first, second in zip(version, other, strict=False)) if version and other else (0,)
    )


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(files("vbuild.elf").joinpath("catalogue.toml").read_text(encoding="utf-8"))


@cache
def _entries(*, by_stem: bool = False) -> Mapping[str, tuple[CatalogueEntry, ...]]:
    pathfinder = frozenset(_data()["pathfinder"])
    by_name: dict[str, list[CatalogueEntry]] = {}
    for package in _data()["package"]:
        for soname in (*package["libraries"], *package.get("earlier", ())):
            stem, _ = _parts(soname)
            name = stem.removeprefix("lib")
            entry = CatalogueEntry(
                soname=soname,
                project=package["project"],
                cuda=package.get("cuda"),
                extra=package.get("extra"),
                pathfinder=name if name in pathfinder else None,
                folder=package["folder"],
            )
            by_name.setdefault(stem if by_stem else soname, []).append(entry)
    return {name: tuple(sorted(entries, key=lambda entry: entry.cuda or 0)) for name, entries in by_name.items()}


MUSL_MACHINES = frozenset({"x86_64", "aarch64"})


@cache
def musl_symbols() -> frozenset[str]:
    """What musl defines on any of `MUSL_MACHINES`."""
    lines = files("vbuild.elf").joinpath("musl-symbols.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


@cache
def _glibc_here() -> tuple[ctypes.CDLL, ...]:
    """The libraries that CPython is linked with on Linux with glibc, on such a machine."""
    try:
        return tuple(map(ctypes.CDLL, ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libutil.so.1")))
    except OSError:
        return ()


def has_glibc() -> bool:
    return bool(_glibc_here())


def glibc_symbols(names: Iterable[str]) -> frozenset[str]:
    """Those of *names* that this machine's glibc defines."""
    return frozenset(name for name in names if any(hasattr(library, name) for library in _glibc_here()))


_TAG = re.compile(
    r"(?P<family>linux|manylinux|musllinux)(?P<year>1|2010|2014)?(?:_(?P<major>\d+)_(?P<minor>\d+))?"
    r"_(?P<machine>x86_64|i[3-6]86|aarch64|armv[678]l|ppc64le|ppc64|s390x|riscv64|loongarch64)"
)
_YEARS = {"1": (2, 5), "2010": (2, 12), "2014": (2, 17)}
_LOADER = re.compile(r"ld-linux[-\w]*\.so\.\d|ld64\.so\.\d|ld-musl-\w+\.so\.1")
_PYTHON = re.compile(r"libpython\d[\w.]*\.so[\d.]*")
# versions of glibc that have no number of their own
_NAMED_VERSIONS = {"ABI_DT_RELR": (2, 36), "ABI_GNU_TLS": (2, 42), "ABI_GNU2_TLS": (2, 42)}


class PlatformPolicy(Struct, frozen=True):
    """A platform tag for Linux; plain ``linux`` promises no libraries."""

    tag: str
    machine: str
    glibc: tuple[int, int] | None
    libraries: frozenset[str]
    versions: tuple[tuple[str, frozenset[str]], ...]

    @classmethod
    def parse(cls, tag: str) -> Self | None:
        """The platform of *tag*; None for another system's. `BinaryError` if there is no auditwheel."""
        if not (match := _TAG.fullmatch(tag)):
            return None
        family, machine, version = match["family"], match["machine"], _libc(match)
        policies = [(number, policy) for number, policy in _policies(family) if number <= version]
        if family == "linux" or not policies:
            return cls(tag, machine, None, frozenset(), ())
        _, policy = max(policies, key=lambda pair: pair[0])
        versions = policy["symbol_versions"].get(machine, {})
        return cls(
            tag,
            machine,
            version if family == "manylinux" else None,
            frozenset(policy["lib_whitelist"]) | ({f"libc.musl-{machine}.so.1"} if family == "musllinux" else set()),
            tuple((name, frozenset(numbers)) for name, numbers in sorted(versions.items())),
        )

    @property
    def promises(self) -> bool:
        return bool(self.libraries)

    def has(self, library: str) -> bool:
        return library in self.libraries or bool(_LOADER.fullmatch(library) or _PYTHON.fullmatch(library))

    def has_version(self, version: str) -> bool:
        """Whether a symbol *version* such as ``GLIBC_2.28`` is old enough, or of an unlisted family."""
        family, _, number = version.partition("_")
        if family == "GLIBC" and self.glibc:
            return number != "PRIVATE" and _glibc(number) <= self.glibc
        allowed = dict(self.versions).get(family)
        return not allowed or number in allowed or not number[:1].isdigit()


@lru_cache(maxsize=64)
def platforms_in(tags: str) -> tuple[PlatformPolicy, ...]:
    """The platforms for Linux among *tags*, joined by dots."""
    return tuple(platform for tag in tags.split(".") if (platform := PlatformPolicy.parse(tag)))


def systems_of(platform: str) -> frozenset[tuple[str, str]]:
    """C library and machine of each Linux that *platform*, tags joined by dots, is for."""
    matches = (_TAG.fullmatch(tag) for tag in platform.split("."))
    libraries = {"manylinux": ("glibc",), "musllinux": ("musl",), "linux": ("glibc", "musl")}
    return frozenset((libc, match["machine"]) for match in matches if match for libc in libraries[match["family"]])


@cache
def covers(tags: str, others: str) -> bool:
    """Whether all machines for wheels of one of the platforms *others* take those of *tags*; both joined by dots.

    Those for a newer libc take what is for an older one (PEP 600 and 656).
    """
    return all(any(_is_older(tag, other) for tag in tags.split(".")) for other in others.split("."))


def _is_older(tag: str, other: str) -> bool:
    here, there = _TAG.fullmatch(tag), _TAG.fullmatch(other)
    if not (here and there) or here["family"] != there["family"]:
        return tag == other
    return here["machine"] == there["machine"] and _libc(here) <= _libc(there)


def _libc(tag: re.Match[str]) -> tuple[int, int]:
    """The version of the C library of a *tag*, 0.0 of plain ``linux``."""
    return _YEARS.get(tag["year"] or "") or (int(tag["major"] or 0), int(tag["minor"] or 0))


def _glibc(number: str) -> tuple[int, ...]:
    """The glibc that brought a symbol version; unknown ones are newest."""
    if re.fullmatch(r"\d+(\.\d+)+", number):
        # the third part is a correction within a release: 2.2.5 is in 2.5's list
        return tuple(map(int, number.split(".")))[:2]
    return _NAMED_VERSIONS.get(number, (99,))


@cache
def _policies(family: str) -> tuple[tuple[tuple[int, int], dict[str, Any]], ...]:
    if family == "linux":
        return ()
    try:
        text = (files("auditwheel") / "policy" / f"{family}-policy.json").read_text(encoding="utf-8")
        policies = json.loads(text)
    except (ModuleNotFoundError, OSError, ValueError) as error:
        raise BinaryError(f"the {family} policies of auditwheel cannot be read: {error}; install auditwheel") from error
    named = ((re.fullmatch(r"(?:many|musl)linux_(\d+)_(\d+)", policy["name"]), policy) for policy in policies)
    return tuple(((int(match[1]), int(match[2])), policy) for match, policy in named if match)
