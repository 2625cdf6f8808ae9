"""The layout hwcaps: one plain wheel for all CPU levels; glibc chooses among the copies of a library in it.

    plain wheel, v3's, v4's, of one Python and platform -> one wheel that every installer takes
    demo/_c.so                                          a stub without code, if the module differs
    demo.libs/libvb__c-1a2b3c4d.so                      what every x86-64 processor runs, glibc before 2.33, and musl
    demo.libs/glibc-hwcaps/x86-64-v3/libvb__c-…so       what processors of level v3 run

    release -> JoinSet, one for each tag: the plain wheel, other levels' lowest first, and what is added
    JoinSet -> JoinedWheel -> NewWheel: members, name, size and notes

Files that are the same at two levels exist once. If a wheel that was built elsewhere is added to a published one, the
join gets a build tag, by which installers prefer it; if its copies need a newer system than the old wheel's tags
promise, it gets the tag of the wheel that they are from, and the old wheel stays.
https://man7.org/linux/man-pages/man8/ld.so.8.html (glibc-hwcaps)
https://packaging.python.org/en/latest/specifications/binary-distribution-format/#file-name-convention
"""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Self

from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from vbuild.dispatch.regions import processes
from vbuild.elf.catalogue import PlatformPolicy
from vbuild.elf.hwcaps_folders import LEVELS
from vbuild.errors import RepackageError
from vbuild.hardware.cpu import Cpu, available_cores
from vbuild.publishing.hwcaps.build import BASELINE, Judge, LevelBuild, LevelFile, platform_fault
from vbuild.publishing.hwcaps.join import Join, LevelFamily
from vbuild.publishing.hwcaps.places import family_members, further_members
from vbuild.publishing.lint.metadata import shown
from vbuild.publishing.model import (
    ConsumerUse,
    Copied,
    LinkedFile,
    Member,
    NewWheel,
    PublishPlan,
    Put,
    SimpleIndex,
    install_commands,
)
from vbuild.publishing.releases import OfferedRelease, OfferedWheel
from vbuild.wheel.metadata import VARIANT_JSON
from vbuild.wheel.name import WheelName
from vbuild.wheel.paths import installed_path


class JoinSet(Struct, frozen=True):
    """The wheels of one join: the plain one, and the others with their levels, lowest first; *added* are named."""

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
        """The join of *wheels*, which are of one release, and what is *added*; `RepackageError` if one cannot be."""
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
            there = ", ".join(str(cpu) for cpu, _ in others)
            raise RepackageError(f"{wheels[0].path.name}: found {there} and no plain wheel of this tag; expected one")
        for several in (base, *([wheel for cpu, wheel in others if cpu.level == level] for level in LEVELS)):
            if len(several) > 1:
                names = " and ".join(wheel.path.name for wheel in several)
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


def sets(offer: OfferedRelease, added: Sequence[tuple[Cpu, OfferedWheel]]) -> Iterator[JoinSet]:
    """The joins of a release, by tag."""
    if offer.is_companion:
        yield from (JoinSet(wheel, ()) for wheel in offer.wheels)
        return
    levels: list[OfferedWheel] = []
    left: list[OfferedWheel] = []
    for wheel in offer.wheels:
        (left if wheel.label is not None and _named(wheel) is None else levels).append(wheel)
    left_out = tuple(f"{wheel.path.name} is not in it: its variant is more than an x86-64 level" for wheel in left)
    for tag in dict.fromkeys(wheel.tag for wheel in levels):
        same = [wheel for wheel in levels if wheel.tag == tag]
        plain = [wheel for wheel in same if wheel.label is None]
        if (where := _without_levels(tag[2])) and len(plain) == 1:
            notes = (f"{plain[0].path.name} stays as it is: {where} no CPU levels",) if len(same) > 1 else ()
            yield JoinSet(plain[0], (), notes=notes)
            continue
        # the platforms may differ
        fitting = [
            (cpu, wheel)
            for cpu, wheel in added
            if (_release(wheel), wheel.tag[:2]) == (_release(same[0]), tag[:2])
            and wheel.machine == same[0].machine == "x86_64"
        ]
        yield JoinSet.of(same, fitting, notes=left_out)


