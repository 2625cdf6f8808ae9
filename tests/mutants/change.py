"""What a mutant changes, as the lines that it takes and puts, and the changes that make no difference."""

import re
import tomllib
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.utils.format_utils import orig_function_and_class_names_from_key


@dataclass(frozen=True)
class Change:
    where: str  # vbuild/room/module.py:Class.function
    was: str
    becomes: str

    @classmethod
    def of(cls, folder: Path, mutant: str, path: str) -> Self:
        """Return what *mutant* changes in the module at *path*, of mutmut's project in *folder*."""
        with chdir(folder):
            diff = get_diff_for_mutant(mutant, path=path).splitlines()[3:]
        function, owner = orig_function_and_class_names_from_key(mutant)
        place = ".".join(filter(None, (owner, function)))
        was, becomes = (" ".join(line[1:].strip() for line in diff if line.startswith(sign)) for sign in "-+")
        return cls(f"{path}:{place}", was, becomes)

    def __str__(self) -> str:
        return f"{self.where}\n    - {self.was}\n    + {self.becomes}"


@dataclass(frozen=True)
class Equivalents:
    """``equivalent.toml``: changes at one place, word for word, and patterns for what is equivalent everywhere."""

    at: frozenset[Change]
    everywhere: tuple[re.Pattern[str], ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        stated = tomllib.loads(path.read_text())
        at = frozenset(Change(each["where"], each["was"], each["becomes"]) for each in stated["at"])
        return cls(at, tuple(re.compile(each["change"]) for each in stated["everywhere"]))

    def __contains__(self, change: Change) -> bool:
        words = f"{change.was} -> {change.becomes}"
        return change in self.at or any(pattern.search(words) for pattern in self.everywhere)
