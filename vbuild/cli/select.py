"""`vbuild select`: which wheel a machine gets."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vbuild.cli import options, terminal
from vbuild.errors import VbuildError
from vbuild.files.wording import wrapped

if TYPE_CHECKING:
    from vbuild.hardware.machine import Machine
    from vbuild.variants.doctor import Diagnosis

_IMAGES = "oci:"


@click.command(epilog=options.example("vbuild select annoy --find-links dist"))
@click.argument("name", required=False)
@click.option(
    "-f",
    "--find-links",
    "folders",
    type=options.FOLDER,
    multiple=True,
    help="Look for wheels in this folder. Repeatable.",
)
@click.option(
    "--machine",
    type=options.FILE,
    help="Choose for the machine in this TOML file, or in an info JSON of conda or pixi.",
)
@click.option(
    "--cpu",
    type=options.Value("level", "vbuild.api.arguments:level_named"),
    metavar="LEVEL",
    help="Choose for a machine with this CPU level, as in v3, and with what these four options say.",
)
@click.option("--gpu", "gpus", type=options.GPUS, metavar="LIST", help="With --cpu: its GPUs. [default: none]")
@click.option("--driver", metavar="VERSION", help="With --gpu: NVIDIA's driver, as in 580. [default: a new one]")
@click.option("--glibc", metavar="VERSION", help="With --cpu: its glibc, as in 2.28. [default: that of this machine]")
@click.option(
    "--python-version", metavar="VERSION", help="With --cpu: its Python, as in 3.12. [default: the running one]"
)
@click.option(
    "--write-machine", type=options.FILE, help="Write a description of this machine, for --machine elsewhere."
)
@click.option("--version", help="Look at wheels of this version only.")
@click.option("--doctor", is_flag=True, help="Say whether the installed wheels are the right ones for the machine.")
@click.option(
    "--python",
    type=options.FILE,
    help="With --doctor: look at this Python's packages. [default: those installed with vbuild]",
)
@click.option(
    "--run-plugins", is_flag=True, help="Run the plugins that the release names, for properties vbuild does not know."
)
@click.option(
    "--plugin-timeout",
    type=click.FloatRange(0.1, 3600),
    metavar="SECONDS",
    help="With --run-plugins: stop each after this time. [default: 10]",
)
@options.as_json
def select(name: str | None, *, machine: Path | None, write_machine: Path | None, as_json: bool, **asked: Any) -> None:  # noqa: ANN401
    """Show which wheel a machine gets, and why.

    NAME is a project, or oci:DIR for an image of an image layout.
    """
    from vbuild.api import functions
    from vbuild.api.arguments import machine_of
    from vbuild.variants.select import save_machine

    folders, version, doctor, python = (asked[name] for name in ("folders", "version", "doctor", "python"))
    run_plugins, timeout = asked["run_plugins"], asked["plugin_timeout"]
    if python and not doctor:
        raise click.UsageError("--python goes with --doctor only")
    if doctor and (name or folders or version):
        raise click.UsageError("--doctor looks at all that is installed; expected no NAME, --find-links or --version")
    if (folders or version) and (not name or name.startswith(_IMAGES)):
        raise click.UsageError("--find-links and --version are for wheels; expected the NAME of a project")
    _check_plugins(name, machine, run=run_plugins, timeout=timeout)
    described = _described(asked, machine) or machine_of(machine)
    if write_machine and not run_plugins:
        save_machine(described, write_machine)
    if doctor:
        _diagnose(python, described, as_json=as_json)
    elif name and name.startswith(_IMAGES):
        image = functions.select_image(name.removeprefix(_IMAGES), machine=described)
        terminal.show(image.data(), image.lines, as_json=as_json)
    elif name:
        _choose(name, folders, described, version=version, written=write_machine, as_json=as_json)
    elif write_machine:
        terminal.show({"machine": str(write_machine)}, [str(write_machine)], as_json=as_json)
    else:
        raise click.UsageError("expected NAME, oci:DIR, --doctor, or --write-machine FILE")


def _described(asked: dict[str, Any], machine: Path | None) -> "Machine | None":
    """The machine that options of the command line describe; None if none of them is there."""
    cpu, gpus, driver = asked["cpu"], asked["gpus"], asked["driver"]
    if cpu is None:
        if gpus or driver or asked["glibc"] or asked["python_version"]:
            raise click.UsageError("--gpu, --driver, --glibc and --python-version go with --cpu, as in --cpu v3")
        return None
    if machine or asked["run_plugins"]:
        raise click.UsageError("--cpu describes another machine; expected no --machine and no --run-plugins")
    if driver and not gpus:
        raise click.UsageError("--driver is that of GPUs; expected --gpu with them, as in --gpu H100")
    from vbuild.hardware.driver import Dotted
    from vbuild.hardware.machine import Machine

    found = [Dotted(device.major, device.number % 10) for device in gpus.devices] if gpus else []
    return Machine.described(cpu, found, driver=driver, glibc=asked["glibc"], python=asked["python_version"])


def _check_plugins(name: str | None, described: Path | None, *, run: bool, timeout: float | None) -> None:
    """Refuse options that do not go with plugins, or with none."""
    if timeout is not None and not run:
        raise click.UsageError("--plugin-timeout goes with --run-plugins only")
    if run and (not name or name.startswith(_IMAGES)):
        raise click.UsageError("--run-plugins runs what a release of wheels names; expected the NAME of a project")
    if run and described:
        raise click.UsageError("--run-plugins asks this machine, not another; expected no --machine")


def _choose(
    name: str,
    folders: tuple[Path, ...],
    machine: "Machine",
    *,
    version: str | None,
    written: Path | None,
    as_json: bool,
) -> None:
    """Show the choice; if plugins are asked, write the machine with what they say."""
    from vbuild.api.arguments import plugins_of
    from vbuild.variants.select import save_machine
    from vbuild.variants.select import select as verb

    if not folders:
        raise click.UsageError("expected --find-links FOLDER, where the wheels are")
    asked = click.get_current_context().params
    run_plugins = asked["run_plugins"]
    with terminal.status(quiet=as_json or not run_plugins) as on_progress:
        ask = plugins_of(asked["plugin_timeout"], on_progress) if run_plugins else None
        selection = verb(name, folders, machine=machine, version=version, ask=ask)
    if run_plugins and written:
        save_machine(machine, written, selection.plugin_features)
    lines = [str(selection.wheel.name)]
    for place, candidate in enumerate(selection.ranking, 1):
        lines += [f"{place:3}. {candidate.path.name}", f"     {candidate.why}"]
    lines += [line for answer in selection.plugin_features for line in answer.lines()]
    terminal.show(selection.data(), lines, as_json=as_json)


def _diagnose(python: Path | None, machine: "Machine", *, as_json: bool) -> None:
    from vbuild.api import functions

    found = functions.doctor(python=python, machine=machine)
    terminal.show([one.data() for one in found], diagnosis_lines(found), as_json=as_json)
    if wrong := [one.project for one in found if one.is_supported is False]:
        raise VbuildError(f"{', '.join(wrong)}: not for this machine")


def diagnosis_lines(found: Iterable["Diagnosis"]) -> Iterator[str]:
    """What is installed, and how to install anew what should be; commands are not broken, they can be copied."""
    found = tuple(found)
    for one in found:
        yield from wrapped(str(one), indent=4)
        if one.advice:
            yield from wrapped(f"  {one.advice}:", indent=4)
            yield from (f"    {command}" for command in one.commands)
    if not found:
        yield "no installed variant wheels"
