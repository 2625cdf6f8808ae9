"""What a wheel requires once its libraries are elsewhere: a line for each official wheel that its files load.

exact        nvidia-cufft-cu12==11.2.1.3
compatible   cuda-toolkit[cufft,curand]==12.4.*    the toolkit release that has this version, or its major
             nvidia-nccl-cu12>=2.27.5,<3           for what is no part of a toolkit
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from packaging.version import Version

from vbuild.elf.catalogue import by_soname
from vbuild.errors import RepackageError
from vbuild.splitting.neighbours import Neighbour
from vbuild.splitting.official import Officials, OfficialWheel
from vbuild.splitting.orders import PatchOrder
from vbuild.splitting.request import OfficialPin, SplitRequest
from vbuild.splitting.requirements import compatible, compatible_alone, exact, required
from vbuild.wheel.metadata import Metadata


class Pinning(Struct, frozen=True):
    """Writes requirements as *request* wants them, for wheels of one *machine*."""

    request: SplitRequest
    officials: Officials
    machine: str

    def lines(self, orders: Iterable[PatchOrder], metadata: Metadata) -> tuple[str, ...]:
        """The lines for all that *orders* ask for, and that *metadata* does not require yet.

        `RepackageError` where that is of several CUDA majors, and nothing says which.
        """
        found = list(orders)
        replaced = dict.fromkeys(wheel for order in found for wheel in order.official)
        beside = dict.fromkeys(neighbour for order in found for neighbour in order.neighbours if neighbour.wheel)
        new = self._of_one_cuda([one for one in beside if not self._is_required(one, metadata)])
        toolkits: dict[str, set[str]] = {}
        if self._is_exact(OfficialPin.EXACT):
            lines = [self.exactly(wheel.project, wheel.version) for wheel in replaced]
        else:
            lines = [*self._compatible(replaced, toolkits)]
        return tuple(dict.fromkeys([*lines, *self._of_neighbours(new, toolkits)]))

    def _compatible(self, wheels: Iterable[OfficialWheel], toolkits: dict[str, set[str]]) -> Iterator[str]:
        """Put those of *wheels* that one minor version of the toolkit has into *toolkits*, and give lines for others.

        Two minor versions cannot be required together, so one is chosen that has most of them.
        """
        extras = {wheel: _extra(wheel) for wheel in wheels}
        minors = {
            wheel: self.officials.toolkits(wheel.project, wheel.version, extra) if extra else ()
            for wheel, extra in extras.items()
        }
        counts = Counter(minor for several in minors.values() for minor in several)
        best = max(counts, key=lambda minor: (counts[minor], Version(minor)), default="")
        for wheel, extra in extras.items():
            if extra and best in minors[wheel]:
                toolkits.setdefault(best, set()).add(extra)
            else:
                yield compatible_alone(wheel.project, wheel.version, machine=self.machine)

    def _of_one_cuda(self, neighbours: Sequence[Neighbour]) -> list[Neighbour]:
        """Those of *neighbours* that can be installed together: of the CUDA major asked for, where there are several.

        A wheel with a library for each CUDA loads one of them, and RPATHs lead to all.
        """
        majors = {one.entry.cuda for one in neighbours if one.entry and one.entry.cuda}
        if len(majors) < 2:  # noqa: PLR2004 - nothing to choose from
            return [*neighbours]
        if not self.request.cuda:
            several = " and ".join(map(str, sorted(majors)))
            raise RepackageError(f"needs libraries of CUDA {several}; say with --cuda which of them it is to require")
        return [one for one in neighbours if not one.entry or one.entry.cuda in {None, self.request.cuda[0]}]

    def _is_required(self, neighbour: Neighbour, metadata: Metadata) -> bool:
        extra, cuda = (neighbour.entry.extra, neighbour.entry.cuda) if neighbour.entry else (None, None)
        found = required(metadata, neighbour.project, machine=self.machine, extra=extra, cuda=cuda)
        return found is not None

    def exactly(self, project: str, version: str) -> str:
        """The line for just that release."""
        return exact(project, version, machine=self.machine)

    def _is_exact(self, default: OfficialPin) -> bool:
        return (self.request.pin or default) is OfficialPin.EXACT

    def _of_neighbours(self, neighbours: Iterable[Neighbour], toolkits: dict[str, set[str]]) -> Iterator[str]:
        for neighbour in neighbours:
            wheel, entry = neighbour.wheel, neighbour.entry
            if wheel is None or entry is None:
                continue
            if self._is_exact(OfficialPin.COMPATIBLE):
                yield self.exactly(wheel.project, wheel.version)
            elif entry.extra and entry.cuda and entry.cuda > 11:  # noqa: PLR2004 - the package begins with CUDA 12
                cuda = self.request.cuda or (entry.cuda,)
                toolkits.setdefault(".".join(map(str, cuda)), set()).add(entry.extra)
            else:
                yield compatible_alone(wheel.project, wheel.version, machine=self.machine)
        for toolkit, extras in sorted(toolkits.items()):
            yield compatible(sorted(extras), toolkit, machine=self.machine)


def _extra(wheel: OfficialWheel) -> str | None:
    """The extra of the package cuda-toolkit that stands for *wheel*."""
    for library in wheel.libraries:
        for entry in by_soname(library.soname):
            if entry.project == wheel.project:
                return entry.extra
    return None
