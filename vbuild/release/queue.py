"""In which order the builds of a run begin when they are more than run at a time: the longest first."""

import math
from collections.abc import Iterable

from vbuild.errors import VbuildError
from vbuild.release.builds import PlannedWheel
from vbuild.release.model import ReleaseContext
from vbuild.release.report import REPORT, Report


def longest_first(items: Iterable[PlannedWheel], context: ReleaseContext) -> list[PlannedWheel]:
    """*items*, those first that took longest in the run before, by its report; what it does not have comes before.

    Of these, what is for more GPUs comes first. The report is that to compare with, or the one among the results.
    """
    report = context.before or _report_before(context)
    known = {(one.label, one.python): one.seconds for one in report.wheels} if report else {}

    def length(item: PlannedWheel) -> tuple[float, int]:
        target = item.target
        archs = target.cuda.archs if target.cuda else None
        gpus = len(archs.requests) + len(archs.targets) if archs else 0
        return known.get((context.family.label(target), target.python), math.inf), gpus

    return sorted(items, key=length, reverse=True)


def _report_before(context: ReleaseContext) -> Report | None:
    try:
        return Report.previous(context.folder / REPORT, context.recipe.name)
    except VbuildError:  # there is none, or it is of another vbuild
        return None
