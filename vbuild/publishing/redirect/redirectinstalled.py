"""Which of several builds is taken: that against what is asked for or installed, else that against the newest.

    pip install demo 'torch==2.14.*'     torch 2.14, as the command says, or a file that its -r or -c names
    pip install demo                     the torch that this Python has, or its environment without isolation
    uv pip install demo                  the torch where uv installs to; this Python is in an environment of its own
    uv sync, uv lock                     the newest: what a lock says may not depend on what is installed

METADATA requires what the wheel was built against, so whatever is chosen, a resolver finds out if it does not fit. uv
keeps METADATA without the wheel, and this folder with it: a note in it says which build its METADATA is of.
"""

import argparse
import importlib.metadata
import os
import re
import shutil
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

Span = tuple[list[int], list[int]]

_SPECIFIER = re.compile(r"\s*(===?|~=|>=?|<=?)\s*v?(?:\d+!)?(\d+(?:\.\d+)*)(\.\*)?")
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*([=~<>][^;]*)")
_FILES = ("requirement", "constraint", "override")
# uv reads dependencies of projects in them
_OTHER_FILES = frozenset({".toml", ".cfg", ".py"})
# longer than any version
_NUMBERS = 8


def left(
    table: "dict[str, Any]", wheels: "list[dict[str, Any]]", asked: str, note: Path, *, is_first: bool
) -> "list[dict[str, Any]]":
    """Those of *wheels* with the value that is *asked* for, or that fits best; SystemExit if none has what is asked.

    The file *note* keeps what was chosen when METADATA was asked for, which *is_first*; the wheel has to be of that.
    """
    there = {wheel["value"]: wheel["needs"] for wheel in wheels}
    values = [(name, there[name]) for name in table["values"] if name in there]
    if asked and asked not in there:
        names = ", ".join(f"+{name}" for name, _ in values) or "none"
        raise SystemExit(f"{table['release']}: no +{asked} for this Python, as is selected; there are {names}")
    before = "" if is_first or not note.is_file() else note.read_text("utf-8")
    if asked and before not in {"", asked}:
        cached = f"+{before} is what a cache has; clean that of it"
        raise SystemExit(f"{table['release']}: +{asked} is selected, and {cached}")
    chosen = before or asked or (_value(table["release"], values) if values else "")
    if is_first:
        with suppress(OSError):
            note.write_text(chosen, "utf-8")
    return [wheel for wheel in wheels if wheel["value"] == chosen]


def _value(release: str, values: "list[tuple[str, dict[str, str]]]") -> str:
    """The first of *values* that fits what is asked for or installed; the first of all if none does."""
    reasons = []
    for project in dict.fromkeys(project for _, needs in values for project in needs):
        specifier, where = _known(project)
        if not specifier:
            reasons.append(f"no {project} is installed or asked for")
            continue
        fits = [one for one in values if _overlap(_span(specifier), _span(one[1].get(project, "")))]
        reasons.append(f"{project}{specifier} {where}" + ", for which there is no wheel" * (not fits))
        values = fits or values
    chosen = values[0][0]
    sys.stderr.write(f"{release}: chose +{chosen}: {'; '.join(reasons)}; VBUILD_SELECT takes another\n")
    return chosen


def _known(project: str) -> tuple[str, str]:
    """The specifier that *project* has by the installer's words, or that of what is installed; where that stands."""
    words, places = _installer()
    matches = filter(None, map(_REQUIREMENT.fullmatch, words))
    asked = [match[2].strip() for match in matches if re.sub("[-_.]+", "-", match[1]).lower() == project]
    if asked:
        return ",".join(dict.fromkeys(asked)), "is asked for"
    for place in places:
        for found in importlib.metadata.distributions(name=project, path=[place]):
            return f"=={found.version}", f"is in {place}"
    return "", ""


