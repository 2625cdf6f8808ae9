"""`vbuild publish`: finished wheels in the layouts that people can consume."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vbuild import options, report, terminal

if TYPE_CHECKING:
    from vbuild.layout.model import Layout

LAYOUTS = ("variants",)


@click.command(epilog=options.example("vbuild publish dist --layout hwcaps --layout local -o site"))
@click.argument("wheels", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("-o", "--output-dir", "folder", type=options.FOLDER, help="Where the layouts' folders go.")
@click.option("--layout", "names", type=click.Choice(LAYOUTS), multiple=True, required=True, help="How to ship them.")
@click.option("--url", help="Where the output folder will be served.")
@click.option("--dry-run", is_flag=True, help="Print what would be made; write nothing.")
@options.as_json
def publish(
    wheels: tuple[Path, ...],
    folder: Path | None,
    *,
    names: tuple[str, ...],
    url: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Lay WHEELS, or folders of wheels, out in the ways people can consume."""
    from vbuild.publish import publish as lay

    if folder is None and not dry_run:
        raise click.UsageError("expected --output-dir FOLDER, or --dry-run")
    chosen = [_LAYOUTS[name](url) for name in dict.fromkeys(names)]
    laid = lay(wheels, None if dry_run else folder, layouts=chosen)
    lines = [line for one in laid for line in report.laid_lines(one)]
    terminal.show([one.data() for one in laid], lines, as_json=as_json)


def _variants(url: str | None) -> "Layout":
    from vbuild.layout.variants import Variants

    return Variants(url=f"{url.rstrip('/')}/variants" if url else None)


_LAYOUTS: dict[str, Callable[[str | None], "Layout"]] = {"variants": _variants}
