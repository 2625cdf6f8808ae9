"""Everything that fuzzing found stays mended: findings and seeds are read again, and measured by the laws."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.fuzz import __main__ as command
from tests.fuzz.bounds import FEWEST_SECONDS, LEAST_MEMORY, measured
from tests.fuzz.mutated import mutants
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS
from vbuild.errors import VbuildError, WheelError

FINDINGS = sorted(command.FINDINGS.rglob("*.bin"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("finding", FINDINGS, ids=lambda path: f"{path.parent.name}-{path.stem[:12]}")
def test_what_was_found_once_holds(finding: Path) -> None:
    outcome = measured(TARGETS[finding.parent.name], finding.read_bytes())
    assert outcome.broken is None, str(outcome)


@pytest.mark.parametrize("name", TARGETS)
def test_sound_inputs_hold_and_some_are_read_to_the_end(name: str) -> None:
    target = TARGETS[name]
    seeds = list(target.seeds())
    outcomes = [measured(target, seed, settled=False) for seed in seeds]
    assert [str(outcome) for outcome in outcomes if outcome.broken] == []
    assert any(_reads(target, seed) for seed in seeds)


def _reads(target: Target, data: bytes) -> bool:
    try:
        target.run(data)
    except VbuildError:
        return False
    return True


def _sleeping(_data: bytes) -> None:
    until = time.process_time() + 1.2 * FEWEST_SECONDS
    while time.process_time() < until:
        pass


def _forgetting(_data: bytes) -> None:
    raise LookupError(_reads.__name__)


def _refusing(_data: bytes) -> None:
    raise WheelError("as it should")


def _filling(_data: bytes) -> None:
    assert bytearray(os.urandom(1)) * (2 * LEAST_MEMORY)


def _seeds() -> Iterator[bytes]:
    yield b"seed"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("run", "broken"),
    [
        (_sleeping, "seconds"),
        (_filling, "memory"),
        (_forgetting, "LookupError in no file of vbuild"),
        (_refusing, None),
    ],
)
def test_a_broken_law_is_seen(run: object, broken: str | None) -> None:
    assert callable(run)
    assert measured(Target("demo", run, _seeds), b"data").broken == broken


def test_mutants_are_mostly_others_than_what_they_are_made_of() -> None:
    sound = bytes(range(100))
    made = []

    @settings(max_examples=200, database=None, derandomize=True)
    @given(mutants(TARGETS["name"], [sound]))
    def make(data: bytes) -> None:
        made.append(data)

    make()
    assert len(set(made) - {sound}) > len(made) / 2


def test_an_unknown_target_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["wheels"])
    assert "no target 'wheels'; there are fatbin, bundle, device-file" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["guided", "mutated"])
def test_a_fuzzer_finds_what_breaks_a_law(engine: str, tmp_path: Path) -> None:
    """In a process as fuzzing uses it, with a target that cannot take a byte that no seed has."""
    if engine == "guided":
        pytest.importorskip("atheris", reason="no atheris for this Python")
    program = f"""
import sys
from pathlib import Path
from tests.fuzz import {engine}, target, targets
def fragile(data):
    if b"\\xff" in data:
        raise LookupError("found")
def seeds():
    yield b"seed"
targets.TARGETS["fragile"] = target.Target("fragile", fragile, seeds, (b"\\xff",))
{engine}.fuzz(sys.argv[1], float(sys.argv[2]), *map(Path, sys.argv[3:]))
"""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    command_line = [sys.executable, "-c", program, "fragile", "3", str(tmp_path), str(corpus)]
    ran = subprocess.run(command_line, check=False, capture_output=True, text=True, timeout=120)
    assert any(b"\xff" in path.read_bytes() for path in tmp_path.glob("suspect-*")), ran.stderr


@pytest.mark.nightly
def test_of_inputs_that_reach_the_same_the_shortest_stays(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="no atheris for this Python")
    corpus = tmp_path / "name"
    corpus.mkdir()
    for number, name in enumerate(("demo-1.0-py3-none-any.whl", "demos-1.0-py3-none-any.whl", "demo-1.0.tar.gz")):
        (corpus / str(number)).write_text(name)
    subprocess.run([sys.executable, "-m", "tests.fuzz", "--minimize", "--corpus", tmp_path, "name"], check=True)
    assert sorted(path.name for path in corpus.iterdir()) == ["0", "2"]
