"""What is shown while a release comes along: steps in CI, logs with --verbose, one line on a terminal."""

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vbuild.cli import terminal
from vbuild.cli.terminal import progress
from vbuild.recipe.spelling import baseline
from vbuild.recipe.target import Target

PLAIN = Target(None, "3.12", baseline("x86_64"))

ON_TERMINAL = """
import select, sys
from pathlib import Path
from vbuild.cli.terminal import progress
from vbuild.recipe.target import Target
from vbuild.recipe.spelling import baseline

folder = Path(sys.argv[1])
(folder / "logs").mkdir()
with progress(folder, quiet=False) as note:
    target = Target(None, "3.12", baseline("x86_64"))
    note(target, "waiting")
    note(target, "building")
    (folder / "logs" / "demo-plain-3.12.log").write_text("[3/9] Building CXX object src/fast kernel.cpp\\n")
    select.select([sys.stdin], [], [], 60)  # until it has been seen
    note(target, "done")
"""


def shown_after(show: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> str:
    """What *show* has made appear when a line is there, without the seconds."""
    show()
    text, end = "", time.monotonic() + 60
    while not text and time.monotonic() < end:
        time.sleep(0.05)
        text += capsys.readouterr().err
    return re.sub(r"^\[ +\d+ s\] ", "", text)


def test_without_a_terminal_a_long_step_says_so_and_a_short_one_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("VBUILD_NO_PROGRESS")
    with progress(tmp_path) as note:
        note(PLAIN, "building")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(terminal, "_LONG", 0.2)
    with progress(tmp_path) as note:
        assert shown_after(lambda: note(PLAIN, "building"), capsys) == "0 of 1  plain: building\n"
        assert shown_after(lambda: note(PLAIN, "testing"), capsys) == "0 of 1  plain: testing\n"
    with terminal.status() as tell:
        assert shown_after(lambda: tell("demo: fetching"), capsys) == "demo: fetching\n"
    with terminal.bar() as advance:
        assert shown_after(lambda: advance("demo.whl", 30, 200), capsys) == "demo.whl: 15 %\n"
    for quiet in (True, False):
        with progress(tmp_path, quiet=quiet) as note:
            note(PLAIN, "building")
            time.sleep(0.5)
        assert capsys.readouterr().err == ""
        monkeypatch.setenv("VBUILD_NO_PROGRESS", "1")


def test_logs_are_shown_as_they_grow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "logs" / "demo-plain-3.12.log"
    log.parent.mkdir()
    log.write_text("of an earlier run\n")
    with progress(tmp_path, quiet=False, verbose=True) as note:
        note(PLAIN, "building")
        log.write_text("one\ntwo\nthr")
        (tmp_path / "logs" / "environment-1.log").write_text("three\n")
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "|" in line] == ["plain | one", "plain | two", "environment | three"]


def test_a_terminal_gets_one_line_with_the_time_the_step_and_the_file(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_TERMINAL, str(tmp_path)],
        stdin=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
    )
    os.close(theirs)
    assert process.stdin
    shown = b""
    try:
        while part := os.read(ours, 1 << 16):
            shown += part
            if b"kernel.cpp" in shown:
                process.stdin.close()
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    assert "0 of 1  plain: building  3/9 kernel.cpp" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
