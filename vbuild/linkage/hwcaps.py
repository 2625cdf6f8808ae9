"""Where glibc looks for libraries of newer CPUs: in a folder of their level, beside the ones that run everywhere.

    demo.libs/libx.so                          every x86-64 processor
    demo.libs/glibc-hwcaps/x86-64-v3/libx.so   those of level v3, by glibc 2.33 and newer

The loader looks so in each folder that it searches: for what is NEEDED and for what is opened by a name, not for what
is opened by a path. Best level first; where a level has no file, the next lower one's is taken, at last the folder's.
https://man7.org/linux/man-pages/man8/ld.so.8.html ; glibc, sysdeps/x86_64/dl-hwcaps_subdirs.c
"""

import posixpath
import re

GLIBC_HWCAPS = "glibc-hwcaps"
LEVELS = ("v2", "v3", "v4")
"""The levels that have a folder, lowest first; the baseline v1 has none."""
OLDEST_GLIBC = (2, 33)
"""Older ones do not look there, nor does musl: they take the folder's own file."""

_IN_LEVEL = re.compile(r"(?P<folder>(?:.*/)?)glibc-hwcaps/x86-64-(?P<level>v[234])/(?P<rest>.*)")


def level_of(path: str) -> str | None:
    """The level whose processors alone load what is at *path*: ``v3`` for ``a.libs/glibc-hwcaps/x86-64-v3/libx.so``."""
    match = _IN_LEVEL.fullmatch(path)
    return match["level"] if match else None


def folder_of(level: str) -> str:
    """The folder of *level* in one that the loader searches: ``glibc-hwcaps/x86-64-v3``."""
    return f"{GLIBC_HWCAPS}/x86-64-{level}"


def at_level(path: str, level: str) -> str:
    """Where the copy for *level* of the library at *path* belongs."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, folder_of(level), name)


def baseline_of(path: str) -> str:
    """The path of the library for every processor that the one at *path* stands in for; *path* itself for others."""
    match = _IN_LEVEL.fullmatch(path)
    return f"{match['folder']}{match['rest']}" if match else path
