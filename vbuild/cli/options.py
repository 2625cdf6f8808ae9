"""What commands take: options that several have, and texts that become values at the door.

What a room's parser refuses is a usage mistake here. Each room is imported when a text is for it, so that
``vbuild --help`` loads click and nothing else.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vbuild.errors import VbuildError

if TYPE_CHECKING:
    from vbuild.hardware.cpu import Cpu
    from vbuild.hardware.gpu import GpuList
    from vbuild.slimming.request import Share
    from vbuild.variants.document import Schema
    from vbuild.variants.model import Property
    from vbuild.workers.executor import Executor

FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)


class Value(click.ParamType[Any]):
    """An option whose text becomes a value at the door; what its parser refuses is a usage mistake."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        try:
            return self._parse(value) if isinstance(value, str) else value
        except VbuildError as error:
            self.fail(str(error), param, ctx)


def _schema(text: str) -> "Schema":
    from vbuild.variants.document import Schema

    return Schema.versioned(text)


def _variant_property(text: str) -> "Property":
    from vbuild.variants.model import Property

    return Property.parse(text)


def _gpus(text: str) -> "GpuList":
    from vbuild.hardware.gpu import GpuList

    return GpuList.parse(text)


def _share(text: str) -> "Share":
    from vbuild.slimming.request import Share

    return Share.parse(text)


def _cpu_level(text: str) -> "Cpu":
    from vbuild.hardware.cpu import Cpu

    return Cpu.parse(text)


def _cuda(text: str) -> tuple[int, ...]:
    from vbuild.splitting.request import cuda_version

    return cuda_version(text)


def _project(text: str) -> str:
    from vbuild.splitting.request import project_name

    return project_name(text)


def _levelled(text: str) -> "tuple[Cpu, Path]":
    from vbuild.errors import HardwareError
    from vbuild.hardware.cpu import X86_64_LEVELS, Cpu

    level, separator, wheel = text.partition("=")
    if not (separator and wheel):
        raise HardwareError(f"{text!r}: expected a CPU level and a wheel, as in v3=other.whl")
    # levels are called as in PEP 825's properties, or as compilers call them
    cpu = Cpu.known("x86_64", level) if level in X86_64_LEVELS else Cpu.parse(level)
    return cpu, Path(wheel)


def _mapped(text: str) -> tuple[str, str]:
    from vbuild.errors import RepackageError

    project, separator, name = text.partition("=")
    if not (separator and project and name):
        raise RepackageError(f"{text!r}: expected two names, as in torch=pytorch")
    return _project(project), name


def _folder_url(text: str) -> str:
    from vbuild.publishing.install_commands import folder_url

    return folder_url(text)


def _variable_pattern(text: str) -> str:
    from vbuild.recipe.variables import variable_pattern

    return variable_pattern(text)


def _executor(text: str) -> "Executor":
    from vbuild.workers.executor import Executor

    return Executor.parse(text)


DRAFT = Value("draft", _schema)
PROPERTY = Value("property", _variant_property)
GPUS = Value("gpus", _gpus)
SHARE = Value("label=gpus", _share)
LEVEL = Value("level", _cpu_level)
CUDA = Value("version", _cuda)
PROJECT = Value("name", _project)
VARIABLE = Value("name", _variable_pattern)
EXECUTOR = Value("where", _executor)
LEVELLED = Value("level=wheel", _levelled)
MAPPED = Value("name=name", _mapped)
FOLDER_URL = Value("url", _folder_url)

output = click.option("-o", "--output-dir", "folder", type=FOLDER, required=True, help="Where the results go.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else.")
bill = click.option("--sbom/--no-sbom", "bill", default=True, help="Put a bill of materials into wheels, or none.")
provenance = click.option("--provenance", is_flag=True, help="Write <wheel>.provenance.json beside each, for signing.")
executor = click.option(
    "--executor",
    type=EXECUTOR,
    default="local",
    show_default=True,
    metavar="WHERE",
    help="Work here, or on the workers of dask://HOST:PORT.",
)
compare = click.option("--compare", type=FILE, metavar="REPORT.JSON", help="Also report what changed since then.")
drafts = click.option(
    "--schema",
    type=DRAFT,
    default="850/0.2.0",
    show_default=True,
    help="The draft that variant metadata follows; 825/0.1.1 has no providers.",
)


def example(command: str) -> str:
    """The end of a help text: *command*, its lines kept as they are."""
    return f"\b\nExample:\n  {command}"
