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

from msgspec import Struct

from vbuild.elf.catalogue import plain
from vbuild.elf.hwcaps_folders import at_level
from vbuild.elf.linkage import Via
from vbuild.elf.surgery.relink import Relink
from vbuild.elf.write import loader_stub
from vbuild.errors import RepackageError, at
from vbuild.publishing.hwcaps.build import MOVED, LevelFile, pattern_fault
from vbuild.publishing.hwcaps.join import Join, LevelFamily
from vbuild.publishing.model import Copied, Member, Put, Relinked
from vbuild.splitting.patches import rpath_of, rpath_to

_EXECUTABLE = 0o755
_DIGITS = 8


class Placed(Struct, frozen=True):
    """A copy, the installed path it goes to below *root* of the archive, and its SONAME there; None for none."""

    copy: LevelFile
    path: str
    soname: str | None
    root: str

    def member(self, join: Join) -> Member:
        """The copy as a member, changed as its place asks for."""
        source = self.copy.build.offered.path
        member = self.copy.build.member(self.copy.path).path
        order = self._order(join)
        if order == Relink():
            return Copied(source, member, self.root + self.path)
        return Relinked(source, member, self.root + self.path, order)

    def _order(self, join: Join) -> Relink:
        outline = self.copy.piece.loading.outline
        names: dict[str, str] = {}
        folders: dict[str, None] = {}
        for edge, lead in join.leads(self.copy):
            # by the SONAME where something else has loaded it before
            soname = lead.piece.loading.outline.soname
            names[edge.name] = soname if edge.via is Via.NAME and soname else lead.piece.name
            if edge.via not in {Via.NAME, Via.INHERITED}:
                folders[lead.piece.folder] = None
        # whatever an entry leads to may be there; a folder of the machine it was built on is not
        new = rpath_of(
            self.path, self.copy.piece.loading, tuple(folders), alive=(), there=(), written_at=self.copy.path
        )
        is_new = new != (outline.runpath or outline.rpath)
        return Relink(
            renamed=tuple((old, new) for old, new in names.items() if old != new),
            rpath=new if is_new else None,
            is_runpath=is_new and (bool(outline.runpath) or not outline.rpath),
            soname=None if self.soname == outline.soname else self.soname,
        )


class Placement(Struct, frozen=True, eq=False):
    """The members that take the place of a compiled file of the baseline's wheel, and those that come with it."""

    join: Join
    family: LevelFamily

    def members(self) -> Iterator[Member]:
        """The stub or the baseline's file, and then the copies, lowest level first."""
        base = self.family.base
        if not self.family.is_moved:
            path = base.build.member(base.path).path
            yield Copied(base.build.offered.path, path, path)
        else:
            yield self._stub()
        for placed in self._placed():
            yield placed.member(self.join)

    def _placed(self) -> Iterator[Placed]:
        base = self.family.base
        root = _root(base)
        path, soname = base.path, base.piece.loading.outline.soname
        if self.family.is_moved:
            path = self._home
            soname = posixpath.basename(path)
            yield Placed(base, path, soname, root)
        for copy in self.family.copies:
            yield Placed(copy, at_level(path, copy.build.level), soname, root)

    def _stub(self) -> Put:
        base = self.family.base
        folder, name = posixpath.split(self._home)
        if fault := pattern_fault(base, self._home):
            raise RepackageError(f"{base}: {fault}")
        with at(base):
            data = loader_stub(name, rpath_to(base.path, folder), soname=base.piece.loading.outline.soname)
        return Put(base.build.member(base.path).path, data, mode=_EXECUTABLE)

    @property
    def _home(self) -> str:
        """Where the baseline's own copy goes if it moves."""
        base = self.family.base
        digest = hashlib.sha256(base.path.encode())
        for copy in (base, *self.family.copies):
            digest.update(f"\n{copy.build.level} {copy.piece.sha256}".encode())
        stem = plain(base.piece.name).partition(".")[0]
        # in the folder of libraries alongside the package, as auditwheel calls it
        return f"{base.build.offered.name.distribution}.libs/{MOVED}{stem}-{digest.hexdigest()[:_DIGITS]}.so"


def further_members(join: Join, families: Sequence[LevelFamily]) -> Iterator[Member]:
    """The files that copies need and the baseline has not; of those of one path and one code the first is taken.

    `RepackageError` if two are another code.
    """
    seen: dict[str, LevelFile] = {}
    for one in (one for family in families for copy in family.copies for one in join.further(copy)):
        if (first := seen.setdefault(one.path, one)) is one:
            yield Placed(one, one.path, one.piece.loading.outline.soname, _root(one)).member(join)
        elif not first.is_same(one):
            raise RepackageError(f"{one}: another library than that of {first.build}, and the plain wheel has none")


def _root(copy: LevelFile) -> str:
    """What stands in front of the installed path in the archive: nothing, or a data folder for site-packages."""
    return copy.build.member(copy.path).path.removesuffix(copy.path)
