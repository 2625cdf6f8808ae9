"""What vbuild adds to the options of cibuildwheel, without replacing the project's or the user's.

    defaults < project < overrides < CIBW_X < CIBW_X_LINUX     each instead of all before, or, by a rule
                                                               in CIBW_INHERIT, behind or in front of it

The two variables together are either a new value, or something in front of the project's value and something behind.
What is added goes outermost, and two variables can always say that.
https://cibuildwheel.pypa.io/en/stable/configuration/#inherit

The option ``environment`` gets assignments of the shell behind the project's own:

    NAME="value"                                      the recipe's
    TZ="$(sh -c '... || echo UTC')"                   what makes builds the same, unless it is set
    CUDAARCHS="$(sh -c '... || echo "75-real"')"      a knob, unless the project has set it
    CCACHE_NAMESPACE="$CCACHE_NAMESPACE-1f0c…"        results of other rules are none for this build
    PATH="/tmp/vbuild:$PATH"                          the compiler wrappers first

cibuildwheel evaluates them in the container, by bashlex, for each identifier, before the compiler wrappers are there.
They name these places in the container, which cibuildwheel starts with the host's files at /host:

    /project              the folder that cibuildwheel runs in, copied
    /host/<path>          the host's <path>: the kit, and CUDA toolkits
    /tmp/vbuild           compiler wrappers, first on PATH; made anew for each identifier by container.py
    /tmp/vbuild/cuda      the CUDA_HOME with the wrapper of nvcc
"""

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, Self

from msgspec import Struct, field, to_builtins

from vbuild.build.cibuildwheel.container import LOST
from vbuild.build.plan import RELATIVE_RPATHS, SETTLED, CudaPlan, Rewriting
from vbuild.config.table import Env, Setting
from vbuild.errors import BuildError
from vbuild.recipe.target import Target

PROJECT = PurePosixPath("/project")
WRAPPERS = PurePosixPath("/tmp/vbuild")  # noqa: S108 - nobody else is in the container
CUDA = WRAPPERS / "cuda"
HOST = PurePosixPath("/host")

WRAPPER = "VBUILD_RUSTC_WRAPPER"  # has the RUSTC_WRAPPER of the project

# of cuda_plan's variables, those that lead to the toolkit; the others are for the project to choose
_HOMES = ("CUDA_HOME", "CUDA_PATH")
_FIXED = ("CUDACXX", "NVCC", "PYTORCH_NVCC")
_ADDITIVE = ("CMAKE_ARGS",)
_CMAKE_ARGS = '"$CMAKE_ARGS"'
_DIGITS = 16  # of a digest

# a result of a cache is found by what the compiler makes of a source first: compiler wrappers tell what they were
# called for, and a wheel whose compilers were never called through one is none of its level
_ASKING = (("CCACHE_NODIRECT", "1"), ("SCCACHE_DIRECT", "false"))

# what is quoted, in any way
_WRITTEN = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_COMMENT = re.compile(r"(?:^|\s)#")

# the target of a Rust that is installed only later is told from the C library
_RUST_HOST = (
    'rustc -vV 2>/dev/null | sed -n "s/^host: //p" | grep . || '
    'echo "$(uname -m)-unknown-linux-$(ldd --version 2>&1 | grep -q musl && echo musl || echo gnu)"'
)

INHERIT = "CIBW_INHERIT"
_LINUX = "linux"

Join = Callable[[str, str], str]


def inside(path: Path) -> PurePosixPath:
    """Where *path* of the host is in the container."""
    return HOST / path.resolve().relative_to("/")


