"""Stubs: what stays where a library was, for all that opens it by its path.

    demo/libx.so                     stub     NEEDED libx-1a2b3c4d.so    RPATH $ORIGIN/../demo_libs/lib
    demo_libs/lib/libx-1a2b3c4d.so   a second NEEDED $ORIGIN/libx.so     SONAME libx-1a2b3c4d.so
    demo_libs/lib/libx.so            the library, with its own SONAME

dlsym on the handle of a stub searches what it needs, so ctypes, dlopen and import find each symbol. Neither has the
library's SONAME: the loader would take it for the library. There are two because a name or a path alone is not enough.
By its name, the loader might take another library that is loaded under it (libz.so.1), or the stub itself if that was
found by the name in a folder. By its path, it would not find one in a wheel that is installed elsewhere and was loaded
before, see `vbuild.splitting.preloads`. The hash is of the library as it was in the wheel. RPATH is inherited by the
library, which finds its dependencies by that of whatever loads it.

What a stub cannot stand for stays where it was:

    the library asks where it is itself            dladdr, dlinfo, dl_iterate_phdr, /proc/self/maps: for what lies there
    code asks by path whether it is loaded         RTLD_NOLOAD: a loaded library is not its stub
    the wheel has headers, and it is the package's own    others link with it, and linkers do not look behind a stub
    musl                                           reads $ORIGIN in RPATH only, and knows libraries by names and paths
    32 bits, other machines                        no such files are written

glibc, elf/dl-load.c: _dl_map_object; elf/dl-deps.c: expand_dst
"""

from pathlib import PurePosixPath

from msgspec import Struct

from vbuild.elf.catalogue import is_shared_object
from vbuild.elf.records import ElfMachine
from vbuild.elf.write import STUB_SECTIONS, loader_stub
from vbuild.splitting.bundle import Bundle, WheelBinary

_ORIGIN = "$ORIGIN"
_MACHINES = {"x86_64": ElfMachine.X86_64, "aarch64": ElfMachine.AARCH64}
_DIGITS = 8
_MUSL = "musllinux"
_NO_LOAD = b"RTLD_NOLOAD"
_HEADERS = frozenset({".h", ".hh", ".hpp", ".hxx"})


def stub(library: WheelBinary, rpath: str) -> bytes:
    """Return the file that stays where *library* was; *rpath* leads from there to the folder where it is now."""
    return loader_stub(
        second_name(library), rpath, machine=_MACHINES[library.loading.outline.machine], is_inherited=True
    )


def second_stub(library: WheelBinary) -> bytes:
    """Return the file called `second_name` that stands beside *library* in its new folder."""
    return loader_stub(
        f"{_ORIGIN}/{library.name}",
        _ORIGIN,
        soname=second_name(library),
        machine=_MACHINES[library.loading.outline.machine],
        is_inherited=True,
    )


def second_name(library: WheelBinary) -> str:
    """Return the name by which a stub of *library* asks for it: ``libx-1a2b3c4d.so``."""
    return f"{library.name.partition('.so')[0]}-{library.sha256[:_DIGITS]}.so"


def stub_obstacle(bundle: Bundle, library: WheelBinary) -> str | None:
    """Return why no stub can take the place of *library*, or None if one can."""
    outline = library.loading.outline
    if any(platform.tag.startswith(_MUSL) for platform in bundle.platforms):
        return "musl does not follow one"
    if outline.machine not in _MACHINES:
        return f"none is written for {outline.machine}"
    if not is_shared_object(library.name):
        return "its name is not that of a library"
    if is_stub(library):
        return "it is one itself"
    return None


class Doubt(Struct, frozen=True):
    """What may not work if a stub takes the place of a library; *can_be_tried* if a run can show that it does."""

    what: str
    can_be_tried: bool = True


def stub_doubt(bundle: Bundle, library: WheelBinary) -> Doubt | None:
    """Return what may not work if a stub takes the place of *library*, or None."""
    if not library.is_bundled and (header := _header(bundle)):
        return Doubt(f"others may link with it, because the wheel has headers ({header})", can_be_tried=False)
    for path in sorted(bundle.namers(library)):
        member = bundle.wheel.find(path) if path.endswith(".py") else None
        if member and _NO_LOAD in bundle.wheel.read(member):
            return Doubt(f"{path} asks with RTLD_NOLOAD whether a library is loaded")
    return Doubt(f"it {asking}") if (asking := asks_own_place(library)) else None


def asks_own_place(library: WheelBinary) -> str:
    """Return the words that say how *library* may find out where it is, or none if it does not."""
    places = library.loading.own_place
    return f"may ask where it is itself ({', '.join(places)})" if places else ""


def is_stub(library: WheelBinary) -> bool:
    """Whether *library* is a file without code that only leads to another."""
    return tuple(section.name for section in library.loading.outline.sections if section.name) == STUB_SECTIONS


def _header(bundle: Bundle) -> str | None:
    paths = (member.path for member in bundle.wheel.members)
    return next((path for path in paths if PurePosixPath(path).suffix in _HEADERS), None)
