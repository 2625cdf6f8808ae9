from pathlib import Path
from typing import Any

import click

import vbuild
from vbuild.cli import options, terminal


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
