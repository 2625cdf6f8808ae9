"""Types of arguments and options, and the options that several commands share.

An option's text becomes a value before the command starts; what its parser refuses is a usage mistake. A parser is
imported when there is a text for it, so that ``vbuild --help`` loads click and nothing else.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_args

import click

from vbuild.api import Layout
from vbuild.cli import terminal
from vbuild.errors import VbuildError, meant

if TYPE_CHECKING:
    from vbuild.api.request import Option

F = TypeVar("F", bound=Callable[..., Any])
Given: TypeAlias = Any  # the options that a request declares


class _Path(click.Path):
    """A path; an empty word is refused: a variable of a script that is not set would mean the folder at hand."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        if value == "":
            self.fail("the path is empty; expected one, as in . for this folder", param, ctx)
        return super().convert(value, param, ctx)


class _Folder(_Path):
    """The path of a folder; a URL is refused, which would become a folder called ``https:``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        if isinstance(value, str) and "://" in value:
            self.fail(f"{value!r}: expected a folder of this machine; download what is there, or upload it later")
        return super().convert(value, param, ctx)


FOLDER = _Folder(file_okay=False, path_type=Path)
FILE = _Path(dir_okay=False, path_type=Path)
PATH = _Path(path_type=Path)


class Choice(click.Choice[str]):
    """One of some words; for a slip of the pen the refusal says which one it is near."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message.removesuffix('.')}{meant(str(value), map(str, self.choices))}", param, ctx)


