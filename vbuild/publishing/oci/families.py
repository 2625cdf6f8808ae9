"""Which wheels become images of one index, in which order.

    demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl      cp311, x86_64     the image that every machine can run
    demo-1.0-cp311-…_x86_64-x86_64_v3.whl               cp311, x86_64     linux/amd64/v3
    demo-1.0-cp311-…_aarch64.whl                        cp311, aarch64    linux/arm64
    demo-1.0-cp312-…                                    cp312             another index

musllinux has indexes of its own: no platform says which C library an image is for.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from vbuild.errors import LayoutError, at
from vbuild.hardware.cpu import Cpu
from vbuild.publishing.oci.model import OciPlatform
from vbuild.publishing.offer import Offered, OfferedRelease

_LINUX = re.compile(r"(?P<libc>manylinux|musllinux|linux)\w*_(?P<machine>x86_64|aarch64)(\.\w+)*|any", re.ASCII)
BASELINES = {"x86_64": Cpu("x86_64", "v1"), "aarch64": Cpu("aarch64", "8a")}


class ImageGroup(Struct, frozen=True):
    """The wheels of a release for one Python and one machine, in the order that an index lists their images."""

    ref: str
    machine: str
    wheels: tuple[Offered, ...]

    @property
    def baseline(self) -> Cpu:
        return BASELINES[self.machine]

    def cpu(self, wheel: Offered) -> Cpu:
        """The lowest processors that *wheel* runs on, as its properties say."""
        return _cpu(wheel, self.machine)

    def listed(self, wheel: Offered) -> OciPlatform:
        """The platform under which an index may list *wheel*, for no client to take it that cannot run it."""
        cpu = self.cpu(wheel)
        others = {self.cpu(other) for other in self.wheels if _is_cpu_alone(other)}
        return OciPlatform.of(cpu if _is_cpu_alone(wheel) or cpu in others else self.baseline)


def groups(offer: OfferedRelease, machines: Sequence[str]) -> tuple[tuple[ImageGroup, ...], tuple[Offered, ...]]:
    """The groups of *offer*, by Python, then machine, and the wheels in none: not for Linux, or unknown machines.

    Wheels for any machine are of those *machines*, or of those that the others of their Python are for. `LayoutError`
    for two wheels of one label, or where every image of a group needs more than a baseline.
    """
    found: dict[str, list[Offered]] = {}
    for wheel in offer.wheels:
        if is_for_linux(wheel):
            found.setdefault(_ref(wheel), []).append(wheel)
    passed = tuple(wheel for wheel in offer.wheels if not is_for_linux(wheel))
    anywhere = [wheel for wheel in offer.wheels if wheel.machine is None and wheel not in passed]
    is_mixed = any(wheel.machine for wheels in found.values() for wheel in wheels)
    made = []
    for ref, wheels in sorted(found.items()):
        there = [machine for machine in BASELINES if machine in {wheel.machine for wheel in wheels}]
        if not there and is_mixed:
            continue  # it stands in for a plain wheel in the others' groups
        for machine in there or machines:
            mine = [wheel for wheel in wheels if wheel.machine in {machine, None}]
            with at(f"{offer}: {ref}, {machine}"):
                made.append(_group(ref, machine, mine, anywhere))
    return tuple(made), passed


def is_for_linux(wheel: Offered) -> bool:
    """Whether an image can hold *wheel*, by its platform tag."""
    return bool(_LINUX.fullmatch(wheel.name.platform))


def _group(ref: str, machine: str, wheels: Sequence[Offered], anywhere: Sequence[Offered]) -> ImageGroup:
    kept = _without_plain_for_any(wheels)
    if not any(_is_plain(wheel, machine) for wheel in kept):
        kept += [wheel for wheel in anywhere if wheel.label is None and "py3" in wheel.name.python.split(".")][:1]
    labels = [name_of(wheel) for wheel in kept]
    for wheel in kept:
        if labels.count(name_of(wheel)) > 1:
            twins = ", ".join(other.path.name for other in kept if name_of(other) == name_of(wheel))
            raise LayoutError(f"{twins}: an image each, and nothing to tell them apart by; give one of them")
    if not any(_is_plain(wheel, machine) for wheel in kept):
        raise LayoutError(
            f"has {', '.join(labels)}, and no plain wheel: clients that ask for no variant would find no image; "
            f"give the plain wheel"
        )
    return ImageGroup(ref, machine, tuple(sorted(kept, key=lambda wheel: _order(wheel, machine))))


def _without_plain_for_any(wheels: Sequence[Offered]) -> list[Offered]:
    """*wheels*; where plain ones are for the machine and for any, those for the machine."""
    has_own = any(wheel.label is None and wheel.machine for wheel in wheels)
    return [wheel for wheel in wheels if wheel.machine or wheel.label is not None or not has_own]


def _order(wheel: Offered, machine: str) -> tuple[int, int, str]:
    """Plain first, for clients that take the first that fits; accelerators last, the others by level from the top."""
    if wheel.label is None:
        return 0, 0, ""
    if _is_plain(wheel, machine):
        return 1, 0, wheel.label
    return (2 if _is_cpu_alone(wheel) else 3), -_cpu(wheel, machine).rank, wheel.label


def _is_plain(wheel: Offered, machine: str) -> bool:
    """Whether every machine can run it."""
    return _is_cpu_alone(wheel) and _cpu(wheel, machine).is_baseline


def _is_cpu_alone(wheel: Offered) -> bool:
    """Whether a platform can say all that it needs."""
    return all(Cpu.of_property(str(one)) for one in wheel.properties)


def _cpu(wheel: Offered, machine: str) -> Cpu:
    with at(wheel.path.name):
        named = [cpu for one in wheel.properties if (cpu := Cpu.of_property(str(one)))]
    if strange := [cpu for cpu in named if cpu.machine != machine]:
        raise LayoutError(f"{wheel.path.name}: needs {strange[0].variant_property}, and is for {machine}")
    return min(named, key=lambda cpu: cpu.rank, default=BASELINES[machine])


def name_of(wheel: Offered) -> str:
    """What the image of *wheel* is called in its family."""
    return wheel.label or "plain"


def _ref(wheel: Offered) -> str:
    """What the index of *wheel* is called: cp311, cp313t, cp311-abi3, py3, cp311-musl."""
    python, abi, _ = wheel.tag
    parts = [python] if abi in {python, "none"} else [abi] if abi == f"{python}t" else [python, abi]
    is_musl = wheel.name.platform.startswith("musllinux")
    return "-".join([*parts, "musl"] if is_musl else parts)
