from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.errors import WheelError
from vbuild.files.wording import counted, wrapped

if TYPE_CHECKING:
    from vbuild.publishing.check import Checklist


@click.command(cls=options.RequestCommand, epilog=options.example("vbuild check dist --pypi"))
@click.argument("places", type=options.Place(listed=True), nargs=-1, required=True, metavar="FILE|FOLDER|URL...")
@options.of("vbuild.api.shipping:CheckRequest")
@options.as_json
def check(places: tuple[Path | str, ...], *, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - of CheckRequest
    """Find what keeps wheels from being published, or what is wrong with a page or an index of them.

    Looks for what an index refuses or installers stumble over: metadata that differs among variants, labels without
    files, a missing plain wheel or sdist, damaged files, and sizes. Of a URL, the page of a project or a simple index,
    it reads what the check needs, and compares that with what the pages say. Of a folder that 'vbuild publish' made,
    such as site/hwcaps, it checks the layout.
    """
    checklist = vbuild.check(places, **given)
    terminal.show(checklist.data(), check_lines(checklist), as_json=as_json)
    if checklist.failed:
        raise WheelError(f"{checklist.place}: cannot be published as it is")


def check_lines(checklist: "Checklist") -> Iterator[str]:
    for problem in checklist.problems:
        yield from wrapped(f"{problem.severity}: {problem.sentence}")
        yield from wrapped(f"  {problem.advice} [{problem.rule}]", indent=4)
    sums = f"{counted(checklist.errors, 'error')}, {counted(checklist.warnings, 'warning')}"
    subject = ", ".join(checklist.releases) or checklist.place
    yield from wrapped(f"{subject}: {counted(checklist.files, 'file')}, {sums}")
