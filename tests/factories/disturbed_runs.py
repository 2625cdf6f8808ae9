"""What has to hold after a disturbed run of a command, compared with an undisturbed one.

UndisturbedRun.of(command, folder) -> .faulted(fault), .killed(number, after) -> DisturbedRun -> check(), check_again()
"""

import json
import random
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.factories.faults import COUNTING, Call, Ended, Fault, Kind, calls, signalled
from tests.factories.workdir import file_digests
from tests.factories.writing_commands import CommandFolder, WritingCommand

# what vbuild calls that which is in the making
_IN_THE_MAKING = re.compile(r"\.vbuild-\w+|\.relinking-\w+")
_ABORTED = "\nAborted!\n"
_INTERRUPTED = "vbuild: interrupted: nothing half-done was left behind\n"


@dataclass(frozen=True, slots=True)
class DisturbedRun:
    """A run that was disturbed by *fault* or a signal, in *place*; *whole* is the undisturbed output."""

    command: WritingCommand
    place: CommandFolder
    whole: Mapping[str, str]
    ended: Ended
    fault: Fault | None = None
    calls: tuple[Call, ...] = ()

    @property
    def hit(self) -> tuple[Call, ...]:
        """The calls that the fault disturbed."""
        return tuple(call for call in self.calls if call.is_failed)

    def check(self) -> None:
        """No file under a final name is another than the undisturbed run's; a refusal is one line that says why."""
        self._check_results()
        for name in self.place.left():
            top = Path(name).parts
            assert any(_IN_THE_MAKING.fullmatch(part) for part in top), name
        if self.fault and not self.fault.kind.is_signal:
            self._check_output(self.fault)
        elif self.ended.err == _INTERRUPTED:
            assert self.place.left() == [], self.place.left()
        elif self.ended.status > 0:
            # before there is a command, or when it is done, Python itself says so, or click
            assert self.ended.err.rstrip().endswith("KeyboardInterrupt") or self.ended.err in {"", _ABORTED}, self.ended

    def check_again(self) -> None:
        """The same command, undisturbed, gives what it always gives, and leaves nothing of the disturbed run's."""
        if self._is_named:
            shutil.rmtree(self.place.out)
        self.command.reopen(self.place, self.whole)
        again = self.place.run()
        assert (again.status, again.err) == (0, ""), again
        assert self.place.results() == self.whole
        self.place.check_told()
        # a stage that was ended before it had such a file goes a day later
        left = [name for name in self.place.left() if (self.place.out / name / "alive").exists()]
        assert left == [], left

    @property
    def _is_named(self) -> bool:
        """Whether the command has said what it left as it was: of an image, the files that cannot be read."""
        reason = self.fault.kind.reason if self.fault and self.fault.kind.is_error else ""
        return (
            bool(self.command.seal and reason) and self.ended.status == 0 and reason in self.ended.out + self.ended.err
        )

    def _check_results(self) -> None:
        there = self.place.results()
        if self._is_named:
            blobs = {path: digest for path, digest in there.items() if path.startswith("blobs/")}
            assert {path: Path(path).name for path in blobs} == blobs
            return
        is_partial = self.ended.status == 1 and self.command.goes_on
        for path, digest in there.items():
            if is_partial and path.endswith(".json"):
                json.loads((self.place.out / path).read_text())  # of those that were built
            else:
                assert self.whole.get(path) == digest, path
        self.place.check_told()
        if self.ended.status == 0 and not (self.fault and self.fault.kind is Kind.OUT_GONE):
            assert there == self.whole

    def _check_output(self, fault: Fault) -> None:
        output = " ".join((self.ended.out + self.ended.err).split())  # on lines of any width
        assert "Traceback" not in output, output
        assert self.ended.status in {0, 1}, self.ended
        if self.ended.status == 1:
            assert self.ended.refusal
            assert fault.kind is not Kind.SHORT, output
            assert fault.kind.is_removal or fault.kind.reason in output, output
            # a build whose folder for temporary files is gone says no more than that
            folders = (str(self.place.folder), "in/", "in:", "out", "tmp/", ".whl", ".json", ".conda", ".bz2")
            assert any(folder in output for folder in folders) or fault.kind is Kind.TMP_GONE, output


def spread(calls: Sequence[Call], most: int, rng: random.Random) -> list[Call]:
    """Not more than *most* of *calls*: one of each name, and others."""
    names = {call.name: call for call in rng.sample(calls, len(calls))}
    others = [call for call in calls if call not in names.values()]
    return [*names.values(), *rng.sample(others, max(0, min(len(others), most - len(names))))][:most]


@dataclass(frozen=True, slots=True)
class UndisturbedRun:
    """A run of *command* in *folder* that nothing disturbed: its results, its calls, and its *seconds*."""

    command: WritingCommand
    folder: Path
    whole: Mapping[str, str]
    calls: tuple[Call, ...]
    seconds: float

    @classmethod
    def of(cls, command: WritingCommand, folder: Path) -> "UndisturbedRun":
        inputs = folder / "inputs"
        inputs.mkdir(parents=True)
        command.fill(inputs)
        first, counted = (command.prepared(folder / name, inputs) for name in ("first", "counted"))
        ran = first.run()
        assert (ran.status, ran.err) == (0, "")
        assert first.left() == []
        run = counted.run(COUNTING)
        assert (run.status, run.err) == (0, "")
        assert counted.results() == first.results()
        made = cls(command, folder, first.results(), tuple(calls(counted.log)), ran.seconds)
        assert len(made.calls) == len({call.number for call in made.calls})
        shutil.rmtree(first.folder)
        shutil.rmtree(counted.folder)
        return made

    def check_all(self, faults: Sequence[Fault], *, again: int) -> None:
        """Hold what has to hold after each of *faults*, one a run; every *again*th is followed by a rerun."""
        hits = 0
        for number, fault in enumerate(faults, start=1):
            print(f"{self.command}: {fault}")
            with self.faulted(fault) as disturbed:
                hits += bool(disturbed.hit)
                disturbed.check()
                if number % again == 0:
                    disturbed.check_again()
        # threads may ask for a little more or less than in the undisturbed run
        assert hits >= 0.9 * len(faults)

    @contextmanager
    def faulted(self, fault: Fault) -> Iterator[DisturbedRun]:
        """A run that *fault* disturbs."""
        with self.place() as place:
            ended = place.run(fault)
            if fault.kind is Kind.IN_GONE:
                shutil.rmtree(place.inputs, ignore_errors=True)
                shutil.copytree(self.folder / "inputs", place.inputs)
            if fault.kind is Kind.OUT_GONE and self.command.alongside and not (place.out / "dist").exists():
                shutil.copytree(self.folder / "inputs", place.out / "dist")
            yield DisturbedRun(self.command, place, self.whole, ended, fault, tuple(calls(place.log)))

    @contextmanager
    def killed(self, number: signal.Signals, after: float) -> Iterator[DisturbedRun]:
        """A run that gets a signal."""
        with self.place() as place:
            variables = place.variables
            ended = signalled(*place.arguments, folder=place.folder, variables=variables, number=number, after=after)
            yield DisturbedRun(self.command, place, self.whole, ended)

    @contextmanager
    def place(self) -> Iterator[CommandFolder]:
        """A place for a run; what it is made of must be the same afterwards."""
        inputs = self.folder / "inputs"
        before = file_digests(inputs)
        folder = Path(tempfile.mkdtemp(dir=self.folder, prefix="run-")) / "place"
        yield self.command.prepared(folder, inputs)
        assert file_digests(inputs) == before
        assert file_digests(folder / "in") == before
        shutil.rmtree(folder.parent)
