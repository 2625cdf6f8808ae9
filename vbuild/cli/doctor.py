from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.errors import VbuildError
from vbuild.files.wording import counted, mb, shortened, shown, wrapped

if TYPE_CHECKING:
    from vbuild.inspection.doctor import Checkup
    from vbuild.variants.doctor import Diagnosis

_NAME = 19  # columns, for lines of 80 with two GPUs
_FIGURES = 3  # at the end of a row
_NAMES = 4


@click.command(cls=options.RequestCommand, epilog=options.example("vbuild doctor --gpu H100"))
@click.argument("places", type=options.PATH, nargs=-1)
@options.of("vbuild.api.looking:DoctorRequest")
@options.as_json
def doctor(places: tuple[Path, ...], *, as_json: bool, **given: options.Given) -> None:
    """Say on which GPUs installed GPU code runs, if "no kernel image is available".

    PLACES are environments, wheels, folders of libraries, or libraries. [default: the environment that is active, or
    vbuild's own] Without --gpu it says whether installed variant wheels are for this machine, too, and if a folder of
    wheels is among PLACES, which of these would be better.
    """
    checkup = vbuild.doctor(places, **given)
    terminal.show(checkup.data(), list(checkup_lines(checkup)), as_json=as_json)
    if wrong := [variant.project for variant in checkup.variants if variant.is_supported is False]:
        raise VbuildError(f"{', '.join(wrong)}: not for this machine")
    if lacking := checkup.unserved:
        names = ", ".join(dict.fromkeys(library.owner for library in lacking))
        raise VbuildError(
            f"{names}: {counted(len(lacking), 'library')} with nothing for a GPU; install a release that names it, or "
            "one with PTX"
        )


def checkup_lines(checkup: "Checkup") -> Iterator[str]:
    from vbuild.inspection.doctor import merged, shortened_runs

    rows = merged(checkup.examined)
    if not rows:
        yield "no GPU code"
    table = (
        [("installed", "library", *(str(fit.device) for fit in rows[0].fits), "CUDA", "GPU MB", "saves")]
        if rows
        else []
    )
    for library in rows:
        states = (shortened_runs(fit, checkup.driver) for fit in library.fits)
        drivers = [fit.oldest_driver for fit in library.fits if fit.served.fatbins]
        needed = "?" if None in drivers else max(filter(None, drivers), default="-")
        titles = (shortened(name, _NAME) for name in (library.owner, library.path.rpartition("/")[2]))
        table.append((*titles, *states, str(needed), mb(library.size), mb(library.saves)))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [f"{text:<{width}}" for text, width in zip(row[:-_FIGURES], widths, strict=False)]
        cells += [f"{text:>{width}}" for text, width in zip(row[-_FIGURES:], widths[-_FIGURES:], strict=True)]
        yield "  ".join(cells)
    if any(fit.runs == "in part" for library in rows for fit in library.fits):
        yield from wrapped('"20 of 87" are fatbins: what the host code calls of the others does not run on that GPU')
    if checkup.saves:
        yield f"vbuild slim to these GPUs saves {mb(checkup.saves)} MB"
    if checkup.saves_if_accepted:
        owners = dict.fromkeys(library.owner for library in checkup.examined if library.saves)
        names = shown([owner.partition(" ")[0] for owner in owners if owner in checkup.forbidden], _NAMES)
        more = f"{mb(checkup.saves_if_accepted)} MB{' more' if checkup.saves else ''}"
        yield from wrapped(f"{more} with --accept-license, as licences forbid changes: {names}", indent=4)
    yield from diagnosis_lines(checkup.variants)
    for note in checkup.notes:
        yield from wrapped(f"note: {note}", indent=4)


def diagnosis_lines(diagnoses: "Iterable[Diagnosis]") -> Iterator[str]:
    """What is installed, and how to install it anew; commands stay unbroken, to be copied."""
    for diagnosis in diagnoses:
        yield from wrapped(str(diagnosis), indent=4)
        if diagnosis.advice:
            yield from wrapped(f"  {diagnosis.advice}{':' if diagnosis.commands else ''}", indent=4)
            yield from (f"    {command}" for command in diagnosis.commands)
