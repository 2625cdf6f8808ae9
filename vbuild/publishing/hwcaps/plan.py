"""The layout hwcaps: one plain wheel for all CPU levels; glibc chooses among the copies of a library in it.

    plain wheel, v3's, v4's, of one Python and platform -> one wheel that every installer takes
    demo/_c.so                                          a stub without code, if the module differs
    demo.libs/libvb__c-1a2b3c4d.so                      what every x86-64 processor runs, glibc before 2.33, and musl
    demo.libs/glibc-hwcaps/x86-64-v3/libvb__c-…so       what processors of level v3 run

    release -> JoinSet, one for each tag -> JoinedWheel -> NewWheel

A published wheel to which one is added gets a build tag, by which installers prefer it; if its copies need a newer
system than its tags promise, it gets the tag of the wheel that they are from, and the old wheel stays.

    demo.libs/libx.so                       stays; its copies in glibc-hwcaps/x86-64-vN/ have its name and SONAME,
                                            whatever hash theirs had
    demo/_c.so (opened by its path)         a stub; all copies, the baseline's too, become
                                            demo.libs/[glibc-hwcaps/x86-64-vN/]libvb__c-1a2b3c4d.so
    demo.libs/liby.so, of v3's wheel only   demo.libs/liby.so, if every processor can run it

RPATH or RUNPATH of what moves leads where it led: ``$ORIGIN`` becomes ``$ORIGIN/../..``. The hash is of all copies: two
releases in one process are two libraries.

The check of a folder, since a wheel whose fast copies are never taken passes every test, as slowly as before:

    copy    a library for every processor exists, with the same SONAME and all of its exports; no instruction above
            the level; the same libraries of the wheel are found; the other one itself needs a lower level
    stub    no code, no symbols, one library, which exists and has the Python module that is asked for
    libvb_  a stub that leads to it, and a copy
    folder  of glibc-hwcaps: one that glibc knows, with libraries alone

https://man7.org/linux/man-pages/man8/ld.so.8.html (glibc-hwcaps)
https://packaging.python.org/en/latest/specifications/binary-distribution-format/#file-name-convention
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.linkage import Edge, Via
from vbuild.dispatch.isa import processes
from vbuild.elf.catalogue import plain, platforms_in
from vbuild.elf.code import Elf
from vbuild.elf.interface import Interface, Versioned, digest
from vbuild.elf.linkage import (
    GLIBC_HWCAPS,
    LEVELS,
    UNKNOWN_FOLDER,
    at_level,
    baseline_of,
    level_of,
    missing_base,
    soname_fault,
)
from vbuild.elf.surgery.relink import Relink
from vbuild.elf.write import loader_stub
from vbuild.errors import RepackageError, VbuildError, at
from vbuild.files.wording import shown
from vbuild.hardware.cpu import Cpu, available_cores
from vbuild.publishing.hwcaps.join import (
    BASELINE,
    MOVED,
    OWN_LIBRARY,
    Join,
    Judge,
    LevelBuild,
    LevelFamily,
    LevelFile,
    missed,
    platform_fault,
    with_and_without_versions,
)
from vbuild.publishing.lint.index import index_problems, layout_problem, wheels_in
from vbuild.publishing.model import (
    ConsumerUse,
    Copied,
    LinkedFile,
    Member,
    NewWheel,
    PublishPlan,
    PublishRule,
    Put,
    Relinked,
    SimpleIndex,
    install_commands,
)
from vbuild.publishing.releases import OfferedRelease, OfferedWheel, exact_pins
from vbuild.splitting.bundle import Bundle, WheelReader
from vbuild.splitting.patches import rpath_of, rpath_to
from vbuild.verification.levels import Claim, Levels
from vbuild.verification.model import Finding, Severity
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.metadata import VARIANT_JSON
from vbuild.wheel.name import WheelName
from vbuild.wheel.paths import installed_path

_EXECUTABLE = 0o755
_DIGITS = 8


def family_members(join: Join, family: LevelFamily) -> Iterator[Member]:
    """What replaces a compiled file of the baseline's wheel: it, or a stub, then its copies, lowest first."""
    base = family.base
    member = base.piece.member.path
    root, path, soname = _root(base), base.path, base.piece.loading.outline.soname
    if family.is_moved:
        digest = hashlib.sha256(base.path.encode())
        for copy in (base, *family.copies):
            digest.update(f"\n{copy.build.level} {copy.piece.sha256}".encode())
        stem = plain(base.piece.name).partition(".")[0]
        # in the folder of libraries alongside the package, as auditwheel calls it
        folder, name = (
            f"{base.build.offered.name.distribution}.libs",
            f"{MOVED}{stem}-{digest.hexdigest()[:_DIGITS]}.so",
        )
        path = f"{folder}/{name}"
        for pattern, file in base.build.bundle.patterns_of(path):
            fault = f"{file} opens what {pattern} finds, by its path: no copy for a level would be chosen"
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
    loading = copy.piece.loading
    outline = loading.outline
    names: dict[str, str] = {}
    folders: dict[str, None] = {}
    for edge, lead in join.leads(copy):
        # by the SONAME where something else has loaded it before
        loaded_name = lead.piece.loading.outline.soname if edge.via is Via.NAME else None
        names[edge.name] = loaded_name or lead.piece.name
        if edge.via not in {Via.NAME, Via.INHERITED}:
            folders[lead.piece.folder] = None
    # whatever an entry leads to may be there; a folder of the machine it was built on is not
    rpath = rpath_of(path, loading, tuple(folders), alive=(), there=(), written_at=copy.path)
    is_new = rpath != (outline.runpath or outline.rpath)
    relink = Relink(
        renamed=tuple((old, new) for old, new in names.items() if old != new),
        rpath=rpath if is_new else None,
        is_runpath=is_new and (bool(outline.runpath) or not outline.rpath),
        soname=None if soname == outline.soname else soname,
    )
    source, member = copy.build.offered.path, copy.piece.member.path
    return Copied(source, member, root + path) if relink == Relink() else Relinked(source, member, root + path, relink)


