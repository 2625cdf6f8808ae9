"""`vbuild publish`: finished wheels in the layouts that people can consume."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vbuild.cli import options, terminal
from vbuild.cli import render as report

if TYPE_CHECKING:
    from vbuild.publishing.model import PublishLayout

LAYOUTS = ("hwcaps", "redirect", "local", "suffix", "extras", "oci", "conda", "variants")

# the layout that each option is for; the others are for all
_MEANT_FOR = {
    "--add": "hwcaps",
    "--max-size": "hwcaps",
    "--mirror": "redirect",
    "--by-hardware": "redirect",
    "--name": "suffix",
    "--sibling": "suffix",
    "--metapackage": "suffix",
    "--guard": "suffix",
    "--base": "oci",
    "--annotation-key": "oci",
    "--emit": "oci",
    "--map": "conda",
    "--pixi": "conda",
}
_UNASKED = (None, (), False)
_MB = 10**6


@click.command(epilog=options.example("vbuild publish dist --layout hwcaps --layout local -o site"))
@click.argument("wheels", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("-o", "--output-dir", "folder", type=options.FOLDER, help="Where the layouts' folders go.")
@click.option(
    "--layout", "names", type=click.Choice(LAYOUTS), multiple=True, required=True, help="How to ship; may be repeated."
)
@click.option("--url", type=options.FOLDER_URL, help="Where the output folder will be served.")
@click.option(
    "--add",
    "added",
    type=options.LEVELLED,
    multiple=True,
    metavar="LEVEL=WHEEL",
    help="hwcaps: join this wheel as that level: v3=other.whl.",
)
@click.option("--max-size", type=click.IntRange(min=1), metavar="MB", help="hwcaps: refuse larger wheels (10^6 bytes).")
@click.option(
    "--mirror",
    "mirrors",
    type=options.FOLDER_URL,
    multiple=True,
    help="redirect: where else wheels may be, asked first.",
)
@click.option("--by-hardware", is_flag=True, help="redirect: choose by CPU and GPU, not by tags only.")
@click.option("--name", "naming", metavar="TEMPLATE", help="suffix: what wheels are called. [default: {name}-{label}]")
@click.option(
    "--sibling",
    "siblings",
    type=options.PROJECT,
    multiple=True,
    help="suffix: required, and elsewhere called likewise.",
)
@click.option(
    "--metapackage", metavar="LABEL", help="suffix: an empty wheel under the old name that requires this one."
)
@click.option("--guard", is_flag=True, help="suffix: warn on import where another one is installed, too.")
@click.option(
    "--base", type=click.Path(path_type=Path), metavar="DIR[:NAME]", help="oci: the image layout to build on."
)
@click.option("--annotation-key", "key", help="oci: where a variant's properties are written.")
@click.option("--emit", "emits", type=click.Choice(["nfd", "dra"]), multiple=True, help="oci: rules for clusters, too.")
@click.option(
    "--map",
    "projects",
    type=options.MAPPED,
    multiple=True,
    metavar="PYPI=CONDA",
    help="conda: what a required project is called there: torch=pytorch.",
)
@click.option("--pixi", is_flag=True, help="conda: also print pixi's table of what each variant needs.")
@click.option("--dry-run", is_flag=True, help="Print what would be made; write nothing.")
@options.as_json
def publish(
    wheels: tuple[Path, ...],
    folder: Path | None,
    *,
    names: tuple[str, ...],
    url: str | None,
    pixi: bool,
    dry_run: bool,
    as_json: bool,
    **asked: Any,  # noqa: ANN401 - whatever the options hold
) -> None:
    """Lay WHEELS, or folders of wheels, out in the ways people can consume."""
    from vbuild.publishing.publish import publish as lay

    if folder is None and not dry_run:
        raise click.UsageError("expected --output-dir FOLDER, or --dry-run")
    _refuse_unmeant(names, {**asked, "pixi": pixi})
    laid = lay(
        wheels, None if dry_run else folder, layouts=[_layout(name, url, asked) for name in dict.fromkeys(names)]
    )
    lines = [line for one in laid for line in report.laid_lines(one, pixi=pixi and one.plan.layout == "conda")]
    terminal.show([one.data() for one in laid], lines, as_json=as_json)


def _refuse_unmeant(names: tuple[str, ...], asked: dict[str, Any]) -> None:
    """A usage mistake where an option is given, and not the layout it is for."""
    parameters = {option: parameter.name for parameter in publish.params for option in parameter.opts}
    for option, layout in _MEANT_FOR.items():
        if asked[str(parameters[option])] not in _UNASKED and layout not in names:
            raise click.UsageError(f"{option} is for --layout {layout}, which is not asked for")


def _layout(name: str, url: str | None, asked: dict[str, Any]) -> "PublishLayout":  # noqa: PLR0911 - a layout, a line
    below = f"{url}/{name}" if url else None
    given = {key: value for key, value in asked.items() if value is not None}
    match name:
        case "hwcaps":
            from vbuild.publishing.hwcaps.plan import Hwcaps

            size = given.get("max_size")
            return Hwcaps(max_size=size and size * _MB, added=asked["added"], url=below)
        case "redirect":
            from vbuild.publishing.redirect.plan import Redirect

            return Redirect(url=below, mirrors=asked["mirrors"], by_hardware=asked["by_hardware"])
        case "local":
            from vbuild.publishing.local import Local

            return Local(url=below)
        case "suffix":
            from vbuild.publishing.suffix import Suffix

            return Suffix(**_of(given, "naming", "siblings", "metapackage", "guard"), url=below)
        case "extras":
            from vbuild.publishing.extras import Extras

            return Extras(url=below)
        case "oci":
            from vbuild.publishing.oci.plan import Emit, Oci

            return Oci(**_of(given, "base", "key"), emits=tuple(map(Emit, dict.fromkeys(asked["emits"]))))
        case "conda":
            from vbuild.publishing.conda.plan import Conda

            return Conda(url=below, names=asked["projects"])
        case _:
            from vbuild.publishing.variants import Variants

            return Variants(url=below)


def _of(given: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Those of *keys* that are *given*, so that a layout's own defaults stand for the others."""
    return {key: given[key] for key in keys if key in given}
