"""Measure vbuild: each figure with its peer and its bounds, or with an earlier release.

    python -m tests.benchmarks [NAME ...]
    python -m tests.benchmarks --against WHEEL [NAME ...]

NAME is a module of tests/benchmarks, a figure, or a pattern of the shell for figures, as in ``load.zip64-*``; without
one, all are taken, which needs two hours on two cores, and 6 GB of disk. Results are written to
tests/benchmarks/results.json and docs/benchmarks.md, as they come. With ``--against``, nothing is written; each figure
of this tree is measured in turn with that of an earlier release, and what is more than 15 % slower, twice in a row, is
named.

A figure whose tool or wheel is not here is named, and left out. The exit status is 1 if a bound is missed, something is
slower, a program fails, or nothing is measured.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.benchmarks.comparing import SLOWER, Change, with_peer, with_release
from tests.benchmarks.figure import Broken, Figure, Installed, Unavailable
from tests.benchmarks.inputs import Inputs
from tests.benchmarks.page import PAGE, bound, measured, page
from tests.benchmarks.registry import named
from tests.benchmarks.releases import ROOT, built, installed
from tests.benchmarks.results import RESULTS, Environment, Results

# from a figure to its line, and whether all is well; raises Unavailable or Broken
Taking = Callable[[Figure, Inputs], tuple[str, bool]]


def main(arguments: list[str]) -> int:
    given = _parser().parse_args(arguments)
    try:
        figures = named(given.names)
    except LookupError as error:
        print(f"{error.args[0]}: no figure has this name; --list prints all", file=sys.stderr)
        return 2
    if given.list:
        print("\n".join(f"{figure.name:<32} {figure.what}" for figure in figures))
        return 0
    if given.pairs:
        figures = [replace(one, pairs=given.pairs) for one in figures]
    if not given.against:
        return taken(figures, measuring(None if given.pairs else Environment.here()), cache=given.cache)
    try:
        with releases(given.against) as (ours, theirs):
            return taken([one for one in figures if one.repeatable], comparing(ours, theirs), cache=given.cache)
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tests.benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--against", type=Path, metavar="WHEEL", help="compare with the vbuild of this wheel")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="keep wheels that are fetched in FOLDER")
    parser.add_argument("--pairs", type=int, metavar="N", help="take N pairs of each figure, for a look: write nothing")
    parser.add_argument("--list", action="store_true", help="print the names of the figures")
    return parser


def taken(figures: list[Figure], taking: Taking, *, cache: Path | None) -> int:
    """Print what becomes of each of *figures*; the exit status."""
    good: list[str] = []
    bad: list[str] = []
    left_out: list[str] = []
    with Inputs.of(figures, cache=cache) as inputs:
        for figure in figures:
            try:
                line, is_well = taking(figure, inputs)
            except Unavailable as reason:
                line = f"left out: {reason}"
                left_out.append(figure.name)
            except Broken as error:
                line = f"FAILED: {error}"
                bad.append(figure.name)
            else:
                (good if is_well else bad).append(figure.name)
            finally:
                inputs.finished(figure)
            print(f"{figure.name}: {line}", flush=True)
    print(f"{len(good)} of {len(figures)} well" + "".join(_listed(bad, "not well") + _listed(left_out, "left out")))
    return 0 if good and not bad else 1


def _listed(names: list[str], what: str) -> list[str]:
    return [f"; {what}: {', '.join(names)}"] if names else []


def measuring(environment: Environment | None) -> Taking:
    """Measures a figure with its peer; writes the result and the page, if an environment is given."""
    vbuild = Installed(Path(sys.executable))

    def taking(figure: Figure, inputs: Inputs) -> tuple[str, bool]:
        result = with_peer(figure, inputs, vbuild)
        if environment:
            Results.load(RESULTS).having(figure.name, result, environment).save(RESULTS)
            PAGE.write_text(page(), encoding="utf-8")
        peer = f" vs {figure.peer.what}" if figure.peer else ""
        reach = bound(figure, result)
        return f"{figure.what}{peer}: {measured(figure, result)}" + (f"; {reach}" if reach else ""), result.keeps(
            figure
        )

    return taking


@contextmanager
def releases(wheel: Path) -> Iterator[tuple[Installed, Installed]]:
    """The vbuild of this tree and that of *wheel*, both installed. Raises Unavailable."""
    with tempfile.TemporaryDirectory(prefix="vbuild-releases-") as name:
        folder = Path(name)
        theirs = installed(wheel, folder / "theirs")
        yield installed(built(ROOT, folder / "dist"), folder / "ours"), theirs


def comparing(ours: Installed, theirs: Installed) -> Taking:
    """Measures a figure of *ours* with the same of *theirs*."""

    def taking(figure: Figure, inputs: Inputs) -> tuple[str, bool]:
        change = with_release(figure, inputs, ours=ours, theirs=theirs)
        return f"{figure.what}: {_changed(change, figure.unit)}", not change.is_slower

    return taking


def _changed(change: Change, unit: str) -> str:
    cpu = f", {change.cpu:.3f} of its CPU time" if change.cpu else ""
    slower = f"; SLOWER than {SLOWER}" if change.is_slower else ""
    sides = f"{change.low:.3f} to {change.high:.3f}; {change.ours:.3f} {unit}, {change.theirs:.3f} {unit}"
    return f"{change.ratio:.3f} times the release ({sides}){cpu}{slower}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
