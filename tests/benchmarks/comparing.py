"""Take the samples of a figure in pairs: with its peer, or with another release of vbuild.

The sides take turns, A B A B, so that both meet the same machine, after one sample of each that does not count.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.benchmarks.figure import Broken, Figure, Installed, Measure, Result, Sample, Setting, Unavailable
from tests.benchmarks.inputs import Inputs

# as much slower than the other release is too slow, twice in a row
SLOWER = 1.15


@dataclass(frozen=True, slots=True)
class Change:
    """What the samples of this tree are to those of another release: the median of the ratios, the lowest, the highest.

    A ratio above 1 is slower or larger. *ours* and *theirs* are medians in the unit of the figure; *cpu* is the median
    of the ratios of CPU seconds, 0 where there are none.
    """

    ratio: float
    low: float
    high: float
    ours: float
    theirs: float
    cpu: float

    @property
    def is_slower(self) -> bool:
        return self.ratio > SLOWER


def with_peer(figure: Figure, inputs: Inputs, vbuild: Installed) -> Result:
    """The result of *figure*. Raises Unavailable or Broken."""
    paths = inputs.prepared(figure, vbuild, with_peer=True)

    def sample(measure: Measure) -> Sample:
        with tempfile.TemporaryDirectory(dir=inputs.folder) as folder:
            return measure(Setting(vbuild, Path(folder), paths))

    peer = figure.peer.measure if figure.peer else None
    if figure.pairs > 1:
        sample(figure.measure)
        if peer:
            sample(peer)
    pairs = [(sample(figure.measure), sample(peer) if peer else None) for _ in range(figure.pairs)]
    return Result.of(figure, pairs)


def with_release(figure: Figure, inputs: Inputs, *, ours: Installed, theirs: Installed) -> Change:
    """How *figure* differs between *ours* and *theirs*; slower only if it is so twice. Raises Unavailable or Broken."""
    change = _paired(figure, inputs, ours, theirs)
    return _paired(figure, inputs, ours, theirs) if change.is_slower else change


def _paired(figure: Figure, inputs: Inputs, ours: Installed, theirs: Installed) -> Change:
    def sample(side: Installed) -> Sample:
        try:
            paths = inputs.prepared(figure, side, with_peer=False)
            with tempfile.TemporaryDirectory(dir=inputs.folder) as folder:
                return figure.measure(Setting(side, Path(folder), paths))
        except Broken as error:
            if side is theirs:
                raise Unavailable(f"the release fails: {error}") from error
            raise

    if figure.pairs > 1:
        sample(ours), sample(theirs)
    pairs = [(sample(ours), sample(theirs)) for _ in range(figure.pairs)]
    ratios = [
        second.value / first.value if figure.more_is_better else first.value / second.value for first, second in pairs
    ]
    cpu = [first.cpu / second.cpu for first, second in pairs if second.cpu]
    return Change(
        median(ratios),
        min(ratios),
        max(ratios),
        median(first.value for first, _ in pairs),
        median(second.value for _, second in pairs),
        median(cpu) if cpu else 0,
    )
