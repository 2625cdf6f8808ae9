from collections.abc import Callable, Mapping
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


@click.command(cls=options.RequestCommand, epilog=options.example("vbuild select annoy --find-links dist"))
@click.argument("name", required=False)
@options.of("vbuild.api.looking:SelectRequest")
@click.option(
    "--machine",
    type=options.WHEEL,
    metavar="FILE",
    multiple=True,
    help="Choose for the machine in this TOML file. Repeatable.",
)
@click.option(
    "--write-machine", type=options.FILE, help="Write a description of this machine, for --machine elsewhere."
)
@options.as_json
def select(
    name: str | None,
    *,
    machine: tuple[Path, ...],
    find_links: tuple[Path | str, ...],
    write_machine: Path | None,
    as_json: bool,
    **given: Any,  # noqa: ANN401 - of SelectRequest
) -> None:
    """Show which wheel a machine gets, and why; or which of several machines gets which.

    NAME is a project, or oci:DIR for an image of an image layout.
    """
    from vbuild.api.arguments import machine_of
    from vbuild.variants.select import save_machine

    layout = name.removeprefix(_IMAGES) if name and name.startswith(_IMAGES) else None
    if find_links and (not name or layout):
        raise click.UsageError("--find-links is for wheels; expected the NAME of a project")
    if not (name or write_machine):
        raise click.UsageError("expected NAME, oci:DIR, or --write-machine FILE")
    if len(machine) > 1 and (write_machine or not name):
        raise click.UsageError("expected one --machine with --write-machine")
    # what is written is for elsewhere, without what the active environment has
    here = vbuild.Machine.here() if write_machine and not given["cpu"] else None
    machines = {str(file or "here"): machine_of(file, **given) for file in machine or (here,)}
    if write_machine:
        save_machine(next(iter(machines.values())), write_machine)
    if not name:
        terminal.show({"machine": str(write_machine)}, [str(write_machine)], as_json=as_json)
        return

    def choice_of(described: "Machine") -> "Selection | ImageSelection":
        if layout:
            return vbuild.select_image(layout, machine=described)
        return vbuild.select(name, find_links, machine=described)

    if len(machines) > 1:
        _compare(name, machines, choice_of, as_json=as_json)
    else:
        choice = choice_of(*machines.values())
        terminal.show(choice.data(), choice.lines, as_json=as_json)


def _compare(
    name: str,
    machines: "Mapping[str, Machine]",
    choice_of: "Callable[[Machine], Selection | ImageSelection]",
    *,
    as_json: bool,
) -> None:
    rows, data, without = [], [], []
    for called, machine in machines.items():
        try:
            choice = choice_of(machine)
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
