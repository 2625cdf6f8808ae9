from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.errors import WheelError
from vbuild.files.wording import wrapped

if TYPE_CHECKING:
    from vbuild.verification.model import Verdict


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
    **given: Any,  # noqa: ANN401 - of VerifyRequest
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
