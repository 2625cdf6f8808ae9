"""What changed between two reports."""

from typing import Any

from tests.factories.reports import choice, entry, failure, report
from vbuild.release.report import Report
from vbuild.release.report_comparison import Comparison


def levels(*sizes: int, version: str = "1.0", **more: Any) -> Report:
    """A release of as many levels as there are *sizes*, in bytes."""
    cpus = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
    labels = (None, "v2", "v3", "v4")
    wheels = [
        entry(label, cpu=cpu, size=size, version=version) for label, cpu, size in zip(labels, cpus, sizes, strict=False)
    ]
    return report(*wheels, **more)


def test_the_same_release_in_another_version_is_the_same() -> None:
    found = Comparison(levels(5, 5), levels(5, 5, version="1.1"))
    assert found.is_same
    assert [*found.lines()] == ["nothing changed since the report before"]


def test_wheels_that_are_new_gone_larger_and_smaller_are_told_apart() -> None:
    found = Comparison(levels(1_000_000, 2_000_000, 3_000_000), levels(1_500_000, 1_000_000))
    assert [wheel.title for wheel in found.gone] == ["v3"]
    assert [(pair.after.title, pair.grown, pair.share) for pair in found.larger] == [("plain", 500_000, 0.5)]
    assert [(pair.after.title, pair.grown) for pair in found.smaller] == [("v2", -1_000_000)]
    assert found.total.grown == -3_500_000
    assert [wheel.title for wheel in Comparison(found.after, found.before).new] == ["v3"]
    assert [*found.lines()] == [
        "since the report before: 6.0 MB -> 2.5 MB, 3 wheels -> 2",
        "  gone: v3",
        "  larger: plain +0.5 MB",
        "  smaller: v2 \N{MINUS SIGN}1.0 MB",
    ]


def test_the_greatest_change_comes_first() -> None:
    found = Comparison(levels(10, 10, 10, 10), levels(11, 40, 7, 5))
    assert [pair.grown for pair in found.larger] == [30, 1]
    assert [pair.grown for pair in found.smaller] == [-5, -3]


def test_a_wheel_that_fails_now_is_told_once() -> None:
    absent = failure("v2", "no", cpu="x86-64-v2")
    found = Comparison(levels(5, 5), levels(5, failures=[absent]))
    assert [absence.title for absence in found.failing] == ["v2"]
    assert found.gone == ()
    assert [*found.lines()][1:] == ["  failing: v2"]


def test_a_wheel_that_failed_before_is_mended() -> None:
    absent = failure("v2", "no", cpu="x86-64-v2")
    found = Comparison(levels(5, failures=[absent]), levels(5, 5))
    assert [absence.title for absence in found.mended] == ["v2"]
    assert found.new == ()
    assert [*found.lines()][1:] == ["  mended: v2"]
    assert Comparison(found.before, found.before).is_same


def test_verdicts_and_tests_that_are_others_are_told() -> None:
    old, new = report(entry()), report(entry(isa="ok, 3 tested", test="not run"))
    (pair,) = Comparison(old, new).proved_otherwise
    assert pair.proved_otherwise == (
        "instruction sets: ok before, ok, 3 tested now",
        "test: passed before, not run now",
    )


def test_machines_that_get_another_variant_are_told_whatever_their_driver_is_by_now() -> None:
    v2, v3 = entry("v2"), entry("v3")
    gpu = {"gpu": "sm_80"}
    before = [choice("any", None), choice("A100", v2, **gpu, driver="13.0"), choice("A100", v2, **gpu, driver="12.8")]
    after = [choice("any", v2), choice("A100", v3, **gpu, driver="13.1"), choice("A100", v2, **gpu, driver="13.0")]
    found = Comparison(report(machines=before), report(machines=after))
    assert [(move.after.machine, str(move)) for move in found.moved] == [
        ("any", "nothing before, v2 now"),
        ("A100", "v2 before, v3 now"),
    ]


def test_a_python_that_is_a_path_is_the_same_wherever_it_is() -> None:
    old = report(entry(python="cp312") | {"python": "/usr/bin/python3"})
    new = report(entry(python="cp312") | {"python": "/opt/python3.12"})
    assert Comparison(old, new).is_same
    both = report(entry(python="cp312"), entry(python="cp313"))
    found = Comparison(old, both)
    assert [*found.lines()][1:] == ["  new: plain (3.13)"]


def test_a_release_for_two_platforms_is_the_same_as_itself() -> None:
    musl = entry(size=9_000_000) | {"wheel": "demo-1.0-cp312-cp312-musllinux_1_2_x86_64.whl"}
    both = report(entry(size=10_000_000), musl)
    assert Comparison(both, both).is_same
    newer = report(entry(size=10_000_000), musl | {"wheel": "demo-1.1-cp312-cp312-musllinux_1_1_x86_64.whl"})
    assert Comparison(both, newer).is_same
    larger = report(entry(size=10_000_000), musl | {"bytes": 9_500_000})
    assert [*Comparison(both, larger).lines()][1:] == ["  larger: plain (musllinux_x86_64) +0.5 MB"]
    assert [*Comparison(report(entry()), larger).lines()][1:] == ["  new: plain (musllinux_x86_64)"]


def test_a_wheel_that_is_repaired_by_now_is_the_same() -> None:
    old = report(entry() | {"wheel": "demo-1.0-cp312-cp312-linux_x86_64.whl"})
    assert Comparison(old, report(entry())).is_same


def test_changes_are_data_for_programs() -> None:
    before = levels(1_000_000, 2_000_000, 3_000_000, failures=[failure("v4", "no", cpu="x86-64-v4")])
    v4 = entry("v4", cpu="x86-64-v4", size=1)
    after = report(entry(size=1_500_000), v4, failures=[failure("v3", "no", cpu="x86-64-v3")])
    name = "demo-1.0-cp312-cp312-manylinux_2_28_x86_64"
    assert Comparison(before, after).data() == {
        "bytes": 1_500_001,
        "bytes_before": 6_000_000,
        "new": [],
        "gone": [f"{name}-v2.whl"],
        "changed": [
            {
                "wheel": f"{name}.whl",
                "before": f"{name}.whl",
                "bytes": 1_500_000,
                "bytes_before": 1_000_000,
                "proved_otherwise": [],
            }
        ],
        "failing": [{"label": "v3", "python": "3.12"}],
        "mended": [{"label": "v4", "python": "3.12"}],
        "machines": [],
    }


def test_of_many_changes_the_first_are_told() -> None:
    old = report(*(entry(f"v{number}", size=1000) for number in range(30)))
    lines = [*Comparison(old, report(entry("v0", size=1000))).lines()]
    assert lines[1].endswith("v10 and 19 more")