def _root(copy: LevelFile) -> str:
    return copy.piece.member.path.removesuffix(copy.path)


class JoinSet(Struct, frozen=True):
    """The plain wheel, and *others* with levels, lowest first, *added* ones among them."""

    base: OfferedWheel
    others: tuple[tuple[Cpu, OfferedWheel], ...]
    added: tuple[OfferedWheel, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        wheels: Sequence[OfferedWheel],
        added: Sequence[tuple[Cpu, OfferedWheel]] = (),
        *,
        notes: tuple[str, ...] = (),
    ) -> Self:
        if not wheels:
            raise RepackageError("no wheel to join; expected a plain one, and others for x86-64 levels")
        for wheel in wheels:
            _check_alike(wheels[0], wheel)
        levels = [(_level_of(wheel), wheel) for wheel in wheels]
        plain = [wheel for cpu, wheel in levels if cpu.is_baseline]
        # a variant of the baseline alongside the plain wheel is one wheel under two names
        base = [wheel for wheel in plain if wheel.label is None] or plain
        others = [*((cpu, wheel) for cpu, wheel in levels if not cpu.is_baseline), *added]
        if not base:
            levels_found = ", ".join(str(cpu) for cpu, _ in others)
            raise RepackageError(
                f"{wheels[0].path.name}: found {levels_found} and no plain wheel of this tag; expected one"
            )
        for of_level in (base, *([wheel for cpu, wheel in others if cpu.level == level] for level in LEVELS)):
            if len(of_level) > 1:
                names = " and ".join(wheel.path.name for wheel in of_level)
                raise RepackageError(f"{names}: two wheels of one level; expected one")
        if refused := next((cpu for cpu, _ in added if cpu.machine != "x86_64" or cpu.is_baseline), None):
            raise RepackageError(f"{refused}: no level that glibc has a folder for; expected x86-64-v2, -v3 or -v4")
        for cpu, wheel in added:
            stated = _level_of(wheel)
            if wheel.properties and stated != cpu:
                raise RepackageError(f"{wheel.path.name}: a variant of {stated}; expected {cpu}, as which it is added")
        if others:
            _check_platform(base[0])
        ordered = tuple(sorted(others, key=lambda pair: pair[0].rank))
        return cls(base[0], ordered, tuple(wheel for _, wheel in added), notes)


def _check_alike(like: OfferedWheel, wheel: OfferedWheel) -> None:
    if (expected := _release(like)) != (release := _release(wheel)):
        fault = f"found {' '.join(release)}; expected {' '.join(expected)}, as {like.path.name} is"
        raise RepackageError(f"{wheel.path.name}: {fault}")
    if like.tag != wheel.tag:
        fault = f"for {'-'.join(wheel.tag)}; expected {'-'.join(like.tag)}, as {like.path.name} is"
        raise RepackageError(f"{wheel.path.name}: {fault}")


