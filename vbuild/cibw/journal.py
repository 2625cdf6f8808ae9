"""What a log of cibuildwheel says: which identifier was at work, whose tests were run, why it ended.

    Building cp312-manylinux_x86_64 wheel                  an identifier begins
    Testing wheel...                                       its test begins
    ✓ cp312-manylinux_x86_64 finished in 3 seconds         it is done
    cibuildwheel: error: Build failed because …            why it ended
    vbuild: gcc 10 of the image does not know …            why our program in the container ended it

In GitHub Actions steps begin with ``::group::`` and errors with ``::error::``; others have marks of their own.
"""

import re
from dataclasses import dataclass
from typing import Self

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(
    r"""
    ^ (?:
        Building\ (?P<begins>\S+)\ wheel
      | \S{0,60} (?P<tests>Testing\ wheel\.\.\.)
      | \S*\ ?(?P<ends>\S+)\ finished\ in\ .*
    ) $
    """,
    re.VERBOSE | re.MULTILINE,
)
_HAS_TEST = re.compile(r"^  test_command:(?: \S|\s*\n    )", re.MULTILINE)
_ERROR = re.compile(
    r"^(?:::error::cibuildwheel:|cibuildwheel: error:)\s*(?P<text>\S.*?)\s*(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL
)
_OURS = re.compile(r"^vbuild: (?P<text>.+)$", re.MULTILINE)
_ENGINE = re.compile(r"^(?:Error(?: response from daemon)?|\S*docker|podman): (?P<text>.+)$", re.MULTILINE)
_COMMAND = re.compile(r"Command \['(?P<program>[^']*)', '(?P<command>[^']*)'")
_LONGEST = 300

# what cibuildwheel, auditwheel or an engine says, and what is to be done
_ADVICE = (
    ("produced multiple wheels", "vbuild makes the variants of that one; let the command leave one in {dest_dir}"),
    ("unsupported ISA extensions", "let the command call auditwheel by its name, or with --disable-isa-ext-check"),
    ("arguments: --disable-isa-ext-check", "auditwheel of the image is too old: choose a newer image"),
    ("executable doesn't exist in image", "choose an image that has it, or leave it out with CIBW_SKIP"),
)


@dataclass(frozen=True, slots=True)
class Journal:
    """A log taken apart: the identifier *at_work* at its end, those *tested*, the *reason* of the end, and *has_test*.

    The last is whether the project has a test; *reason* is empty where the log gives none.
    """

    at_work: str = ""
    tested: frozenset[str] = frozenset()
    reason: str = ""
    has_test: bool = False

    @classmethod
    def parse(cls, log: str) -> Self:
        """The journal in the text of a *log*."""
        text = _COLOUR.sub("", log)
        at_work, is_tested = "", False
        tested: set[str] = set()
        for step in _STEP.finditer(text):
            if step["begins"]:
                at_work, is_tested = step["begins"], False
            elif step["tests"]:
                is_tested = True
            else:
                tested |= {step["ends"]} if is_tested else set()
                at_work = ""
        return cls(at_work, frozenset(tested), _reason(text), bool(_HAS_TEST.search(text)))


def _reason(text: str) -> str:
    """Why it ended, in one line, with what to do where that is known."""
    if ours := _OURS.findall(text):
        return str(ours[-1])
    errors = [match["text"] for match in _ERROR.finditer(text)]
    reason = " ".join(errors[-1].split()).rstrip(".") if errors else ""
    if (command := _COMMAND.match(reason)) and (said := _ENGINE.findall(text)):
        reason = f"{command['program']} {command['command']}: {said[-1]}"
    if not reason:
        return ""
    if len(reason) > _LONGEST:
        reason = f"{reason[:_LONGEST]} …"
    return "; ".join([reason, *(advice for words, advice in _ADVICE if words in text)])
