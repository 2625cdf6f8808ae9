"""report.html, as its source says and as Chromium shows it."""

import re
from typing import Any

import pytest

from tests.factories.browser import Tags, browsed
from tests.factories.reports import bench_data, choice, entry, failure, finding, override, report
from tests.factories.tools import needs
from vbuild.release.report import (
    Mood,
    Report,
    failures,
    gauges,
    groups,
    installs,
    lasting,
    page,
    removed,
    served,
    status,
    warnings,
)
from vbuild.verification.bench import BenchedWheel, BenchRatio, BenchReport

HOSTILE = "<script>alert('x')<!--&amp;\"--></script>"


def hostile() -> Report:
    """A report with markup wherever a report may have any text."""
    wheel = entry(
        "v3",
        cpu="x86-64-v3",
        overrides=[override(HOSTILE, sources=(HOSTILE,), refused=[HOSTILE])],
        architectures=[HOSTILE],
        environment={HOSTILE: HOSTILE},
    )
    wheel["verdict"] |= {"isa": HOSTILE, "findings": [finding("warning", HOSTILE, member=HOSTILE)]}
    return report(
        wheel,
        name=HOSTILE,
        source=HOSTILE,
        notes=[HOSTILE],
        failures=[failure(HOSTILE, f"{HOSTILE}\n{HOSTILE}", log=HOSTILE)],
        machines=[choice(HOSTILE, wheel, why=HOSTILE), choice(HOSTILE, wheel, python=HOSTILE)],
    )


