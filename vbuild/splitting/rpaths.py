"""Where a library looks for others, told from its own place: DT_RPATH entries that begin with ``$ORIGIN``.

    pkg/_C.so -> nvidia/cufft/lib     $ORIGIN/../nvidia/cufft/lib
    $ORIGIN/../x/../y                 $ORIGIN/../y
    /opt/conda/lib, lib               a build machine's folder, or the folder that a program was started in: taken out
                                      where RPATHs are asked for
    $ORIGIN/../pkg.libs               taken out where no library is left in it
    $ORIGIN/../../../lib              kept from pkg/_C.so: it leaves site-packages, for an environment's libraries
    $ORIGIN/../$LIB, $PLATFORM        kept as it is: only the loader knows what they stand for

Paths are relative to site-packages, as `installed_path` gives them. https://man7.org/linux/man-pages/man8/ld.so.8.html
"""

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from vbuild.binary.loading import Loading

ORIGIN = "$ORIGIN"

_ORIGIN = re.compile(r"\$(ORIGIN(?![A-Za-z0-9_])|\{ORIGIN\})")
_TOKEN = re.compile(r"\$(\w+|\{\w+\})", re.ASCII)
_ELSEWHERE = "a folder of the machine it was built on"
_STARTED = "counts from the folder that a program is started in"


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of a file's RPATH or RUNPATH: as written, the folder it leads to, why it goes if it does.

    Of one with a token that only the loader knows, *rest* is what stands behind ``$ORIGIN``. One that *is_foreign*
    does not count from the file's place.
    """

    text: str
    folder: str = ""
    rest: str = ""
    dropped: str = ""
    is_foreign: bool = False

    def kept_at(self, path: str) -> str:
        """The entry that leads to the same folder from the file at *path*."""
        if self.is_foreign:
            return self.text
        return f"{ORIGIN}{self.rest}" if self.rest else rpath_to(path, self.folder)


def rpath_to(path: str, folder: str) -> str:
    """The entry that leads from the file at *path* to *folder*; both are relative to site-packages, "" is its root."""
    start = posixpath.dirname(path)
    if folder == ".." or folder.startswith("../"):
        way = posixpath.normpath("../" * len(start.split("/") if start else ()) + folder)
    else:
        way = posixpath.relpath(f"/{folder}", f"/{start}")
    return ORIGIN if way == "." else f"{ORIGIN}/{way}"


def rpath_of(
    path: str,
    loading: Loading,
    folders: Sequence[str],
    *,
    alive: Collection[str],
    there: Collection[str] | None = None,
    written_at: str | None = None,
    cleans: bool = True,
) -> tuple[str, ...]:
    """The whole DT_RPATH of the file at *path* that leads to *folders*, after those of its own entries that stay.

    An own entry stays that leads to one of the folders *alive*, or out of site-packages. Where it is known which
    folders of libraries were *there* before, one that leads to none of them stays too: to another project's folder.
    The entries of a file that moves to *path* were *written_at* another one. Those that do not begin with ``$ORIGIN``
    stay without *cleans*: on some machine there may be something.
    """
    entries = [*_entries(written_at or path, loading, alive, there)]
    # a library of the wheel was found before one of a foreign folder behind it: where it went has to stay in front
    owns = next((place for place, entry in enumerate(entries) if not entry.is_foreign), len(entries))
    last = next((place for place, entry in enumerate(entries) if entry.is_foreign and place > owns), len(entries))
    before, behind = (
        [entry.kept_at(path) for entry in some if not entry.dropped or (entry.is_foreign and not cleans)]
        for some in (entries[:last], entries[last:])
    )
    return tuple(dict.fromkeys([*before, *(rpath_to(path, _clean(folder)) for folder in folders), *behind]))


def removed(
    path: str,
    loading: Loading,
    *,
    alive: Collection[str] | None = None,
    there: Collection[str] | None = None,
    left: Collection[str] = (),
) -> tuple[str, ...]:
    """The entries of the file at *path* that `rpath_of` takes out, each with the reason: ``/opt/lib: a folder of ...``.

    Without *alive* none goes for leading to a folder without libraries. Those that are *left* did not go.
    """
    entries = _entries(path, loading, alive, there)
    return tuple(f"{entry.text}: {entry.dropped}" for entry in entries if entry.dropped and entry.text not in left)


def _entries(
    path: str, loading: Loading, alive: Collection[str] | None, there: Collection[str] | None
) -> Iterator[_Entry]:
    """The entries that the loader heeds: those of RUNPATH, where there are any, instead of those of RPATH."""
    living = None if alive is None else set(map(_clean, alive))
    known = None if there is None else set(map(_clean, there))

    def is_dead(folder: str) -> bool:
        return living is not None and folder not in living and (known is None or folder in known)

    for text in loading.outline.runpath or loading.outline.rpath:
        yield _judged(text, path, is_dead)


def _judged(text: str, path: str, is_dead: Callable[[str], bool]) -> _Entry:
    found = _ORIGIN.match(text)
    rest = text[found.end() :] if found else ""
    if not found or (rest and not rest.startswith("/")):
        return _Entry(text, dropped=_ELSEWHERE if found or text.startswith("/") else _STARTED, is_foreign=True)
    if _TOKEN.search(rest):
        return _Entry(text, rest=rest)
    folder = _clean(posixpath.join(posixpath.dirname(path), rest.lstrip("/")))
    leaves = folder == ".." or folder.startswith("../")
    return _Entry(text, folder, dropped="" if leaves or not is_dead(folder) else "no library is left there")


def _clean(folder: str) -> str:
    """*folder* in the one spelling that can be compared; "" is site-packages itself."""
    clean = posixpath.normpath(folder) if folder else ""
    return "" if clean == "." else clean
