"""Decide which compiled files of several builds become copies for levels, and check that the result is sound.

    matched, file by file -> what differs from the next lower level's -> checked -> LevelFamily, one for each file
    every file at every level -> what it takes from others exists in the copies that are chosen with it

All files of the wheels of one release have to fit, or nothing is joined. Of an added wheel the files that fit are
taken, with whatever they need; the notes name the rest. Other members have to be the same in every wheel, with
exceptions:

*.dist-info/RECORD, WHEEL, variant.json, sboms/*   each wheel has its own; the join gets new ones
*.dist-info/METADATA                               requirements must be the same; the baseline's is taken
*.pyc with its *.py                                Python makes it again if it does not fit: the baseline's is taken
texts, and strings in Python code                  may differ in flags of a compiler, absolute paths and the name of
                                                   a level, as records of a build do: the baseline's is taken
"""

import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from msgspec import Struct

from vbuild.binary.linkage import Edge, Via
from vbuild.elf.catalogue import hashed, is_shared_object
from vbuild.elf.interface import Versioned
from vbuild.errors import RepackageError
from vbuild.publishing.hwcaps.build import Judge, LevelBuild, LevelFile, Matching, short
from vbuild.publishing.lint.metadata import shown
from vbuild.wheel.metadata import is_dist_info
from vbuild.wheel.paths import installed_path

_OWN = re.compile(r"RECORD(?:\.jws|\.p7s)?|WHEEL|variant\.json|sboms/.*|direct_url\.json|INSTALLER|REQUESTED")
_REQUIRING = ("Requires-Dist", "Requires-Python", "Provides-Extra", "Requires-External")
_TEXTS = (".json", ".txt", ".pc", ".cmake", ".log", ".yaml", ".yml", ".toml", ".cfg", ".ini")
_CACHED = re.compile(r"(?:__pycache__/)?(?P<name>[^/]+?)(?:\.[\w-]+)?\.pyc$")
# bytes: a record of a build is short
_LARGEST = 1 << 20
_BUILD = re.compile(
    r"(?<![\w-])-[mfWODILgz][\w./=+,:-]*"  # flags of a compiler
    r"|(?<![\w.])/[\w./+@-]+"  # absolute paths
    r"|(?<!\w)x86[-_]64(?:[-_]v[1-4])?(?!\w)"
    r"|[\s,]+"
)


class MemberDifference(Struct, frozen=True):
    """A member that is not the same in two wheels, by its path in the other one, or where that *is_lack* of it."""

    path: str
    what: str
    is_lack: bool = False


def differences(base: LevelBuild, other: LevelBuild) -> Iterator[MemberDifference]:
    """The members of *other* that are not compiled files, and are not what *base* has, by any of the rules."""
    ours, theirs = _rest(base), _rest(other)
    for place, path in theirs.items():
        if place not in ours:
            yield MemberDifference(path, f"only the wheel for {other.cpu} has it")
        elif not _is_same(base, ours[place], other, path):
            yield MemberDifference(path, _saying(base, other, path))
    for place, path in ours.items():
        if place not in theirs:
            yield MemberDifference(path, f"the wheel for {other.cpu} lacks it", is_lack=True)


def _saying(base: LevelBuild, other: LevelBuild, path: str) -> str:
    if path.endswith(".dist-info/METADATA"):
        for name in _REQUIRING:
            one, two = (build.offered.metadata.headers.values(name) for build in (base, other))
            if found := sorted({*one} ^ {*two}):
                return f"{name}: {found[0]}: in one of the wheels for {base.cpu} and {other.cpu} only"
    return f"the wheels for {base.cpu} and {other.cpu} differ in it, and no processor's level chooses such a file"


def _rest(build: LevelBuild) -> dict[str, str]:
    """The members that are no compiled files by where they are installed, without those that each wheel has its own."""
    compiled = {piece.member.path for piece in build.pieces.values()}
    compiled |= {*build.bundle.outside, *build.bundle.damaged}
    found = {}
    for row in build.offered.rows:
        _, _, name = row.path.partition(".dist-info/")
        if row.path not in compiled and not (is_dist_info(row.path) and _OWN.fullmatch(name)):
            installed = installed_path(row.path)
            # data folders have the version in their names
            found[installed or f"*.data{row.path.partition('.data')[2]}"] = row.path
    return found


def _is_same(base: LevelBuild, ours: str, other: LevelBuild, theirs: str) -> bool:
    one, two = ({row.path: row for row in build.offered.rows} for build in (base, other))
    if one[ours].hash == two[theirs].hash:
        return True
    if is_dist_info(ours) and ours.endswith("/METADATA"):
        stated, known = (build.offered.metadata.headers for build in (base, other))
        return all(sorted(stated.values(name)) == sorted(known.values(name)) for name in _REQUIRING)
    if ours.endswith(".pyc"):
        return _CACHED.sub(r"\g<name>.py", ours) in one
    if not ours.endswith((".py", *_TEXTS)) or max(one[ours].size or 0, two[theirs].size or 0) > _LARGEST:
        return False
    return _tells_same(base.bundle.wheel.read(ours), other.bundle.wheel.read(theirs), is_code=ours.endswith(".py"))