def _check_platform(base: OfferedWheel) -> None:
    platform = base.name.platform
    if base.machine != "x86_64" or "linux" not in platform:
        raise RepackageError(
            f"{base.path.name}: for {platform}; expected Linux on x86_64, where glibc knows CPU levels"
        )
    if _without_levels(platform):
        raise RepackageError(f"{base.path.name}: for {platform}; expected glibc: musl knows no CPU levels")


def sets(offer: OfferedRelease, added: Sequence[tuple[Cpu, OfferedWheel]]) -> Iterator[JoinSet]:
    if offer.is_companion:
        yield from (JoinSet(wheel, ()) for wheel in offer.wheels)
        return
    levels = [wheel for wheel in offer.wheels if wheel.label is None or _named(wheel)]
    left_out = tuple(
        f"{wheel.path.name} is not in it: its variant is more than an x86-64 level"
        for wheel in offer.wheels
        if wheel not in levels
    )
    for tag in dict.fromkeys(wheel.tag for wheel in levels):
        of_tag = [wheel for wheel in levels if wheel.tag == tag]
        plain = [wheel for wheel in of_tag if wheel.label is None]
        if (where := _without_levels(tag[2])) and len(plain) == 1:
            notes = (f"{plain[0].path.name} stays as it is: {where} no CPU levels",) if len(of_tag) > 1 else ()
            yield JoinSet(plain[0], (), notes=notes)
            continue
        # the platforms may differ
        fitting = [
            (cpu, wheel)
            for cpu, wheel in added
            if (_release(wheel), wheel.tag[:2]) == (_release(of_tag[0]), tag[:2])
            and wheel.machine == of_tag[0].machine == "x86_64"
        ]
        yield JoinSet.of(of_tag, fitting, notes=left_out)


def _without_levels(platform: str) -> str | None:
    """Who finds no libraries by CPU level on *platform*, with its verb; None for glibc."""
    if "linux" not in platform and platform != "any":
        return "Windows and macOS know"
    return "musl knows" if "musllinux" in platform and "manylinux" not in platform else None


def _named(wheel: OfferedWheel) -> Cpu | None:
    """The x86-64 level of *wheel*, or None if it needs more than a level."""
    if len(wheel.properties) > 1:
        return None
    level = Cpu.of_property(str(wheel.properties[0])) if wheel.properties else BASELINE
    return level if level and level.machine == "x86_64" else None


def _level_of(wheel: OfferedWheel) -> Cpu:
    if (level := _named(wheel)) is None:
        properties = ", ".join(map(str, wheel.properties))
        raise RepackageError(f"{wheel.path.name}: a variant of {properties}; expected x86-64 levels, and nothing else")
    return level


def _release(wheel: OfferedWheel) -> tuple[str, str]:
    return wheel.name.project, wheel.name.normalised().version


# of one wheel, or over one wheel's RECORD
_LEFT = ("RECORD", "RECORD.jws", "RECORD.p7s", VARIANT_JSON)


@contextmanager
def opened_join(join_set: JoinSet, *, allow: Sequence[str] = ()) -> Iterator["JoinedWheel"]:
    if not join_set.others:
        yield JoinedWheel(join_set, None)
        return
    pairs = ((BASELINE, join_set.base), *join_set.others)
    same = frozenset.intersection(*(frozenset(row.hash for row in offered.rows) for _, offered in pairs))
    try:
        patterns = tuple(map(re.compile, allow))
    except re.error as error:
        raise RepackageError(f"allow: {error.pattern!r} is not a regular expression: {error}") from error
    with ExitStack() as stack:
        judge = Judge(patterns, stack.enter_context(processes()))
        wheels = [stack.enter_context(offered.opened()) for _, offered in pairs]
        added = [offered in join_set.added for _, offered in pairs]
        with ThreadPoolExecutor(available_cores()) as pool:
            reading = [
                pool.submit(LevelBuild.of, cpu, offered, wheel, is_added=is_added, same=same)
                for (cpu, offered), wheel, is_added in zip(pairs, wheels, added, strict=True)
            ]
            base, *others = [future.result() for future in reading]
        yield JoinedWheel(join_set, Join(base, others, judge))


