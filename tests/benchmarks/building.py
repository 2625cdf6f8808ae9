"""annoy for four CPU levels, proved, stamped and indexed, against four plain builds in a row.

`vbuild matrix` with two jobs does more (verification, repair, the tests of the recipe). Its peer,
``python -m build --wheel`` four times, makes its environment anew each time, as it does.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figure import Figure, Made, Peer
from tests.benchmarks.measuring import shell, timed, vbuild
from vbuild.build.source import fetched_source, unpacked
from vbuild.recipe.model import Recipe

LEVELS = "1 2 3 4"
RECIPE = Path(__file__).parents[2] / "recipes" / "annoy.toml"


def source(folder: Path) -> None:
    unpacked(fetched_source(Recipe.load(RECIPE).source), folder / "unpacked").rename(folder / "tree")


def figures() -> Iterator[Figure]:
    made = Made(source)
    each = f'for n in {LEVELS}; do cp -r "$2/tree" tree$n; "$1" -m build --wheel --outdir dist$n tree$n; done'
    yield Figure(
        name="annoy",
        what="`vbuild matrix recipes/annoy.toml --jobs 2`",
        measure=timed(vbuild("matrix", RECIPE, "-o", "dist", "--jobs", "2", "--fresh")),
        peer=Peer("`python -m build --wheel` four times", timed(shell(each, sys.executable, made))),
        reach=0.7,
        pairs=3,
        inputs=(made,),
        tools=("g++",),
    )