def _tells_same(one: bytes, other: bytes, *, is_code: bool) -> bool:
    try:
        if is_code:
            return _tokens(one) == _tokens(other)
        # without what tells of a build, and without the quotes around that
        first, second = (_BUILD.sub("", data.decode()).replace('"', "").replace("'", "") for data in (one, other))
    except (UnicodeDecodeError, tokenize.TokenError, SyntaxError):
        return one == other
    return first == second


def _tokens(source: bytes) -> list[tuple[int, str]]:
    """The words of the Python code *source*; its strings without what tells of a build, comments left out."""
    return [
        (token.type, _BUILD.sub("", token.string) if token.type == tokenize.STRING else token.string)
        for token in tokenize.tokenize(io.BytesIO(source).readline)
        if token.type not in {tokenize.COMMENT, tokenize.NL}
    ]


_FOUND = (Via.OWN, Via.INHERITED)


class LevelFamily(Struct, frozen=True, eq=False):
    """A compiled file, *base*, and the *copies* for levels above the baseline, the lowest level first.

    One that *is_moved* is opened by its path, for which the loader looks nowhere else: a stub has to lead to it.
    """

    base: LevelFile
    copies: tuple[LevelFile, ...]
    is_moved: bool

    def at(self, level: str) -> LevelFile:
        """The copy that processors of *level* load."""
        return [copy for copy in (self.base, *self.copies) if copy.build.level <= level][-1]


