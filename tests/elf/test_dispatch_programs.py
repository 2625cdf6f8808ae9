"""Programs that choose code at run time, rightly and wrongly: qemu says which end by SIGILL, and the proof agrees."""

import re
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.factories.dispatch_programs import (
    EVERYTHING,
    PROCESSORS,
    DispatchLibrary,
    DispatchProgram,
    illegal,
    libraries,
    programs,
)
from tests.factories.tools import needs
from vbuild.elf.code import Elf
from vbuild.elf.dispatch import Dispatch
from vbuild.elf.isa import Isa
from vbuild.elf.reach import Doubt

# processors that tell most faults, for the sample that runs by default
_FEW = ("qemu64", "Nehalem", "SandyBridge")
_MOST_ALARMS = 0.02

pytestmark = [needs("gcc"), needs("g++"), needs("qemu-x86_64")]


def suspected(library: DispatchLibrary) -> dict[int, bool]:
    """The numbers of the programs in *library* with a violation, and whether only what a field holds is in doubt."""
    paths = [path for path in (library.path, library.other) if path]
    elves = {str(path): Elf.parse(path.read_bytes()) for path in paths}
    dispatch = Dispatch({path: (elf, Isa.scan(elf)) for path, elf in elves.items()})
    named = Elf.parse(library.named.read_bytes()).functions
    found: dict[int, bool] = {}
    for one in dispatch.judged(str(library.path), 0):
        if one.reason is None:
            address = one.isa.region.address
            names = next((symbol.names for symbol in named if symbol.address <= address < symbol.end), one.way)
            number = re.match(r"(?:fast|run|upper|more)(\d+)", names[0])
            assert number, (names, one.way)
            found[int(number[1])] = one.doubt == Doubt.KEPT and found.get(int(number[1]), True)
    return found


def wrong(
    programs: Iterable[DispatchProgram], folder: Path, seed: int, processors: Iterable[str]
) -> tuple[list[str], list[str]]:
    """The programs that fail and pass the proof, and those that work and do not pass it."""
    chosen = tuple(programs)
    built = tuple(libraries(chosen, folder, seed))
    ends = [illegal(built, folder, processor) for processor in processors]
    fails = {number for end in ends for number, how in end.items() if how == signal.SIGILL}
    assert signal.SIGILL not in illegal(built, folder, EVERYTHING).values()
    alarms = {number: is_field for library in built for number, is_field in suspected(library).items()}
    passes = [str(program) for program in chosen if program.number in fails - alarms.keys()]
    # a field that several types have is no error, but a warning, which is true
    surely = {number for number, is_field in alarms.items() if not is_field}
    return passes, [str(program) for program in chosen if program.number in surely - fails]


def test_no_program_that_fails_passes(tmp_path: Path) -> None:
    passes, alarms = wrong(programs(60, 5), tmp_path, 5, _FEW)
    assert passes == []
    assert len(alarms) <= 1, alarms


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [11, 12])
def test_no_program_of_many_that_fails_passes(tmp_path: Path, seed: int) -> None:
    count = 300
    passes, alarms = wrong(programs(count, seed), tmp_path, seed, PROCESSORS)
    assert passes == []
    assert len(alarms) <= _MOST_ALARMS * count, alarms
