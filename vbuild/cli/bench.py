"""`vbuild bench`: which of several wheels is faster."""

from pathlib import Path

import click

from vbuild.cli import options, terminal


@click.command(epilog=options.example("vbuild bench dist --script bench.py"))
@click.argument("wheels", type=options.WHEELS, nargs=-1, required=True)
@click.option(
    "--script",
    type=options.FILE,
    required=True,
    help="Run this Python file: one that prints lines such as 'encrypt 12.5 ms', a pyperf script, or a file of "
    "pytest-benchmark.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=2),
    default=5,
    show_default=True,
    help="Run each wheel this many times, in turns.",
)
@click.option(
    "--requires",
    type=options.REQUIREMENT,
    multiple=True,
    metavar="PACKAGE",
    help="Also install this for the script. Repeatable.",
)
@options.allow_builds
@options.as_json
def bench(
    wheels: tuple[Path, ...],
    *,
    script: Path,
    rounds: int,
    requires: tuple[str, ...],
    allow_builds: bool,
    as_json: bool,
) -> None:
    """Compare the speed of several wheels of one project.

    Installs each of WHEELS in an environment of its own and times the script there, in turns, so that other work on the
    machine slows all alike. A wheel for a CPU level that this machine lacks is not run. Of a folder, the plain
    wheel comes first, then the levels.
    """
    from vbuild.api import looking

    with terminal.status(quiet=as_json) as on_progress:
        report = looking.bench(
            wheels, script, rounds=rounds, requires=requires, allow_builds=allow_builds, on_progress=on_progress
        )
    terminal.show(report.data(), report.lines(), as_json=as_json)
