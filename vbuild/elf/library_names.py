"""File names of bundled libraries: what tools that bundle put into them.

    libx.so.1             as the library was built
    libx-1a2b3c4d.so.1    auditwheel: the first digits of the SHA-256 of the file that it copied, before the first dot
    libx-1a2b3c4d.3.so    the same of libx.3.so
    libx.1a2b3c4d.so.1    other tools' way

https://github.com/pypa/auditwheel/blob/main/src/auditwheel/repair.py
"""

import posixpath
import re

from msgspec import Struct

# libabsl-20240722.so has a date: one hash in fifty thousand looks like that
_DATE = r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"
_HASHED = re.compile(
    rf"(?P<stem>[^/]+?)[-.](?!{_DATE}\.)(?P<digest>[0-9a-f]{{8}})(?P<rest>(?:\.[\w+-]+)*?\.so(?:\.[\w+-]+)*)", re.ASCII
)
# how the name of a shared library, or of a module, ends
_SHARED = re.compile(r"\.so(\.[\w.]+)?$")
# bytes, NAME_MAX: a longer text cannot be a file name, and matching takes the square of its length
_LONGEST = 255


class Hashed(Struct, frozen=True):
    """A file name without the hash that was put into it, and the hash: ``libx.so.1`` and ``1a2b3c4d``."""

    name: str
    digest: str


def is_shared_object(path: str) -> bool:
    """Whether the file at *path* is called as shared libraries and extension modules are: ``libx.so.1``, ``_c.so``."""
    name = posixpath.basename(path)
    return len(name) <= _LONGEST and _SHARED.search(name) is not None


def hashed(file_name: str) -> Hashed | None:
    """The two parts of *file_name*; None if it has no hash."""
    name = posixpath.basename(file_name)
    match = _HASHED.fullmatch(name) if len(name) <= _LONGEST else None
    return Hashed(match["stem"] + match["rest"], match["digest"]) if match else None


def plain(file_name: str) -> str:
    """*file_name* as the library was built: without folder and hash."""
    found = hashed(file_name)
    return found.name if found else posixpath.basename(file_name)
