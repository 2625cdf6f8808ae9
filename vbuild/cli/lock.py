from pathlib import Path

import click

from vbuild.cli import options, terminal


@click.command(
    epilog=options.example(
        "vbuild lock recipes/annoy.toml\n  vbuild lock annoy -f dist --machine h100.toml --machine cpu.toml -o locks"
    )
)
@click.argument("source", type=options.SOURCE)
@click.option(
    "--machine",
    "machines",
    type=options.FILE,
    multiple=True,
    help="Write a pylock.toml for the machine in this file, as 'vbuild select' takes it. Repeatable.",
)
@options.find_links("With --machine: look")
@click.option(
    "--with",
    "requires",
    type=options.REQUIREMENT,
    metavar="REQUIREMENT",
    multiple=True,
    help="With --machine: install this, too, as in torch==2.14.*. Repeatable.",
)
@click.option(
    "-o", "--output-dir", "folder", type=options.FOLDER, help="With --machine: write the locks into this folder."
)
@click.option(
    "--allow-builds",
    is_flag=True,
    help="With --machine: build requirements that have no wheel, which runs their code.",
)
def lock(
    source: str,
    machines: tuple[Path, ...],
    places: tuple[Path | str, ...],
    requires: tuple[str, ...],
    folder: Path | None,
    *,
    allow_builds: bool,
) -> None:
    """Pin what a recipe is built from: sources, toolkits, packages.

    Writes a lock file next to SOURCE with the hash of everything. 'vbuild matrix' uses what the file names as long as
    it fits the recipe; with --locked it uses nothing else. The project's own code is asked what its build requires, so
    it runs, as in a build.

    With --machine, SOURCE is the name of a project: each machine gets a pylock.toml with its variant of it, and with
    all that this requires, for 'pip install -r' and 'uv pip sync'.
    """
    if machines and not (places and folder):
        raise click.UsageError("--machine: expected --find-links with the wheels, and --output-dir for the locks")
    if not machines and (places or requires or folder or allow_builds):
        raise click.UsageError("--find-links, --with, --output-dir and --allow-builds go with --machine only")
    from vbuild.release import lock as locking

    if not machines:
        with terminal.status() as on_progress:
            written = locking.lock(Path(source), on_progress=on_progress)
        terminal.show(None, written.lines())
        return
    from vbuild.variants.select import machine_at

    described = {str(file): machine_at(file) for file in machines}
    locks = locking.lock_machines(
        source, places, described, folder or Path(), requires=requires, allow_builds=allow_builds
    )
    terminal.show(None, [line for machine_lock in locks for line in machine_lock.lines()])
