"""What a log of cibuildwheel says: which identifier was at work, whose tests were run, why it ended.

    Building cp312-manylinux_x86_64 wheel                  an identifier begins
    Testing wheel...                                       a step begins: its test
    ✓ cp312-manylinux_x86_64 finished in 3 seconds         it is done
    cibuildwheel: error: Build failed because …            why it ended
    vbuild: gcc 10 of the image does not know …            why our program in the container ended it

Why it ended stands in the last step: what was printed before it is of what went well. In GitHub Actions steps begin
with ``::group::`` and errors with ``::error::``; others have marks of their own.
"""

import ast
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from msgspec import Struct

BEFORE_BUILD = "Running before_build"

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_IDENTIFIER = re.compile(
    r"""
    ^ (?:
        Building\ (?P<begins>\S+)\ wheel
      | \S{0,60} (?P<tests>Testing\ wheel\.\.\.)
      | \S*\ ?(?P<ends>\S+)\ finished\ in\ .*
    ) $
    """,
    re.VERBOSE | re.MULTILINE,
)
# an empty line is behind each, and not behind what a build prints that says the same
_STEP = re.compile(
    r"""
    ^ (?: ::group:: | \#\#\[group\] )?
    (?P<name>
        Starting\ container\ image\ \S+ | Copying\ project\ into\ container | Running\ before_all
      | Setting\ up\ build\ environment | Running\ before_build | (?:Building|Repairing|Testing)\ wheel
      | Copying\ wheels\ back\ to\ host
    ) \.\.\. \n\n
    """,
    re.VERBOSE | re.MULTILINE,
)
_HAS_TEST = re.compile(r"^  test_command:(?: \S|\s*\n    )", re.MULTILINE)
_ERROR = re.compile(
    r"^(?:::error::cibuildwheel:|cibuildwheel: error:)\s*(?P<text>\S.*?)\s*(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL
)
_STEP_ENDS = re.compile(
    r"^(?:\s*(?:✕|failed) [\d.]+s|::endgroup::.*|##\[endgroup\].*|travis_fold:end:.*)\n", re.MULTILINE
)
_TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\):\n(?P<frames>(?:(?: .*)?\n)+)(?P<text>\S.*)", re.MULTILINE
)
_ECHO = re.compile(r"^    \+ (?P<command>.*)", re.MULTILINE)
_RANDOM = re.compile(r"(?P<kind>/tmp/(?:(?:[a-z]+-)+|tmp\.?))\w{8,10}\b")  # different each time, and gone
_OURS = re.compile(r"^vbuild: (?P<text>.+)$", re.MULTILINE)
_ENGINES = frozenset({"docker", "podman"})
_ENGINE = re.compile(r"^(?:Error(?: response from daemon)?|\S*docker|podman): (?P<text>.+)$", re.MULTILINE)
_COMMAND = re.compile(r"Command (?P<words>\[.*\]) failed with code (?P<code>-?\d+)\b.*", re.DOTALL)
_PATH = re.compile(r"\b(?:Pure)?PosixPath\((?P<text>'[^']*')\)")
_TRAP = re.compile(
    r"trap 'status=\$\?; .*?; exit \$status' EXIT(?: && )?", re.DOTALL
)  # of vbuild.build.cibuildwheel.runs
_LONGEST = 300

# what cibuildwheel, auditwheel or an engine says, and what is to be done
_ADVICE = (
    ("produced multiple wheels", "vbuild makes the variants of that one; let the command leave one in {dest_dir}"),
    ("unsupported ISA extensions", "let the command call auditwheel by its name, or with --disable-isa-ext-check"),
    ("arguments: --disable-isa-ext-check", "auditwheel of the image is too old: choose a newer image"),
    ("executable doesn't exist in image", "choose an image that has it, or leave it out with CIBW_SKIP"),
    ("docker is too old or is not working", "is its daemon running? or name another: CIBW_CONTAINER_ENGINE=podman"),
)
_NOT_THERE = re.compile(
    r"""
      target/release/ .* (?: No\ such\ file | not\ found | not\ exist )
    | (?: cannot | can't | not ) \ (?: find | stat | open ) .* target/release/
    """,
    re.IGNORECASE | re.VERBOSE,
)
_RUST = "vbuild sets CARGO_BUILD_TARGET, with which cargo's results are in target/<target>/release"


