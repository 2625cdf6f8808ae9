"""What no log of a build may show: values that the user passes on, and secrets in flags.

    DEMO_WORD=correct-horse-battery, --pass-env 'DEMO_*'     correct-horse-battery -> ****
    CFLAGS=-DTOKEN=abc                                       TOKEN=abc -> TOKEN=sha256:ba7816bf8f01cfea

A value alone is hidden from eight characters on, each of its lines by itself. It is not if it is a number, or a path
that is there, for it would be hidden everywhere; and what a macro is set to is not if it is a word without a digit.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from vbuild.process.masking import STARS, hiding
from vbuild.recipe.masked import SECRET, hashed, secrets_in
from vbuild.recipe.model import Recipe
from vbuild.recipe.target import Target
from vbuild.recipe.variables import is_asked, passed

_SHORTEST = 8  # characters
_NUMBER = re.compile(r"[\d.]+")
_FLAGS = re.compile(r"\s*--?[A-Za-z]")
_WORD = re.compile(r"[A-Za-z_]+")
_NAME = re.compile(r"[^\s=,]+[=,]\Z")


@contextmanager
def hiding_secrets(
    recipe: Recipe, targets: Iterable[Target], environment: Mapping[str, str] = os.environ
) -> Iterator[None]:
    """In the block no log has the secrets of *recipe* and its *targets*, or of what they ask for of *environment*."""
    variables = chain(recipe.build.env, *(native.env for native in recipe.natives), *(one.env for one in targets))
    settings = chain(recipe.build.config_settings, *(one.config_settings for one in targets))
    each = ((name, text) for name, value in settings for text in ([value] if isinstance(value, str) else value))
    with hiding(of_variables(environment, recipe.build.pass_env) | of_settings(chain(variables, each))):
        yield


def of_variables(environment: Mapping[str, str], asked: Iterable[str]) -> dict[str, str]:
    """What to hide of the variables in *environment* that a build sees which *asked* for these; what stands for it."""
    asked = tuple(asked)
    found: dict[str, str] = {}
    for name, text in passed(environment, asked).items():
        is_value = is_asked(name, asked) and not _FLAGS.match(text)
        found |= _of_value(text) if is_value else _of_flags(text)
    return found


def of_settings(settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What to hide of *settings*, by name: those whose name speaks of a secret, and secrets in flags."""
    found: dict[str, str] = {}
    for name, text in settings:
        found |= _of_value(text) if SECRET.search(name) else _of_flags(text)
    return found


def _of_value(text: str) -> dict[str, str]:
    lines = (line.strip() for line in text.splitlines())
    found = [line for line in lines if _is_worth(line)]
    return dict.fromkeys([*found, *(quote(line, safe="") for line in found)], STARS)


def _of_flags(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for _, seen, secret in secrets_in(text):
        if not secret:
            continue
        stands, bare = hashed(secret), secret.strip("\"'\\")
        if match := _NAME.search(seen):
            name = match[0].removeprefix("-D").removeprefix("/D")
            spelled = (secret, bare, f'"{bare}"', f'\\"{bare}\\"', secret.partition(",-")[0])
            found |= {f"{name}{one}": f"{name}{stands}" for one in spelled}
        if _is_worth(bare) and not _WORD.fullmatch(bare):
            found[bare] = stands
    return found


def _is_worth(value: str) -> bool:
    """Whether *value* alone is hidden, wherever it stands."""
    if len(value) < _SHORTEST or _NUMBER.fullmatch(value):
        return False
    try:
        return not all(Path(part).exists() for part in value.split(os.pathsep))
    except (OSError, ValueError):
        return True
