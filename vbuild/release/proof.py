"""Hold a finished wheel against what its target promises, with whatever way it was built."""

from collections.abc import Sequence
from pathlib import Path

from vbuild.errors import ClaimError
from vbuild.recipe.target import Target
from vbuild.verdict.model import Severity, Verdict
from vbuild.verify import verify

_SHOWN = 5


def proved(wheel: Path, target: Target, *, baseline: Path | None, allow: Sequence[str] = ()) -> Verdict:
    """The verdict on *wheel*, that of *target*, held against its build for the *baseline*; *allow* as `verify` has it.

    `ClaimError` where it does not keep its promises, or has no code to keep them with.
    """
    verdict = verify(wheel, cpu=target.cpu, baseline=baseline, allow=allow)
    check(verdict, target)
    return verdict


def check(verdict: Verdict, target: Target) -> None:
    """`ClaimError` where a wheel does not keep its promises, or has no code to keep them with."""
    if verdict.failed:
        errors = [finding for finding in verdict.findings if finding.severity is Severity.ERROR]
        said = [f"{finding.member}: {finding.what}" if finding.member else finding.what for finding in errors[:_SHOWN]]
        if len(errors) > _SHOWN:
            said.append(f"and {len(errors) - _SHOWN} more")
        raise ClaimError(f"{verdict.wheel.name}: {'; '.join(said)}")
    if not (verdict.libraries or target.cpu.is_baseline):
        raise ClaimError(
            f"{verdict.wheel.name}: no compiled code for {target.cpu}; did the build leave its modules out?"
        )