class JoinedWheel(Struct, frozen=True):
    set: JoinSet
    join: Join | None

    def outputs(self) -> Iterator[LinkedFile | NewWheel]:
        """The joined wheel, and the plain one if there is nothing to join, or for older systems."""
        base = self.set.base
        wheel = self.wheel()
        is_same = not self.families
        if is_same or wheel.name.platform != base.name.platform:
            yield LinkedFile(PurePosixPath(base.path.name), base.path)
        if not is_same:
            yield wheel

    @property
    def families(self) -> tuple[LevelFamily, ...]:
        return tuple(self.join.families.values()) if self.join else ()

    def wheel(self) -> NewWheel:
        name = self._name()
        return NewWheel(PurePosixPath(), name, self.set.base.path, tuple(self._members(name)))

    def _members(self, name: WheelName) -> Iterator[Member]:
        base, join = self.set.base, self.join
        families = join.families if join else {}
        left_out = {f"{base.dist_info}/{file}" for file in _LEFT}
        for path in (row.path for row in base.rows if row.path not in left_out):
            if join and (family := families.get(installed_path(path) or "")):
                yield from family_members(join, family)
            elif path == f"{base.dist_info}/WHEEL" and name != base.name.plain():
                build, tags = [name.build] if name.build else [], sorted(map(str, name.tags))
                wheel_file = base.wheel_file.replacing("Build", build).replacing("Tag", tags)
                yield Put(path, str(wheel_file).encode())
            else:
                yield Copied(base.path, path, path)
        # the files that copies need and the baseline lacks; of equal ones at one path the first is taken
        if not join:
            return
        further: dict[str, LevelFile] = {}
        for file in (file for copy in self._copies for file in join.further(copy)):
            if (first := further.setdefault(file.path, file)) is file:
                soname = file.piece.loading.outline.soname
                yield _placed(join, file, file.path, soname=soname, root=_root(file))
            elif not first.is_same(file):
                fault = f"another library than that of {first.build}, and the plain wheel has none"
                raise RepackageError(f"{file}: {fault}")

    @property
    def _copies(self) -> tuple[LevelFile, ...]:
        return tuple(copy for family in self.families for copy in family.copies)

    def _name(self) -> WheelName:
        name = self.set.base.name.plain()
        added = [copy for copy in self._copies if copy.build.is_added]
        newer: list[tuple[tuple[int, int], str]] = []
        for copy in added:
            libraries = {edge.name for edge, _ in self.join.leads(copy)} if self.join else set()
            if not (fault := platform_fault(copy, platforms_in(self.set.base.name.platform), own=libraries)):
                continue
            offered = copy.build.offered
            platforms = platforms_in(offered.name.platform)
            glibcs = [platform.glibc for platform in platforms if platform.promises and platform.glibc]
            if len(glibcs) < len(platforms) or platform_fault(copy, platforms, own=libraries):
                raise RepackageError(f"{copy}: {fault}; expected a wheel with a tag that does: repair it")
            newer.append((min(glibcs), offered.name.platform))
        if newer:
            return replace(name, platform=max(newer)[1])
        if added:
            order = name.build_order
            return replace(name, build=str(order[0] + 1 if order else 1))
        return name

    def notes(self) -> Iterator[str]:
        if not (join := self.join):
            return
        name = self._name()
        paths_of: dict[str, list[str]] = {}
        for family in self.families:
            levels = ", ".join(copy.build.level for copy in family.copies)
            paths_of.setdefault(levels, []).append(family.base.path)
        for levels, paths in paths_of.items():
            yield f"{name}: copies for {levels} of {shown(paths)}"
        if same := ", ".join(build.level for build in join.others if not self._is_taken(build)):
            yield f"{name}: no copies for {same}: the same as the level below"
        if name.build != self.set.base.name.build:
            yield f"{name}: has the build tag {name.build}, by which installers prefer it to the wheel that is out"
        if name.platform != self.set.base.name.platform:
            yield f"{name}: needs a newer system than {self.set.base.path.name}, which is for the others: publish both"
        yield from join.notes

    def _is_taken(self, build: LevelBuild) -> bool:
        return any(copy.build is build for copy in self._copies)

    def check_added(self) -> None:
        """Refuse an added wheel of which nothing can be taken."""
        if not self.join:
            return
        for build in self.join.others:
            # this first: notes name what is left out then
            is_taken = self._is_taken(build)
            begin = f"not taken from {build}: "
            left = [note.removeprefix(begin) for note in self.join.notes if note.startswith(begin)]
            if build.is_added and left and not is_taken:
                more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
                raise RepackageError(f"{build}: nothing of it can be joined: {left[-1]}{more}")


