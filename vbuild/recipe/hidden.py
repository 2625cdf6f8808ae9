"""What no log of a build may show: values that the user passes on, and secrets in flags.

    DEMO_WORD=correct-horse-battery, build.pass-env DEMO_*     correct-horse-battery -> ****
    CFLAGS=-DTOKEN=abc                                        TOKEN=abc -> TOKEN=sha256:ba7816bf8f01cfea

A value is hidden from eight characters on, from four on if its name speaks of a secret; each line by itself. Short
numbers and existing paths are not: they are everywhere.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from vbuild.process.masking import STARS, hiding
from vbuild.recipe.model import Recipe
from vbuild.recipe.target import Target
from vbuild.recipe.variables import PLAIN, SECRET, hashed, is_asked, passed, secrets_in

_SHORTEST = 8  # characters, as for GitLab's masked variables
_SHORTEST_SECRET = 4  # fewer would be hidden in every second line
_NUMBER = re.compile(r"[\d.]+")
_FLAGS = re.compile(r"\s*--?[A-Za-z]")
_WORD = re.compile(r"[A-Za-z_]+")
_NAME = re.compile(r"[^\s=,]+[=,]\Z")


@contextmanager
def hiding_secrets(
    recipe: Recipe, targets: Iterable[Target], environment: Mapping[str, str] = os.environ
) -> Iterator[None]:
    """In the block no log has the secrets of *recipe*, its *targets*, or what they ask for of *environment*."""
    with hiding(of_variables(environment, recipe.build.pass_env) | of_settings(_settings(recipe, targets))):
        yield


def too_short(
    recipe: Recipe,
    targets: Iterable[Target],
    environment: Mapping[str, str] = os.environ,
    pass_env: Iterable[str] | None = None,
) -> Iterator[str]:
    """A line for each secret that is too short to be hidden."""
    pass_env = tuple(recipe.build.pass_env if pass_env is None else pass_env)
    passed_on = ((name, text) for name, text in environment.items() if is_asked(name, pass_env))
    named = dict.fromkeys(
        name
        for name, text in chain(_settings(recipe, targets), passed_on)
        if SECRET.search(name)
        and text.strip()
        and not PLAIN.fullmatch(text.strip())
        and all(_is_short(line.strip(), is_secret=True) for line in text.splitlines())
    )
    for name in named:
        yield (
            f"{name}: its value is too short to be hidden in logs; "
            f"expected {_SHORTEST_SECRET} characters or more, {_SHORTEST} of a number"
        )


def _settings(recipe: Recipe, targets: Iterable[Target]) -> Iterator[tuple[str, str]]:
    targets = tuple(targets)
    yield from chain(recipe.build.env, *(native.env for native in recipe.natives), *(target.env for target in targets))
    for name, value in chain(recipe.build.config_settings, *(target.config_settings for target in targets)):
        yield from ((name, text) for text in ([value] if isinstance(value, str) else value))


def of_variables(environment: Mapping[str, str], pass_env: Iterable[str]) -> dict[str, str]:
    """What to hide of the variables in *environment* that a build *pass_env* for, with its replacement."""
    pass_env = tuple(pass_env)
    hidden: dict[str, str] = {}
    for name, text in passed(environment, pass_env).items():
        is_value = is_asked(name, pass_env) and not _FLAGS.match(text)
        hidden |= _of_value(name, text) if is_value else _of_flags(text)
    return hidden


def of_settings(settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    hidden: dict[str, str] = {}
    for name, text in settings:
        hidden |= _of_value(name, text) if SECRET.search(name) else _of_flags(text)
    return hidden


def _of_value(name: str, text: str) -> dict[str, str]:
    is_secret = SECRET.search(name) is not None
    lines = (line.strip() for line in text.splitlines())
    hidden = [line for line in lines if _is_worth(line, is_secret=is_secret)]
    return dict.fromkeys([*hidden, *(quote(line, safe="") for line in hidden)], STARS)


def _of_flags(text: str) -> dict[str, str]:
    hidden: dict[str, str] = {}
    for _, seen, secret in secrets_in(text):
        if not secret:
            continue
        stands, bare = hashed(secret), secret.strip("\"'\\")
        if match := _NAME.search(seen):
            name = match[0].removeprefix("-D").removeprefix("/D")
            spelled = (secret, bare, f'"{bare}"', f'\\"{bare}\\"', secret.partition(",-")[0])
            hidden |= {f"{name}{spelling}": f"{name}{stands}" for spelling in spelled}
        if _is_worth(bare) and not _WORD.fullmatch(bare):
            hidden[bare] = stands
    return hidden


def _is_worth(value: str, *, is_secret: bool = False) -> bool:
    if PLAIN.fullmatch(value) or _is_short(value, is_secret=is_secret) or (_NUMBER.fullmatch(value) and not is_secret):
        return False
    try:
        return not all(Path(part).exists() for part in value.split(os.pathsep))
    except (OSError, ValueError):
        return True


def _is_short(value: str, *, is_secret: bool) -> bool:
    return len(value) < (_SHORTEST_SECRET if is_secret and not _NUMBER.fullmatch(value) else _SHORTEST)
