"""Where the copies for levels go, what is changed in them, and the members of the joined wheel.

    demo.libs/libx.so                       stays; its copies in glibc-hwcaps/x86-64-vN/ have its name and SONAME,
                                            whatever hash theirs had
    demo/_c.so (opened by its path)         a stub; all copies, the baseline's too, become
                                            demo.libs/[glibc-hwcaps/x86-64-vN/]libvb__c-1a2b3c4d.so
    demo.libs/liby.so, of v3's wheel only   demo.libs/liby.so, if every processor can run it

RPATH or RUNPATH of what moves leads where it led: ``$ORIGIN`` becomes ``$ORIGIN/../..``. The hash is of all copies: two
releases in one process are two libraries.
"""

import hashlib
import posixpath
from collections.abc import Iterator, Sequence

from vbuild.binary.linkage import Via
from vbuild.elf.catalogue import plain
from vbuild.elf.hwcaps_folders import at_level
from vbuild.elf.surgery.relink import Relink
from vbuild.elf.write import loader_stub
from vbuild.errors import RepackageError, at
from vbuild.publishing.hwcaps.build import MOVED, LevelFile, pattern_fault
from vbuild.publishing.hwcaps.join import Join, LevelFamily
from vbuild.publishing.model import Copied, Member, Put, Relinked
from vbuild.splitting.patches import rpath_of, rpath_to

_EXECUTABLE = 0o755
_DIGITS = 8


def family_members(join: Join, family: LevelFamily) -> Iterator[Member]:
    """What takes the place of a compiled file of the baseline's wheel: it, or a stub, then its copies, lowest first."""
    base = family.base
    member = base.build.member(base.path).path
    root, path, soname = _root(base), base.path, base.piece.loading.outline.soname
    if family.is_moved:
        digest = hashlib.sha256(base.path.encode())
        for copy in (base, *family.copies):
            digest.update(f"\n{copy.build.level} {copy.piece.sha256}".encode())
        stem = plain(base.piece.name).partition(".")[0]
        # in the folder of libraries alongside the package, as auditwheel calls it
        libraries = f"{base.build.offered.name.distribution}.libs"
        path = f"{libraries}/{MOVED}{stem}-{digest.hexdigest()[:_DIGITS]}.so"
        folder, name = posixpath.split(path)
        if fault := pattern_fault(base, path):
            raise RepackageError(f"{base}: {fault}")
        with at(base):
            stub = loader_stub(name, rpath_to(base.path, folder), soname=soname)
        yield Put(member, stub, mode=_EXECUTABLE)
        soname = name
        yield _placed(join, base, path, soname=soname, root=root)
    else:
        yield Copied(base.build.offered.path, member, member)
    for copy in family.copies:
        yield _placed(join, copy, at_level(path, copy.build.level), soname=soname, root=root)


def _placed(join: Join, copy: LevelFile, path: str, *, soname: str | None, root: str) -> Member:
    """The *copy* as a member, installed at *path* below *root* of the archive, and changed as its place asks for."""
    loading = copy.piece.loading
    outline = loading.outline
    names: dict[str, str] = {}
    folders: dict[str, None] = {}
    for edge, lead in join.leads(copy):
        # by the SONAME where something else has loaded it before
        known = lead.piece.loading.outline.soname
        names[edge.name] = known if edge.via is Via.NAME and known else lead.piece.name
        if edge.via not in {Via.NAME, Via.INHERITED}:
            folders[lead.piece.folder] = None
    # whatever an entry leads to may be there; a folder of the machine it was built on is not
    rpath = rpath_of(path, loading, tuple(folders), alive=(), there=(), written_at=copy.path)
    is_new = rpath != (outline.runpath or outline.rpath)
    order = Relink(
        renamed=tuple((old, new) for old, new in names.items() if old != new),
        rpath=rpath if is_new else None,
        is_runpath=is_new and (bool(outline.runpath) or not outline.rpath),
        soname=None if soname == outline.soname else soname,
    )
    source, member = copy.build.offered.path, copy.build.member(copy.path).path
    return Copied(source, member, root + path) if order == Relink() else Relinked(source, member, root + path, order)


def further_members(join: Join, families: Sequence[LevelFamily]) -> Iterator[Member]:
    """The files that copies need and the baseline has not; of those of one path and one code the first is taken.

    `RepackageError` if two are another code.
    """
    seen: dict[str, LevelFile] = {}
    for one in (one for family in families for copy in family.copies for one in join.further(copy)):
        if (first := seen.setdefault(one.path, one)) is one:
            yield _placed(join, one, one.path, soname=one.piece.loading.outline.soname, root=_root(one))
        elif not first.is_same(one):
            raise RepackageError(f"{one}: another library than that of {first.build}, and the plain wheel has none")


def _root(copy: LevelFile) -> str:
    """What stands in front of the installed path in the archive: nothing, or a data folder for site-packages."""
    return copy.build.member(copy.path).path.removesuffix(copy.path)