@dataclass(eq=False)
class Join:
    """The build of the baseline and those of levels, lowest first, and what they come to; *notes* say what was left."""

    base: LevelBuild
    others: Sequence[LevelBuild]
    judge: Judge
    notes: list[str] = field(default_factory=list)

    @cached_property
    def families(self) -> dict[str, LevelFamily]:
        """What differs between levels, by installed path in the baseline; `RepackageError` if it cannot be joined."""
        for build in self.others:
            self._check(build)
        found = {path: copies for path in self.base.pieces if (copies := tuple(self._differing(path)))}
        while dropped := self._unanswered(found):
            gone = {(copy.build, copy.path) for copy in dropped}
            left = {path: tuple(one for one in found[path] if (one.build, one.path) not in gone) for path in found}
            found = {path: copies for path, copies in left.items() if copies}
        self._note_further(found)
        return {
            path: LevelFamily(LevelFile(self.base, path), copies, self._is_opened(path))
            for path, copies in found.items()
        }

    @cached_property
    def matchings(self) -> dict[LevelBuild, Matching]:
        return {build: Matching.of(self.base, build) for build in self.others}

    def lead(self, copy: LevelFile, edge: Edge) -> LevelFile | None:
        """What a NEEDED of *copy* leads to: a file of the baseline, or one that only its own build has."""
        build = copy.build
        if edge.provider is not None:
            matching = self.matchings.get(build)
            path = matching.to_base.get(edge.provider) if matching else edge.provider
            return LevelFile(build, edge.provider) if path is None else LevelFile(self.base, path)
        if not build.is_added or edge.via in {Via.PLATFORM, Via.DRIVER}:
            return None
        # what was linked against a system's library, and never repaired
        like = [path for path in self.base.pieces if hashed(path) and short(path) == short(edge.name)]
        return LevelFile(self.base, like[0]) if len(like) == 1 else None

    def leads(self, copy: LevelFile) -> Iterator[tuple[Edge, LevelFile]]:
        """Each NEEDED of *copy* that leads to a file of the join."""
        for edge in copy.build.bundle.graph.needs(copy.path):
            if found := self.lead(copy, edge):
                yield edge, found

    def further(self, copy: LevelFile) -> tuple[LevelFile, ...]:
        """The files that *copy* needs, directly or not, and the baseline has not."""
        found: dict[str, LevelFile] = {}
        queue = [copy]
        while queue:
            for _, one in self.leads(queue.pop()):
                if one.build is not self.base and one.path not in found:
                    found[one.path] = one
                    queue.append(one)
        return tuple(found.values())

    def _refuse(self, build: LevelBuild, path: str, what: str) -> None:
        """`RepackageError`, or a note if *build* was added."""
        if not build.is_added:
            raise RepackageError(f"{build}: {path}: {what}")
        self.notes.append(f"not taken from {build}: {path}: {what}")

    def _check(self, build: LevelBuild) -> None:
        """Refuse what differs and is no library, and what only one of two wheels has, unless something needs it."""
        for difference in differences(self.base, build):
            if not (build.is_added and difference.is_lack):
                self._refuse(build, difference.path, difference.what)
        own, expected = ({row.path: row.hash for row in each.offered.rows} for each in (build, self.base))
        for path in build.bundle.outside:
            if own.get(path) != expected.get(path):
                self._refuse(build, path, "differs, and is installed where the loader does not look for libraries")
        for path, what in build.bundle.damaged.items():
            self._refuse(build, path, what)
        matching = self.matchings[build]
        for path in matching.alone:
            if not is_shared_object(path) or not build.bundle.graph.consumers(path):
                self._refuse(build, path, f"only the wheel for {build.cpu} has it")
        for path, piece in self.base.pieces.items():
            if path not in matching.from_base and not piece.is_bundled and not build.is_added:
                self._refuse(build, path, "only the wheel for the baseline has it")

    def _differing(self, path: str) -> Iterator[LevelFile]:
        """The copies of the baseline's *path* that are not the next lower level's, as far as they can be joined."""
        base = last = LevelFile(self.base, path)
        for build in self.others:
            there = self.matchings[build].from_base.get(path)
            if there is None or last.is_same(copy := LevelFile(build, there)):
                continue
            if fault := self._fault(base, copy):
                self._refuse(build, there, fault)
                continue
            yield copy
            last = copy

    def _fault(self, base: LevelFile, copy: LevelFile) -> str | None:
        if fault := self.judge.fault(base, copy, taken=self._taken if copy.build.is_added else None):
            return fault
        for other in self.further(copy):
            if fault := self.judge.common_fault(other):
                return f"needs {other.path}: {fault}"
        if copy.build.is_added and (symbol := self._unknown(base, copy)):
            return f"takes {symbol}, which nothing in the wheel gives"
        return None

    @cached_property
    def _taken(self) -> frozenset[Versioned]:
        """What the files of the baseline take of others, each name with its version and without."""
        found = {symbol for path in self.base.pieces for symbol in self.base.interface(path).taken}
        return frozenset({*found, *(Versioned(symbol.name) for symbol in found)})

    def _unknown(self, base: LevelFile, copy: LevelFile) -> Versioned | None:
        """A symbol that *copy* takes from a library of the baseline that it was not built with, and that lacks it."""
        edges = copy.build.bundle.graph.needs(copy.path)
        guessed = [found for edge in edges if edge.provider is None and (found := self.lead(copy, edge))]
        if not guessed or copy.piece.loading.modules:
            return None
        own = [*guessed, *(LevelFile(self.base, path) for one in guessed for path in self.base.reached(one.path))]
        own += [LevelFile(copy.build, path) for path in copy.build.reached(copy.path)]
        left = {symbol for symbol in copy.interface.taken - base.interface.taken if symbol.version is None}
        for one in own:
            left = {symbol for symbol in left if not one.interface.answers(symbol)}
        return min(left, key=str, default=None)

    def _unanswered(self, found: dict[str, tuple[LevelFile, ...]]) -> set[LevelFile]:
        """The copies that have to go, since together with others that are chosen they lack a symbol."""
        families = {
            path: LevelFamily(LevelFile(self.base, path), copies, is_moved=False) for path, copies in found.items()
        }
        dropped: set[LevelFile] = set()
        for build in self.others:
            for path in self.base.pieces:
                consumer = families[path].at(build.level) if path in families else LevelFile(self.base, path)
                dropped |= {*self._lacking(consumer, build.level, families)}
        return dropped

    def _lacking(self, consumer: LevelFile, level: str, families: dict[str, LevelFamily]) -> Iterator[LevelFile]:
        matching = self.matchings.get(consumer.build)
        pairs = [
            (LevelFile(consumer.build, path), matching.to_base.get(path) if matching else path)
            for path in consumer.build.reached(consumer.path)
        ]
        if consumer.build is self.base and not any(path in families for _, path in pairs):
            return
        chosen = [
            own if path is None else families[path].at(level) if path in families else LevelFile(self.base, path)
            for own, path in pairs
        ]
        for symbol in sorted(consumer.interface.taken, key=str):
            givers = [number for number, (own, _) in enumerate(pairs) if own.interface.answers(symbol)]
            if not givers or any(one.interface.answers(symbol) for one in chosen):
                continue
            giver = chosen[givers[0]]
            blamed = consumer if consumer.build.is_added else giver
            what = f"at {level} {consumer.path} takes {symbol} from it, which it does not give"
            self._refuse(blamed.build, blamed.path if blamed is giver else f"{blamed.path}: {giver.path}", what)
            yield blamed
            return

    def _is_opened(self, path: str) -> bool:
        """Whether somebody may open the baseline's *path* by that path, so that no other folder is looked into."""
        piece, bundle = self.base.pieces[path], self.base.bundle
        # code and texts that name it may open it by its path
        naming = {file for file, opened in bundle.opened_by.items() if piece in opened} - {*bundle.outside}
        if piece.loading.modules or naming - self.base.pieces.keys():
            return True
        return not any(edge.via in _FOUND for edge in bundle.graph.consumers(path))

    def _note_further(self, found: dict[str, tuple[LevelFile, ...]]) -> None:
        for path, copies in found.items():
            for copy in copies:
                more = LevelFile(self.base, path).interface.lacking(copy.interface)
                if more and not copy.piece.loading.modules:
                    self.notes.append(
                        f"{copy}: exports {shown(more)}, which the baseline's does not: for what was built beside it, "
                        f"on processors of {copy.build.cpu} only"
                    )
