"""No name in a wheel and no line of a build speaks to the terminal, or to a CI system."""

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress

import pytest

from vbuild.cli import terminal
from vbuild.errors import VbuildError

COMMANDS = {
    "::error file=a.py::wrong": ": :error file=a.py::wrong",
    "  ::add-mask::word": "  : :add-mask::word",
    "\t::stop-commands::x": "\t: :stop-commands::x",
    "text ::error:: is none": "text ::error:: is none",
    "std::vector<int>": "std::vector<int>",
    "::group::Building": "::group::Building",
    "::endgroup::": "::endgroup::",
    "a ##[error]wrong": "a # #[error]wrong",
    "a ##vso[task.setvariable variable=x]y": "a # #vso[task.setvariable variable=x]y",
    "##teamcity[blockOpened name='x']": "# #teamcity[blockOpened name='x']",
    "## a heading": "## a heading",
}
ESCAPES = {
    "\x1b]0;title\x07text": "\ufffd]0;title\ufffdtext",
    "\x1b[2J\x1b[Htext": "\ufffd[2J\ufffd[Htext",
    "\x1b[1;32mgreen\x1b[0m": "\x1b[1;32mgreen\x1b[0m",
    "a\rb": "a\ufffdb",
    "section_start:1:hidden\r\x1b[0Ktext": "section_start:1:hidden\ufffd\ufffd[0Ktext",
    "\x9b2Jtext": "\ufffd2Jtext",
}


@pytest.mark.parametrize(("said", "shown"), {**COMMANDS, **ESCAPES}.items())
def test_a_line_of_a_build_is_shown_and_does_nothing(
    capfdbinary: pytest.CaptureFixture[bytes], said: str, shown: str
) -> None:
    with terminal.passing_on() as pass_on:
        pass_on(f"first\r\n{said}\n".encode())
    assert capfdbinary.readouterr().err.decode() == f"first\n{shown}\n"


@pytest.mark.parametrize("at", range(1, 14))
def test_a_command_in_two_pieces_is_none(capfdbinary: pytest.CaptureFixture[bytes], at: int) -> None:
    said = b"::error::wrong"
    with terminal.passing_on() as pass_on:
        pass_on(said[:at])
        pass_on(said[at:])
    assert capfdbinary.readouterr().err == b": :error::wrong"


def test_a_line_without_an_end_is_shown_before_it_takes_all_memory(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with terminal.passing_on() as pass_on:
        pass_on(b"." * 100_000)
        assert len(capfdbinary.readouterr().err) > 1 << 16


@pytest.mark.parametrize(("said", "shown"), [(said, shown) for said, shown in COMMANDS.items() if "\t" not in said])
def test_results_notes_and_refusals_are_no_commands(capsys: pytest.CaptureFixture[str], said: str, shown: str) -> None:
    terminal.show({}, [said], as_json=False)
    terminal.note(said)
    terminal.Refusal(said, VbuildError).show()
    captured = capsys.readouterr()
    assert captured.out == f"{shown}\n"
    assert captured.err.splitlines()[0] == shown
    assert not captured.err.splitlines()[1].startswith(":")
    assert "##[" not in captured.err
    assert "##vso[" not in captured.err


def test_json_says_the_same_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    data = {"path": "##[error]x", "other": "##vso[task]", "heading": "## a"}
    terminal.show(data, [], as_json=True)
    said = capsys.readouterr().out
    assert json.loads(said) == data
    assert "##[" not in said
    assert "##vso[" not in said


ON_TERMINAL = r"""
from vbuild.cli import terminal
with terminal.bar(quiet=False) as shown:
    shown("demo/[/red].so \x1b]0;title\x07[bold]x", 1, 2)
with terminal.status(quiet=False) as shown:
    shown("looking [/red] \x1b]0;title\x07")
"""


def test_what_is_being_done_is_shown_letter_by_letter() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as shown:
        variables = {**os.environ, "TERM": "xterm", "COLUMNS": "150"}
        ran = subprocess.run([sys.executable, "-c", ON_TERMINAL], stderr=theirs, env=variables, check=False)
        os.close(theirs)
        said = b""
        with suppress(OSError):  # the end of a terminal
            while piece := shown.read(1 << 16):
                said += piece
    assert ran.returncode == 0, said
    assert "demo/[/red].so \ufffd]0;title\ufffd[bold]x".encode() in said
    assert b"looking [/red]" in said
    assert b"\x1b]0;" not in said
