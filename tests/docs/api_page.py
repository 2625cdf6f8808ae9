"""The generated part of docs/reference/api.md: what ``import vbuild`` gives, from its signatures and docstrings."""

import inspect
import re
from collections.abc import Callable, Iterator
from inspect import cleandoc
from typing import Any

import vbuild
from vbuild.api.request import Option, options_of


def api() -> str:
    """The functions with their options, then the results, as Markdown."""
    public = {name: getattr(vbuild, name) for name in vbuild.__all__}
    functions = {name: value for name, value in public.items() if inspect.isfunction(value)}
    results = [value for value in public.values() if _attributes(value)]
    parts = ["## Functions", *(part for name, function in functions.items() for part in _function(name, function))]
    return "\n\n".join([*parts, "## Results", *(part for kind in results for part in _result(kind))])


def _function(name: str, function: Callable[..., object]) -> Iterator[str]:
    """How a function is called, what it does, and its options."""
    signature = inspect.signature(function)
    request = getattr(function, "request", None)
    options = options_of(request) if request else {}
    words = [_parameter(one) for one in signature.parameters.values() if one.name not in options]
    for place, one in enumerate(signature.parameters.values()):
        if one.kind is one.KEYWORD_ONLY and one.name not in options:
            words.insert(place, "*")
            break
    returned = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", inspect.formatannotation(signature.return_annotation))
    yield f"### vbuild.{name}"
    call, result = ", ".join([*words, *(["**options"] if options else [])]), returned.strip("'\"")
    yield f"```python\nvbuild.{name}({call}) -> {result}\n```"
    yield _marked(cleandoc(function.__doc__ or ""))
    if request:
        rows = [f"| `{option}` | {_cell(_meaning(*declared))} |" for option, declared in options.items()]
        table = "\n".join(["| option | what it does |", "|---|---|", *rows])
        yield f"{_marked(cleandoc(request.__doc__ or ''))}\n\n{table}"


def _meaning(declared: Option, default: object) -> str:
    """The help of an option, and its default, unless that is nothing."""
    text = declared.help.removesuffix(" Repeatable.")
    is_told = not default or callable(default) or "[default" in text
    return text if is_told else f"{text} [default: {default}]"


def _parameter(one: inspect.Parameter) -> str:
    if one.kind is one.VAR_KEYWORD:
        return f"**{one.name}"
    return (
        one.name if one.default is one.empty else f"{one.name}={'...' if callable(one.default) else repr(one.default)}"
    )


def _result(kind: Any) -> Iterator[str]:
    """What a result is, its attributes, and what is computed from them."""
    yield f"### vbuild.{kind.__name__}"
    if kind.__doc__:
        yield _marked(cleandoc(kind.__doc__))
    yield f"Attributes: {', '.join(f'`{name}`' for name in _attributes(kind))}."
    computed = {name: value.__doc__ for name, value in vars(kind).items() if isinstance(value, property)}
    rows = [f"| `{name}` | {_cell(text.partition(chr(10))[0])} |" for name, text in computed.items() if text]
    if rows:
        yield "\n".join(["| property | what it is |", "|---|---|", *rows])


def _attributes(kind: Any) -> tuple[str, ...]:
    return getattr(kind, "__struct_fields__", ()) or tuple(getattr(kind, "__dataclass_fields__", ()))


def _marked(text: str) -> str:
    """A docstring as Markdown: names in it, and parameters, which it has in stars, as code."""
    text = re.sub(r"``([^`]*)``", r"`\1`", re.sub(r"(?<!\n)\n(?!\n)", " ", text))
    parts = re.split(r"(`[^`]*`)", text)
    plain = [re.sub(r"\*(\w+)\*", r"`\1`", part) for part in parts[::2]]
    return "".join(part for both in zip(plain, [*parts[1::2], ""], strict=True) for part in both)


def _cell(text: str) -> str:
    """*text* in a cell of a table; texts in quotes are code."""
    parts = re.split(r"(`[^`]*`)", _marked(text).replace("|", r"\|"))
    plain = [re.sub(r'"([^"]*)"', r"`\1`", part) for part in parts[::2]]
    text = "".join(part for both in zip(plain, [*parts[1::2], ""], strict=True) for part in both)
    return re.sub(r"(?<![`\w])\*(?![`\w])", r"\\*", text)