def many(count: int = 200) -> Report:
    pythons = ("cp310", "cp311", "cp312", "cp313", "cp314")
    wheels = [
        entry(f"x86_64_v3_b{number % 40}", cpu="x86-64-v3", python=pythons[number // 40], size=1_000_000 + number)
        for number in range(count)
    ]
    return report(*wheels)


def texts(elements: str) -> str:
    """What *elements* show, without tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", elements))


def test_names_stay_text() -> None:
    for text in (page(hostile()), page(report(name=HOSTILE))):
        tags = Tags(text)
        assert [attributes for tag, attributes in tags.found if tag == "script"] == [{}]
        assert "alert(" not in tags.scripts[0]
        assert "<script>alert" not in text


def test_nothing_is_asked_of_the_network_and_no_element_has_what_the_policy_forbids() -> None:
    text = page(hostile())
    found = Tags(text).found
    assert [value for _, attributes in found for key, value in attributes.items() if key in {"src", "href"}] == [
        "data:,"
    ]
    assert not re.search(r"url\(|@import|https?://", text)
    assert not {key for _, attributes in found for key in attributes if key == "style" or key.startswith("on")}
    (policy,) = [attributes["content"] for _, attributes in found if "http-equiv" in attributes]
    assert policy
    assert policy.startswith("default-src 'none'; style-src 'sha256-")


@pytest.mark.parametrize(
    ("found", "mood", "said"),
    [
        (report(entry()), Mood.GOOD, "1 wheel, verified; all tested"),
        (report(entry(), entry("v3")), Mood.GOOD, "2 wheels, all verified; all tested"),
        (report(entry(test="no test")), Mood.GOOD, "1 wheel, verified; "),
        (
            report(entry(), entry("v4", test="not run")),
            Mood.GOOD,
            "2 wheels, all verified; 1 of 2 tested, 1 not run here",
        ),
        (report(entry(), entry("v3", test="no test")), Mood.GOOD, "2 wheels, all verified; 1 of 2 tested"),
        (report(entry(test="not run")), Mood.GOOD, "1 wheel, verified; 0 of 1 tested, 1 not run here"),
        (
            report(entry(), failures=[failure("v3", "no")]),
            Mood.BAD,
            "1 of 2 wheels missing; 1 wheel finished and verified",
        ),
        (report(failures=[failure("v3", "no")] * 2), Mood.BAD, "No wheel; all 2 failed"),
        (report(failures=[failure("v3", "no")]), Mood.BAD, "No wheel; it failed"),
        (report(entry(isa="failed")), Mood.BAD, "1 of 1 wheels break a promise; what was found is below"),
        (report(), Mood.WARN, "No wheel; nothing was asked for"),
    ],
    ids=range(11),
)
def test_the_headline_says_how_the_release_stands(found: Report, mood: Mood, said: str) -> None:
    stands = status(found)
    assert (stands.mood, f"{stands.text}; {stands.more}") == (mood, said)
    assert stands.text in page(found)


BELOW = (Mood.GOOD, "every file is below; up to 1 GB on request")
ABOVE = (Mood.WARN, "2 files above: ask PyPI for more, up to 1 GB")
NEVER = (Mood.BAD, "larger than PyPI ever grants, 1 GB")


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((1_000_000,), [BELOW, (Mood.GOOD, "room for many releases")]),
        ((104_857_600,), [BELOW, (Mood.GOOD, "room for 102 releases of this size")]),
        ((104_857_601, 200_000_000), [ABOVE, (Mood.GOOD, "room for 35 releases of this size")]),
        ((1_073_741_825,), [NEVER, (Mood.WARN, "room for 9 releases of this size")]),
        ((10_000_000_000, 10_000_000_000), [NEVER, (Mood.BAD, "more than a project has room for")]),
    ],
)
def test_sizes_are_held_against_the_limits_of_pypi(sizes: tuple[int, ...], said: list[tuple[Mood, str]]) -> None:
    found = report(*(entry(python=f"cp31{number}", size=size) for number, size in enumerate(sizes)))
    assert [(gauge.mood, gauge.note) for gauge in gauges(found)] == said
    assert all(0 <= gauge.share <= 1 for gauge in gauges(found))


def test_wheels_above_the_limit_are_named() -> None:
    text = page(report(entry(), entry(python="cp313", size=200_000_000)))
    assert "Above 100 MB a file" in text
    assert texts(text).count("demo-1.0-cp313-cp313-manylinux_2_28_x86_64.whl") == 3


def test_what_pypi_does_not_take_is_not_held_against_its_limits() -> None:
    bare = {"wheel": "demo-1.0-cp312-cp312-linux_x86_64.whl"}
    local = {"wheel": "demo-1.0+cu12-cp312-cp312-manylinux_2_28_x86_64.whl"}
    found = report(*(entry("v3", size=2_000_000_000) | name for name in ({}, bare, local)))
    assert [*gauges(found)] == []
    text = texts(page(found))
    assert "3 files need an index of your own" in text
    assert "Against PyPI" not in text


def test_files_have_their_hashes_and_commands_that_install_them() -> None:
    text = page(report(entry(), entry("v3") | {"sha256": "ab" * 32}))
    assert re.search(r"demo-1\.0-cp312-cp312-manylinux_2_28_x86_64-v3\.whl 10\.0 MB (ab){32} own index", texts(text))
    assert [command for command, _ in installs(report(entry("v3"), entry()))] == [
        "uv pip install --preview-features wheel-variants --no-index --find-links . demo",
        "pip install --no-index --find-links . demo",
    ]
    local = entry() | {"wheel": "demo-1.0+torch2.15-cp312-cp312-manylinux_2_28_x86_64.whl"}
    assert [command for command, _ in installs(report(local))] == [
        "pip install --no-index --find-links . demo==1.0+torch2.15"
    ]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0.0 s"), (0.71, "0.7 s"), (12.4, "12 s"), (59.6, "1 min 0 s"), (125, "2 min 5 s"), (3780, "1 h 3 min")],
)
def test_times_are_said_as_people_do(seconds: float, said: str) -> None:
    assert lasting(seconds) == said


def test_wheels_of_one_build_say_so() -> None:
    fat: dict[str, Any] = {"compiled_for": "sm_75,sm_80"}
    found = report(entry("sm75", gpus="sm_75") | fat, entry("sm80", gpus="sm_80") | fat)
    (group,) = groups(found)
    assert [row.is_first for row in group.rows] == [True, False]
    assert [row.serves for row in group.rows] == ["x86-64, CUDA 13.0, sm_75", "x86-64, CUDA 13.0, sm_80"]


def test_wheels_of_several_pythons_stand_apart() -> None:
    found = report(entry(python="cp311"), entry(python="cp312"), entry("v3", python="cp312", size=5))
    assert [(group.title, len(group.rows), group.size) for group in groups(found)] == [
        ("cp311", 1, 10_000_000),
        ("cp312", 2, 10_000_005),
    ]


def test_wheels_of_several_platforms_stand_apart() -> None:
    musl = entry() | {"wheel": "demo-1.0-cp312-cp312-musllinux_1_2_x86_64.whl"}
    found = groups(report(entry(), musl))
    assert [group.title for group in found] == ["cp312 manylinux_x86_64", "cp312 musllinux_x86_64"]
    assert [row.is_first for group in found for row in group.rows] == [True, True]


def test_flags_that_were_taken_out_are_told_with_files_and_wheels() -> None:
    wheels = report(
        entry(overrides=[override("-march=native", sources=("a.c",)), override("-march=native", sources=("b.c",))]),
        entry("v3", overrides=[override("-march=native", "-mavx", sources=()), override(refused=["-mavx512f"])]),
    ).wheels
    assert [(flag.flag, flag.files, len(flag.wheels), flag.is_refused) for flag in removed(wheels)] == [
        ("-march=native", ("a.c", "b.c", "linking"), 2, False),
        ("-mavx", ("linking",), 1, False),
        ("-mavx512f", ("src/kernel.c",), 1, True),
    ]


def test_machines_that_get_the_same_with_all_pythons_are_one_row() -> None:
    v2, v3 = entry("v2", size=1), entry("v3", size=2)
    found = report(
        machines=[
            choice("any", v2, python="3.11"),
            choice("any", v2 | {"bytes": 3}, python="3.12"),
            choice("any", v3, python="3.13"),
            choice("other", None, python="3.11"),
        ]
    )
    assert [(row.gets, row.pythons, row.sizes) for row in served(found.choices)] == [
        ("v2", ("3.11", "3.12"), (1, 3)),
        ("v3", ("3.13",), (2,)),
        ("nothing", ("3.11",), ()),
    ]


def test_why_is_said_in_few_words() -> None:
    properties = {"nvidia :: sm_arch :: 90_real": "1 of 4", "x86_64 :: level :: v3": "2 of 3"}
    why = "; ".join(f"{text} is number {place} that the machine supports" for text, place in properties.items())
    (row,) = served(report(machines=[choice("any", entry(), why=why)]).choices)
    assert row.why == "sm_arch 90_real (1 of 4); level v3 (2 of 3)"


def test_wheels_that_failed_alike_are_told_once() -> None:
    lost = [failure("v2", "no\n  log"), failure("v3", "no\n  log", log="logs/v3.log"), failure("v4", "other")]
    assert [(said.what, said.wheels, said.rest, said.logs) for said in failures(report(failures=lost))] == [
        ("no", ("v2", "v3"), "  log", ("logs/v3.log",)),
        ("other", ("v4",), "", ()),
    ]


def test_warnings_are_told_once_and_notes_of_a_check_not_at_all() -> None:
    wheels = [entry("v2"), entry("v3")]
    for wheel in wheels:
        wheel["verdict"]["findings"] = [finding("warning", "odd", member="a.so"), finding("note", "fine")]
    assert [(said.what, said.wheels) for said in warnings(report(*wheels).wheels)] == [("a.so: odd", ("v2", "v3"))]


@pytest.mark.sampled(1)
@needs("chromium")
@pytest.mark.parametrize("width", [360, 800, 1600])
def test_chromium_shows_it_without_a_word_and_without_the_network(width: int, tmp_path: Any) -> None:
    shown = browsed(page(hostile()), tmp_path, width=width, height=900)
    assert (shown.complaints, shown.hosts) == ((), ())
    assert "missing" in texts(shown.elements)


@pytest.mark.nightly
@needs("chromium")
def test_in_chromium_hundreds_of_rows_can_be_filtered_and_sorted(tmp_path: Any) -> None:
    shown = browsed(page(many()), tmp_path, "only=cp312 b7", width=1280, height=900)
    assert shown.complaints == ()
    rows = [attributes for tag, attributes in Tags(shown.elements).found if attributes.get("class") == "wheel"]
    assert len(rows) == 200
    assert len([row for row in rows if "hidden" not in row]) == 1
    assert "1 of 200" in texts(shown.elements)
    buttons = [tag for tag, _ in Tags(shown.elements).found if tag == "button"]
    assert len(buttons) == 6


def test_without_a_script_all_rows_are_there_and_no_field_that_does_nothing() -> None:
    found = Tags(page(many())).found
    assert len([tag for tag, attributes in found if attributes.get("class") == "wheel"]) == 200
    (label,) = [attributes for tag, attributes in found if attributes.get("class") == "filter"]
    assert "hidden" in label


def test_a_bench_is_drawn_with_its_spread() -> None:
    """The longest bar reaches the highest end of a spread; 1 and the median stand where they belong."""
    ratio = BenchRatio(2, 1.5, 4)
    measure = BenchedWheel("demo.whl", "plain", {"a": 0.01, "b": 0.02})
    level = BenchedWheel("demo-v3.whl", "v3", {"a": 0.005, "b": 0.01}, {"a": ratio, "b": ratio}, ratio, "plain", ratio)
    text = page(report(entry(), bench=[bench_data(BenchReport(5, (measure, level), 0.03))]))
    start = text.index('<table class="bench">')
    table = text[start : text.index("</table>", start)]
    assert [" ".join(texts(row).split()) for row in table.split("<tr")[2:]] == [
        "> plain the measure",
        'class="figure"> a: 10 ms',
        'class="figure"> b: 20 ms',
        "> v3 2.00x (1.50 to 4.00) stays: reaches 3% over plain",
        'class="figure"> 2.00x (1.50 to 4.00) a: 5 ms',
        'class="figure"> 2.00x (1.50 to 4.00) b: 10 ms',
    ]
    bars = re.findall(r'<rect class="(\w+)"(?: x="([\d.]+)")?(?: y="3")? width="([\d.]+)"', table)
    assert bars == [("kept", "", "50.00"), ("spread", "37.50", "62.50"), ("one", "24.75", "0.5")] * 3


def test_a_bench_that_failed_says_why() -> None:
    text = page(report(entry(), bench=[bench_data(BenchReport(5, (), 0.03, HOSTILE))]))
    assert "The bench failed: &lt;script&gt;" in text
