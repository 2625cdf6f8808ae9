from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

import vbuild
from vbuild.api import PYPI_LIMIT, Layout
from vbuild.cli import options, terminal
from vbuild.errors import WheelError
from vbuild.files.wording import counted, wrapped

if TYPE_CHECKING:
    from vbuild.publishing.check import Checklist


@click.command(epilog=options.example("vbuild check dist --pypi"))
@click.argument("place", type=options.LISTED, metavar="FOLDER|URL")
@click.option("--pypi", is_flag=True, help="Also check what only PyPI demands.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1024),
    default=PYPI_LIMIT,
    show_default=True,
    metavar="MB",
    help="Refuse files larger than this, in units of 2**20 bytes as PyPI counts.",
)
@click.option(
    "--layout",
    "layouts",
    type=options.LAYOUT,
    multiple=True,
    help="Check the folder of this layout that vbuild publish made: FOLDER/NAME, or FOLDER itself. Repeatable.",
)
@options.as_json
def check(place: Path | str, *, pypi: bool, limit: int, layouts: tuple[Layout, ...], as_json: bool) -> None:
    """Find what keeps a folder of wheels from being published, or what is wrong with a page or an index of them.

    Looks for what an index refuses or installers stumble over: metadata that differs among variants, labels without
    files, a missing plain wheel or sdist, damaged files, and sizes. Of a URL, the page of a project or a simple index,
    it reads what the check needs, and compares that with what the pages say.
    """
    if layouts and (pypi or limit != PYPI_LIMIT):
        raise click.UsageError("--pypi and --limit are for files that are uploaded as they are; expected no --layout")
    if layouts and isinstance(place, str):
        raise click.UsageError("--layout is for a folder that vbuild publish made; check a URL without it")
    if isinstance(place, Path) and layouts:
        checklists = [vbuild.check(place, layout=layout) for layout in dict.fromkeys(layouts)]
        lines = [line for checklist in checklists for line in check_lines(checklist)]
        terminal.show([checklist.data() for checklist in checklists], lines, as_json=as_json)
    else:
        checklists = [vbuild.check(place, pypi=pypi, limit=limit)]
        terminal.show(checklists[0].data(), check_lines(checklists[0]), as_json=as_json)
    if any(checklist.failed for checklist in checklists):
        raise WheelError(f"{checklists[0].place}: cannot be published as it is")


def check_lines(checklist: "Checklist") -> Iterator[str]:
    for problem in checklist.problems:
        yield from wrapped(f"{problem.severity}: {problem.sentence}")
        yield from wrapped(f"  {problem.advice} [{problem.rule}]", indent=4)
    sums = f"{counted(checklist.errors, 'error')}, {counted(checklist.warnings, 'warning')}"
    subject = ", ".join(checklist.releases) or checklist.place
    yield from wrapped(f"{subject}: {counted(checklist.files, 'file')}, {sums}")
