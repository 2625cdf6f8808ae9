"""The licence of a wheel: what METADATA says of it, where its texts are, and what in them forbids changes.

    METADATA                                 License-Expression, License, classifiers (PEP 639)
    dist-info: LICENSE, licenses/LICENSE     the distribution's own texts
    demo/EULA.txt, or LICENSE at the top     its own texts as well: beside the code
    licenses/cuda-LICENSE                    a component's: called after something else than the project
    licenses/third_party/zlib/LICENSE        a component's: in a folder of its own

The distribution's own licence decides; that of a component does if nothing else says what that one is. NVIDIA's SDK
licence forbids changes (1.2, limitations, 2): you may not copy, sell, […] modify, or create derivative works. Only both
words count: free licences also say "may not copy, modify" before "except". A licence that METADATA calls proprietary,
without a text, allows nothing.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from textwrap import shorten
from typing import TYPE_CHECKING, Self

from msgspec import Struct
from packaging.utils import canonicalize_name

from vbuild.errors import WheelError
from vbuild.wheel.archive import Wheel

if TYPE_CHECKING:
    from vbuild.wheel.installed import InstalledDistribution

    Package = Wheel | InstalledDistribution

_NAME = re.compile(r"(?<![a-z])(?:licen[cs]es?|copying|eula|notices?)(?![a-z])", re.IGNORECASE)
_FOLDERS = ("licenses", "licences", "license_files", "license", "licence")
# words in the names of texts that say nothing of whose they are
_WORD = re.compile(r"[a-z]+")
_SILENT = frozenset(
    (
        *("license", "licence", "licenses", "licences", "copying", "eula", "notice", "notices", "agreement", "terms"),
        *("of", "use", "end", "user", "software", "sdk", "the", "and", "lesser", "lib"),
        *("txt", "md", "rst", "pdf", "html", "rtf"),
    )
)
_TEXTS = ("", ".lib", ".lesser", ".txt", ".md", ".rst", ".pdf", ".html", ".rtf")
_SENTENCE = re.compile(r"[^.;]+")
# one after the other, each once: one pattern for all could take hours
_FORBIDS = tuple(
    re.compile(words, re.IGNORECASE)
    for words in (r"\b(?:may|must|shall)\s+not\b", r"\bmodif(?:y|ies)\b", r"\bderivative\s+works\b")
)
_PROPRIETARY = re.compile(r"\bproprietary\b", re.IGNORECASE)
_METADATA = "METADATA"
# of a sentence, a paragraph, a heading over whose it is, or one with a line under it
_END = re.compile(
    r"(?<=[.:;])\s+(?=(?-i:[A-Z]))|\n\s*\n|\n(?=\s*(?:copyright\b|\(c\)))|(?:^|\n)\s*[=*_~#-]{3,}\s*(?:\n|$)",
    re.IGNORECASE,
)
_SAYS_NOTHING = re.compile(
    r"$|(?:portions )?(?:copyright\b|\(c\)|©)|all rights reserved|unknown$"
    r"|(?:(?:end[- ]user|software) )*licen[cs]e(?: agreement)?[\W_]*$|(?:the )?(?:\w+ )?licensing terms$",
    re.IGNORECASE,
)
# bytes of a text that is read, characters of a sentence that is shown
_LARGEST = 1 << 24
_LONGEST = 300
_SHOWN = 120

# a project, or patterns of names of projects, whose licences somebody has accepted; True for all
Accepted = bool | str | Iterable[str]


_PATTERN = re.compile(r"[A-Za-z0-9*?\[][\w.*?\[\]-]*(?<!\.whl)", re.ASCII)


def accepted_pattern(text: str) -> str:
    if not _PATTERN.fullmatch(text):
        raise WheelError(f"{text!r}: expected the name of a project, or a pattern such as 'nvidia-*'")
    return text


def is_accepted(accepted: Accepted, project: str) -> bool:
    if isinstance(accepted, bool):
        return accepted
    patterns = [accepted] if isinstance(accepted, str) else accepted
    return any(fnmatchcase(canonicalize_name(project), canonicalize_name(pattern)) for pattern in patterns)


class Prohibition(Struct, frozen=True):
    """Words that forbid changes; *is_own*: in a text of the distribution itself."""

    place: str
    sentence: str
    is_own: bool = True

    def __str__(self) -> str:
        return f"{self.place}: {self.sentence!r}"


class Licence(Struct, frozen=True):
    expression: str | None
    text: str | None
    classifiers: tuple[str, ...]
    files: tuple[str, ...]
    components: tuple[str, ...] = ()

    @classmethod
    def of(cls, wheel: "Package") -> Self:
        headers = wheel.metadata().headers
        paths = [member.path for member in wheel.members]
        # what is installed may have files elsewhere: ../../../bin/demo
        inside = (path for path in paths if not path.startswith(("/", "../")))
        folders = [posixpath.dirname(path) for path in inside if ".dist-info/" not in path]
        beside = posixpath.commonpath(folders) if folders else ""
        texts = [path for path in paths if _is_text(path, wheel.dist_info)]
        own = tuple(path for path in texts if _is_own(path, wheel, beside))
        return cls(
            expression=headers.value("License-Expression"),
            text=headers.value("License") or None,
            classifiers=tuple(text for text in headers.values("Classifier") if text.startswith("License ::")),
            files=own,
            components=tuple(path for path in texts if path not in own),
        )

    def __str__(self) -> str:
        names = (classifier.rpartition(" :: ")[2] for classifier in self.classifiers)
        return self.expression or self._first_sentence or ", ".join(names) or "not stated"

    @property
    def _first_sentence(self) -> str:
        """The first sentence or heading of the text that says more than whose it is."""
        sentences = (" ".join(sentence.split()).lstrip("#*=-_ ") for sentence in _END.split(self.text or ""))
        first = next((sentence for sentence in sentences if not _SAYS_NOTHING.match(sentence)), "")
        return shorten(first, _SHOWN, placeholder=" …")

    @property
    def proprietary(self) -> str | None:
        named = (self.expression, self._first_sentence, *self.classifiers)
        return next((text for text in named if text and _PROPRIETARY.search(text)), None)


def prohibitions(wheel: "Package") -> Iterator[Prohibition]:
    """Yield the first sentence of each text that forbids to modify *wheel*, or that METADATA says proprietary."""
    licence = Licence.of(wheel)
    texts = [(path, _read(wheel, path)) for path in licence.files]
    own = [*texts, (f"{wheel.dist_info}/{_METADATA}", licence.text or "")]
    own_prohibitions = [prohibition for path, text in own if (prohibition := _forbidden(path, text))]
    yield from own_prohibitions
    if licence.proprietary and not own_prohibitions:
        yield Prohibition(f"{wheel.dist_info}/{_METADATA}", licence.proprietary)
    is_stated = bool(licence.expression or licence.text or licence.classifiers or licence.files)
    for path in licence.components:
        if prohibition := _forbidden(path, _read(wheel, path), is_own=not is_stated):
            yield prohibition


def own_prohibition(package: "Package") -> Prohibition | None:
    """The first words that forbid to modify *package* itself, and not a component."""
    return next((prohibition for prohibition in prohibitions(package) if prohibition.is_own), None)


def _is_text(path: str, dist_info: str) -> bool:
    folder, _, name = path.rpartition("/")
    if path.startswith(f"{dist_info}/") and any(part.lower() in _FOLDERS for part in folder.split("/")):
        return True
    return bool(_NAME.search(name)) and posixpath.splitext(name)[1].lower() in _TEXTS


def _is_own(path: str, wheel: "Package", beside: str) -> bool:
    folder, _, name = path.rpartition("/")
    if path.startswith(f"{wheel.dist_info}/"):
        parts = [part for part in folder.split("/")[1:] if part.lower() not in _FOLDERS]
        is_near = not parts
    else:
        is_near = folder in {"", beside} or "/" not in folder
    project = set(canonicalize_name(wheel.metadata().name).split("-"))
    return is_near and not set(_WORD.findall(name.lower())) - _SILENT - project


def _read(wheel: "Package", path: str) -> str:
    member = wheel.find(path)
    return wheel.read(path).decode(errors="replace") if member and member.size <= _LARGEST else ""


def _forbidden(path: str, text: str, *, is_own: bool = True) -> Prohibition | None:
    for sentence in _SENTENCE.finditer(text):
        starts = []
        start = sentence.start()
        for words in _FORBIDS:
            if not (match := words.search(text, start, sentence.end())):
                break
            starts.append(match.start())
            start = match.end()
        else:
            line = text.count("\n", 0, starts[0]) + 1
            forbidding = " ".join(text[starts[0] : sentence.end()].split())[:_LONGEST]
            return Prohibition(f"{path}, line {line}", forbidding, is_own)
    return None
