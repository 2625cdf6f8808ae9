from pathlib import Path
from typing import Any

import click

import vbuild
from vbuild.cli import options, terminal


@click.command(
    cls=options.RequestCommand,
    epilog=options.example('vbuild stamp demo-1.0-py3-none-any.whl -o dist -l v3 -p "x86_64::level::v3"'),
)
@click.argument("wheel", type=options.WHEEL)
@options.required_folder
@options.of("vbuild.api.repackaging:StampRequest")
def stamp(wheel: Path, folder: Path, **given: Any) -> None:  # noqa: ANN401 - the options of StampRequest
    """Copy a wheel under a variant label, or remove its label."""
    terminal.show(None, [str(vbuild.stamp(wheel, folder, **given))])
