"""Stamping real wheels, against variantlib and against a plain copy of the file."""

from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figure import Figure, Peer, Wheel
from tests.benchmarks.measuring import BIN, Command, command, shell, timed, vbuild
from tests.benchmarks.wheels import CUBLAS, XGBOOST

PROPERTY = "x86_64 :: level :: v3"
SEED = """
[variant.default-priorities]
namespace = ["x86_64"]
[variant.providers.x86_64]
requires = ["x86-64-variant-provider >=0.2"]
"""


def figures() -> Iterator[Figure]:
    for name, options, what in (
        ("xgboost", (), "stamp xgboost 3.2.0 (131.7 MB), every file compared with RECORD"),
        ("xgboost-unverified", ("--no-verify",), "the same with `--no-verify`"),
    ):
        yield Figure(
            name=name,
            what=what,
            measure=timed(stamping(XGBOOST, *options)),
            peer=Peer("`variantlib make-variant --skip-plugin-validation`", timed(variantlib(XGBOOST))),
            reach=0.05,
            memory=100,
            inputs=(XGBOOST,),
        )
    yield Figure(
        name="cublas-unverified",
        what="stamp nvidia-cublas-cu12 (581 MB), `--no-verify`",
        measure=timed(stamping(CUBLAS, "--no-verify")),
        peer=Peer("`cp` of the file", timed(copying(CUBLAS))),
        reach=3,
        inputs=(CUBLAS,),
    )


def stamping(wheel: Wheel, *options: str) -> Command:
    return vbuild("stamp", wheel, "-o", "out", "--label", "v3", "-p", PROPERTY, *options)


def variantlib(wheel: Wheel) -> Command:
    make = '"$1" make-variant -f "$2" -o . -p "$3" --variant-label v3 --skip-plugin-validation'
    return shell(f'printf %s "$4" > pyproject.toml && {make}', BIN / "variantlib", wheel, PROPERTY, SEED)


def copying(wheel: Wheel | Path) -> Command:
    return command("cp", wheel, "copy.whl")
