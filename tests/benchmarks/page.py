"""docs/benchmarks.md: the prose of template.md, and a table of figures for each section from results.json.

    python -m tests.benchmarks.page

writes the page again, as `.ci/write-docs` does.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figure import Comparison, Figure, Result
from tests.benchmarks.registry import registered
from tests.benchmarks.results import RESULTS, Results

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
TEMPLATE = Path(__file__).with_name("template.md")
HEAD = "| what | compared with | measured | bound | taken | name |\n|---|---|---|---|---|---|"
_PLACE = re.compile(r"^<!-- figures: (?P<section>.+) -->$", re.MULTILINE)
_ENVIRONMENTS = "<!-- environments -->"


def page() -> str:
    """The page, from the results that are kept. Figures without a result are listed by name."""
    return rendered(TEMPLATE.read_text(encoding="utf-8"), list(registered()), Results.load(RESULTS))


def rendered(template: str, figures: list[tuple[str, Figure]], results: Results) -> str:
    """*template* with the tables of *figures*, each with its section, and where *results* come from."""
    kept = results.of(frozenset(figure.name for _, figure in figures))
    days = _days(kept)
    notes: dict[str, str] = {}

    def table(place: re.Match[str]) -> str:
        wanted = [figure for section, figure in figures if section == place["section"]]
        return "\n".join([HEAD, *_rows(wanted, kept, days, notes)])

    text = _PLACE.sub(table, template).rstrip("\n")
    where = "\n".join(
        f"- {day}{str(one).removeprefix(one.date)}" for day, one in zip(days, kept.environments, strict=True)
    )
    text = text.replace(_ENVIRONMENTS, where)
    missing = [f"`{figure.name}`" for _, figure in figures if figure.name not in kept.figures]
    if missing:
        text += f"\n\nNot measured yet: {', '.join(missing)}."
    foot = "\n".join(f"[^{name}]: {note}" for note, name in notes.items())
    return f"{text}\n\n{foot}\n" if foot else f"{text}\n"


def _days(results: Results) -> list[str]:
    """A name for each environment: its date, and a number where there are several of a day."""
    dates = [one.date for one in results.environments]
    return [
        date if dates.count(date) == 1 else f"{date} ({dates[:place].count(date) + 1})"
        for place, date in enumerate(dates)
    ]


def _rows(figures: list[Figure], results: Results, days: list[str], notes: dict[str, str]) -> Iterator[str]:
    for figure in figures:
        if not (result := results.figures.get(figure.name)):
            continue
        mark = f" [^{notes.setdefault(figure.note, figure.name.replace('.', '-'))}]" if figure.note else ""
        cells = [
            figure.what + mark,
            figure.peer.what if figure.peer else "",
            measured(figure, result),
            bound(figure, result),
            days[result.environment],
            f"`{figure.name}`",
        ]
        yield f"| {' | '.join(cells)} |"


def measured(figure: Figure, result: Result) -> str:
    """What was measured, in words: 0.157 (0.15 to 0.16; 2 s, 12.9 s), 182 MB of memory."""
    ours = _amount(result.ours, figure.unit)
    if result.peer is None or result.compared is None:
        text = ours
    else:
        sides = f"{ours}, {_amount(result.peer, figure.unit)}"
        unit = f" {figure.unit}" if figure.comparison is Comparison.DIFFERENCE else " times"
        sign = "+" if figure.comparison is Comparison.DIFFERENCE and result.compared >= 0 else ""
        spread = ""
        if result.low is not None and result.high is not None and result.low != result.high:
            spread = f"{_number(result.low)} to {_number(result.high)}; "
        text = f"{sign}{_number(result.compared)}{unit} ({spread}{sides})"
    return f"{text}, {result.memory:.0f} MB of memory" if figure.memory is not None and result.memory else text


def bound(figure: Figure, result: Result) -> str:
    """The bounds of *figure*, and whether one is missed."""
    sign = "≥" if figure.more_is_better else "≤"
    parts = []
    if figure.reach is not None:
        unit = f" {figure.unit}" if figure.comparison is Comparison.DIFFERENCE else ""
        parts.append(f"≤ {_number(figure.reach)}{unit}" + (f" after {figure.start} s" if figure.start else ""))
    if figure.limit is not None:
        parts.append(f"{sign} {_number(figure.limit)} {figure.unit}")
    if figure.memory is not None:
        parts.append(f"≤ {figure.memory:.0f} MB")
    return ", ".join(parts) + ("" if result.keeps(figure) else ": missed")


def _amount(value: float, unit: str) -> str:
    return f"{_number(value)} {unit}"


def _number(value: float) -> str:
    """Three digits that count, or all before the point: 0.157, 2.31, 12.9, 1362."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
