"""Look: what is in a wheel, and how fast it is."""

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import vbuild
from vbuild.cli import options, terminal

if TYPE_CHECKING:
    from vbuild.inspection.model import Contents


@click.command(epilog=options.example("vbuild inspect torch-*.whl --html torch.html"))
@click.argument("wheels", type=options.WHEELS, nargs=-1, required=True)
@click.option(
    "--library",
    "globs",
    multiple=True,
    metavar="GLOB",
    help="Show all about these libraries, such as '*cuda*'. Repeatable.",
)
@click.option(
    "--html", "page", type=options.FILE, help="Also write a page that shows where the bytes are, for one wheel."
)
@click.option("--closure", is_flag=True, help="Show which library loads which, from where, and why each is there.")
@options.as_json
def inspect(
    wheels: tuple[Path, ...], *, globs: tuple[str, ...], page: Path | None, closure: bool, as_json: bool
) -> None:
    """Show what takes space in wheels: libraries, GPU code, copies.

    WHEELS are files, or folders of wheels.
    """
    from vbuild.wheel.archive import wheels_among

    paths = [*wheels_among(wheels)]
    if page and len(paths) > 1:
        raise click.UsageError("expected one wheel with --html")
    inspected = [vbuild.inspect(path, closure=closure, html=page) for path in paths]
    lines = [*(closure_lines(inspected, globs) if closure else contents_lines(inspected, globs))]
    lines += [f"{len(paths)} wheels"] if len(paths) > 1 else []
    terminal.show([contents.data() for contents in inspected], lines, as_json=as_json)


def contents_lines(several: Iterable["Contents"], globs: Sequence[str]) -> Iterator[str]:
    from vbuild.inspection.text import details, summary

    for contents in several:
        if not globs:
            yield from summary(contents)
            continue
        chosen = [library for library in contents.libraries if any(fnmatchcase(library.path, glob) for glob in globs)]
        for library in chosen:
            yield from details(library, contents.devices)
        if not chosen:
            yield f"{contents.wheel}: no library matches {' or '.join(globs)}"


def closure_lines(several: Sequence["Contents"], globs: Sequence[str]) -> Iterator[str]:
    from vbuild.inspection import text

    for place, contents in enumerate(several):
        yield from [""] if place else []
        yield from text.closure_lines(contents, globs)
    if not globs and (repeated := [*text.repeat_lines(several)]):
        yield ""
        yield from repeated


@click.command(cls=options.RequestCommand, epilog=options.example("vbuild bench dist --script bench.py"))
@click.argument("wheels", type=options.WHEELS, nargs=-1, required=True)
@click.option(
    "--script",
    type=options.FILE,
    required=True,
    help="Run this Python file: one that prints lines such as 'encrypt 12.5 ms', a pyperf script, or a file of "
    "pytest-benchmark.",
)
@options.of("vbuild.api.looking:BenchRequest")
@options.as_json
def bench(wheels: tuple[Path, ...], *, script: Path, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - of BenchRequest
    """Compare the speed of several wheels of one project.

    Installs each of WHEELS in an environment of its own and times the script there, in turns, so that other work on the
    machine slows all alike. A wheel for a CPU level that this machine lacks is not run. Of a folder, the plain
    wheel comes first, then the levels. What the script needs besides stands in it, as PEP 723 says.
    """
    with terminal.status(quiet=as_json) as on_progress:
        report = vbuild.bench(wheels, script, **given, on_progress=on_progress)
    terminal.show(report.data(), report.lines(), as_json=as_json)
