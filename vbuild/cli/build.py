"""Build: recipes, their locks, releases in parts, and what builds keep on this machine."""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.cli.group import Commands
from vbuild.cli.render import show_release
from vbuild.errors import BuildError
from vbuild.files.wording import counted, wrapped

if TYPE_CHECKING:
    from vbuild.build.cibuildwheel.runs import CibuildwheelRun
    from vbuild.files.cache import Removed


@click.command(cls=options.RequestCommand, epilog=options.example("vbuild init mmh3==5.3.1 --cpu v2,v3"))
@click.argument("source", type=options.SOURCE, default=".")
@options.of("vbuild.api.building:InitRequest")
@click.option(
    "--emit",
    type=options.Choice(["github"]),
    help="Write a workflow for the project in the folder SOURCE that calls vbuild's action; with [tool.cibuildwheel] "
    "those of a release: wheels of all Pythons, index, PyPI.",
)
@click.option("--check", is_flag=True, help="Say what a build would meet on this machine; write nothing.")
def init(source: str, *, emit: str | None, check: bool, **given: options.Given) -> None:
    """Write a recipe for a project from what its files say.

    SOURCE is the folder of a project, an sdist, or a name on the package index. The recipe names the source and its
    hash, the axes, what the build needs to be told, and a test, each with a comment.
    """
    if emit:
        options.refuse_others("emit", where="with --emit, which goes by the project's [tool.vbuild]")
        from vbuild.release.emit import write_workflows

        terminal.show(None, map(str, write_workflows(Path(source))))
        return
    if check:
        options.refuse_others("check", "cpu", "cuda", where="with --check, which writes nothing")
        from vbuild.api.arguments import axes_of
        from vbuild.build.init import prospect

        outlook = prospect(source, axes_of(given["cpu"], given["cuda"]))
        lines = [line for point in (*outlook.notes, *outlook.obstacles) for line in wrapped(str(point), indent=2)]
        if not outlook.obstacles:
            lines.append(f"{outlook.name}: no Python, compiler or build requirement is missing")
        terminal.show(None, lines)
        if outlook.errors:
            raise BuildError(
                f"{outlook.name}: {outlook.errors} {'thing' if outlook.errors == 1 else 'things'} in the way"
            )
        return
    written = vbuild.init(source, **given)
    lines = [line for note in written.notes for line in wrapped(note, indent=2)]
    terminal.show(None, [*lines, f"{written.path}:", *written.text.splitlines()])


@click.command(
    cls=options.RequestCommand,
    epilog=options.example(
        "vbuild lock recipes/annoy.toml\n  vbuild lock annoy -f dist --machine h100.toml --machine cpu.toml -o locks"
    ),
)
@click.argument("source", type=options.SOURCE)
@options.of("vbuild.api.building:LockMachinesRequest")
def lock(source: str, **given: options.Given) -> None:
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


@click.command(
    cls=options.RequestCommand, epilog=options.example("vbuild cibuildwheel -o dist -- --only cp313-manylinux_x86_64")
)
@click.argument("arguments", nargs=-1, metavar="[-- CIBUILDWHEEL'S ARGUMENTS]", type=click.UNPROCESSED)
@options.folder
@options.of("vbuild.api.building:CibuildwheelRequest")
@click.option("--dry-run", is_flag=True, help="Print every run with its variables; build and write nothing.")
def cibuildwheel(
    arguments: tuple[str, ...],
    folder: Path | None,
    *,
    dry_run: bool,
    **given: options.Given,
) -> None:
    """Run cibuildwheel once for each variant, and make one release.

    The project's [tool.cibuildwheel] stays in force, and [tool.vbuild] in its pyproject.toml says which variants there
    are. What follows -- is passed to cibuildwheel.
    """
    if dry_run:
        from vbuild.api.arguments import labels_of
        from vbuild.release.cibuildwheel import foreseen_runs

        terminal.show(None, run_lines(foreseen_runs(arguments, variants=labels_of(given["variants"]))))
        return
    if folder is None:
        raise click.UsageError("expected --output-dir FOLDER, or --dry-run")
    with terminal.passing_on() as echo:
        release = vbuild.cibuildwheel(folder, arguments, **given, echo=echo)
    show_release(release)


def run_lines(runs: Iterable["CibuildwheelRun"]) -> Iterator[str]:
    for run in runs:
        yield from wrapped(f"{run}: {', '.join(run.identifiers)}")
        yield from (f"  {name}={shlex.quote(value)}" for name, value in run.variables)


