"""`vbuild doctor`: whether installed GPU code runs on the GPUs that are there."""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vbuild.cli import options, terminal
from vbuild.errors import VbuildError
from vbuild.files.wording import counted, mb, wrapped

if TYPE_CHECKING:
    from vbuild.hardware.gpu import GpuList
    from vbuild.inspection.doctor import Checkup
    from vbuild.variants.doctor import Diagnosis

_PATH, _OWNER = 34, 24


@click.command(epilog=options.example("vbuild doctor --gpu H100"))
@click.argument("places", type=options.PATH, nargs=-1)
@click.option(
    "--gpu", "gpus", type=options.GPUS, metavar="LIST", help="Ask about these GPUs. [default: those of this machine]"
)
@options.as_json
def doctor(places: tuple[Path, ...], *, gpus: "GpuList | None", as_json: bool) -> None:
    """Say on which GPUs installed GPU code runs, if "no kernel image is available".

    PLACES are environments or wheels. [default: the environment that is active, or vbuild's own] Without --gpu it says
    whether installed variant wheels are for this machine, too.
    """
    from vbuild.api import looking

    here = places or (Path(os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX") or sys.prefix),)
    found = looking.checkup(here, gpus=gpus or "native")
    terminal.show(found.data(), list(checkup_lines(found)), as_json=as_json)
    if wrong := [one.project for one in found.variants if one.is_supported is False]:
        raise VbuildError(f"{', '.join(wrong)}: not for this machine")
    if lacking := found.unserved:
        names = ", ".join(dict.fromkeys(one.owner for one in lacking))
        raise VbuildError(
            f"{names}: {counted(len(lacking), 'library')} with nothing for a GPU; install a release that names it, or "
            "one with PTX"
        )


def checkup_lines(found: "Checkup") -> Iterator[str]:
    """One table of what was examined, and what to know besides."""
    from vbuild.inspection.doctor import merged, shortened_runs

    rows = merged(found.examined)
    if not rows:
        yield "no GPU code"
    devices = [fit.device for fit in rows[0].fits] if rows else []
    if rows:
        columns = "".join(f"{device!s:<12}" for device in devices)
        yield f"{'installed':<{_OWNER}}{'library':<{_PATH}}{columns}{'driver':>7}{'GPU code':>10}{'saves':>9}  MB"
    for one in rows:
        states = "".join(f"{shortened_runs(fit, found.driver):<12}" for fit in one.fits)
        needed = max((fit.driver for fit in one.fits if fit.driver), default=None)
        path = one.path.rpartition("/")[2]
        cut = path if len(path) < _PATH else f"{path[: _PATH // 2 - 2]}…{path[-(_PATH // 2) + 1 :]}"
        owner = one.owner if len(one.owner) < _OWNER else f"{one.owner[: _OWNER - 2]}…"
        figures = f"{needed or '-'!s:>7}{mb(one.size):>10}{mb(one.saves):>9}"
        yield f"{owner:<{_OWNER}}{cut:<{_PATH}}{states}{figures}".rstrip()
    for copies in found.copies:
        what = f"{copies.name} is there {len(copies.owners)} times, {mb(copies.size)} MB: {', '.join(copies.owners)}"
        yield from wrapped(what, indent=4)
    if found.saves:
        yield f"vbuild slim to these GPUs saves {mb(found.saves)} MB"
    yield from diagnosis_lines(found.variants)
    for note in found.notes:
        yield from wrapped(f"note: {note}", indent=4)


def diagnosis_lines(found: "Iterable[Diagnosis]") -> Iterator[str]:
    """What is installed, and how to install anew what should be; commands are not broken, they can be copied."""
    for one in found:
        yield from wrapped(str(one), indent=4)
        if one.advice:
            yield from wrapped(f"  {one.advice}:", indent=4)
            yield from (f"    {command}" for command in one.commands)
