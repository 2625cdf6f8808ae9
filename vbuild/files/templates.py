"""Files from templates, in which no text can become syntax.

`templates` quotes each value for its file, unless it is `Written`: vbuild's own, or made for its place in the file.

    - run: [[ command ]]      command = "a: b"      ->  - run: "a: b"
    [[ name ]]:               name = Written("a")   ->  a:

`rendered` makes one HTML file that needs no network: values are escaped, and the content security policy lets nothing
run or load but the style and the script inside.

    base.css and the room's style sheets -> <style>      their hashes -> content security policy
    the room's scripts                   -> <script>
"""

import base64
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


class Written(str):
    __slots__ = ()


@functools.cache
def _environment(package: str, **options: Any) -> "Environment":  # noqa: ANN401 - jinja has them
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - most commands write no such file

    return Environment(  # noqa: S701 - each caller escapes
        loader=PackageLoader(package, "."), undefined=StrictUndefined, trim_blocks=True, **options
    )


@functools.cache
def templates(package: str, quote: Callable[[str], str], **options: Any) -> "Environment":  # noqa: ANN401 - as above
    """The templates in *package*, whose values *quote* makes safe, with jinja's *options*."""

    def quoted(value: object) -> object:
        return value if isinstance(value, Written | int) else quote(str(value))

    return _environment(package, finalize=quoted, keep_trailing_newline=True, **options)


def yaml_text(text: str) -> str:
    """*text* as a YAML string in one line, also "3.10" and "on"."""
    # JSON is YAML, but for characters that are not text or end lines there
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)


def rendered(
    room: str,
    template: str,
    *,
    styles: Sequence[str],
    scripts: Sequence[str],
    filters: Mapping[str, Callable[..., Any]],
    **values: object,
) -> str:
    """The *template* of the package *room* with *values*, and with its *styles* and *scripts* inside."""
    from markupsafe import Markup  # noqa: PLC0415 - most commands write no page

    style = "".join([_file("vbuild.files", "base.css"), *(_file(room, name) for name in styles)])
    script = "".join(_file(room, name) for name in scripts)
    environment = _environment(room, autoescape=True, lstrip_blocks=True)
    environment.filters.update(filters)
    return environment.get_template(template).render(
        style=Markup(style),  # noqa: S704 - files of vbuild's own
        script=Markup(script),  # noqa: S704 - files of vbuild's own
        policy=f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        **values,
    )


def _file(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
