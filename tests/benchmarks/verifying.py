"""Verifying the wheels of a slim family, whose members are mostly the same."""

from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figure import Figure, Installed, Made, Peer, Setting
from tests.benchmarks.inputs import ran
from tests.benchmarks.measuring import Command, timed
from tests.benchmarks.slimming import ACCEPTED, FAMILY
from tests.benchmarks.wheels import XGBOOST


def slim_family(folder: Path, vbuild: Installed, wheel: Path) -> None:
    """A wheel of *wheel* for each of the four groups, in *folder*."""
    shares = [option for share in FAMILY for option in ("--variant", share)]
    ran(vbuild.vbuild, "slim", wheel, "-o", folder, *shares, *ACCEPTED)


MADE = Made(slim_family, others=(XGBOOST,), by_vbuild=True)


def figures() -> Iterator[Figure]:
    yield Figure(
        name="family",
        what="verify a family of four of xgboost 3.2.0",
        measure=timed(verifying("*.whl")),
        peer=Peer("verify one of them", timed(verifying("*sm90.whl"))),
        reach=1.3,
        inputs=(MADE,),
    )


def verifying(pattern: str) -> Command:
    def command(setting: Setting) -> list[str | Path]:
        return [setting.vbuild.vbuild, "verify", *sorted(setting.inputs[MADE].glob(pattern))]

    return command