@click.command(cls=options.RequestCommand, epilog=options.example("vbuild collect parts/* --recipe . -o dist"))
@click.argument("parts", type=options.FOLDER, nargs=-1, required=True)
@options.required_folder
@options.of("vbuild.api.building:CollectRequest")
def collect(parts: tuple[Path, ...], folder: Path, **given: options.Given) -> None:
    """Join the parts that several CI jobs built into one release.

    PARTS are folders that 'vbuild matrix --part' wrote, or folders of these. Every wheel is verified again.
    """
    with terminal.progress(folder) as on_progress:
        release = vbuild.collect(parts, folder, **given, on_progress=on_progress)
    show_release(release)


@click.group(cls=Commands, epilog=options.example("vbuild toolkit install 13.0 nccl==2.28.9"))
def toolkit() -> None:
    """List and fetch the CUDA toolkits of 'vbuild matrix'."""


@toolkit.command("list", epilog=options.example("vbuild toolkit list"))
def list_toolkits() -> None:
    """List the toolkits in the cache, and those installed on this machine."""
    from vbuild.toolchain import toolkit_provision

    terminal.show(None, toolkit_provision.listing().lines())


@toolkit.command("install", epilog=options.example("vbuild toolkit install 13.0 cublas nccl==2.28.9"))
@click.argument("version")
@click.argument("libraries", nargs=-1)
def install_toolkit(version: str, libraries: tuple[str, ...]) -> None:
    """Fetch toolkit VERSION from the package index into the cache.

    LIBRARIES are more components of it, or packages with a version, such as nccl==2.28.9.
    """
    from vbuild.toolchain import toolkit_provision

    with terminal.status() as on_progress:
        provided = toolkit_provision.install(version, libraries, on_progress=on_progress)
    terminal.show(None, provided.lines())


@toolkit.command("path", epilog=options.example('CUDA_HOME="$(vbuild toolkit path 13.0)" make'))
@click.argument("version")
@click.argument("libraries", nargs=-1)
def toolkit_path(version: str, libraries: tuple[str, ...]) -> None:
    """Print the CUDA_HOME of toolkit VERSION with LIBRARIES in the cache."""
    from vbuild.toolchain import toolkit_provision

    terminal.show(None, toolkit_provision.path(version, libraries).lines())


# spelled out, as `vbuild --help` must not load the cache; a test compares them
PARTS = (
    "builds",
    "native",
    "sdists",
    "commits",
    "environments",
    "toolkits",
    "zig",
    "cross",
    "official",
    "probes",
)


@click.group(cls=Commands, epilog=options.example("vbuild cache size"))
def cache() -> None:
    """Show or empty the cache of downloads, builds and test results."""


@cache.command("dir", epilog=options.example('du -sh "$(vbuild cache dir)"'))
def cache_dir() -> None:
    """Print the folder of the cache."""
    from vbuild.files.cache import cache_folder

    terminal.write(f"{cache_folder()}\n")


@cache.command("size", epilog=options.example("vbuild cache size"))
def cache_size() -> None:
    """Print how many entries each part of the cache has, and their size."""
    from vbuild.files.cache import RULES, sizes

    by_part = {part: (len(entries), sum(entry.size for entry in entries)) for part, entries in sizes().items()}
    total = sum(size for _, size in by_part.values())
    lines = [f"{'part':<10} {'entries':>8} {'size':>12}  contents"]
    lines += [
        f"{part:<10} {count:>8} {size / 1e6:>9.1f} MB  {RULES[part].holds}" for part, (count, size) in by_part.items()
    ]
    lines += [f"{'':<10} {sum(count for count, _ in by_part.values()):>8} {total / 1e6:>9.1f} MB"]
    terminal.show(None, lines)


@cache.command("prune", epilog=options.example("vbuild cache prune"))
def cache_prune() -> None:
    """Remove what was not used for long, or takes too much space.

    Commands that use the cache do so once a day. Entries that a running build may use stay: those that are being made,
    and those used within a day. CUDA toolkits stay; 'vbuild cache clean toolkits' removes them.
    """
    from vbuild.files.cache import prune

    terminal.show(None, _removed(prune()))


@cache.command("clean", epilog=options.example("vbuild cache clean builds probes"))
@click.argument("parts", nargs=-1, type=options.Choice(PARTS), metavar="[PART]...")
def cache_clean(parts: tuple[str, ...]) -> None:
    """Empty the cache, or only some parts of it.

    'vbuild cache size' names the parts. Run it while no build is running: a build does not mark the entries it uses.
    """
    from vbuild.files.cache import Part, clean

    terminal.show(None, _removed(clean(map(Part, parts or PARTS))))


def _removed(removed: "Iterable[Removed]") -> Iterator[str]:
    size = 0
    for swept in removed:
        size += swept.size
        if swept.count:
            yield f"{swept.part}: {counted(swept.count, 'entry')} removed"
    yield f"{size / 1e6:.0f} MB free now"
