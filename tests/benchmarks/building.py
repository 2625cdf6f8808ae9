"""annoy for four CPU levels, proved, stamped and indexed, against four plain builds in a row.

    python -m tests.benchmarks.building

`vbuild matrix` with two jobs does more (verification, repair, the tests of the recipe) and should still need at most
0.7 of the time of ``python -m build --wheel`` four times, which makes its environment anew each time, as it does.
"""

import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.ratio import paired, verdict
from vbuild.build.source import fetched, unpacked
from vbuild.recipe.model import Recipe

REACH = 0.7
LEVELS = 4
RECIPE = Path(__file__).parents[2] / "recipes" / "annoy.toml"


def main() -> None:
    vbuild = shutil.which("vbuild", path=Path(sys.executable).parent)
    if vbuild is None:
        sys.exit("vbuild is not installed beside this Python")
    source = Recipe.load(RECIPE).source
    archive = fetched(source)
    with tempfile.TemporaryDirectory() as folder:
        tree = unpacked(archive, Path(folder))

        def ours(into: Path) -> Sequence[str | Path]:
            return [vbuild, "matrix", RECIPE, "-o", into / "dist", "--jobs", "2", "--fresh"]

        def theirs(into: Path) -> Sequence[str | Path]:
            build = shlex.join([sys.executable, "-m", "build", "--wheel", "--outdir"])
            fresh = f"cp -r {shlex.quote(str(tree))}"
            steps = [f"{fresh} tree{n} && {build} dist{n} tree{n}" for n in range(LEVELS)]
            return ["sh", "-c", f"cd {shlex.quote(str(into))} && {' && '.join(steps)}"]

        result = paired("annoy, four levels", ours, theirs, rounds=2)
    sys.exit(not verdict(result, reach=REACH))


if __name__ == "__main__":
    main()
