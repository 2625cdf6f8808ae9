from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.errors import WheelError

if TYPE_CHECKING:
    import re

    from vbuild.hardware.cpu import Cpu
    from vbuild.verification.model import Verdict


@click.command(epilog=options.example("vbuild verify dist/*.whl"))
@click.argument("wheels", type=options.WHEEL, nargs=-1, required=True)
@click.option("--cpu", type=options.CPU, help="Compare the code with this level, such as x86-64-v3.")
@click.option(
    "--baseline",
    type=options.WHEEL,
    help="Allow code that this plain wheel of the same build has, too: it is chosen at run time.",
)
@click.option(
    "--allow",
    type=options.Value("regex", "vbuild.verification.verify:pattern"),
    multiple=True,
    metavar="REGEX",
    help="Let these functions or files exceed the level. Repeatable.",
)
@click.option(
    "--fetch", is_flag=True, help="Fetch required -libs wheels, and attestations, that do not lie beside them."
)
@click.option("--attestations", is_flag=True, help="Also check who published the wheels (PEP 740), by signatures.")
@click.option("--publisher", metavar="URL", help="With --attestations: expect this repository to have published them.")
@click.option(
    "--trust-root", type=options.FILE, help="With --attestations: trust this trusted_root.json, not Sigstore's own."
)
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
    cpu: "Cpu | None",
    baseline: Path | None,
    allow: "tuple[re.Pattern[str], ...]",
    fetch: bool,
    attestations: bool,
    publisher: str | None,
    trust_root: Path | None,
    run: bool,
    test: str | None,
    allow_builds: bool,
    as_json: bool,
) -> None:
    """Check that wheels are what their names and metadata promise.

    Disassembles the code in WHEELS: no instruction may exceed the CPU level, and GPU code has to be there for every GPU
    that is promised. Also checks RECORD, and that libraries find each other, also those in required wheels that lie
    beside them. Attestations are files WHEEL.provenance or WHEEL.publish.attestation.
    """
    from vbuild.verification.verify import with_clashes

    if (test or allow_builds) and not run:
        raise click.UsageError("--test and --allow-builds go with --run only")
    if (publisher or trust_root) and not attestations:
        raise click.UsageError("--publisher and --trust-root go with --attestations only")
    with terminal.status(quiet=as_json) as on_progress:
        judge = partial(
            vbuild.verify,
            cpu=cpu,
            baseline=baseline,
            allow=[regex.pattern for regex in allow],
            fetch=fetch,
            attestations=attestations,
            publisher=publisher,
            trust_root=trust_root,
            on_progress=on_progress,
        )
        verdicts = with_clashes(map(judge, wheels))
        levels = partial(vbuild.run_levels, cpu=cpu, test=test, allow_builds=allow_builds)
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
    terminal.show(data, [*lines, *(line for ran in runs for line in ran.lines())], as_json=as_json)
    if failed := [verdict.wheel.name for verdict in verdicts if verdict.failed]:
        raise WheelError(f"{', '.join(failed)}: not what the name and metadata promise")
    if failed := [ran.wheel for ran in runs if not ran.ok]:
        raise WheelError(f"{', '.join(failed)}: does not work on every CPU that it was run on")


def verdict_lines(verdict: "Verdict", *, crash: str = "") -> Iterator[str]:
    from vbuild.verification.model import merged

    yield f"{verdict.wheel.name}: {crash or verdict.summary}"
    yield f"  instruction sets: {verdict.isa}{f', compared with {verdict.cpu}' if verdict.cpu else ''}"
    for library in verdict.libraries:
        highest = f"{library.level} at most" if library.level else "not disassembled"
        yield f"  {library.member}: {library.code_size / 1e6:.2f} MB of {library.machine} code, {highest}"
    if verdict.gpus or verdict.claimed_gpus:
        yield f"  GPU code: {verdict.gpu}"
    for code in verdict.gpus:
        archs = ", ".join((*code.machine, *(f"PTX {name}" for name in code.ptx)))
        word = code.served[0].word if code.served else "fatbin"
        yield f"  {code.member}: {code.fatbins} {word}s with {archs or 'code of an unknown kind'}"
        yield from (f"    would run on {served.device}: {served}" for served in code.served)
    yield from (f"  {finding}" for finding in merged(verdict.findings))
