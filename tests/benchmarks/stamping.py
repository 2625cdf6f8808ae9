"""Stamping real wheels, against variantlib."""

from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figure import Figure, Peer, Wheel
from tests.benchmarks.measuring import BIN, Command, command, shell, timed, vbuild
from tests.benchmarks.wheels import XGBOOST

PROPERTY = "x86_64 :: level :: v3"
SEED = """
[variant.default-priorities]
namespace = ["x86_64"]
[variant.providers.x86_64]
requires = ["x86-64-variant-provider >=0.2"]
"""


def figures() -> Iterator[Figure]:
    yield Figure(
        name="xgboost",
        what="stamp xgboost 3.2.0 (131.7 MB), every file compared with RECORD",
        measure=timed(stamping(XGBOOST)),
        peer=Peer("`variantlib make-variant --skip-plugin-validation`", timed(variantlib(XGBOOST))),
        reach=0.05,
        memory=100,
        inputs=(XGBOOST,),
        note="One file of 237 MB is a single deflate stream, which one core inflates to compare it with RECORD: "
        "that takes 0.55 s.",
    )


def stamping(wheel: Wheel) -> Command:
    return vbuild("stamp", wheel, "-o", "out", "--label", "v3", "-p", PROPERTY)


def variantlib(wheel: Wheel) -> Command:
    make = '"$1" make-variant -f "$2" -o . -p "$3" --variant-label v3 --skip-plugin-validation'
    return shell(f'printf %s "$4" > pyproject.toml && {make}', BIN / "variantlib", wheel, PROPERTY, SEED)


def copying(wheel: Wheel | Path) -> Command:
    return command("cp", wheel, "copy.whl")
