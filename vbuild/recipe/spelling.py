"""The words of a recipe, each parsed at the door: labels, properties, CPU levels, interpreters, patterns."""

import platform
import re
from pathlib import Path

from vbuild.config.requirements import checked_requirement, is_path
from vbuild.config.table import Table
from vbuild.errors import RecipeError
from vbuild.hardware.cpu import Cpu

_LABEL = re.compile(r"[a-z0-9_.]+")
_PROPERTY = re.compile(r"\s*([a-z0-9_]+)\s*::\s*([a-z0-9_]+)\s*::\s*([a-z0-9_.]+)\s*")
_VERSION = re.compile(r"(?:[a-z]+@?)?\d+(?:\.\d+){0,2}t?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPELLINGS = {"amd64": "x86_64", "arm64": "aarch64"}
_BASELINES = {"x86_64": "x86-64", "aarch64": "armv8-a"}
MACHINES = tuple(_BASELINES)


def label(text: str) -> str:
    """*text* if it can be a variant label or a part of one (PEP 825); ``null`` is the null variant's alone."""
    if not _LABEL.fullmatch(text) or text == "null":
        raise RecipeError(f"{text!r} cannot be in a variant label; expected a-z, 0-9, _ and ., and not 'null'")
    return text


def variant_property(text: str) -> str:
    """*text* as ``namespace :: feature :: value``, with single spaces."""
    match = _PROPERTY.fullmatch(text)
    if not match:
        raise RecipeError(f"{text!r} is not a variant property; expected 'namespace :: feature :: value', lower case")
    return " :: ".join(match.groups())


def free_property(text: str) -> str:
    """*text* as a property that is no CPU level or feature: those are an axis of their own."""
    text = variant_property(text)
    if cpu := Cpu.of_properties([text]):
        kind = "feature" if cpu.extras else "level"
        raise RecipeError(f"{text!r} is a CPU {kind}; expected it in matrix.cpu, as {str(cpu)!r}")
    return text


def baseline(machine: str | None = None) -> Cpu:
    """The lowest level of *machine*, or of this machine."""
    name = machine or platform.machine().lower()
    name = _SPELLINGS.get(name, name)
    if name not in _BASELINES:
        raise RecipeError(f"no CPU levels are known for {name!r}; expected one of {', '.join(_BASELINES)}")
    return Cpu.parse(_BASELINES[name])


def interpreter(text: str, folder: Path) -> str:
    """A Python version as it is; the path of an interpreter, from *folder* on, made absolute."""
    if _VERSION.fullmatch(text):
        return text
    if "/" not in text and "\\" not in text:
        raise RecipeError(f"{text!r} is neither a version such as '3.12' nor the path of an interpreter")
    path = located(text, folder)
    if not path.is_file():
        raise RecipeError(f"no interpreter {text!r}; paths start where the recipe stands")
    # not resolved: a virtual environment's interpreter is a link to another
    return str(path)


def located(text: str, folder: Path) -> Path:
    """The absolute path that *text* means in *folder*."""
    try:
        path = (folder / Path(text).expanduser()).absolute()
        path.exists()
    except (OSError, RuntimeError) as error:  # too long; no such user after ~
        raise RecipeError(f"{text!r} is not a path: {error}") from error
    return path


def existing_file(kind: str, text: str, folder: Path) -> Path:
    path = located(text, folder)
    if not path.is_file():
        raise RecipeError(f"no {kind} {text!r}; paths start where the recipe stands")
    return path


def variables(table: Table, key: str) -> tuple[tuple[str, str], ...]:
    pairs = table.pairs(key)
    for name, text in pairs:
        if not _VARIABLE.fullmatch(name) or "\0" in text:
            raise table.refuse(key, f"{name!r} with {text!r} cannot be an environment variable")
    return pairs


def requirement(text: str) -> str:
    """*text* if it is a requirement (PEP 508), and not the name of a file."""
    if is_path(text):
        raise RecipeError(f"{text!r} is the name of a file; expected a requirement, as in numpy>=2")
    checked_requirement(text, RecipeError)
    return text


def pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise RecipeError(f"{text!r} is not a regular expression: {error}") from error
    return text