def _without_levels(platform: str) -> str | None:
    """Who finds no libraries by CPU level where wheels for *platform* go, with its verb; None for glibc."""
    if "linux" not in platform and platform != "any":
        return "Windows and macOS know"
    return "musl knows" if "musllinux" in platform and "manylinux" not in platform else None


def _named(wheel: OfferedWheel) -> Cpu | None:
    """The x86-64 level that *wheel* asks for, the baseline if it asks for nothing, or None if it asks for more."""
    if len(wheel.properties) > 1:
        return None
    found = Cpu.of_property(str(wheel.properties[0])) if wheel.properties else BASELINE
    return found if found and found.machine == "x86_64" else None


def _level_of(wheel: OfferedWheel) -> Cpu:
    """The level of *wheel*; `RepackageError` if it is for more than that, or for another machine."""
    if (found := _named(wheel)) is None:
        asked = ", ".join(map(str, wheel.properties))
        raise RepackageError(f"{wheel.path.name}: a variant of {asked}; expected x86-64 levels, and nothing else")
    return found


def _release(wheel: OfferedWheel) -> tuple[str, str]:
    return wheel.name.project, wheel.name.normalised().version


def _check_alike(one: OfferedWheel, other: OfferedWheel) -> None:
    if _release(one) != _release(other):
        found, expected = (" ".join(_release(wheel)) for wheel in (other, one))
        raise RepackageError(f"{other.path.name}: found {found}; expected {expected}, as {one.path.name} is")
    if one.tag != other.tag:
        found, expected = ("-".join(wheel.tag) for wheel in (other, one))
        raise RepackageError(f"{other.path.name}: for {found}; expected {expected}, as {one.path.name} is")


def _check_platform(base: OfferedWheel) -> None:
    platform = base.name.platform
    if base.machine != "x86_64" or "linux" not in platform:
        raise RepackageError(
            f"{base.path.name}: for {platform}; expected Linux on x86_64, where glibc knows CPU levels"
        )
    if "musllinux" in platform and "manylinux" not in platform:
        raise RepackageError(f"{base.path.name}: for {platform}; expected glibc: musl knows no CPU levels")


# of one wheel, or over one wheel's RECORD
_LEFT = ("RECORD", "RECORD.jws", "RECORD.p7s", VARIANT_JSON)
_SHOWN = 4


@contextmanager
def opened_join(one: JoinSet, *, allow: Sequence[str]) -> Iterator["JoinedWheel"]:
    """The join of *one*, its wheels open."""
    if not one.others:
        yield JoinedWheel(one, None)
        return
    pairs = ((BASELINE, one.base), *one.others)
    same = frozenset.intersection(*(frozenset(row.hash for row in offered.rows) for _, offered in pairs))
    try:
        judge = Judge(tuple(map(re.compile, allow)))
    except re.error as error:
        raise RepackageError(f"allow: {error.pattern!r} is not a regular expression: {error}") from error
    with ExitStack() as stack:
        judge = replace(judge, executor=stack.enter_context(processes()))
        wheels = [stack.enter_context(offered.opened()) for _, offered in pairs]
        added = [offered in one.added for _, offered in pairs]
        with ThreadPoolExecutor(available_cores()) as pool:
            reading = [
                pool.submit(LevelBuild.of, cpu, offered, wheel, is_added=is_added, same=same)
                for (cpu, offered), wheel, is_added in zip(pairs, wheels, added, strict=True)
            ]
            base, *others = [future.result() for future in reading]
        yield JoinedWheel(one, Join(base, others, judge))