_USE = "With pip and with uv, which know nothing of levels; what else is required comes from the index that they have:"
_OLDER = "glibc before 2.33, and musl, load the baseline's copies: as fast as the plain wheel, no faster"
_DEBUG = "LD_DEBUG=libs shows which file the loader took; GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2 takes the lower level's"


class Hwcaps(Struct, frozen=True):
    """The layout; *added* wheels, each of a level, are joined as well."""

    added: tuple[tuple[Cpu, Path], ...] = ()
    url: str | None = None
    name: str = "hwcaps"

    def plan(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        added = [(cpu, OfferedWheel.of(path)) for cpu, path in self.added]
        join_sets = [join_set for offer in offers for join_set in sets(offer, added)]
        taken = {offered.path for join_set in join_sets for _, offered in join_set.others}
        if lost := next((offered for _, offered in added if offered.path not in taken), None):
            tags = ", ".join(sorted({"-".join(join_set.base.tag) for join_set in join_sets})) or "none"
            raise RepackageError(
                f"{lost.path.name}: no plain wheel of its release, Python and ABI to add it to; found: {tags}"
            )
        if not any(join_set.others for join_set in join_sets):
            raise RepackageError("found no wheel of an x86-64 level above the baseline; expected some to join")
        outputs: list[LinkedFile | NewWheel] = []
        notes: dict[str, None] = {}
        for join_set in join_sets:
            with opened_join(join_set) as joined_wheel:
                joined_wheel.check_added()
                outputs += joined_wheel.outputs()
                notes |= dict.fromkeys((*join_set.notes, *joined_wheel.notes()))
        index = SimpleIndex(PurePosixPath("simple"), tuple(output.target for output in outputs))
        pins = exact_pins([offer for offer in offers if not offer.is_companion])
        commands = install_commands(pins, url=self.url, has_rivals=True)
        uses = (ConsumerUse(_USE, commands),) if pins else ()
        return PublishPlan(self.name, (*outputs, index), uses, (*notes, _OLDER, _DEBUG))


def joined(wheels: Sequence[OfferedWheel], *, allow: Sequence[str] = ()) -> NewWheel:
    with opened_join(JoinSet.of(wheels), allow=allow) as joined_wheel:
        return joined_wheel.wheel()


_problem = partial(layout_problem, "hwcaps")


def problems(folder: Path) -> Iterator[Finding]:
    wheels: list[OfferedWheel] = []
    yield from wheels_in(folder, wheels)
    if not wheels:
        yield _problem(PublishRule.ARCHIVE, folder.name, "has no wheel")
    for offered in wheels:
        try:
            with open_wheel(offered.path, check=True) as wheel:
                check = _WheelCheck(WheelReader(lambda *_: None).read(wheel))
                faults = [f"{path}: {fault}" for path, fault in check.problems()]
        except VbuildError as error:
            faults = [str(error).removeprefix(f"{offered.path.name}: ")]
        yield from (_problem(PublishRule.LEVELS, offered.path.name, fault) for fault in faults)
    yield from index_problems(folder)


@dataclass(frozen=True, eq=False)
class _WheelCheck:
    """Each problem is a path and a text."""

    bundle: Bundle

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from self.strangers()
        yield from self.copies()
        yield from self.bases()
        yield from self.stubs()
        yield from self.lost()

    def strangers(self) -> Iterator[tuple[str, str]]:
        """The files in folders for levels that the loader cannot take, or does not look for."""
        for member in self.bundle.wheel.members:
            path = installed_path(member.path) or member.path
            if GLIBC_HWCAPS not in path.split("/")[:-1]:
                continue
            if level_of(path) is None:
                yield path, UNKNOWN_FOLDER
            elif path not in self.bundle.binaries:
                yield path, self.bundle.damaged.get(member.path, "no library")

    def copies(self) -> Iterator[tuple[str, str]]:
        for path, piece in self.bundle.binaries.items():
            if (level := level_of(path)) is None:
                continue
            base = self.bundle.binaries.get(baseline_of(path))
            if base is None:
                yield path, missing_base(baseline_of(path))
                continue
            sonames = (piece.loading.outline.soname, base.loading.outline.soname)
            if fault := soname_fault(*sonames, where=base.path):
                yield path, fault
            # needed by a library of the wheel, or by the stub that leads to it
            users = {edge.consumer for edge in self.bundle.graph.consumers(base.path)}
            is_needed = any(user not in self._leading or self.bundle.graph.consumers(user) for user in users)
            symbols = self._interface(path).lacking(self._interface(base.path))
            if lacking := missed(symbols, base, self._taken, is_needed=is_needed):
                yield path, f"exports no {lacking[0]}, which {base.path} does"
            # the libraries of the wheel that the base finds, and its copy does not
            edges = {edge.name: edge for edge in self.bundle.graph.needs(path)}
            for edge in self.bundle.graph.needs(base.path):
                copy_edge = edges.get(edge.name)
                if copy_edge and edge.via in OWN_LIBRARY and not _is_found(copy_edge):
                    yield path, f"{edge.name} is not found from there; {base.path} finds {edge.provider}"
            for edge in edges.values():
                if edge.via is Via.MISSING:
                    yield path, f"{edge.name} is missing"
            yield from self._above(path, Cpu("x86_64", level), base.path)

    @cached_property
    def _taken(self) -> frozenset[Versioned]:
        return with_and_without_versions(map(self._interface, self.bundle.binaries))

    def _above(self, path: str, cpu: Cpu, other: str) -> Iterator[tuple[str, str]]:
        """The code at *path* that is above *cpu*, unless that at *other* has it too."""
        elf = self._elf(other)
        levels = Levels({"code": self._elf(path)}, Claim(cpu, is_explicit=True), baseline=lambda _: elf)
        for _, findings in levels.verdicts():
            yield from ((path, finding.what) for finding in findings if finding.severity is Severity.ERROR)

    def bases(self) -> Iterator[tuple[str, str]]:
        for path, copy in self._lowest.items():
            level = str(level_of(copy))
            needed, copy_needed = (self.bundle.binaries[file].loading.outline.needed for file in (path, copy))
            with self._mapped(path) as data, self._mapped(copy) as copy_data:
                if needed == copy_needed and digest(data) == digest(copy_data):
                    yield path, f"the same code as its copy for {level}"
            yield from self._above(path, Cpu("x86_64", level), copy)

    @cached_property
    def _lowest(self) -> dict[str, str]:
        """The libraries that have copies, each with that of the lowest level."""
        pieces = self.bundle.binaries
        copies = sorted(((level_of(path) or "", path) for path in pieces), reverse=True)
        return {baseline_of(path): path for level, path in copies if level and baseline_of(path) in pieces}

    def stubs(self) -> Iterator[tuple[str, str]]:
        for path, edge in self._leading.items():
            elf = self._elf(path)
            if elf.code or elf.objects or elf.functions:
                yield path, f"leads to {edge.name}, and has code or symbols of its own; expected none"
            if not _is_found(edge):
                yield path, f"{edge.name} is not found from there"
                continue
            modules = self.bundle.binaries[str(edge.provider)].loading.modules
            name = path.rpartition("/")[2].partition(".")[0]
            if modules and name not in modules:
                yield path, f"leads to the module {modules[0]}; expected {name}"

    def lost(self) -> Iterator[tuple[str, str]]:
        # a stub that does not find its library has a finding of its own
        led_to = {edge.provider if _is_found(edge) else edge.name for edge in self._leading.values()}
        for path, piece in self.bundle.binaries.items():
            if not piece.name.startswith(MOVED) or GLIBC_HWCAPS in path.split("/"):
                continue
            if led_to.isdisjoint({path, piece.name}):
                yield path, "no stub leads to it"
            elif path not in self._lowest:
                yield path, "no copy for any level"

    @cached_property
    def _leading(self) -> dict[str, Edge]:
        """The stubs, each with its NEEDED."""
        return {
            edge.consumer: edge
            for edge in self.bundle.graph.edges
            if edge.name.startswith(MOVED) and level_of(edge.consumer) is None
        }

    def _interface(self, path: str) -> Interface:
        with self._mapped(path) as data:
            return Interface.parse(data)

    def _elf(self, path: str) -> Elf:
        with self._mapped(path) as data:
            return Elf.parse(data)

    @contextmanager
    def _mapped(self, path: str) -> Iterator[memoryview]:
        with self.bundle.wheel.mapped(self.bundle.binaries[path].member) as data, at(path):
            yield data


def _is_found(edge: Edge) -> bool:
    return edge.via in OWN_LIBRARY and edge.provider is not None
