"""A verb's request: options are declared once, as fields, for the command, the function and the page of both.

@takes(StampRequest)                      vbuild.stamp("x.whl", "out", label="v3"), which editors and mypy check
def stamp(request: StampRequest) -> Path

@options.of("vbuild.api.…:StampRequest")  vbuild stamp x.whl -o out --label v3
def stamp(**given: Any) -> None
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, fields
from functools import wraps
from inspect import signature
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar

from vbuild.errors import VbuildError

if TYPE_CHECKING:
    from vbuild.hardware.gpu import GpuList

StrPath = str | PathLike[str]
Paths = StrPath | Iterable[StrPath]
Texts = str | Iterable[str]
Gpus: TypeAlias = "str | float | GpuList | Iterable[str | float | GpuList]"
PtxChoice = Literal["auto", "keep", "none"]
StripChoice = Literal["debug", "unneeded"] | None

D = TypeVar("D")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_OPTION = "option"


class RequestError(VbuildError):
    """Options that do not go together. *text* has their names in braces; a command writes its flags instead."""

    advice = "docs/reference/api.md and docs/commands list the options."

    def __init__(self, text: str) -> None:
        super().__init__(re.sub(r"[{}]", "", text))
        self.text = text

    def spelled(self, flags: Mapping[str, str]) -> str:
        return re.sub(r"\{(\w+)\}", lambda name: flags[name[1]], self.text)


class Option(NamedTuple):
    """What a field is to a user: *help* says what it does; *flags* are those of the command, None if it has none.

    The text after a flag is one of *choices*, a number from *least* on, a ``file``, a ``folder``, or a ``place``, which
    may be a URL; or *parse*, the place of a function, reads it. An option with *only* has no effect without that other
    field, as in ``attestations``, or that word in it, as in ``layouts oci``.
    """

    help: str
    flags: str | None
    parse: str | None
    choices: tuple[str, ...]
    metavar: str | None
    least: int | None
    only: str | None


def option(
    text: str,
    *,
    default: D,
    flags: str | None = "",
    parse: str | None = None,
    choices: tuple[str, ...] = (),
    metavar: str | None = None,
    least: int | None = None,
    only: str | None = None,
) -> D:
    """A field of a request that is an option; without *flags*, its name is the flag. See `Option`."""
    return field(default=default, metadata={_OPTION: Option(text, flags, parse, choices, metavar, least, only)})


def options_of(request: Any) -> dict[str, tuple[Option, Any]]:  # noqa: ANN401 - a dataclass, or a value of one
    """The options of *request*, each with its default."""
    return {spec.name: (spec.metadata[_OPTION], spec.default) for spec in fields(request) if _OPTION in spec.metadata}


def check_options(request: Any, values: Mapping[str, Any]) -> None:  # noqa: ANN401 - a dataclass, or a value of one
    """`RequestError` if an option of *request* has no effect with these *values*, by its *only*."""
    for name, (declared, default) in options_of(request).items():
        needed, _, word = (declared.only or "").partition(" ")
        if needed and values.get(name, default) != default and not (word in values[needed] if word else values[needed]):
            raise RequestError(f"{{{name}}} goes with {{{needed}}}{word and ' '}{word} only")


def takes(request: Callable[P, R]) -> Callable[[Callable[[R], T]], Callable[P, T]]:
    """Make a function of a *request* one of the fields of the request; `RequestError` for options without effect."""

    def taking(function: Callable[[R], T]) -> Callable[P, T]:
        @wraps(function)
        def call(*positional: P.args, **named: P.kwargs) -> T:
            for name, value in named.items():
                if isinstance(value, Iterator):  # what can be read once only may be read twice
                    named[name] = tuple(value)
            wanted = request(*positional, **named)
            check_options(request, vars(wanted))
            return function(wanted)

        returned = signature(function).return_annotation
        vars(call).update(__signature__=signature(request).replace(return_annotation=returned), request=request)
        return call

    return taking


def silent(*_: object) -> None:
    """Progress that nobody hears of."""


OnProgress = Callable[[str, int, int], None]

# options of several requests
STRIP: StripChoice = option(
    "Also remove debug data, or all local symbols.", default=None, choices=("debug", "unneeded")
)
DROP: Texts = option("Leave out these files: '*.a', 'torch/include/*'. Repeatable.", default=(), metavar="GLOB")
ALLOW_BUILDS = option("Build requirements that have no wheel, which runs their code.", default=False)
PROGRESS: OnProgress = option(
    "Call this with what is being done, the bytes done, and those to do.", default=silent, flags=None
)