class JoinedWheel(Struct, frozen=True):
    """What a set of wheels comes to; *join* is None for one wheel alone."""

    set: JoinSet
    join: Join | None

    def outputs(self) -> Iterator[LinkedFile | NewWheel]:
        """The joined wheel; the plain one as it is if there is nothing to join, or for older systems."""
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
        base = self.set.base
        if not self.families:
            name = base.name.plain()
            return NewWheel(PurePosixPath(), name, base.path, tuple(self._rest(name)))
        name = self._name()
        further = further_members(self.join, self.families) if self.join else ()
        return NewWheel(PurePosixPath(), name, base.path, (*self._rest(name), *further))

    def _rest(self, name: WheelName) -> Iterator[Member]:
        """The members of the baseline's wheel in their order; copies behind what they stand alongside."""
        base = self.set.base
        families = self.join.families if self.join else {}
        for row in base.rows:
            path = row.path
            if path in {f"{base.dist_info}/{file}" for file in _LEFT}:
                continue
            if self.join and (family := families.get(installed_path(path) or "")):
                yield from family_members(self.join, family)
            elif path == f"{base.dist_info}/WHEEL" and name != base.name.plain():
                build, tags = [name.build] if name.build else [], sorted(map(str, name.tags))
                wheel_file = base.wheel_file.replacing("Build", build).replacing("Tag", tags)
                yield Put(path, str(wheel_file).encode())
            else:
                yield Copied(base.path, path, path)

    def _name(self) -> WheelName:
        """The name of the joined wheel: that of the plain one, or one that may be published alongside it."""
        name = self.set.base.name.plain()
        if platform := self._newer_platform():
            return replace(name, platform=platform)
        if any(copy.build.is_added for family in self.families for copy in family.copies):
            order = name.build_order
            return replace(name, build=str(order[0] + 1 if order else 1))
        return name

    def _newer_platform(self) -> str | None:
        """The tag of the added wheel that needs the newest system, where the plain wheel's promises too little."""
        found: list[tuple[tuple[int, int], str]] = []
        for copy in (copy for family in self.families for copy in family.copies if copy.build.is_added):
            if not (fault := self._platform_fault(copy, self.set.base)):
                continue
            offered = copy.build.offered
            own = _platforms(offered)
            if not all(platform.promises and platform.glibc for platform in own) or self._platform_fault(copy, offered):
                what = f"{fault}; expected a wheel with a tag that does: repair it"
                raise RepackageError(f"{copy}: {what}")
            found.append((min(platform.glibc for platform in own if platform.glibc), offered.name.platform))
        return max(found)[1] if found else None

    def _platform_fault(self, copy: LevelFile, offered: OfferedWheel) -> str | None:
        join = self.join
        names = {edge.name for edge, _ in join.leads(copy)} if join else set()
        return platform_fault(copy, _platforms(offered), own=lambda name: name in names)

    def notes(self) -> Iterator[str]:
        """What a publisher should know."""
        if not self.join:
            return
        join, name = self.join, self._name() if self.families else self.set.base.name.plain()
        copied: dict[str, list[str]] = {}
        for family in self.families:
            levels = ", ".join(copy.build.level for copy in family.copies)
            copied.setdefault(levels, []).append(family.base.path)
        for levels, paths in copied.items():
            yield f"{name}: copies for {levels} of {shown(paths)}"
        if same := ", ".join(build.level for build in join.others if not self._taken(build)):
            yield f"{name}: no copies for {same}: the same as the level below"
        if name.build != self.set.base.name.build:
            yield f"{name}: has the build tag {name.build}, by which installers prefer it to the wheel that is out"
        if name.platform != self.set.base.name.platform:
            yield f"{name}: needs a newer system than {self.set.base.path.name}, which is for the others: publish both"
        yield from join.notes

    def _taken(self, build: LevelBuild) -> list[str]:
        """What of *build* is in the joined wheel, by the plain wheel's paths."""
        return [family.base.path for family in self.families for copy in family.copies if copy.build is build]

    def check_added(self) -> None:
        """`RepackageError` if a wheel was added and nothing of it can be taken, with the first reason."""
        if not self.join:
            return
        for build in self.join.others:
            # taken first: what is left is known then
            is_taken = bool(self._taken(build))
            begin = f"not taken from {build}: "
            left = [note.removeprefix(begin) for note in self.join.notes if note.startswith(begin)]
            if build.is_added and left and not is_taken:
                more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
                raise RepackageError(f"{build}: nothing of it can be joined: {left[-1]}{more}")

    def check_size(self, most: int | None) -> None:
        """`RepackageError` if the joined wheel would take more than *most* bytes, with what takes them."""
        if most is None:
            return
        parts = {"the plain wheel": self.set.base.size}
        parts |= {
            f"{copy.build.cpu}'s {family.base.path}": copy.build.member(copy.path).compressed_size
            for family in self.families
            for copy in family.copies
        }
        if (size := sum(parts.values())) > most:
            largest = sorted(parts.items(), key=lambda part: -part[1])[:_SHOWN]
            listing = ", ".join(f"{what} {number}" for what, number in largest)
            raise RepackageError(f"{self.set.base.path.name}: {size} bytes joined, expected {most} at most: {listing}")


