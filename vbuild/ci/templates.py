"""The files that are emitted, from templates beside this module, and values quoted as YAML takes them."""

import functools
import json

from jinja2 import Environment, PackageLoader, StrictUndefined


def rendered(template: str, **values: object) -> str:
    """The text of the *template* of that name with *values* in it; ``| yaml`` quotes one for YAML."""
    return _environment().get_template(template).render(values)


def quoted(text: str) -> str:
    """*text* as YAML's double-quoted scalar: a string whatever it looks like, ``"3.10"`` and ``"on"`` too."""
    return json.dumps(text, ensure_ascii=False)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("vbuild.ci", "."),
        autoescape=False,  # noqa: S701 - YAML and shell, which quote differently
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # GitHub's own placeholders look like jinja's
        variable_start_string="[[",
        variable_end_string="]]",
        comment_start_string="[#",
        comment_end_string="#]",
    )
    environment.filters["yaml"] = quoted
    return environment
