"""What the environment of a build in a container gets behind the project's own, as assignments of the shell.

    NAME="value"                                      the recipe's
    TZ="$(sh -c '... || echo UTC')"                   what makes builds the same, unless it is set
    CUDAARCHS="$(sh -c '... || echo "75-real"')"      a knob, unless the project has set it
    CCACHE_NAMESPACE="$CCACHE_NAMESPACE-1f0c…"        results of other rules are none for this build
    PATH="/tmp/vbuild:$PATH"                          the compiler wrappers first

cibuildwheel evaluates them in the container, by bashlex, for each identifier, before the compiler wrappers are there.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from msgspec import to_builtins

from vbuild.build.cibuildwheel import containers as places
from vbuild.build.cibuildwheel.container import LOST
from vbuild.build.cibuildwheel.inheritance import Inheritance, InheritanceRule
from vbuild.build.plan import RELATIVE_RPATHS, SETTLED, CudaPlan, Rewriting
from vbuild.config.table import Env
from vbuild.errors import BuildError
from vbuild.recipe.target import Target

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


def assignments(target: Target, rules: Rewriting, cuda: CudaPlan | None) -> Env:
    """The assignments, in the shell's words, that a build by *rules* gets behind the project's own."""
    words = {name: _quoted(value) for name, value in target.env}
    # what makes builds the same anywhere, unless the image, the project or the recipe says otherwise
    words |= {name: _unless_set(name, f"echo {value}") for name, value in SETTLED.items() if name not in words}
    for name, value in cuda.environment if cuda else ():
        if name in _HOMES:
            words[name] = _quoted(str(places.CUDA))
        elif name in _FIXED or name in words:
            words[name] = _quoted(value)
        elif name in _ADDITIVE:
            words[name] = f'"${name} {_escaped(value)}"'
        else:
            words[name] = _unless_set(name, f'echo "{value}"')
    # in front, where what anybody else says of it counts; behind the quote that each of these begins with
    words["CMAKE_ARGS"] = f'"{RELATIVE_RPATHS} {words.get("CMAKE_ARGS", _CMAKE_ARGS)[1:]}'
    bins = [str(places.WRAPPERS), *([str(places.CUDA / "bin")] if cuda else [])]
    return (
        *words.items(),
        # cargo finds rustc by itself, and does not see the flags that its wrapper adds: see vbuild.build.wrappers
        (WRAPPER, '"$RUSTC_WRAPPER"'),
        ("RUSTC_WRAPPER", _quoted(str(places.WRAPPERS / "rustc-launcher"))),
        ("CARGO_TARGET_DIR", _quoted(str(places.PROJECT / "target"))),
        ("CARGO_BUILD_TARGET", _unless_set("CARGO_BUILD_TARGET", _RUST_HOST)),
        # a ccache of the project's sees only commands as they were, and may only ask a compiler for its version
        ("CCACHE_NAMESPACE", f'"$CCACHE_NAMESPACE-{_digest(rules, cuda)}"'),
        *((name, _quoted(value)) for name, value in _ASKING),
        ("PATH", f'"{":".join(bins)}:$PATH"'),
    )


def check_one_line(options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """`BuildError` if the environment that the *options* of a project or the user's variables have would end early.

    What vbuild puts behind it would be lost, which the program in a container sees only there.
    """
    texts = _projects(options)
    rules = Inheritance.of(environment).rules
    for option in ("environment", "environment-linux"):
        text = environment.get(f"CIBW_{option.upper().replace('-', '_')}")
        if text is not None:
            texts = [
                *(texts if rules.get(option, InheritanceRule.NONE) is not InheritanceRule.NONE else []),
                text.strip(),
            ]
    if any(_ends_early(text) for text in texts):
        raise BuildError(LOST)


def _projects(options: Mapping[str, Any]) -> list[str]:
    """The environments of *options* that are text, and surely in force: none where tables may take their place."""
    linux = options.get("linux")
    places_of_it = (options, linux if isinstance(linux, Mapping) else {}, *options.get("overrides", ()))
    found = [place["environment"] for place in places_of_it if isinstance(place, Mapping) and "environment" in place]
    return [text for text in found if isinstance(text, str)] if len(found) == 1 else []


def _ends_early(text: str) -> bool:
    """Whether a line break or a comment ends *text* for bashlex, which does not go on behind these."""
    if "$(" in text or "`" in text:  # commands, which may have either
        return False
    bare = _WRITTEN.sub("x", text)
    return "\n" in bare or bool(_COMMENT.search(bare))


def _digest(rules: Rewriting, cuda: CudaPlan | None) -> str:
    said = json.dumps([to_builtins(rules), cuda.rules.data() if cuda else None], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:_DIGITS]


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    """*text* for double quotes: what reads it for cibuildwheel is at odds with single ones."""
    return re.sub(r'[\\"$`]', r"\\\g<0>", text)


def _unless_set(name: str, command: str) -> str:
    """What *command* prints, unless the variable *name* has a value already: the project's knobs stay as they are."""
    return f""""$(sh -c 'printenv {name} | grep . || {command}')\""""
