"""Files from templates in which a text cannot become syntax: each is quoted for its file, unless it is marked for it.

    - run: [[ command ]]      command = "a: b"      ->  - run: "a: b"
    [[ name ]]:               name = Written("a")   ->  a:

Whoever forgets to quote has quoted. What is marked is vbuild's own, or made for its place in the file.
"""

import functools
import json
from collections.abc import Callable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


class Written(str):
    """A text that stands in the file as it is."""

    __slots__ = ()


@functools.cache
def templates(package: str, quote: Callable[[str], str], **options: Any) -> Environment:  # noqa: ANN401 - jinja has them
    """The templates in *package*, whose values *quote* makes safe in the file, with jinja's *options*."""

    def placed(value: object) -> object:
        return value if isinstance(value, Written | int) else quote(str(value))

    return Environment(
        loader=PackageLoader(package, "."),
        autoescape=False,  # noqa: S701 - no HTML; *quote* is for what it is
        finalize=placed,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        **options,
    )


def yaml_text(text: str) -> str:
    """*text* as YAML in one line, a string whatever it looks like, "3.10" and "on" too."""
    # JSON is YAML, but for characters that are no text or end lines there
    return "".join(one if one.isprintable() else f"\\U{ord(one):08x}" for one in json.dumps(text, ensure_ascii=False))


def yaml_block(lines: list[str], *, indent: int) -> str:
    """*lines* as a text of YAML that has several, with *indent* blanks; in one line if that cannot be.

    The first one does not begin with a blank.
    """
    if not all(map(str.isprintable, lines)):
        return yaml_text("\n".join([*lines, ""]))
    return "|" + "".join(f"\n{' ' * indent}{line}" for line in lines)
