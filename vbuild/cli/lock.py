from typing import Any

import click

import vbuild
from vbuild.cli import options, terminal


@click.command(
    cls=options.RequestCommand,
    epilog=options.example(
        "vbuild lock recipes/annoy.toml\n  vbuild lock annoy -f dist --machine h100.toml --machine cpu.toml -o locks"
    ),
)
@click.argument("source", type=options.SOURCE)
@options.of("vbuild.api.building:LockMachinesRequest")
def lock(source: str, **given: Any) -> None:  # noqa: ANN401 - of LockMachinesRequest
    """Pin what a recipe is built from: sources, toolkits, packages.

    Writes a lock file next to SOURCE with the hash of everything. 'vbuild matrix' uses what the file names as long as
    it fits the recipe; with --locked it uses nothing else. The project's own code is asked what its build requires, so
    it runs, as in a build.

    With --machine, SOURCE is the name of a project: each machine gets a pylock.toml with its variant of it, and with
    all that this requires, for 'pip install -r' and 'uv pip sync'.
    """
    if given["machines"]:
        locks = vbuild.lock_machines(source, **given)
        terminal.show(None, [line for machine_lock in locks for line in machine_lock.lines()])
        return
    with terminal.status() as on_progress:
        written = vbuild.lock(source, on_progress=on_progress)
    terminal.show(None, written.lines())
