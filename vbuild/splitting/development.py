"""The -dev wheels of a run: what compilers and build systems read, once for all wheels that have the same."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from vbuild.splitting.companion import Companion, dev_wheel, licence_texts
from vbuild.splitting.output import New, Output, Passed
from vbuild.splitting.outputs import Group, Kind, groups, kind_of, named_by
from vbuild.wheel.archive import Wheel
from vbuild.wheel.distinfo import Row
from vbuild.wheel.renaming import Renaming
from vbuild.wheel.zipreader import Member

# of a file that is told by its first bytes
_HEAD = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Development:
    """A -dev wheel, the *wheels* it was made from, and what is in it; *members* are those of the first."""

    companion: Companion
    wheels: tuple[Wheel, ...]
    members: tuple[Member, ...]
    groups: tuple[Group, ...]

    @property
    def output(self) -> Output:
        """What it is written of: members at their paths, those of a ``.data`` folder in the one of its own name."""
        first = self.wheels[0]
        way = Renaming(first.name, self.companion.name, first.dist_info)
        paths = ((member, way.path(member.path)) for member in self.members)
        parts: list[Passed | New] = [Passed(first, member, path) for member, path in paths if path]
        parts += (New(path, data) for path, data in self.companion.members)
        return Output(self.companion.name, first, tuple(parts))


def developments(wheels: Iterable[Wheel]) -> tuple[Development, ...]:
    """The -dev wheels of *wheels*: one for all of a release and platform that have the same files, or one for each."""
    found: dict[tuple[str, str], dict[tuple[Row, ...], list[Wheel]]] = {}
    kinds: dict[Wheel, Mapping[str, Kind]] = {}
    for wheel in wheels:
        if chosen := dict(_kinds(wheel)):
            kinds[wheel] = chosen
            contents = tuple(wheel.row(member) for member in wheel.members if member.path in chosen)
            found.setdefault((wheel.name.release, wheel.name.platform), {}).setdefault(contents, []).append(wheel)
    made = [
        _development(one, kinds[one[0]], is_only=len(alike) == 1)
        for alike in found.values()
        for several in alike.values()
        for one in ([several] if len(alike) == 1 else [[wheel] for wheel in several])
    ]
    # variants of one wheel with other files each: there is one name for what they would give away, so they keep it
    names = Counter(str(each.companion.name) for each in made)
    return tuple(each for each in made if names[str(each.companion.name)] == 1)


def _development(wheels: list[Wheel], kinds: Mapping[str, Kind], *, is_only: bool) -> Development:
    first = wheels[0]
    members = tuple(member for member in first.members if member.path in kinds)
    tag = ("py3", "none") if is_only else (first.name.python, first.name.abi)
    companion = dev_wheel(
        first.name, platform=first.name.platform, like=first.metadata(), licences=licence_texts(first), tag=tag
    )
    sizes = {member.path: member.size for member in members}
    return Development(companion, tuple(wheels), members, groups(kinds, sizes))


def _kinds(wheel: Wheel) -> Iterator[tuple[str, Kind]]:
    sources = (wheel.read(member).decode(errors="replace") for member in wheel.members if member.path.endswith(".py"))
    named = named_by(sources)
    for member in wheel.members:
        if not member.path.startswith(f"{wheel.dist_info}/"):
            kind = kind_of(member.path, wheel.head(member, _HEAD), named=named)
            if kind is not None:
                yield member.path, kind
