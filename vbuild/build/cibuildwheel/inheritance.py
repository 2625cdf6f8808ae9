"""Add to an option of cibuildwheel without taking the place of anything: the project's, or the user's variables.

    defaults < project < overrides < CIBW_X < CIBW_X_LINUX     each instead of all before, or, by a rule
                                                               in CIBW_INHERIT, behind or in front of it

The two variables together are either a new value, or something in front of the project's value and something behind.
What is added goes outermost, and two variables can always say that.
https://cibuildwheel.pypa.io/en/stable/configuration/#inherit
"""

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from vbuild.config.table import Setting
from vbuild.errors import BuildError

INHERIT = "CIBW_INHERIT"
_LINUX = "linux"

Join = Callable[[str, str], str]


class InheritanceRule(StrEnum):
    """What a value does to those of lower precedence."""

    NONE = "none"
    APPEND = "append"
    PREPEND = "prepend"


@dataclass(slots=True)
class Inheritance:
    """The variables of cibuildwheel, with the rules of CIBW_INHERIT apart, while something is added to them.

    *given* is the user's environment; *variables* are those that have a new value.
    """

    given: Mapping[str, str]
    rules: dict[str, InheritanceRule]
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """The variables in *environment*, whose CIBW_INHERIT cibuildwheel has taken already."""
        return cls(environment, _rules(environment.get(INHERIT, "")))

    def result(self) -> dict[str, str]:
        """The variables that are different now, CIBW_INHERIT among them."""
        inherit = "; ".join(f"{option}: {rule}" for option, rule in self.rules.items())
        return {**self.variables, INHERIT: inherit} if self.variables else {}

    def replace(self, option: str, value: str) -> None:
        """Give *option*, one that has no variable for the platform, this *value*."""
        self.variables[_variable(option)] = value
        self.rules.pop(option, None)

    def is_given(self, option: str) -> bool:
        """Whether the user has a variable for *option*."""
        return any(_variable(name) in self.given for name in (option, f"{option}-{_LINUX}"))

    def append(self, option: str, value: str, join: Join) -> None:
        """Put *value* behind all that *option* is, as *join* does with two values."""
        self._add(option, value, join, is_first=False)

    def prepend(self, option: str, value: str, join: Join) -> None:
        """Put *value* in front of all that *option* is."""
        self._add(option, value, join, is_first=True)

    def _add(self, option: str, value: str, join: Join, *, is_first: bool) -> None:
        front, back, is_new = "", "", False
        for name in (option, f"{option}-{_LINUX}"):
            text = self.given.get(_variable(name))
            if text is None:
                continue
            text = text.strip()  # a newline, as YAML leaves one, would end the option there
            match self.rules.get(name, InheritanceRule.NONE):
                case InheritanceRule.NONE:
                    front, back, is_new = "", text, True
                case InheritanceRule.APPEND:
                    back = join(back, text)
                case InheritanceRule.PREPEND:
                    front = join(text, front)
        if is_first:
            front = join(value, front)
        else:
            back = join(back, value)
        if is_new:
            self._set(option, "", InheritanceRule.APPEND)
            self._set(f"{option}-{_LINUX}", join(front, back), InheritanceRule.NONE)
        else:
            self._set(option, front, InheritanceRule.PREPEND)
            self._set(f"{option}-{_LINUX}", back, InheritanceRule.APPEND)

    def _set(self, name: str, value: str, rule: InheritanceRule) -> None:
        if value or _variable(name) in self.given:
            self.variables[_variable(name)] = value
            self.rules[name] = rule


def joined(separator: str) -> Join:
    """How cibuildwheel joins two values of an option that is a list."""
    return lambda before, after: separator.join(text for text in (before, after) if text)


def tables_joined(before: str, after: str) -> str:
    """How cibuildwheel joins two tables of settings: a key of the later one takes the place of the earlier's."""
    if not (before and after):
        return before or after
    return written({**_table(before), **_table(after)}.items())


def written(settings: Iterable[tuple[str, Setting]]) -> str:
    """Config settings in one line: those that are arrays once for each of their values."""
    pairs = ((key, text) for key, value in settings for text in ((value,) if isinstance(value, str) else value))
    return " ".join(f"{key}={shlex.quote(text)}" for key, text in pairs)


def _table(text: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for word in shlex.split(text):
        key, is_pair, value = word.partition("=")
        if not is_pair:
            raise BuildError(f"CIBW_CONFIG_SETTINGS: found {word!r}, expected KEY=VALUE")
        found[key] = (*found.get(key, ()), value)
    return found


def _variable(option: str) -> str:
    return f"CIBW_{option.upper().replace('-', '_')}"


def _rules(text: str) -> dict[str, InheritanceRule]:
    """The rules in *text*, ``environment: append; config-settings``; an option without a rule is appended."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";")
    lexer.commenters = ""
    lexer.whitespace_split = True
    rules: dict[str, InheritanceRule] = {}
    for field_text in " ".join(lexer).split(";"):
        words = field_text.replace(":", " : ").split()
        match words:
            case [option, ":", rule] if rule in set(InheritanceRule):
                rules[option] = InheritanceRule(rule)
            case [_, ":", *_]:
                raise BuildError(f"{INHERIT}={text}: expected as in 'environment: append; before-build: prepend'")
            case _:
                rules |= dict.fromkeys(words, InheritanceRule.APPEND)
    return rules
