"""How long `vbuild matrix --emit` takes for 2,000 variants, for each system, against `vbuild --version`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.figure import Figure, Peer, Setting
from tests.benchmarks.measuring import Command, timed, vbuild
from tests.factories.recipes import SOURCE
from vbuild.release.emit import CiSystem

VARIANTS = 2000


def figures() -> Iterator[Figure]:
    for system in CiSystem:
        yield Figure(
            name=str(system),
            what=f"emit 2,000 builds for {system}",
            measure=timed(_emitting(system)),
            peer=Peer("`vbuild --version`", timed(vbuild("--version"))),
            reach=8,
            limit=1.0,
        )


def _emitting(system: CiSystem) -> Command:
    def command(setting: Setting) -> Sequence[str | Path]:
        (setting.folder / "demo.toml").write_text(recipe())
        return [setting.vbuild.vbuild, "matrix", "demo.toml", "--emit", system]

    return command


def recipe(variants: int = VARIANTS, *, source: str = SOURCE) -> str:
    """Four levels, and axes of 25 values and as many as *variants*, a multiple of 100, need: one is the plain twin."""
    levels = 'cpu = ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"]\n'
    return f"{source}[matrix]\n{levels}{_axis('a', variants // 100)}{_axis('b', 25)}"


def _axis(name: str, values: int) -> str:
    rows = "".join(f'{name}{number} = {{ properties = ["x :: {name} :: v{number}"] }}\n' for number in range(values))
    return f"[matrix.axes.{name}]\n{rows}"
