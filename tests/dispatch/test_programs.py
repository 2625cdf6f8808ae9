"""Programs that choose code at run time, rightly and wrongly: qemu says which end by SIGILL, and the proof agrees."""

import re
import signal
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.factories.dispatch_programs import (
    DOUBTFUL,
    EVERYTHING,
    PROCESSORS,
    DispatchLibrary,
    DispatchProgram,
    illegal,
    libraries,
    programs,
)
from tests.factories.tools import needs
from vbuild.dispatch.isa import Isa
from vbuild.dispatch.judge import Dispatch
from vbuild.elf.code import Elf

# processors that tell most faults, for the sample that runs by default
_FEW = (
    "qemu64",
    "Nehalem",
    "SandyBridge",
    "Haswell,-avx2",
    "Haswell,-fma",
    "Haswell,-bmi2",
    "Haswell,-aes",
    "Haswell,-xsave",
)
_MOST_ALARMS = 0.02
_MANY = 300

pytestmark = [needs("gcc"), needs("g++"), needs("qemu-x86_64")]


class Judged(NamedTuple):
    """Programs that the proof is wrong about: those that fail and pass; those that are right and draw an alarm."""

    passes: list[str]
    alarms: list[str]


def suspected(library: DispatchLibrary) -> set[int]:
    """The numbers of the programs in *library* with a violation, in doubt or not."""
    paths = [path for path in (library.path, library.other) if path]
    elves = {str(path): Elf.parse(path.read_bytes()) for path in paths}
    dispatch = Dispatch({path: (elf, Isa.scan(elf)) for path, elf in elves.items()})
    named = Elf.parse(library.named.read_bytes()).functions
    found = set()
    for one in dispatch.judged(str(library.path), 0):
        if one.reason is None:
            address = one.isa.region.address
            names = next((symbol.names for symbol in named if symbol.address <= address < symbol.end), one.way)
            number = re.match(r"(?:fast|run|upper|more)(\d+)", names[0])
            assert number, (names, one.way)
            found.add(int(number[1]))
    return found


def wrong(programs: Iterable[DispatchProgram], folder: Path, seed: int, processors: Iterable[str]) -> Judged:
    """The programs that fail and pass the proof, and those that work and do not pass it."""
    chosen = tuple(programs)
    built = tuple(libraries(chosen, folder, seed))
    ends = [illegal(built, folder, processor) for processor in processors]
    fails = {number for end in ends for number, how in end.items() if how == signal.SIGILL}
    assert signal.SIGILL not in illegal(built, folder, EVERYTHING).values()
    alarms = set().union(*map(suspected, built))
    passes = [str(program) for program in chosen if program.number in fails - alarms]
    followed = (program for program in chosen if program.way not in DOUBTFUL)
    return Judged(passes, [str(program) for program in followed if program.number in alarms - fails])


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return wrong(programs(60, 5), tmp_path_factory.mktemp("sample"), 5, _FEW)


# a fixed seed, and one that nobody has seen, which the name of the test tells
@pytest.fixture(scope="module", params=[11, datetime.now(UTC).date().toordinal()])
def many(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return wrong(programs(_MANY, request.param), tmp_path_factory.mktemp("many"), request.param, PROCESSORS)


def test_no_program_that_fails_passes(sample: Judged) -> None:
    assert sample.passes == []


def test_few_programs_that_are_right_are_in_doubt(sample: Judged) -> None:
    assert len(sample.alarms) <= 1, sample.alarms


@pytest.mark.nightly
def test_no_program_of_many_that_fails_passes(many: Judged) -> None:
    assert many.passes == []


@pytest.mark.nightly
def test_few_of_many_programs_that_are_right_are_in_doubt(many: Judged) -> None:
    assert len(many.alarms) <= _MOST_ALARMS * _MANY, many.alarms
