"""Answers of compilers and interpreters, remembered from run to run."""

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from vbuild.files.cache import Cache, Part
from vbuild.files.hashing import unseal
from vbuild.toolchain.interpreter import Interpreter, ambient, is_script, remembered

ENVIRONMENT = {"PATH": "/nowhere", "LANG": "C"}


def program(folder: Path, text: str = "#!/bin/sh\n") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "cc").write_text(text)
    (folder / "cc").chmod(0o755)
    return folder / "cc"


class Asked:
    """Answers, and counts how often it was asked."""

    def __init__(self, answer: object = 12) -> None:
        self.answer = answer
        self.times = 0

    def __call__(self) -> object:
        self.times += 1
        return self.answer


def test_a_program_is_asked_once(tmp_path: Path) -> None:
    compiler, asked = program(tmp_path / "bin"), Asked({"version": [12, 2], "marks": True})
    answers = [
        remembered("macros", compiler, environment=ENVIRONMENT, ask=asked, memory=tmp_path / "memory") for _ in range(3)
    ]
    assert answers == [{"version": [12, 2], "marks": True}] * 3
    assert asked.times == 1


def rewritten(compiler: Path) -> None:
    compiler.write_text("#!/bin/sh\nexit 1\n")


def test_a_change_behind_a_program_of_the_same_name_counts(tmp_path: Path) -> None:
    masking, behind, memory, asked = program(tmp_path / "ccache"), program(tmp_path / "bin"), tmp_path / "m", Asked()
    environment = {"PATH": f"{tmp_path}/ccache:{tmp_path}/bin"}
    remembered("q", masking, environment=environment, ask=asked, memory=memory)
    rewritten(behind)
    remembered("q", masking, environment=environment, ask=asked, memory=memory)
    assert asked.times == 2


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"\xff\xfe", b"[]", b"12", b'{"question": "q"}', b'{"question": "q", "answer": "{"}'],
    ids=["empty", "cut", "no text", "a list", "a number", "no answer", "a cut answer"],
)
def test_a_damaged_answer_is_asked_for_again_and_replaced(damage: bytes, tmp_path: Path) -> None:
    compiler, memory, asked = program(tmp_path / "bin"), tmp_path / "memory", Asked()
    remembered("q", compiler, environment={}, ask=asked, memory=memory)
    [file] = memory.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage)
    assert remembered("q", compiler, environment={}, ask=asked, memory=memory) == 12
    assert (asked.times, file.read_bytes()) == (2, whole)


def test_without_a_place_to_write_the_program_is_asked_every_time(tmp_path: Path) -> None:
    compiler, asked = program(tmp_path / "bin"), Asked()
    (tmp_path / "file").write_text("")
    for _ in range(2):
        assert remembered("q", compiler, environment={}, ask=asked, memory=tmp_path / "file/memory") == 12
    assert asked.times == 2


def test_what_goes_wrong_is_not_remembered(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError

    compiler, memory = program(tmp_path / "bin"), tmp_path / "memory"
    with pytest.raises(ValueError, match=r"^$"):
        remembered("q", compiler, environment={}, ask=fail, memory=memory)
    assert remembered("q", compiler, environment={}, ask=Asked(), memory=memory) == 12


@pytest.mark.nightly
def test_many_at_once_leave_one_whole_answer(tmp_path: Path) -> None:
    compiler, memory, asked = program(tmp_path / "bin"), tmp_path / "memory", Asked(list(range(1000)))
    threads = [
        threading.Thread(
            target=lambda: remembered("q", compiler, environment={}, ask=asked, memory=memory),
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [file] = memory.iterdir()
    assert json.loads(json.loads(unseal(file.read_bytes()))["answer"]) == list(range(1000))


def test_answers_that_nobody_asks_for_are_forgotten(tmp_path: Path) -> None:
    compiler, memory, asked = program(tmp_path / "bin"), tmp_path / "memory", Asked()
    for question in ("old", "used", "new"):
        remembered(question, compiler, environment={}, ask=asked, memory=memory)
    for file in memory.iterdir():
        if json.loads(unseal(file.read_bytes()))["question"] != "new":
            os.utime(file, (1, 1))
    remembered("used", compiler, environment={}, ask=asked, memory=memory)
    Cache(Part.PROBES, memory).sweep()
    assert {json.loads(unseal(file.read_bytes()))["question"] for file in memory.glob("*.json")} == {"used", "new"}


def test_noise_is_left_out_and_all_else_is_in() -> None:
    noise = {"PWD": "/", "_": "x", "TERM": "x", "SSH_AUTH_SOCK": "x", "PYTEST_CURRENT_TEST": "x", "TMPDIR": "/a1"}
    noise |= dict.fromkeys(
        ("HOSTNAME", "HOST", "CI", "CI_JOB_ID", "GITHUB_RUN_ID", "RUNNER_TEMP", "GITLAB_USER_ID"), "x"
    )
    noise |= dict.fromkeys(("BUILDKITE_JOB_ID", "CIRCLE_SHA1", "SLURM_JOB_ID"), "x")
    kept = {"CFLAGS": "-g", "MY_PROJECT_USES_BLAS": "1", "HOME": "/root", "LANG": "C", "CIRCUS": "1", "HOSTCC": "gcc"}
    assert ambient({**noise, **kept}) == kept


def test_a_python_behind_a_script_is_asked_every_time(tmp_path: Path) -> None:
    log, shim = tmp_path / "log", tmp_path / "python"
    shim.write_text(f'#!/bin/sh\necho >> {log}\nexec {sys.executable} "$@"\n')
    shim.chmod(0o755)
    for _ in range(2):
        assert Interpreter.at(shim, os.environ).version == sys.version_info[:3]
    assert log.read_text() == "\n\n"
    assert not is_script(tmp_path / "not there")
