"""Variant labels as local versions: which can be some, and in which order an index that had all would have them.

    x86_64_v3  ->  1.0+x86.64.v3      separators become dots, as PEP 440 normalises them
    cu12.6     ->  1.0+cu12.6
    cu126, cu1210: refused            compared as text 1210 comes first, and a request without +label takes the last

https://packaging.python.org/en/latest/specifications/version-specifiers/#local-version-identifiers
"""

import re
from collections.abc import Iterable
from itertools import combinations

from packaging.version import Version

from vbuild.errors import LayoutError

PLAIN = "plain"

_NUMBER = re.compile(r"[0-9]+")
_GLUED = re.compile(r"(?<=[a-z])(?=[0-9])")


def local_version(version: str, label: str) -> str:
    """*version* with the local part that *label* becomes, after one it has; `LayoutError` where it becomes none."""
    try:
        return str(Version(f"{version}{'.' if Version(version).local else '+'}{label}"))
    except ValueError as error:  # too many digits for an int is one as well
        raise LayoutError(
            f"label {label!r}: no local version (PEP 440); expected letters and digits with single . or _ between "
            "them: stamp the wheels under another label"
        ) from error


def local_part(label: str) -> str:
    """What of a version *label* becomes: ``x86.64.v3``."""
    return _version(label).local or ""


def check_labels(labels: Iterable[str]) -> None:
    """`LayoutError` for the first of *labels* that cannot have an index of its own, or two that should not be."""
    known = {label: _version(label) for label in labels}
    if PLAIN in known:
        raise LayoutError(
            f"label {PLAIN!r}: the plain wheels' index is called so; stamp the wheels under another label"
        )
    for one, other in combinations(known, 2):
        if known[one] == known[other]:
            raise LayoutError(
                f"labels {one!r} and {other!r}: both become +{known[one].local} (PEP 440); expected labels that differ "
                "in more than separators: stamp one of them anew"
            )
        low, high = sorted((one, other), key=lambda label: known[label])
        if _pattern(low) == _pattern(high) and _numbers(low) > _numbers(high):
            raise LayoutError(
                f"labels {low!r} and {high!r}: compared as text (PEP 440), {high} is the later of the two, which an "
                f"unpinned request would take; expected numbers that are parts of their own, as in {_apart(high)} and "
                f"{_apart(low)}: stamp them anew"
            )


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """The *labels* as installers order their local versions: a request without one takes the last."""
    return tuple(sorted(labels, key=_version))


def _version(label: str) -> Version:
    return Version(local_version("0", label))


def _apart(label: str) -> str:
    """The label with a dot before each number that follows a letter: ``cu126`` as ``cu.126``."""
    return _GLUED.sub(".", label)


def _pattern(label: str) -> str:
    """The label with its numbers left open: what is called by one pattern is expected to be in their order."""
    return _NUMBER.sub("#", local_part(label))


def _numbers(label: str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(local_part(label))]
