"""What is hidden in the output of commands, however it comes in pieces."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.processes import is_running, until
from vbuild.errors import BuildError
from vbuild.process.masking import Mask, hiding
from vbuild.process.run import run

WORD = "correct-horse-battery"
pieces = st.lists(st.sampled_from([b"ab", b"aba", b"abab", b"c", b"://", b":", b"/", b"@", b" ", b"me:word", b"\n"]))


def passed(mask: Mask, data: bytes, cuts: list[int]) -> bytes:
    """What *mask* shows of *data*, cut at *cuts*."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return b"".join(mask.shown(data[start:end]) for start, end in pairwise(places)) + mask.rest()


@given(pieces, st.lists(st.integers(0, 200), max_size=8))
def test_the_same_is_shown_however_the_output_is_cut(parts: list[bytes], cuts: list[int]) -> None:
    texts = {b"abab": b"*", b"abac": b"*", b"ababc": b"+"}
    data = b"".join(parts)
    assert passed(Mask(texts), data, cuts) == passed(Mask(texts), data, [])
    assert not any(text in passed(Mask(dict.fromkeys(texts, b"*")), data, cuts) for text in texts)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("https://me:word@host/simple", "https://****@host/simple"),
        ("https://token@host", "https://****@host"),
        ("git+ssh://git@host/a, ssh://me:word@host", "git+ssh://git@host/a, ssh://****@host"),
        ("https://host/~me@home and me@host", "https://host/~me@home and me@host"),
        ("https://me:****@host", "https://****@host"),
        (f"said {WORD}.", "said ****."),
        ("a: b\n", "a: b\n"),
    ],
)
def test_logins_and_what_is_hidden_are_stars(said: str, shown: str) -> None:
    assert passed(Mask({WORD.encode(): b"****"}), said.encode(), [*range(len(said))]).decode() == shown


def test_no_log_and_no_error_has_what_is_hidden(tmp_path: Path) -> None:
    halves = f"printf %s {WORD[:9]}; sleep 0.1; echo {WORD[9:]}; echo https://me:{WORD}@host; exit 3"
    with hiding({WORD: "****"}), pytest.raises(BuildError) as caught:
        run(["sh", "-c", f"# {WORD}\n{halves}"], log=tmp_path / "log")
    log = (tmp_path / "log").read_text()
    assert log.endswith("****\nhttps://****@host\n")
    assert WORD not in log + str(caught.value)
    run(["echo", WORD], log=tmp_path / "log")
    assert (tmp_path / "log").read_text().endswith(f"\n{WORD}\n")


def test_what_a_command_leaves_running_does_not_hold_it_and_may_go_on_to_write(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    left = f"echo $$; touch {tmp_path}/begun; read line < {tmp_path}/go; echo behind"
    waits = f"until [ -e {tmp_path}/begun ]; do sleep 0.01; done"
    with hiding({WORD: "****"}):
        run(["sh", "-c", f"sh -c '{left}' & {waits}; echo {WORD}"], log=tmp_path / "log")
    first, *_, last = (tmp_path / "log").read_text().splitlines()[1:]
    assert last == "****"
    (tmp_path / "go").write_text("\n")
    until(lambda: not is_running(int(first)))
    until(lambda: (tmp_path / "log").read_text().endswith("behind\n"))


def test_a_log_that_cannot_be_written_is_told_when_the_command_has_ended(tmp_path: Path) -> None:
    program = """
import resource, sys
from pathlib import Path
from vbuild.process.run import run
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    run(["sh", "-c", "seq 100000; echo done > ended"], log=Path("log"))
except OSError as error:
    print(error.strerror)
"""
    # the child inherits the limit, and its file is small
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stdout == "File too large\n", ran.stderr
    assert (tmp_path / "ended").read_text() == "done\n"