class Journal(Struct, frozen=True):
    """A log, parsed: the identifier *at_work* at its end, those *tested*, the *reason* of the end, and *has_test*.

    The last is whether the project has a test; *reason* is empty if the log gives none, and *explains* is whether it
    says more than which command failed. *step* is the last that began, and *printed* the output of its last command.
    """

    at_work: str = ""
    tested: frozenset[str] = frozenset()
    reason: str = ""
    has_test: bool = False
    explains: bool = False
    step: str = ""
    printed: str = ""

    @classmethod
    def parse(cls, log: str) -> Self:
        """The journal in the text of a *log*."""
        text = _COLOUR.sub("", log)
        at_work, is_tested = "", False
        tested: set[str] = set()
        for step in _IDENTIFIER.finditer(text):
            if step["begins"]:
                at_work, is_tested = step["begins"], False
            elif step["tests"]:
                is_tested = True
            else:
                tested |= {step["ends"]} if is_tested else set()
                at_work = ""
        name, output = "", text
        for step in _STEP.finditer(text):
            name, output = step["name"], text[step.end() :]
        reason, explains = _reason(name, output)
        printed = _RANDOM.sub(r"\g<kind>…", _of_last_command(_STEP_ENDS.sub("", _ERROR.sub("", output))))
        return cls(at_work, frozenset(tested), reason, bool(_HAS_TEST.search(text)), explains, name, printed)


def _of_last_command(output: str) -> str:
    """What the last command of a step printed, of the step's *output*; all of it if no command is in there."""
    echo = next(reversed([*_ECHO.finditer(output)]), None)
    lines = output[echo.start("command") :].splitlines() if echo else []
    for count in range(1, len(lines) + 1):  # the command may have several lines
        with suppress(ValueError):  # a quotation is open
            shlex.split("\n".join(lines[:count]))
            return "\n".join(lines[count:]).strip("\n")
    return "\n".join(lines[1:] if lines else output.splitlines()).strip("\n")


def _reason(step: str, output: str) -> tuple[str, bool]:
    """Why a *step* with this *output* ended, in one line, with what to do; whether that is the true cause."""
    if step in {"", BEFORE_BUILD} and (ours := _OURS.findall(output)):
        return str(ours[-1]), True
    error = next((match["text"] for match in reversed([*_ERROR.finditer(output)])), "")
    if not error:
        own = [match["text"].strip() for match in _TRACEBACK.finditer(output) if "/cibuildwheel/" in match["frames"]]
        return (f"cibuildwheel: {own[-1]}", True) if own else ("", False)
    command = _COMMAND.fullmatch(error)
    words = _words(command["words"]) if command else []
    if words and words[0] in _ENGINES and (theirs := _ENGINE.findall(output)):
        reason, explains = f"{words[0]} {words[1]}: {theirs[-1]}", True
    elif words and command:
        reason, explains = f"{_shortened(_shown(words))} failed with code {command['code']}", False
    else:
        reason, explains = " ".join(error.split()).rstrip("."), command is None
    advice = [todo for sign, todo in _ADVICE if sign in output]
    hint = [_RUST] if _NOT_THERE.search(output) else []
    return "; ".join([_shortened(reason), *advice, *hint]), explains or bool(advice)


def _words(text: str) -> list[str]:
    """The words of a command that Python shows as *text*, or none if it cannot be read."""
    try:
        return [str(word) for word in ast.literal_eval(_PATH.sub(r"\g<text>", text))]
    except (ValueError, SyntaxError):
        return []


def _shown(words: Sequence[str]) -> str:
    """The command of *words* in one line, as the project has it: not with what vbuild put in front."""
    match words:
        case ["sh", "-c", command]:
            theirs = " ".join(_TRAP.sub("", command, count=1).split())
            return shlex.join(["sh", "-c", theirs]) if theirs else "before-build"
    return shlex.join(words)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