def assignments(target: Target, rules: Rewriting, cuda: CudaPlan | None) -> Env:
    """The assignments, in the shell's words, that a build by *rules* gets behind the project's own."""
    words = {name: _quoted(value) for name, value in target.env}
    # what makes builds the same anywhere, unless the image, the project or the recipe says otherwise
    words |= {name: _unless_set(name, f"echo {value}") for name, value in SETTLED.items() if name not in words}
    for name, value in cuda.environment if cuda else ():
        if name in _HOMES:
            words[name] = _quoted(str(CUDA))
        elif name in _FIXED or name in words:
            words[name] = _quoted(value)
        elif name in _ADDITIVE:
            words[name] = f'"${name} {_escaped(value)}"'
        else:
            words[name] = _unless_set(name, f'echo "{value}"')
    # in front, where what anybody else says of it counts; behind the quote that each of these begins with
    words["CMAKE_ARGS"] = f'"{RELATIVE_RPATHS} {words.get("CMAKE_ARGS", _CMAKE_ARGS)[1:]}'
    bins = [str(WRAPPERS), *([str(CUDA / "bin")] if cuda else [])]
    settings = json.dumps([to_builtins(rules), cuda.rules.data() if cuda else None], sort_keys=True)
    return (
        *words.items(),
        # cargo finds rustc by itself, and does not see the flags that its wrapper adds: see vbuild.build.wrappers
        (WRAPPER, '"$RUSTC_WRAPPER"'),
        ("RUSTC_WRAPPER", _quoted(str(WRAPPERS / "rustc-launcher"))),
        ("CARGO_TARGET_DIR", _quoted(str(PROJECT / "target"))),
        ("CARGO_BUILD_TARGET", _unless_set("CARGO_BUILD_TARGET", _RUST_HOST)),
        # a ccache of the project's sees only commands as they were, and may only ask a compiler for its version
        ("CCACHE_NAMESPACE", f'"$CCACHE_NAMESPACE-{hashlib.sha256(settings.encode()).hexdigest()[:_DIGITS]}"'),
        *((name, _quoted(value)) for name, value in _ASKING),
        ("PATH", f'"{":".join(bins)}:$PATH"'),
    )


def check_one_line(options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """`BuildError` if the environment in a project's *options*, or in the user's variables, would end early.

    What vbuild puts behind it would be lost, which otherwise only the program in the container notices.
    """
    linux = options.get("linux")
    tables = (options, linux if isinstance(linux, Mapping) else {}, *options.get("overrides", ()))
    found = [table["environment"] for table in tables if isinstance(table, Mapping) and "environment" in table]
    # of several, or of a table, it is not known here which is in force
    texts = [text for text in found if isinstance(text, str)] if len(found) == 1 else []
    rules = Inheritance.of(environment).rules
    for option in ("environment", "environment-linux"):
        text = environment.get(f"CIBW_{option.upper().replace('-', '_')}")
        if text is not None:
            is_joined = rules.get(option, InheritanceRule.NONE) is not InheritanceRule.NONE
            texts = [*(texts if is_joined else []), text.strip()]
    for text in texts:
        # bashlex does not go on behind a line break or a comment; a command may have either
        bare = "" if "$(" in text or "`" in text else _WRITTEN.sub("x", text)
        if "\n" in bare or _COMMENT.search(bare):
            raise BuildError(LOST)


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    """*text* for double quotes: what reads it for cibuildwheel is at odds with single ones."""
    return re.sub(r'[\\"$`]', r"\\\g<0>", text)


def _unless_set(name: str, command: str) -> str:
    """What *command* prints, unless the variable *name* has a value already: the project's knobs stay as they are."""
    return f""""$(sh -c 'printenv {name} | grep . || {command}')\""""


class InheritanceRule(StrEnum):
    """What a value does to those of lower precedence."""

    NONE = "none"
    APPEND = "append"
    PREPEND = "prepend"


class Inheritance(Struct):
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

    def add(self, option: str, value: str, join: Join, *, is_first: bool = False) -> None:
        """Put *value* behind the project's and the user's values of *option*, or before them if it *is_first*.

        *join* makes one value of two.
        """
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
    """How cibuildwheel joins two tables of settings: a key of the later one replaces the earlier's."""
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
