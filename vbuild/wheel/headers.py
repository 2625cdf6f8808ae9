"""The header lines of WHEEL and METADATA, kept as they were written except where they are changed.

Both files are ``Name: value`` lines in UTF-8; METADATA may go on with a blank line and a body. A line that starts
with a blank continues the field above it, and the first line that is no field ends the headers, as Python's
email package (which installers read them with) has it.
https://packaging.python.org/en/latest/specifications/core-metadata/
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from vbuild.errors import WheelError

# possessive: of a million further lines none is ever given back, and to remember them takes a hundred bytes for each
_FIELD = re.compile(r"(?P<name>[!-9;-~]+):[^\n]*\n?(?:[ \t][^\n]*\n?)*+")
# fields, and characters of them, descriptions that are a field included; no project comes near
_MOST, _LONGEST = 1 << 14, 1 << 20


@dataclass(frozen=True, slots=True)
class Headers:
    """Fields in the order written, each with its whole text, and everything after them."""

    fields: tuple[tuple[str, str], ...]
    rest: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """The headers at the start of *text*; every text has them, if only none; `WheelError` for thousands of them."""
        fields: list[tuple[str, str]] = []
        end = 0
        while match := _FIELD.match(text, end):
            if len(fields) == _MOST or match.end() > _LONGEST:
                raise WheelError(f"more than {_MOST} fields or {_LONGEST} characters of them, as no project has")
            fields.append((match["name"].lower(), match[0]))
            end = match.end()
        return cls(tuple(fields), text[end:])

    def __str__(self) -> str:
        return "".join(text for _, text in self.fields) + self.rest

    def values(self, name: str) -> tuple[str, ...]:
        """What each field called *name*, in any case, says."""
        return tuple(text.partition(":")[2].strip() for field, text in self.fields if field == name.lower())

    def value(self, name: str) -> str | None:
        """What the first field called *name* says; None where there is none."""
        return next(iter(self.values(name)), None)

    def replacing(self, name: str, values: Sequence[str]) -> Self:
        """The same headers saying *values* under *name*, where the first such field stood, or else last."""
        if broken := [value for value in values if len(value.splitlines()) > 1]:
            raise WheelError(f"{name} {broken[0]!r}: expected one line")
        key = name.lower()
        if tuple(values) == self.values(name):
            return self
        fields = [(field, text if text.endswith("\n") else text + self._newline) for field, text in self.fields]
        places = [index for index, (field, _) in enumerate(fields) if field == key]
        place = places[0] if places else len(fields)
        added = [(key, f"{name}: {value}{self._newline}") for value in values]
        kept = [field for field in fields[place:] if field[0] != key]
        # text in front of which no field stood must not become the continuation of one
        rest = self._newline + self.rest if self.rest.startswith((" ", "\t")) else self.rest
        return type(self)((*fields[:place], *added, *kept), rest)

    def changing(self, name: str, change: Callable[[str], str]) -> Self:
        """The same headers with what each field called *name* says as *change* has it, at its place, blanks kept."""
        key = name.lower()
        return type(self)(
            tuple((field, _changed(text, change) if field == key else text) for field, text in self.fields), self.rest
        )

    @property
    def _newline(self) -> str:
        return "\r\n" if any(text.endswith("\r\n") for _, text in self.fields) else "\n"


def _changed(text: str, change: Callable[[str], str]) -> str:
    """The field *text* with its value as *change* has it; `WheelError` where that is more than the lines it had."""
    value = text.partition(":")[2].strip()
    if (after := change(value)) == value:
        return text
    if len(after.splitlines()) != len(value.splitlines()):
        raise WheelError(f"{text.partition(':')[0]} {after!r}: expected one line")
    start = text.index(":") + 1
    start += len(text[start:]) - len(text[start:].lstrip())
    return f"{text[:start]}{after}{text[start + len(value) :]}"
