"""A mirror of a wheel that is here already: what it adds to slimming it."""

from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figure import Figure, Installed, Made, Peer, Setting
from tests.benchmarks.inputs import ran
from tests.benchmarks.measuring import Command, timed, vbuild
from tests.benchmarks.wheels import XGBOOST
from tests.factories.mirrors import lock_of

GPUS = ("--gpu", "H100")


def write_lock(folder: Path, source: Path) -> None:
    """A lock of the wheel at *source*."""
    lock_of(folder / "pylock.toml", source)


def write_site(folder: Path, vbuild: Installed, source: Path) -> None:
    """A mirror of the wheel at *source*, and its lock."""
    write_lock(folder, source)
    ran(vbuild.vbuild, "mirror", folder / "pylock.toml", "-o", folder / "site", *GPUS)


LOCK = Made(write_lock, others=(XGBOOST,))
SITE = Made(write_site, others=(XGBOOST,), by_vbuild=True)


def figures() -> Iterator[Figure]:
    yield Figure(
        name="xgboost",
        what="mirror xgboost 3.2.0 (131.7 MB), which is here, for sm_90",
        measure=timed(mirroring(LOCK)),
        peer=Peer("`vbuild slim` of it", timed(vbuild("slim", XGBOOST, "-o", "out", *GPUS)), (XGBOOST,)),
        reach=1.2,
        inputs=(LOCK,),
    )
    yield Figure(
        name="again",
        what="the same again, nothing changed",
        measure=timed(again),
        limit=3,
        inputs=(SITE,),
    )


def mirroring(lock: Made) -> Command:
    def command(setting: Setting) -> list[str | Path]:
        return [setting.vbuild.vbuild, "mirror", setting.inputs[lock] / "pylock.toml", "-o", "site", *GPUS]

    return command


def again(setting: Setting) -> list[str | Path]:
    made = setting.inputs[SITE]
    return [setting.vbuild.vbuild, "mirror", made / "pylock.toml", "-o", made / "site", *GPUS]