class Place(_Path):
    """A path, or the URL of a file, which is fetched and there under its own name until the command ends.

    With *listed* it may also be the URL of a page of links, which stays as it is. With *named* it may be the name of a
    project on the package index, as in torch==2.9.1, which becomes a requirement.
    """

    def __init__(self, *, listed: bool = False, named: bool = False, **options: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(path_type=Path, **options)
        self._listed = listed
        self._named = named

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        if not isinstance(value, str) or "://" not in value:
            return self._named_wheel(value) if self._named and value else super().convert(value, param, ctx)
        from tempfile import TemporaryDirectory

        from vbuild.index_client.pages import fetched, is_url

        if not is_url(value):
            self.fail(f"{value!r}: expected a path, or a URL with https or http", param, ctx)
        if self._listed or ctx is None:
            return value
        # the root's resources are freed even if the rest of the command line is wrong
        return fetched(value, Path(ctx.find_root().with_resource(TemporaryDirectory(prefix="vbuild-fetched-"))))

    @staticmethod
    def _named_wheel(value: Any) -> Any:  # noqa: ANN401
        path = Path(value)
        if not isinstance(value, str) or path.exists():
            return path
        from vbuild.config.requirements import is_path
        from vbuild.index_client.packages import requirement_of

        return path if is_path(value) else requirement_of(value) or path


def here(wheels: Iterable[Any], *, on_refusal: Callable[[Path, VbuildError], None] | None = None) -> tuple[Path, ...]:
    """The paths of *wheels*, fetched if named on the package index, until the command ends.

    *on_refusal* gets what cannot be fetched, and why; without it that is raised.
    """
    from tempfile import TemporaryDirectory

    def fetched_wheel(wanted: Any) -> Path:  # noqa: ANN401 - a requirement
        from vbuild.index_client.configuration import Indexes
        from vbuild.index_client.packages import download_wheel

        folder = click.get_current_context().find_root().with_resource(TemporaryDirectory(prefix="vbuild-fetched-"))
        return download_wheel(wanted, Path(folder), indexes=Indexes.configured(), on_note=terminal.note)

    paths = []
    for wheel in wheels:
        try:
            paths.append(wheel if isinstance(wheel, Path) else fetched_wheel(wheel))
        except VbuildError as error:
            if on_refusal is None:
                raise
            on_refusal(Path(str(wheel)), error)
    return tuple(paths)


class Value(click.ParamType[Any]):
    """A value that the function at *parser*, a place such as ``vbuild.hardware.gpu:GpuList.parse``, makes of a text."""

    def __init__(self, name: str, parser: str) -> None:
        self.name = name
        self.parser = parser

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        if not isinstance(value, str):
            return value
        from pkgutil import resolve_name

        try:
            return resolve_name(self.parser)(value)
        except (VbuildError, ValueError) as error:
            self.fail(str(error), param, ctx)


WHEEL = Place(dir_okay=False)
WHEELS = Place()
NAMED = Place(named=True)
LISTED = Place(file_okay=False, listed=True)
SOURCE = Value("source", "vbuild.build.init:checked_source")
CPU = Value("level", "vbuild.hardware.cpu:Cpu.parse")

IMAGES = "oci:"  # before the folder of an image layout
LAYOUTS = get_args(Layout)
LAYOUT = Choice(LAYOUTS)

folder = click.option("-o", "--output-dir", "folder", type=FOLDER, help="Write the results into this folder.")
required_folder = click.option(
    "-o", "--output-dir", "folder", type=FOLDER, required=True, help="Write the results into this folder."
)
dry_run = click.option("--dry-run", is_flag=True, help="Print what would come out; write nothing.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON and nothing else.")


def output_of(folder: Path | None, *, dry_run: bool) -> Path | None:
    """Where results go, or None if nothing is written; a usage mistake if neither is said."""
    if folder is None and not dry_run:
        raise click.UsageError("expected --output-dir FOLDER, or --dry-run")
    return None if dry_run else folder


def refuse_others(*names: str, where: str) -> None:
    """A usage mistake for an option on the command line that has no effect *where* only those called *names* have."""
    ctx = click.get_current_context()
    for param in ctx.command.params:
        is_typed = ctx.get_parameter_source(param.name or "") is click.core.ParameterSource.COMMANDLINE
        if isinstance(param, click.Option) and is_typed and param.name not in names:
            raise click.UsageError(f"{param.opts[-1]} has no effect {where}")


def example(command: str) -> str:
    return f"\b\nExample:\n  {command}"


class Declared(click.Option):
    """The options that the fields of *request* declare, a place such as ``vbuild.api.shipping:MirrorRequest``."""

    def __init__(self, flags: Sequence[str], request: str) -> None:
        super().__init__(flags)
        self.request = request

    def options(self) -> Iterator[click.Option]:
        from pkgutil import resolve_name

        from vbuild.api.request import options_of

        for name, (declared, default) in options_of(resolve_name(self.request)).items():
            if declared.flags is not None:
                flags = (declared.flags or f"--{name.replace('_', '-')}").split()
                yield click.Option([*flags, name], **_settings(name, declared, default))


class RequestCommand(click.Command):
    """A command with options that its request declares: read when it is used, so that ``vbuild --help`` reads none."""

    _params: list[click.Parameter]
    requests: Sequence[str] = ()

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own
        from pkgutil import resolve_name

        from vbuild.api.request import RequestError, check_options

        try:
            for request in self.requests:
                check_options(resolve_name(request), ctx.params)
            return super().invoke(ctx)
        except RequestError as error:
            flags = {param.name or "": param.opts[-1] for param in self.params}
            raise click.UsageError(error.spelled(flags), ctx) from error

    @property
    def params(self) -> list[click.Parameter]:
        self.requests = [param.request for param in self._params if isinstance(param, Declared)] or self.requests
        several = ([*param.options()] if isinstance(param, Declared) else [param] for param in self._params)
        self._params = [param for params in several for param in params]
        return self._params

    @params.setter
    def params(self, params: list[click.Parameter]) -> None:
        self._params = params


def of(request: str) -> Callable[[F], F]:
    return click.option("--declared", cls=Declared, request=request)


_KINDS = {"file": FILE, "folder": FOLDER, "path": PATH, "place": LISTED, "wheel": WHEEL}


def _settings(name: str, declared: "Option", default: Any) -> dict[str, Any]:  # noqa: ANN401 - of any option
    """How click has an option."""
    settings: dict[str, Any] = {"help": declared.help, "metavar": declared.metavar}
    if declared.choices:
        settings |= {"type": Choice(declared.choices), "show_default": default is not None}
    elif declared.least is not None:
        settings |= {"type": click.IntRange(min=declared.least), "show_default": default is not None}
    elif declared.parse:
        kind = _KINDS.get(declared.parse)
        settings["type"] = kind or Value((declared.metavar or name).lower(), declared.parse)
        settings["show_default"] = isinstance(default, str)
    elif default is False:
        settings["is_flag"] = True
    return settings | ({"multiple": True} if default == () else {"default": default})
