"""Look: what is in a wheel, whether it keeps its promises, how fast it is, and which one a machine gets."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

import vbuild
from vbuild.cli import options, terminal
from vbuild.errors import RepackageError, VariantError, WheelError
from vbuild.files.wording import wrapped

if TYPE_CHECKING:
    from vbuild.hardware.machine import Machine
    from vbuild.inspection.model import Contents
    from vbuild.publishing.oci.select import ImageSelection
    from vbuild.variants.select import Selection
    from vbuild.verification.model import Verdict


@click.command(cls=options.RequestCommand, epilog=options.example("vbuild inspect torch-*.whl --html torch.html"))
@click.argument("wheels", type=options.WHEELS, nargs=-1, required=True)
@click.option(
    "--library",
    "globs",
    multiple=True,
    metavar="GLOB",
    help="Show all about these libraries, such as '*cuda*'. Repeatable.",
)
@options.of("vbuild.api.looking:InspectRequest")
@options.as_json
def inspect(wheels: tuple[Path, ...], *, globs: tuple[str, ...], as_json: bool, **given: options.Given) -> None:
    """Show what takes space in wheels: libraries, GPU code, copies.

    WHEELS are files, or folders of wheels. Two wheels of one project, the older one first, are compared.
    """
    from vbuild.wheel.archive import wheels_among

    *others, last = wheels_among(wheels)
    if given["html"] and len(others) > 1:
        raise click.UsageError("expected one wheel with --html, or an old and a new one")
    inspected = [vbuild.inspect(path, closure=given["closure"]) for path in others]
    old = inspected[0] if len(others) == 1 else None
    inspected.append(vbuild.inspect(last, **given, before=old))
    lines = [*(closure_lines(inspected, globs) if given["closure"] else contents_lines(inspected, globs))]
    lines += [f"{len(inspected)} wheels"] if others else []
    data = [contents.data() for contents in inspected]
    if old and inspected[1].is_like(old):
        data[1]["changes"] = to_builtins(inspected[1].changes_from(old))
    terminal.show(data, lines, as_json=as_json)


def contents_lines(several: Sequence["Contents"], globs: Sequence[str]) -> Iterator[str]:
    from vbuild.inspection.text import change_lines, details, summary

    for contents in several:
        if not globs:
            yield from summary(contents)
            continue
        chosen = [library for library in contents.libraries if any(fnmatchcase(library.path, glob) for glob in globs)]
        for library in chosen:
            yield from details(library, contents.devices)
        if not chosen:
            yield f"{contents.wheel}: no library matches {' or '.join(globs)}"
    match several:
        case [old, new] if not globs and new.is_like(old):
            yield ""
            yield from change_lines(old, new)


def closure_lines(several: Sequence["Contents"], globs: Sequence[str]) -> Iterator[str]:
    from vbuild.inspection import text

    for place, contents in enumerate(several):
        yield from [""] if place else []
        yield from text.closure_lines(contents, globs)
    if not globs and (repeated := [*text.repeat_lines(several)]):
        yield ""
        yield from repeated


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
def bench(wheels: tuple[Path, ...], *, script: Path, as_json: bool, **given: options.Given) -> None:
    """Compare the speed of several wheels of one project.

    Installs each of WHEELS in an environment of its own and times the script there, in turns, so that other work on the
    machine slows all alike. A wheel for a CPU level that this machine lacks is not run. Of a folder, the plain
    wheel comes first, then the levels. What the script needs besides stands in it, as PEP 723 says.
    """
    with terminal.status(quiet=as_json) as on_progress:
        report = vbuild.bench(wheels, script, **given, on_progress=on_progress)
    terminal.show(report.data(), report.lines(), as_json=as_json)


@click.command(cls=options.RequestCommand, epilog=options.example("vbuild verify dist/*.whl"))
@click.argument("wheels", type=options.WHEELS, nargs=-1, required=True)
@options.of("vbuild.api.looking:VerifyRequest")
@click.option(
    "--run",
    is_flag=True,
    help="Also install and import the wheels, on emulated CPUs that have no more than they promise to need.",
)
@click.option("--test", metavar="COMMAND", help="With --run: also run this command of the shell.")
@click.option(
    "--allow-builds",
    is_flag=True,
    help="With --run: build requirements that have no wheel, which runs their code.",
)
@options.as_json
def verify(
    wheels: tuple[Path, ...],
    *,
    run: bool,
    test: str | None,
    allow_builds: bool,
    as_json: bool,
    **given: options.Given,
) -> None:
    """Check that wheels are what their names and metadata promise.

    Disassembles the code in WHEELS, files or folders of them: no instruction may exceed the CPU level, and GPU code has
    to be there for every GPU that is promised. Also checks RECORD, and that libraries find each other, also those in
    required wheels that lie beside them. Attestations are files WHEEL.provenance or WHEEL.publish.attestation.
    """
    from vbuild.verification.verify import with_clashes
    from vbuild.wheel.archive import wheels_among

    if (test or allow_builds) and not run:
        raise click.UsageError("--test and --allow-builds go with --run only")
    with terminal.status(quiet=as_json) as on_progress:
        verdicts = with_clashes(
            vbuild.verify(wheel, **given, on_progress=on_progress) for wheel in wheels_among(wheels)
        )
        levels = partial(vbuild.run_levels, cpu=given["cpu"], test=test, allow_builds=allow_builds)
        runs = (
            [levels(verdict.wheel, processors=verdict.processors, on_progress=on_progress) for verdict in verdicts]
            if run
            else []
        )
    verdicts[: len(runs)] = [ran.evidence_for(verdict) for ran, verdict in zip(runs, verdicts, strict=False)]
    crashes = [ran.crash for ran in runs] or [""] * len(verdicts)
    judged = list(zip(verdicts, crashes, strict=True))
    lines = [line for verdict, crash in judged for line in verdict_lines(verdict, crash=crash)]
    data = [
        {**verdict.data(), "outcome": "failed" if crash else verdict.outcome, "summary": crash or verdict.summary}
        for verdict, crash in judged
    ]
    for row, ran in zip(data, runs, strict=False):
        row["run"] = ran.data()
    lines += [line for ran in runs for line in ran.lines()]
    if len(verdicts) > 1:
        lines.append(f"{len(verdicts)} wheels, {sum(row['outcome'] == 'failed' for row in data)} of them failed")
    terminal.show(data, lines, as_json=as_json)
    if failed := [verdict.wheel.name for verdict in verdicts if verdict.failed]:
        raise WheelError(f"{', '.join(failed)}: not what the name and metadata promise")
    if failed := [ran.wheel for ran in runs if not ran.ok]:
        raise WheelError(f"{', '.join(failed)}: does not work on every CPU that it was run on")


def verdict_lines(verdict: "Verdict", *, crash: str = "") -> Iterator[str]:
    from vbuild.verification.model import merged

    yield from wrapped(f"{verdict.wheel.name}: {crash or verdict.summary}")
    level = f", compared with {verdict.cpu}" if verdict.cpu else ""
    yield from wrapped(f"  instruction sets: {verdict.isa}{level}", indent=4)
    for library in verdict.libraries:
        highest = f"{library.level} at most" if library.level else "not disassembled"
        text = f"  {library.member}: {library.code_size / 1e6:.2f} MB of {library.machine} code, {highest}"
        yield from wrapped(text, indent=4)
    if verdict.gpus or verdict.claimed_gpus:
        yield f"  GPU code: {verdict.gpu}"
    for code in verdict.gpus:
        archs = ", ".join((*code.machine, *(f"PTX {name}" for name in code.ptx)))
        word = code.served[0].word if code.served else "fatbin"
        yield from wrapped(
            f"  {code.member}: {code.fatbins} {word}s with {archs or 'code of an unknown kind'}", indent=4
        )
        for served in code.served:
            yield from wrapped(f"    would run on {served.device}: {served}", indent=6)
    yield from (line for finding in merged(verdict.findings) for line in wrapped(f"  {finding}", indent=4))


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
    **given: options.Given,
) -> None:
    """Show which wheel a machine gets, and why; or which of several machines gets which.

    NAME is a project, or oci:DIR for an image of an image layout.
    """
    from vbuild.api.arguments import machine_of
    from vbuild.variants.select import save_machine

    layout = name.removeprefix(options.IMAGES) if name and name.startswith(options.IMAGES) else None
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
        if not machine:  # this one, as options describe it
            return vbuild.select(name, find_links, **given)
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
