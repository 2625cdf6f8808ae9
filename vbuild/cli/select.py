import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.errors import RepackageError, VariantError

if TYPE_CHECKING:
    from vbuild.hardware.machine import Machine
    from vbuild.publishing.oci.select import ImageSelection
    from vbuild.variants.select import Selection

_IMAGES = "oci:"


@click.command(epilog=options.example("vbuild select annoy --find-links dist"))
@click.argument("name", required=False)
@options.find_links()
@click.option(
    "--machine",
    "machines",
    type=options.WHEEL,
    metavar="FILE",
    multiple=True,
    help="Choose for the machine in this TOML file. Repeatable.",
)
@click.option(
    "--cpu",
    type=options.Value("level", "vbuild.api.arguments:level_named"),
    metavar="LEVEL",
    help="Choose for a machine with this CPU level, as in v3, and with what --gpu says.",
)
@click.option("--gpu", "gpus", type=options.GPUS, metavar="LIST", help="With --cpu: its GPUs. [default: none]")
@click.option(
    "--with",
    "installed",
    type=options.Value("installed", "vbuild.hardware.machine:pinned"),
    multiple=True,
    metavar="NAME==VERSION",
    help="Choose as if this were installed: torch==2.11.1. Repeatable. [default: what the active environment has]",
)
@click.option(
    "--without",
    multiple=True,
    metavar="NAMESPACE",
    help="Take no variant that names this namespace, such as nvidia. Repeatable.",
)
@click.option(
    "--write-machine", type=options.FILE, help="Write a description of this machine, for --machine elsewhere."
)
@options.as_json
def select(name: str | None, *, as_json: bool, **settings: Any) -> None:  # noqa: ANN401 - the options above
    """Show which wheel a machine gets, and why; or which of several machines gets which.

    NAME is a project, or oci:DIR for an image of an image layout.
    """
    from vbuild.variants.select import save_machine

    _check_words(name, settings)
    machines = _machines(settings)
    written, described = settings["write_machine"], next(iter(machines.values()))
    if written:
        save_machine(described, written)
    if name and len(machines) > 1:
        with _known_words(settings):
            _compare(name, settings, machines, as_json=as_json)
    elif name and name.startswith(_IMAGES):
        image = vbuild.select_image(name.removeprefix(_IMAGES), machine=described)
        terminal.show(image.data(), image.lines, as_json=as_json)
    elif name:
        with _known_words(settings):
            selection = vbuild.select(name, settings["places"], machine=described)
        lines = [selection.wheel.name, *([selection.url] if selection.url else [])]
        for rank, candidate in enumerate(selection.ranking, 1):
            lines += [f"{rank:3}. {candidate.file.name}", f"     {candidate.why}"]
        lines += [f"note: {note}" for note in selection.notes]
        terminal.show(selection.data(), lines, as_json=as_json)
    else:
        terminal.show({"machine": str(written)}, [str(written)], as_json=as_json)


def _check_words(name: str | None, settings: Mapping[str, Any]) -> None:
    places, written, machines = (settings[key] for key in ("places", "write_machine", "machines"))
    is_image = bool(name) and str(name).startswith(_IMAGES)
    if places and (not name or is_image):
        raise click.UsageError("--find-links is for wheels; expected the NAME of a project")
    if len(machines) > 1 and written:
        raise click.UsageError("expected one --machine with --write-machine")
    if not (name or written):
        raise click.UsageError("expected NAME, oci:DIR, or --write-machine FILE")
    if name and not is_image and not places:
        raise click.UsageError("expected --find-links FOLDER, where the wheels are")


@contextmanager
def _known_words(settings: Mapping[str, Any]) -> Iterator[None]:
    """An unknown namespace in options is a usage mistake, which only releases can tell."""
    try:
        yield
    except VariantError as error:
        if any(f"no namespace {name!r};" in str(error) for name in settings["without"]):
            raise click.UsageError(str(error)) from error
        raise


def _machines(settings: Mapping[str, Any]) -> "dict[str, Machine]":
    from msgspec.structs import replace

    from vbuild.api.arguments import machine_of
    from vbuild.wheel.installed import installed_versions

    if (described := _described(settings)) is not None:
        machines = {"machine": described}
    else:
        machines = {str(file): machine_of(file) for file in settings["machines"]} or {"here": machine_of(None)}
        active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
        if active and not (settings["machines"] or settings["write_machine"]):
            with suppress(RepackageError):
                machines = {"here": replace(machines["here"], installed=installed_versions(Path(active)))}
    return {
        called: replace(
            machine,
            without=(*machine.without, *settings["without"]),
            installed=(*machine.installed, *settings["installed"]),
        )
        for called, machine in machines.items()
    }


def _described(settings: Mapping[str, Any]) -> "Machine | None":
    cpu, gpus = settings["cpu"], settings["gpus"]
    if cpu is None:
        if gpus:
            raise click.UsageError("--gpu goes with --cpu, as in --cpu v3")
        return None
    if settings["machines"]:
        raise click.UsageError("--cpu describes another machine; expected no --machine")
    from vbuild.hardware.driver import Dotted

    capabilities = [Dotted(device.major, device.number % 10) for device in gpus.devices] if gpus else []
    processors = [target.processor for target in gpus.targets] if gpus else []
    return vbuild.Machine.described(cpu, capabilities, processors=processors)


def _compare(name: str, settings: Mapping[str, Any], machines: "Mapping[str, Machine]", *, as_json: bool) -> None:
    rows, data, without = [], [], []
    for called, machine in machines.items():
        choice: Selection | ImageSelection
        try:
            if name.startswith(_IMAGES):
                choice = vbuild.select_image(name.removeprefix(_IMAGES), machine=machine)
            else:
                choice = vbuild.select(name, settings["places"], machine=machine)
        except (VariantError, RepackageError) as error:
            if "this machine" not in str(error):
                raise
            # without the reasons for each wheel, which are behind it
            rows.append((called, "nothing", str(error).removeprefix(f"{name}: ").partition(": ")[0]))
            data.append({"machine": called, "wheel": None, "why": str(error)})
            without.append(called)
            continue
        best = choice.ranking[0]
        rows.append((called, best.shown, best.why))
        data.append({"machine": called, **choice.data()})
    width = max(len(called) for called, _, _ in rows)
    lines = [line for called, wheel, why in rows for line in (f"{called:{width}}  {wheel}", f"{'':{width}}  {why}")]
    terminal.show(data, lines, as_json=as_json)
    if without:
        raise VariantError(f"{name}: nothing for {', '.join(without)}")
