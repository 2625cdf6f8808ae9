"""Whether a wheel's licence forbids to modify what is in it, as NVIDIA's SDK licence does (1.2, limitations, 2).

    you may not copy, sell, rent, sublicense, transfer, distribute, modify, or create derivative works of any portion

Only sentences that name both modification and derivative works count: free licences that say "may not copy, modify"
allow it in the same breath. What the sentence means for a user is for the user to judge; it is shown with its place.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from vbuild.wheel.archive import Wheel

_LICENCE = re.compile(r"(^|/)(licen[cs]es?|copying|eula|notice)[^/]*($|/)", re.IGNORECASE)
_SENTENCE = re.compile(r"[^.;]+")
# one after the other, each looked for once: a licence is anybody's text, and one pattern for all could take hours
_FORBIDS = tuple(
    re.compile(words, re.IGNORECASE)
    for words in (r"\b(?:may|must|shall)\s+not\b", r"\bmodif(?:y|ies)\b", r"\bderivative\s+works\b")
)
_LARGEST = 1 << 24
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Prohibition:
    """A sentence of a licence that forbids modification: the file it is in, its line, and the words."""

    member: str
    line: int
    sentence: str

    def __str__(self) -> str:
        return f"{self.member}, line {self.line}: {self.sentence!r}"


def prohibitions(wheel: Wheel) -> Iterator[Prohibition]:
    """The sentences of the licence files of *wheel* that forbid to modify it, the first in each file."""
    prefix = f"{wheel.dist_info}/"
    for member in wheel.members:
        if not member.path.startswith(prefix) or not _LICENCE.search(member.path.removeprefix(prefix)):
            continue
        if member.size > _LARGEST:
            continue
        text = wheel.read(member).decode(errors="replace")
        if found := next(_forbidding(text), None):
            line = text.count("\n", 0, found.start) + 1
            yield Prohibition(member.path, line, " ".join(text[found.start : found.stop].split())[:_LONGEST])


def _forbidding(text: str) -> Iterator[range]:
    """Where in *text* sentences forbid modification, from the words that do to the end."""
    for sentence in _SENTENCE.finditer(text):
        starts = []
        place = sentence.start()
        for words in _FORBIDS:
            if not (match := words.search(text, place, sentence.end())):
                break
            starts.append(match.start())
            place = match.end()
        else:
            yield range(starts[0], sentence.end())
