"""The registry of figures, the results that are kept, and the page that is written from them."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.benchmarks.figure import Comparison, Figure, Peer, Result, Sample
from tests.benchmarks.page import PAGE, TEMPLATE, page, rendered
from tests.benchmarks.registry import SECTIONS, registered
from tests.benchmarks.results import RESULTS, Environment, Results

OLD = Environment("2026-11-20", "0.1.0", "3.11.7", "12.2.0", 2, "x86-64-v4", is_shared=False)
NEW = Environment("2026-11-28", "0.2.0", "3.13.1", "12.2.0", 4, "x86-64-v3", is_shared=True)


def figure(name: str, **more: Any) -> Figure:
    made = Figure(name=name, what=f"do {name}", measure=lambda _: Sample(1))
    return replace(made, **more)


def test_the_page_is_what_the_results_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.benchmarks.page"


def test_no_result_is_of_a_figure_that_is_gone() -> None:
    assert Results.load(RESULTS).figures.keys() <= {one.name for _, one in registered()}


def test_names_are_unique_and_every_module_with_figures_is_registered() -> None:
    names = [one.name for _, one in registered()]
    assert len(names) == len(set(names))
    modules = {path.stem for path in Path(__file__).parent.glob("*.py") if "\ndef figures()" in path.read_text()}
    assert modules <= {module for sources in SECTIONS.values() for module in sources}


def test_every_section_has_its_place_on_the_page() -> None:
    places = re.findall(r"^<!-- figures: (.+) -->$", TEMPLATE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(places) == sorted(SECTIONS)


def test_a_run_replaces_its_own_results_and_leaves_the_others() -> None:
    results = Results().having("a", Result(1), OLD).having("b", Result(2), OLD).having("a", Result(3), NEW)
    assert results.figures["a"].ours == 3
    assert (results.taken("a"), results.taken("b"), results.taken("c")) == (NEW, OLD, None)
    # newest first, and nothing of a run of which no result is left
    assert results.environments == (NEW, OLD)
    assert results.having("b", Result(4), NEW).environments == (NEW,)


def test_the_page_says_of_each_figure_what_and_when() -> None:
    peer = Peer("the other", lambda _: Sample(1))
    figures = [
        ("One", figure("x", peer=peer, reach=0.5, memory=100.0)),
        ("One", figure("missed", peer=peer, reach=3.0, limit=1.0, start=0.3)),
        ("Two", figure("difference", peer=peer, comparison=Comparison.DIFFERENCE, unit="ms", reach=0.3)),
        ("Two", figure("speed", unit="MB/s", limit=20.0, more_is_better=True, note="Of one core.")),
        ("Two", figure("later")),
    ]
    results = (
        Results()
        .having("x", Result(2, 12.9, 0.157, 0.15, 0.1601, 81.6), OLD)
        .having("missed", Result(2.04, 0.4, 4.1), NEW)
        .having("difference", Result(0.07, 0.04, 0.03, -0.1, 0.2), NEW)
        .having("speed", Result(1361.74), NEW)
        .having("gone", Result(1), NEW)
    )
    template = "# Page\n\n<!-- environments -->\n\n<!-- figures: One -->\n\n<!-- figures: Two -->\n"
    assert (
        rendered(template, figures, results)
        == """\
# Page

- 2026-11-28: vbuild 0.2.0, 4 cores (x86-64-v3), while other programs ran, Python 3.13.1, gcc 12.2.0
- 2026-11-20: vbuild 0.1.0, 2 cores (x86-64-v4), Python 3.11.7, gcc 12.2.0

| what | compared with | measured | bound | taken | name |
|---|---|---|---|---|---|
| do x | the other | 0.157 times (0.15 to 0.16; 2 s, 12.9 s), 82 MB of memory | ≤ 0.5, ≤ 100 MB | 2026-11-20 | `x` |
| do missed | the other | 4.1 times (2.04 s, 0.4 s) | ≤ 3 after 0.3 s, ≤ 1 s: missed | 2026-11-28 | `missed` |

| what | compared with | measured | bound | taken | name |
|---|---|---|---|---|---|
| do difference | the other | +0.03 ms (-0.1 to 0.2; 0.07 ms, 0.04 ms) | ≤ 0.3 ms | 2026-11-28 | `difference` |
| do speed [^speed] |  | 1362 MB/s | ≥ 20 MB/s | 2026-11-28 | `speed` |

Not measured yet: `later`.

[^speed]: Of one core.
"""
    )
