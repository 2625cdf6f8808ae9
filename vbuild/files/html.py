"""One HTML file that needs no network: a room's template with style and script inside, and nothing else allowed.

    base.css and the room's style sheets -> <style>      their hashes -> content security policy
    the room's scripts                   -> <script>

Whatever names are in what is shown: they are escaped, and the policy lets nothing run or load but these two.
"""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template

_BASE = "vbuild.files"


def rendered(
    room: str,
    template: str,
    *,
    styles: Sequence[str],
    scripts: Sequence[str],
    filters: Mapping[str, Callable[..., Any]],
    **values: object,
) -> str:
    """The *template* in the package *room*, of *values*, with these *styles* and *scripts*, files of that package.

    The template sets ``policy``, ``style`` and ``script`` in their places, and may use *filters*.
    """
    from markupsafe import Markup  # noqa: PLC0415 - most commands show no page

    style = "".join([_file(_BASE, "base.css"), *(_file(room, name) for name in styles)])
    script = "".join(_file(room, name) for name in scripts)
    return _compiled(room, template, tuple(filters.items())).render(
        style=Markup(style),  # noqa: S704 - files of vbuild's own
        script=Markup(script),  # noqa: S704 - files of vbuild's own
        policy=f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        **values,
    )


@cache
def _compiled(room: str, template: str, filters: tuple[tuple[str, Callable[..., Any]], ...]) -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - as above

    environment = Environment(
        loader=PackageLoader(room, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.get_template(template)


def _file(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """*text* as a content security policy names what is allowed: by its hash."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
