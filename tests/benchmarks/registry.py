"""All figures, in the sections of docs/benchmarks.md, under the names of the modules that have them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from tests.benchmarks import (
    building,
    cibuildwheel,
    distributing,
    gpus,
    hwcaps,
    inspecting,
    isa,
    load,
    mirroring,
    publishing,
    python_flint,
    slimming,
    splitting,
    stamping,
    starting,
    verifying,
)
from tests.benchmarks.figure import Figure

Source = Callable[[], Iterable[Figure]]

# section -> name of the module, or of a part of it -> its figures; what reads the same wheels stands together
SECTIONS: Mapping[str, Mapping[str, Source]] = {
    "Slim": {"slimming": slimming.figures, "verifying": verifying.figures},
    "Inspect, stamp, split, index": {
        "inspecting": inspecting.figures,
        "stamping": stamping.figures,
        "splitting": splitting.figures,
    },
    "What slimming leaves of published wheels": {"sizes": slimming.sizes},
    "Disassembly": {"isa": isa.figures},
    "Start": {"starting": starting.figures},
    "Build": {
        "building": building.figures,
        "cibuildwheel": cibuildwheel.figures,
        "distributing": distributing.figures,
        "gpus": gpus.figures,
    },
    "Publish": {"publishing": publishing.figures, "hwcaps": hwcaps.figures, "python_flint": python_flint.figures},
    "Mirror": {"mirroring": mirroring.figures},
    "Large inputs": {"load": load.figures},
}


def registered() -> Iterator[tuple[str, Figure]]:
    """Each section and figure; the name of a figure begins with its module's, as in ``slimming.xgboost``."""
    for section, sources in SECTIONS.items():
        for module, figures in sources.items():
            for figure in figures():
                yield section, replace(figure, name=f"{module}.{figure.name}")


def named(patterns: Iterable[str]) -> list[Figure]:
    """The figures that *patterns* name: a module's, one, or those that a pattern of the shell matches; else all.

    Raises LookupError with the pattern that names none.
    """
    every = [figure for _, figure in registered()]
    wanted = list(patterns)
    for pattern in wanted:
        if not any(_names(pattern, figure) for figure in every):
            raise LookupError(pattern)
    return [figure for figure in every if not wanted or any(_names(pattern, figure) for pattern in wanted)]


def _names(pattern: str, figure: Figure) -> bool:
    return pattern == figure.name.partition(".")[0] or fnmatchcase(figure.name, pattern)
