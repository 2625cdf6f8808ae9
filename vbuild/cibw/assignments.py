"""What the environment of a build in a container gets behind the project's own, as assignments of the shell.

    NAME="value"                                      the recipe's
    CUDAARCHS="$(sh -c '... || echo "75-real"')"      a knob, unless the project has set it
    PATH="/tmp/vbuild:$PATH"                          the launchers first

cibuildwheel evaluates them in the container, by bashlex, for each identifier, before the launchers are there.
"""

import re

from vbuild.build.plan import CudaPlan
from vbuild.cibw import places
from vbuild.recipe.target import Env, Target

WRAPPER = "VBUILD_RUSTC_WRAPPER"  # has the RUSTC_WRAPPER of the project

# of cuda_plan's variables, those that lead to the toolkit; the others are for the project to choose
_HOMES = ("CUDA_HOME", "CUDA_PATH")
_FIXED = ("CUDACXX", "NVCC", "PYTORCH_NVCC")
_ADDITIVE = ("CMAKE_ARGS",)

# the target of a Rust that is installed only later is told from the C library
_RUST_HOST = (
    'rustc -vV 2>/dev/null | sed -n "s/^host: //p" | grep . || '
    'echo "$(uname -m)-unknown-linux-$(ldd --version 2>&1 | grep -q musl && echo musl || echo gnu)"'
)


def assignments(target: Target, cuda: CudaPlan | None) -> Env:
    """The assignments, in the shell's words, that the build gets behind the project's own."""
    words = {name: _quoted(value) for name, value in target.env}
    for name, value in cuda.environment if cuda else ():
        if name in _HOMES:
            words[name] = _quoted(str(places.CUDA))
        elif name in _FIXED or name in words:
            words[name] = _quoted(value)
        elif name in _ADDITIVE:
            words[name] = f'"${name} {_escaped(value)}"'
        else:
            words[name] = _unless_set(name, f'echo "{value}"')
    bins = [str(places.LAUNCHERS), *([str(places.CUDA / "bin")] if cuda else [])]
    return (
        *words.items(),
        # cargo finds rustc by itself, and does not see the flags that its wrapper adds: see vbuild.build.launcher
        (WRAPPER, '"$RUSTC_WRAPPER"'),
        ("RUSTC_WRAPPER", _quoted(str(places.LAUNCHERS / "rustc-launcher"))),
        ("CARGO_TARGET_DIR", _quoted(str(places.PROJECT / "target"))),
        ("CARGO_BUILD_TARGET", _unless_set("CARGO_BUILD_TARGET", _RUST_HOST)),
        ("PATH", f'"{":".join(bins)}:$PATH"'),
    )


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    """*text* for double quotes: what reads it for cibuildwheel is at odds with single ones."""
    return re.sub(r'[\\"$`]', r"\\\g<0>", text)


def _unless_set(name: str, command: str) -> str:
    """What *command* prints, unless the variable *name* has a value already: the project's knobs stay as they are."""
    return f""""$(sh -c 'printenv {name} | grep . || {command}')\""""
