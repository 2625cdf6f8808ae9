from pathlib import Path

import click

import vbuild
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
    requires: tuple[str, ...],
    allow_builds: bool,
    as_json: bool,
) -> None:
    """Compare the speed of several wheels of one project.

    Installs each of WHEELS in an environment of its own and times the script there, in turns, so that other work on the
    machine slows all alike. A wheel for a CPU level that this machine lacks is not run. Of a folder, the plain
    wheel comes first, then the levels.
    """
    with terminal.status(quiet=as_json) as on_progress:
        report = vbuild.bench(wheels, script, requires=requires, allow_builds=allow_builds, on_progress=on_progress)
    terminal.show(report.data(), report.lines(), as_json=as_json)
