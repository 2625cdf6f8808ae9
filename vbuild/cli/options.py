"""Types of arguments and options, and the options that several commands share.

An option's text becomes a value before the command starts; what its parser refuses is a usage mistake. A parser is
imported when there is a text for it, so that ``vbuild --help`` loads click and nothing else.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from vbuild.api.options import Layout
from vbuild.errors import VbuildError, meant

F = TypeVar("F", bound=Callable[..., Any])

# options that say where and how, not what: a statement of provenance leaves them out
_PLACES = frozenset({"wheels", "folder", "as_json", "dry_run", "provenance", "check"})


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
    """A path, or the URL of a file: that is fetched, and is there under its own name until the command ends.

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
        # the root's resources are freed even if what follows on the command line is wrong
        return fetched(value, Path(ctx.find_root().with_resource(TemporaryDirectory(prefix="vbuild-fetched-"))))

    @staticmethod
    def _named_wheel(value: Any) -> Any:  # noqa: ANN401
        """The project and versions that *value* names, or *value* as a path."""
        path = Path(value)
        if not isinstance(value, str) or path.exists():
            return path
        from vbuild.config.requirements import is_path
        from vbuild.index_client.packages import requirement_of

        return path if is_path(value) else requirement_of(value) or path


def here(wheels: Iterable[Any]) -> tuple[Path, ...]:
    """The paths of *wheels*, those named on the package index fetched; they are there until the command ends."""
    from tempfile import TemporaryDirectory

    from vbuild.cli import terminal
    from vbuild.index_client.configuration import Indexes

    def fetched_wheel(wanted: Any) -> Path:  # noqa: ANN401 - a requirement
        from vbuild.index_client.packages import download_wheel

        folder = click.get_current_context().find_root().with_resource(TemporaryDirectory(prefix="vbuild-fetched-"))
        return download_wheel(wanted, Path(folder), indexes=Indexes.configured(), on_note=terminal.note)

    return tuple(wheel if isinstance(wheel, Path) else fetched_wheel(wheel) for wheel in wheels)


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
GPUS = Value("gpus", "vbuild.hardware.gpu:GpuList.asked")
SOURCE = Value("source", "vbuild.build.init:named")
CPU = Value("level", "vbuild.hardware.cpu:Cpu.parse")
REQUIREMENT = Value("requirement", "vbuild.recipe.spelling:requirement")
PROJECT = Value("name", "vbuild.splitting.request:project_name")

LAYOUTS = get_args(Layout)
LAYOUT = Choice(LAYOUTS)

folder = click.option("-o", "--output-dir", "folder", type=FOLDER, help="Write the results into this folder.")
required_folder = click.option(
    "-o", "--output-dir", "folder", type=FOLDER, required=True, help="Write the results into this folder."
)
dry_run = click.option("--dry-run", is_flag=True, help="Print what would come out; write nothing.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON and nothing else.")
ptx = click.option(
    "--ptx",
    type=Choice(["auto", "keep", "none"]),
    default="auto",
    show_default=True,
    help="Keep PTX for GPUs without machine code (auto), also the newest (keep), or none.",
)
strip = click.option(
    "--strip", type=Choice(["debug", "unneeded"]), help="Also remove debug data, or all local symbols."
)
drop = click.option(
    "--drop", multiple=True, metavar="GLOB", help="Leave out these files: '*.a', 'torch/include/*'. Repeatable."
)
allow_builds = click.option(
    "--allow-builds", is_flag=True, help="Build requirements that have no wheel, which runs their code."
)
provenance = click.option(
    "--provenance", is_flag=True, help="Write <wheel>.provenance.json, ready to sign, next to each wheel."
)
executor = click.option(
    "--executor",
    type=Value("where", "vbuild.workers.executor:Executor.parse"),
    default="local",
    show_default=True,
    metavar="WHERE",
    help="Work on this machine, or on the workers of dask://HOST:PORT.",
)
cpus = click.option(
    "--cpu",
    type=Value("levels", "vbuild.hardware.machine:cpus_asked"),
    metavar="LIST",
    help="Build for these CPU levels instead of the recipe's: v2,v3, or native.",
)
cuda = click.option(
    "--cuda",
    type=GPUS,
    metavar="LIST",
    help="Build for these GPUs instead of the recipe's, a wheel for each: 80,90+ptx, H100, native.",
)


def find_links(when: str = "Look") -> Callable[[F], F]:
    """``--find-links``, the places of wheels as *places*; *when* begins its help text."""
    text = f"{when} for wheels in this folder, page of links or simple index. Repeatable."
    return click.option("-f", "--find-links", "places", type=LISTED, metavar="FOLDER|URL", multiple=True, help=text)


def example(command: str) -> str:
    """The end of a help text: *command*, its lines kept as they are."""
    return f"\b\nExample:\n  {command}"


def state_provenance(made: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Write next to each wheel of *made* a statement of what it was made from, *inputs*, and with which options."""
    from vbuild.sbom.statement import state_each

    context = click.get_current_context()
    given = {name: value for name, value in context.params.items() if name not in _PLACES and value not in {None, ()}}
    texts = {name: [*map(str, value)] if isinstance(value, tuple) else str(value) for name, value in given.items()}
    verb = str(context.info_name)
    state_each(made, inputs=inputs, verb=verb, asked={"command": f"vbuild {verb}", "options": texts})