def _installer() -> "tuple[list[str], list[str]]":
    """The words of the command that builds this, with the lines of its files, and the folders that it installs to."""
    here = [*sys.path, *(sysconfig.get_path(name) for name in ("purelib", "platlib")), site.getusersitepackages()]
    parent = Path("/proc", str(os.getppid()))
    try:
        words, entries = ((parent / name).read_bytes().decode("utf-8", "replace") for name in ("cmdline", "environ"))
        folder = (parent / "cwd").resolve()
    except OSError:
        return [], here
    program, *options = words.split("\0")
    variables = dict(entry.partition("=")[::2] for entry in entries.split("\0"))
    if Path(program).name != "uv":
        return [*options, *_in_files(options, variables, folder, "PIP")], here
    if "pip" not in options:
        return [], sys.path
    options += _in_files(options, variables, folder, "UV")
    return options, [*sys.path, *(str(folder / place) for place in _of_uv(options, variables, folder))]


def _in_files(words: "list[str]", variables: "dict[str, str]", folder: Path, tool: str) -> "list[str]":
    """The requirements in the files that *words*, or the *variables* of the *tool*, name by paths from *folder*.

    Lines with markers are left out: to evaluate them takes more than the standard library.
    """
    named = [name for key in _FILES for name in variables.get(f"{tool}_{key.upper()}", "").split()]
    left = [folder / name for name in [*_named(words), *named]]
    found, seen = [], set()
    while left:
        file = Path(os.path.abspath(left.pop(0)))  # noqa: PTH100 - a loop of links has no place to resolve to
        if file in seen or file.suffix in _OTHER_FILES:
            continue
        seen.add(file)
        try:
            # a pipe would be read instead of by the installer
            text = file.read_text("utf-8", "replace") if file.is_file() else ""
        except OSError:
            continue
        for line in re.sub(r"\\\r?\n", " ", text).splitlines():
            shown = re.split(r"(?:^|\s)#|\s--hash", line)[0].strip()
            if shown.startswith("-"):
                left += [file.parent / name for name in _named(re.split(r"[\s=]+", shown, maxsplit=1))]
            else:
                found.append(shown)
    return found


def _named(words: "list[str]") -> "list[str]":
    """The files of requirements and constraints that *words* name."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options = [name for key in _FILES for name in (f"--{key}", f"--{key}s")]
    parser.add_argument("-r", "-c", *options, dest="files", action="append", nargs="?", default=[])
    return [name for name in parser.parse_known_args(words)[0].files if name]


def _of_uv(words: "list[str]", variables: "dict[str, str]", folder: Path) -> Iterator[str]:
    """The folder of packages that uv, started with *words* in *folder*, installs to; none if that is not plain."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-t", "--target")
    parser.add_argument("-p", "--python", default=variables.get("UV_PYTHON"))
    parser.add_argument("--prefix")
    parser.add_argument("--system", action="store_true", default=bool(variables.get("UV_SYSTEM_PYTHON")))
    asked, _ = parser.parse_known_args(words)
    if asked.target:
        yield asked.target
        return
    python = shutil.which("python3", path=variables.get("PATH")) if asked.system else asked.python
    prefix = asked.prefix or variables.get("VIRTUAL_ENV") or variables.get("CONDA_PREFIX")
    if not asked.prefix and python:
        prefix = str(Path(python).parents[1]) if (folder / python).is_file() and "/" in python else python
    elif not prefix:
        above = (one / ".venv" for one in (folder, *folder.parents))
        prefix = next((str(one) for one in above if one.is_dir()), None)
    if prefix:
        yield f"{prefix}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def _span(specifier: str) -> Span:
    """The first version that *specifier* admits, and the first after: ``==2.14.*`` is [2, 14], [2, 15].

    Exclusions do not count: a resolver sees to them.
    """
    first, end = _padded([0]), _padded([1 << 30])
    for match in filter(None, map(_SPECIFIER.match, specifier.split(","))):
        sign, numbers = match[1], [int(number) for number in match[2].split(".")]
        exact = _padded(numbers)
        after = [*exact[:-1], 1]
        if sign == "~=":
            after = _padded([*numbers[:-2], numbers[-2] + 1]) if len(numbers) > 1 else end
        elif match[3]:
            after = _padded([*numbers[:-1], numbers[-1] + 1])
        if sign[0] in "=~>":
            first = max(first, after if sign == ">" else exact)
        if sign[0] in "=~<":
            end = min(end, exact if sign == "<" else after)
    return first, end


def _padded(numbers: "list[int]") -> "list[int]":
    return (numbers + [0] * _NUMBERS)[:_NUMBERS]


def _overlap(one: Span, other: Span) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])
