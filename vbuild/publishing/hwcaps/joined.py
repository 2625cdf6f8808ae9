"""What the wheels of one set come to: the members of the joined wheel, its name, its size, and what to say of it.

    JoinSet, opened -> Joined -> NewWheel

Of wheels that are added to one that is out, the join gets a build tag, by which installers prefer it; where copies need
a newer system than the old wheel's tags promise, the tag of the wheel that they are from, and the old one stays.
https://packaging.python.org/en/latest/specifications/binary-distribution-format/#file-name-convention
"""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from vbuild.elf.disassembly import processes
from vbuild.elf.policy import PlatformPolicy
from vbuild.errors import LayoutError
from vbuild.hardware.cpu import available_cores
from vbuild.publishing.hwcaps.build import BASELINE, Judge, LevelBuild, LevelFile, platform_fault, shown
from vbuild.publishing.hwcaps.join import Join, LevelFamily
from vbuild.publishing.hwcaps.places import Placement, further_members
from vbuild.publishing.hwcaps.sets import JoinSet
from vbuild.publishing.model import Copied, LinkedFile, Member, NewWheel, Put
from vbuild.publishing.offer import Offered
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.metadata import VARIANT_JSON
from vbuild.wheel.name import WheelName
from vbuild.wheel.paths import installed_path

# of one wheel, or over one wheel's RECORD
_LEFT = ("RECORD", "RECORD.jws", "RECORD.p7s", VARIANT_JSON)
_SHOWN = 4


@contextmanager
def opened(one: JoinSet, *, allow: Sequence[str]) -> Iterator["JoinedWheel"]:
    """The join of *one*, its wheels open."""
    if not one.others:
        yield JoinedWheel(one, None)
        return
    pairs = ((BASELINE, one.base), *one.others)
    same = frozenset.intersection(*(frozenset(row.hash for row in offered.rows) for _, offered in pairs))
    judge = Judge(tuple(map(_pattern, allow)))
    with ExitStack() as stack:
        judge = replace(judge, executor=stack.enter_context(processes()))
        wheels = [stack.enter_context(open_wheel(offered.path)) for _, offered in pairs]
        added = [offered in one.added for _, offered in pairs]
        with ThreadPoolExecutor(available_cores()) as pool:
            reading = [
                pool.submit(LevelBuild.of, cpu, offered, wheel, is_added=is_added, same=same)
                for (cpu, offered), wheel, is_added in zip(pairs, wheels, added, strict=True)
            ]
            base, *others = [future.result() for future in reading]
        yield JoinedWheel(one, Join(base, others, judge))


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise LayoutError(f"allow: {text!r} is not a regular expression: {error}") from error


class JoinedWheel(Struct, frozen=True):
    """What a set of wheels comes to; *join* is None for one wheel alone."""

    set: JoinSet
    join: Join | None

    def outputs(self) -> Iterator[LinkedFile | NewWheel]:
        """The joined wheel; the plain one as it is where there is nothing to join, or for older systems."""
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
        return NewWheel(PurePosixPath(), name, base.path, (*self._rest(name), *self._further()))

    def _rest(self, name: WheelName) -> Iterator[Member]:
        """The members of the baseline's wheel in their order; copies behind what they stand beside."""
        base = self.set.base
        families = self.join.families if self.join else {}
        for row in base.rows:
            path = row.path
            if path in {f"{base.dist_info}/{file}" for file in _LEFT}:
                continue
            if self.join and (family := families.get(installed_path(path) or "")):
                yield from Placement(self.join, family).members()
            elif path == f"{base.dist_info}/WHEEL" and name != base.name.plain():
                told = base.wheel_file.with_build(name.build).with_tags(sorted(map(str, name.tags)))
                yield Put(path, str(told).encode())
            else:
                yield Copied(base.path, path, path)

    def _further(self) -> Iterator[Member]:
        if self.join:
            yield from further_members(self.join, self.families)

    def _name(self) -> WheelName:
        """The name of the joined wheel: that of the plain one, or one that may be published beside it."""
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
                raise LayoutError(f"{copy}: {what}")
            found.append((min(platform.glibc for platform in own if platform.glibc), offered.name.platform))
        return max(found)[1] if found else None

    def _platform_fault(self, copy: LevelFile, offered: Offered) -> str | None:
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
        """`LayoutError` where a wheel was added and nothing of it can be taken, with the first reason."""
        if not self.join:
            return
        for build in self.join.others:
            # taken first: what is left is known then
            is_taken = bool(self._taken(build))
            begin = f"not taken from {build}: "
            left = [note.removeprefix(begin) for note in self.join.notes if note.startswith(begin)]
            if build.is_added and left and not is_taken:
                more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
                raise LayoutError(f"{build}: nothing of it can be joined: {left[-1]}{more}")

    def check_size(self, most: int | None) -> None:
        """`LayoutError` where the joined wheel would take more than *most* bytes, with what takes them."""
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
            said = ", ".join(f"{what} {number}" for what, number in largest)
            raise LayoutError(f"{self.set.base.path.name}: {size} bytes joined, expected {most} at most: {said}")


def _platforms(offered: Offered) -> tuple[PlatformPolicy, ...]:
    return tuple(platform for tag in offered.name.platform.split(".") if (platform := PlatformPolicy.parse(tag)))
