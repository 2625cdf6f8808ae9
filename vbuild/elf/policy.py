"""What a Linux platform tag promises: the libraries a system has, and how new the symbols are that may be taken.

    manylinux_2_28_x86_64 -> libc.so.6, libstdc++.so.6 ...; GLIBC_2.28, GLIBCXX_3.4.24 and older

The lists are the data of the auditwheel package, read as data. A tag newer than they are gets the newest older list,
and its own glibc version (PEP 600).
https://peps.python.org/pep-0600/ and https://peps.python.org/pep-0656/
"""

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any, Self

from msgspec import Struct

from vbuild.errors import BinaryError

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
    """One platform tag for Linux: its machine, and what it promises about libraries; nothing for plain ``linux``."""

    tag: str
    machine: str
    glibc: tuple[int, int] | None
    libraries: frozenset[str]
    versions: tuple[tuple[str, frozenset[str]], ...]

    @classmethod
    def parse(cls, tag: str) -> Self | None:
        """The platform of that *tag*; None for another system's. `BinaryError` if there is no auditwheel."""
        if not (match := _TAG.fullmatch(tag)):
            return None
        family, machine = match["family"], match["machine"]
        version = _YEARS.get(match["year"] or "") or (int(match["major"] or 0), int(match["minor"] or 0))
        known = [(number, policy) for number, policy in _policies(family) if number <= version]
        if family == "linux" or not known:
            return cls(tag, machine, None, frozenset(), ())
        _, policy = max(known, key=lambda pair: pair[0])
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
        """Whether the tag says which libraries there are."""
        return bool(self.libraries)

    def has(self, library: str) -> bool:
        """Whether every system of this platform has the *library*; those of the loader and of Python are at hand."""
        return library in self.libraries or bool(_LOADER.fullmatch(library) or _PYTHON.fullmatch(library))

    def has_version(self, version: str) -> bool:
        """Whether a symbol *version* such as ``GLIBC_2.28`` is old enough; one of a family not listed always is."""
        family, _, number = version.partition("_")
        if family == "GLIBC" and self.glibc:
            return number != "PRIVATE" and _glibc(number) <= self.glibc
        allowed = dict(self.versions).get(family)
        return not allowed or number in allowed or not number[:1].isdigit()


def _glibc(number: str) -> tuple[int, ...]:
    """The glibc that brought the symbol version *number*; one that is not known is newer than all."""
    if re.fullmatch(r"\d+(\.\d+)+", number):
        # the third part was for corrections within a release: 2.2.5 is in 2.5's list
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
