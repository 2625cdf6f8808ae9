"""Commands that tell what is there: `vbuild inspect`, `verify`, `index`, `select` and `check`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vbuild.cli import options, terminal
from vbuild.cli import render as report
from vbuild.errors import WheelError

if TYPE_CHECKING:
    from vbuild.hardware.cpu import Cpu
    from vbuild.hardware.machine import Machine
    from vbuild.variants.plugins import Plugins
    from vbuild.verification.level_runs import LevelReport

_IMAGES = "oci:"


@click.command(epilog=options.example("vbuild inspect torch-*.whl --html torch.html"))
@click.argument("wheels", type=options.FILE, nargs=-1, required=True)
@click.option("--library", "globs", multiple=True, metavar="GLOB", help="All about these libraries, such as '*cuda*'.")
@click.option(
    "--html", "page", type=options.FILE, help="Also write a page that shows where the bytes are, for one wheel."
)
@click.option("--closure", is_flag=True, help="Show which library loads which, where from, and why each is there.")
@options.as_json
def inspect(
    wheels: tuple[Path, ...], *, globs: tuple[str, ...], page: Path | None, closure: bool, as_json: bool
) -> None:
    """Show what is in WHEELS: libraries, GPU code by architecture, and where the bytes are."""
    from vbuild.inspection.inspect import compared, save_page
    from vbuild.inspection.inspect import inspect as contents_of

    if page and len(wheels) > 1:
        raise click.UsageError("expected one wheel with --html")
    found = compared([contents_of(wheel, closure=closure) for wheel in wheels])
    if page:
        save_page(found[0], page)
    lines = report.closure_lines(found, globs) if closure else report.contents_lines(found, globs)
    terminal.show([contents.data() for contents in found], lines, as_json=as_json)


@click.command(epilog=options.example("vbuild verify dist/*.whl"))
@click.argument("wheels", type=options.FILE, nargs=-1, required=True)
@click.option("--cpu", type=options.LEVEL, help="Hold the code against this level, such as x86-64-v3.")
@click.option(
    "--baseline", type=options.FILE, help="The plain wheel of the same build: what it has is dispatched at run time."
)
@click.option("--allow", multiple=True, metavar="REGEX", help="Functions, or files, that may exceed the level.")
@click.option("--run-levels", "run", is_flag=True, help="Also install them, and import them as each CPU level in them.")
@click.option("--recipe", type=click.Path(path_type=Path), help="Also run this recipe's test as each CPU level.")
@options.as_json
def verify(
    wheels: tuple[Path, ...],
    *,
    cpu: "Cpu | None",
    baseline: Path | None,
    allow: tuple[str, ...],
    run: bool,
    recipe: Path | None,
    as_json: bool,
) -> None:
    """Check that the bytes of WHEELS keep what their names and metadata promise."""
    from vbuild.verification.verify import verify as verdict_of

    if recipe and not run:
        raise click.UsageError("--recipe is for --run-levels, which is not asked for")
    verdicts = [verdict_of(wheel, cpu=cpu, baseline=baseline, allow=allow) for wheel in wheels]
    runs = _run(wheels, recipe, quiet=as_json) if run else ()
    lines = [line for verdict in verdicts for line in report.verdict_lines(verdict)]
    data = [verdict.data() for verdict in verdicts]
    for one, ran in zip(data, runs, strict=False):
        one["run"] = ran.data()
    terminal.show(data, [*lines, *(line for ran in runs for line in ran.lines())], as_json=as_json)
    if failed := [verdict.wheel.name for verdict in verdicts if verdict.failed]:
        raise WheelError(f"{', '.join(failed)}: not what the name and metadata promise")
    if failed := [ran.wheel for ran in runs if not ran.ok]:
        raise WheelError(f"{', '.join(failed)}: does not work as every CPU level in it")


def _run(wheels: tuple[Path, ...], recipe: Path | None, *, quiet: bool) -> "tuple[LevelReport, ...]":
    from vbuild.recipe.model import Recipe
    from vbuild.verification.level_runs import LevelSettings, run_levels

    settings = LevelSettings(check=Recipe.load(recipe).test) if recipe else None
    with terminal.status(quiet=quiet) as on_progress:
        return tuple(run_levels(wheel, settings, on_progress=on_progress) for wheel in wheels)


@click.command(epilog=options.example("vbuild index dist --simple site"))
@click.argument("folder", type=options.FOLDER)
@click.option("--simple", type=options.FOLDER, help="Also write a static simple index (PEP 503, 691, 658) there.")
@options.as_json
def index(folder: Path, *, simple: Path | None, as_json: bool) -> None:
    """Write the variants.json of every release in FOLDER."""
    from vbuild.variants.index import index as write_index

    indexed = write_index(folder, simple=simple)
    data = {"variants": [item.data() for item in indexed], "simple": str(simple) if simple else None}
    lines = [f"{item.path.name}: {', '.join(item.labels)}" for item in indexed] or [f"{folder}: no variant wheels"]
    terminal.show(data, [*lines, *([str(simple)] if simple else [])], as_json=as_json)


@click.command(epilog=options.example("vbuild select annoy --find-links dist"))
@click.argument("name", required=False)
@click.option("-f", "--find-links", "folders", type=options.FOLDER, multiple=True, help="A folder of wheels.")
@click.option(
    "--machine",
    "described",
    type=options.FILE,
    help="The machine in this TOML file, or in conda's or pixi's info JSON.",
)
@click.option("--write-machine", type=options.FILE, help="Save this machine's description, for --machine elsewhere.")
@click.option("--version", help="Choose among the wheels of this version only.")
@click.option("--doctor", is_flag=True, help="Say whether what is installed was chosen for the machine.")
@click.option("--python", type=options.FILE, help="Whose packages the doctor looks at. [default: those beside vbuild]")
@click.option(
    "--run-plugins", is_flag=True, help="Run the plugins that the release names, for what vbuild cannot say itself."
)
@click.option(
    "--plugin-timeout",
    type=click.FloatRange(0.1, 3600),
    metavar="SECONDS",
    help="The time that each of them has. [default: 10]",
)
@options.as_json
def select(
    name: str | None,
    *,
    folders: tuple[Path, ...],
    described: Path | None,
    write_machine: Path | None,
    version: str | None,
    doctor: bool,
    python: Path | None,
    run_plugins: bool,
    plugin_timeout: float | None,
    as_json: bool,
) -> None:
    """Say which wheel of project NAME, or which image of oci:DIR, a machine gets, and why."""
    from vbuild.hardware.machine import Machine
    from vbuild.variants.select import machine_at, save_machine

    if python and not doctor:
        raise click.UsageError("--python is for --doctor, which is not asked for")
    if doctor and (name or folders or version):
        raise click.UsageError("--doctor looks at all that is installed; expected no NAME, --find-links or --version")
    if (folders or version) and (not name or name.startswith(_IMAGES)):
        raise click.UsageError("--find-links and --version are for wheels; expected the NAME of a project")
    _check_plugins(name, described, run=run_plugins, timeout=plugin_timeout)
    machine = machine_at(described) if described else Machine.here()
    if write_machine and not run_plugins:
        save_machine(machine, write_machine)
    if doctor:
        _diagnose(python, machine, as_json=as_json)
    elif name and name.startswith(_IMAGES):
        _choose_image(name.removeprefix(_IMAGES), machine, as_json=as_json)
    elif name:
        plugins = _plugins(plugin_timeout) if run_plugins else None
        _choose(name, folders, machine, version, plugins=plugins, written=write_machine, as_json=as_json)
    elif write_machine:
        terminal.show({"machine": str(write_machine)}, [str(write_machine)], as_json=as_json)
    else:
        raise click.UsageError("expected NAME, oci:DIR, --doctor, or --write-machine FILE")


def _check_plugins(name: str | None, described: Path | None, *, run: bool, timeout: float | None) -> None:
    """Refuse options that do not go with plugins, or with none."""
    if timeout is not None and not run:
        raise click.UsageError("--plugin-timeout is for --run-plugins, which is not asked for")
    if run and (not name or name.startswith(_IMAGES)):
        raise click.UsageError("--run-plugins runs what a release of wheels names; expected the NAME of a project")
    if run and described:
        raise click.UsageError("--run-plugins asks this machine, not another; expected no --machine")


def _plugins(timeout: float | None) -> "Plugins":
    """The plugins of a release, each run for *timeout* seconds at most: from here alone they are run."""
    from vbuild.variants.plugins import Plugins

    return Plugins() if timeout is None else Plugins(timeout)


def _choose(
    name: str,
    folders: tuple[Path, ...],
    machine: "Machine",
    version: str | None,
    *,
    plugins: "Plugins | None",
    written: Path | None,
    as_json: bool,
) -> None:
    """Show the choice; where *plugins* are asked, the machine is *written* with what they said."""
    from vbuild.variants.select import save_machine
    from vbuild.variants.select import select as choose

    if not folders:
        raise click.UsageError("expected --find-links FOLDER, where the wheels are")
    with terminal.status(quiet=as_json or plugins is None) as on_progress:
        ask = plugins and plugins.telling(on_progress)
        selection = choose(name, folders, machine=machine, version=version, ask=ask)
    if plugins and written:
        save_machine(machine, written, selection.said)
    lines = [str(selection.wheel.name)]
    for place, candidate in enumerate(selection.ranking, 1):
        lines += [f"{place:3}. {candidate.path.name}", f"     {candidate.why}"]
    lines += [line for said in selection.said for line in said.lines()]
    terminal.show(selection.data(), lines, as_json=as_json)


def _choose_image(place: str, machine: "Machine", *, as_json: bool) -> None:
    from vbuild.publishing.oci.reading import placed
    from vbuild.publishing.oci.select import select_image

    folder, ref = placed(Path(place))
    selection = select_image(folder, machine, ref=ref)
    terminal.show(selection.data(), selection.lines, as_json=as_json)


def _diagnose(python: Path | None, machine: "Machine", *, as_json: bool) -> None:
    from vbuild.variants.doctor import diagnosed

    found = diagnosed(python, machine)
    terminal.show([one.data() for one in found], report.diagnosis_lines(found), as_json=as_json)
    if wrong := [one.project for one in found if one.is_supported is False]:
        raise WheelError(f"{', '.join(wrong)}: not for this machine")


@click.command(epilog=options.example("vbuild check dist --pypi"))
@click.argument("folder", type=options.FOLDER)
@click.option("--pypi", is_flag=True, help="Hold it against what PyPI takes, too.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1024),
    default=100,
    show_default=True,
    metavar="MB",
    help="The largest file that the index takes from you (2**20 bytes).",
)
@click.option(
    "--layout",
    "layouts",
    multiple=True,
    metavar="NAME",
    help="Hold what vbuild publish made in this layout against itself instead; may be repeated.",
)
@options.as_json
def check(folder: Path, *, pypi: bool, limit: int, layouts: tuple[str, ...], as_json: bool) -> None:
    """Check that the releases in FOLDER can be published."""
    from vbuild.publishing.check import check as checked
    from vbuild.publishing.check import check_layout

    if layouts and pypi:
        raise click.UsageError("--pypi is for files that are uploaded as they are; expected it, or --layout")
    if layouts:
        found = [check_layout(folder, layout) for layout in dict.fromkeys(layouts)]
        lines = [line for one in found for line in report.check_lines(one)]
        terminal.show([one.data() for one in found], lines, as_json=as_json)
    else:
        found = [checked(folder, pypi=pypi, limit=limit)]
        terminal.show(found[0].data(), report.check_lines(found[0]), as_json=as_json)
    if any(one.failed for one in found):
        raise WheelError(f"{folder}: not to be published as it is")
