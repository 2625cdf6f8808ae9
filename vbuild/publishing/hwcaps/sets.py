"""Which wheels are joined: the plain one and those of x86-64 levels, of one release, one Python and one platform.

release -> one set for each tag: the plain wheel, other levels' lowest first, and what is added
"""

from collections.abc import Iterator, Sequence
from typing import Self

from msgspec import Struct

from vbuild.elf.library_names import LEVELS
from vbuild.errors import LayoutError
from vbuild.hardware.cpu import Cpu
from vbuild.publishing.hwcaps.build import BASELINE
from vbuild.publishing.offer import Offered, OfferedRelease


class JoinSet(Struct, frozen=True):
    """The wheels of one join: the plain one, and the others with their levels, lowest first; *added* are named."""

    base: Offered
    others: tuple[tuple[Cpu, Offered], ...]
    added: tuple[Offered, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, wheels: Sequence[Offered], added: Sequence[tuple[Cpu, Offered]] = (), *, notes: tuple[str, ...] = ()
    ) -> Self:
        """The join of *wheels*, which are of one release, and what is *added*; `LayoutError` where one cannot be."""
        if not wheels:
            raise LayoutError("no wheel to join; expected a plain one, and others for x86-64 levels")
        for wheel in wheels:
            _check_alike(wheels[0], wheel)
        levels = [(_level_of(wheel), wheel) for wheel in wheels]
        plain = [wheel for cpu, wheel in levels if cpu.is_baseline]
        # a variant of the baseline beside the plain wheel is one wheel under two names
        base = [wheel for wheel in plain if wheel.label is None] or plain
        others = [*((cpu, wheel) for cpu, wheel in levels if not cpu.is_baseline), *added]
        if not base:
            there = ", ".join(str(cpu) for cpu, _ in others)
            raise LayoutError(f"{wheels[0].path.name}: found {there} and no plain wheel of this tag; expected one")
        for several in (base, *([wheel for cpu, wheel in others if cpu.level == level] for level in LEVELS)):
            if len(several) > 1:
                names = " and ".join(wheel.path.name for wheel in several)
                raise LayoutError(f"{names}: two wheels of one level; expected one")
        if refused := next((cpu for cpu, _ in added if cpu.machine != "x86_64" or cpu.is_baseline), None):
            raise LayoutError(f"{refused}: no level that glibc has a folder for; expected x86-64-v2, -v3 or -v4")
        for cpu, wheel in added:
            _check_stated(cpu, wheel)
        if others:
            _check_platform(base[0])
        ordered = tuple(sorted(others, key=lambda pair: pair[0].rank))
        return cls(base[0], ordered, tuple(wheel for _, wheel in added), notes)


def sets(offer: OfferedRelease, added: Sequence[tuple[Cpu, Offered]]) -> Iterator[JoinSet]:
    """The joins of a release, by tag."""
    if offer.is_companion:
        yield from (JoinSet(wheel, ()) for wheel in offer.wheels)
        return
    levels: list[Offered] = []
    left: list[Offered] = []
    for wheel in offer.wheels:
        (left if wheel.label is not None and not _is_level(wheel) else levels).append(wheel)
    said = tuple(f"{wheel.path.name} is not in it: its variant is more than an x86-64 level" for wheel in left)
    for tag in dict.fromkeys(wheel.tag for wheel in levels):
        same = [wheel for wheel in levels if wheel.tag == tag]
        plain = [wheel for wheel in same if wheel.label is None]
        if "musllinux" in tag[2] and "manylinux" not in tag[2] and len(plain) == 1:
            notes = (f"{plain[0].path.name} stays as it is: musl knows no CPU levels",) if len(same) > 1 else ()
            yield JoinSet(plain[0], (), notes=notes)
            continue
        fitting = [(cpu, wheel) for cpu, wheel in added if _fits(wheel, same[0])]
        yield JoinSet.of(same, fitting, notes=said)


def _is_level(wheel: Offered) -> bool:
    """Whether a processor of some x86-64 level is all that the variant *wheel* asks for."""
    return len(wheel.properties) <= 1 and (not wheel.properties or _named(wheel) is not None)


def _named(wheel: Offered) -> Cpu | None:
    found = Cpu.of_property(str(wheel.properties[0])) if wheel.properties else BASELINE
    return found if found and found.machine == "x86_64" else None


def _level_of(wheel: Offered) -> Cpu:
    """The level of *wheel*; `LayoutError` where it is for more than that, or for another machine."""
    if wheel.label is not None and not _is_level(wheel):
        asked = ", ".join(map(str, wheel.properties))
        raise LayoutError(f"{wheel.path.name}: a variant of {asked}; expected x86-64 levels, and nothing else")
    return _named(wheel) or BASELINE


def _release(wheel: Offered) -> tuple[str, str]:
    return wheel.name.project, wheel.name.normalised().version


def _check_alike(one: Offered, other: Offered) -> None:
    if _release(one) != _release(other):
        found, expected = (" ".join(_release(wheel)) for wheel in (other, one))
        raise LayoutError(f"{other.path.name}: found {found}; expected {expected}, as {one.path.name} is")
    if one.tag != other.tag:
        found, expected = ("-".join(wheel.tag) for wheel in (other, one))
        raise LayoutError(f"{other.path.name}: for {found}; expected {expected}, as {one.path.name} is")


def _check_stated(cpu: Cpu, added: Offered) -> None:
    """`LayoutError` where the variant *added* as *cpu* says that it is for another one, or for more."""
    stated = _level_of(added)
    if added.properties and stated != cpu:
        raise LayoutError(f"{added.path.name}: a variant of {stated}; expected {cpu}, as which it is added")


def _fits(added: Offered, base: Offered) -> bool:
    """Whether *added* may be joined with *base*: the platforms may differ."""
    same = _release(added) == _release(base) and added.tag[:2] == base.tag[:2]
    return same and added.machine == base.machine == "x86_64"


def _check_platform(base: Offered) -> None:
    platform = base.name.platform
    if base.machine != "x86_64" or "linux" not in platform:
        raise LayoutError(f"{base.path.name}: for {platform}; expected Linux on x86_64, where glibc knows CPU levels")
    if "musllinux" in platform and "manylinux" not in platform:
        raise LayoutError(f"{base.path.name}: for {platform}; expected glibc: musl knows no CPU levels")
