"""Where glibc looks for libraries of newer CPUs: in a folder of their level, next to the ones that run everywhere.

    demo.libs/libx.so                          every x86-64 processor
    demo.libs/glibc-hwcaps/x86-64-v3/libx.so   those of level v3, by glibc 2.33 and newer: a copy of the base

The loader looks so in each folder that it searches: for what is NEEDED and for what is opened by a name, not for what
is opened by a path. Best level first; if a level has no file, the next lower one's is taken, at last the folder's.
So a copy needs a base for lesser processors, and both need one SONAME, by which a loaded library is known.
https://man7.org/linux/man-pages/man8/ld.so.8.html ; glibc, sysdeps/x86_64/dl-hwcaps_subdirs.c
"""

import posixpath
import re

from vbuild.hardware.cpu import X86_64_LEVELS

GLIBC_HWCAPS = "glibc-hwcaps"
LEVELS = X86_64_LEVELS[1:]
"""The levels that have a folder, lowest first; the baseline v1 has none."""
OLDEST_GLIBC = (2, 33)
"""Older ones do not look there, and musl never does: they take the folder's own file."""

*_MOST, _LAST = (f"x86-64-{level}" for level in LEVELS)
UNKNOWN_FOLDER = f"in no folder that glibc knows; expected {', '.join(_MOST)} or {_LAST}"
"""What is wrong with a library in a folder of glibc-hwcaps that belongs to no level."""

_IN_LEVEL = re.compile(rf"(?P<folder>(?:.*/)?){GLIBC_HWCAPS}/x86-64-(?P<level>{'|'.join(LEVELS)})/(?P<rest>.*)")
_OF_ANY_MACHINE = re.compile(rf"(?P<folder>(?:.+/)?){GLIBC_HWCAPS}/[^/]+/(?P<name>[^/]+)")


def level_of(path: str) -> str | None:
    """The level whose processors alone load what is at *path*: ``v3`` for ``a.libs/glibc-hwcaps/x86-64-v3/libx.so``."""
    match = _IN_LEVEL.fullmatch(path)
    return match["level"] if match else None


def at_level(path: str, level: str) -> str:
    """The path of the copy for *level* of the library at *path*."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, GLIBC_HWCAPS, f"x86-64-{level}", name)


def baseline_of(path: str) -> str:
    """The path of the base of the copy at *path*; *path* itself for others."""
    match = _IN_LEVEL.fullmatch(path)
    return f"{match['folder']}{match['rest']}" if match else path


def replaced_library(path: str) -> str | None:
    """The path of the library that glibc replaces by that at *path* on newer CPUs of any machine, or None.

    ``a/libx.so`` for ``a/glibc-hwcaps/x86-64-v3/libx.so`` and ``a/glibc-hwcaps/power10/libx.so``.
    """
    match = _OF_ANY_MACHINE.fullmatch(path)
    return match["folder"] + match["name"] if match else None


def missing_base(base: str) -> str:
    """What is wrong with a copy if there is no library at *base*, its base."""
    return f"no {base}; expected one for lesser processors, and for systems that know no levels"


def soname_fault(copy: str | None, base: str | None, *, where: str) -> str | None:
    """What is wrong with a copy whose SONAME is *copy*, and that of its base, which is *where*, is *base*; or None."""
    if copy == base:
        return None
    return f"SONAME {copy or 'none'}, and {base or 'none'} in {where}; expected one for all levels"