def _platforms(offered: OfferedWheel) -> tuple[PlatformPolicy, ...]:
    return tuple(platform for tag in offered.name.platform.split(".") if (platform := PlatformPolicy.parse(tag)))


_OLDER = "glibc before 2.33, and musl, load the baseline's copies: as fast as the plain wheel, no faster"
_DEBUG = "LD_DEBUG=libs shows which file the loader took; GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2 takes the lower level's"


class Hwcaps(Struct, frozen=True):
    """The layout; joined wheels have *max_size* bytes at most, and *added* wheels, each of a level, are joined as well.

    *url* is where its folder will be served. Functions and paths that the regular expressions *allow* find may have
    instructions above their level.
    """

    max_size: int | None = None
    added: tuple[tuple[Cpu, Path], ...] = ()
    url: str | None = None
    allow: tuple[str, ...] = ()
    name: str = "hwcaps"

    def planned(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        """For each tag the join of its wheels; other plain wheels, and those of other releases, as they are."""
        added = [(cpu, OfferedWheel.of(path)) for cpu, path in self.added]
        found = [one for offer in offers for one in sets(offer, added)]
        taken = {offered.path for one in found for _, offered in one.others}
        if lost := next((offered for _, offered in added if offered.path not in taken), None):
            tags = ", ".join(sorted({"-".join(one.base.tag) for one in found})) or "none"
            raise RepackageError(
                f"{lost.path.name}: no plain wheel of its release, Python and ABI to add it to; found: {tags}"
            )
        if not any(one.others for one in found):
            raise RepackageError("found no wheel of an x86-64 level above the baseline; expected some to join")
        outputs: list[LinkedFile | NewWheel] = []
        notes: dict[str, None] = {}
        for one in found:
            with opened_join(one, allow=self.allow) as joins:
                joins.check_added()
                joins.check_size(self.max_size)
                outputs += joins.outputs()
                notes |= dict.fromkeys((*one.notes, *joins.notes()))
        files = tuple(output.target for output in outputs)
        index = SimpleIndex(PurePosixPath("simple"), files)
        return PublishPlan(self.name, (*outputs, index), tuple(self._uses(offers)), (*notes, _OLDER, _DEBUG))

    def _uses(self, offers: Sequence[OfferedRelease]) -> Iterator[ConsumerUse]:
        ordered = sorted(offers, key=lambda offer: Version(offer.version))
        latest = {offer.project: offer.version for offer in ordered if not offer.is_companion}
        if wanted := " ".join(f"{project}=={version}" for project, version in sorted(latest.items())):
            yield ConsumerUse(
                "With pip and with uv, which know nothing of levels; what else is required comes from the index that "
                "they have:",
                install_commands(wanted, url=self.url, has_rivals=True),
            )


def joined(wheels: Sequence[OfferedWheel], *, max_size: int | None = None, allow: Sequence[str] = ()) -> NewWheel:
    """The plain wheel that *wheels* come to: the plain one and those of x86-64 levels, of one release and one tag.

    `RepackageError` if they do not fit together, or the wheel would take more than *max_size* bytes.
    """
    one = JoinSet.of(wheels)
    with opened_join(one, allow=tuple(allow)) as found:
        found.check_size(max_size)
        return found.wheel()
