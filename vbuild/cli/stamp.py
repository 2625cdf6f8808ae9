"""`vbuild stamp`: a wheel under a variant label."""

from pathlib import Path
from typing import Any

import click

from vbuild.cli import options, terminal


@click.command(epilog=options.example('vbuild stamp demo-1.0-py3-none-any.whl -o dist -l v3 -p "x86_64::level::v3"'))
@click.argument("wheel", type=options.WHEEL)
@options.required_folder
@click.option(
    "-l",
    "--label",
    type=options.Value("label", "vbuild.variants.model:checked_label"),
    help="Use this variant label, made of a-z, 0-9, _ and dots.",
)
@click.option("--null", is_flag=True, help="Make the null variant: it has no properties and ranks after all others.")
@click.option("--remove", is_flag=True, help="Remove the label and variant.json.")
@click.option(
    "-p",
    "--property",
    "properties",
    type=options.Value("property", "vbuild.variants.model:Property.parse"),
    multiple=True,
    help="Add this property, written as namespace :: feature :: value. Repeatable.",
)
@click.option(
    "--metadata", type=options.FILE, help="Take priorities and providers from the [variant] table of this TOML file."
)
def stamp(wheel: Path, folder: Path, **asked: Any) -> None:  # noqa: ANN401 - the options above
    """Copy a wheel under a variant label, or remove its label."""
    from vbuild.api import repackaging

    label, null, remove = (asked[name] for name in ("label", "null", "remove"))
    if sum((label is not None, null, remove)) != 1:
        raise click.UsageError("expected exactly one of --label, --null and --remove")
    if (null or remove) and asked["properties"]:
        raise click.UsageError("--property goes with --label only")
    path = repackaging.stamp(wheel, folder, **asked)
    terminal.show(None, [str(path)], as_json=False)
