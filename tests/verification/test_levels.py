"""A wheel run as processors of several levels see it: installed for real, and looked at through glibc's own eyes."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.factories.extensions import library
from tests.factories.level_copies import BASE, NAME, STUB, level_copy, level_members, level_stub, leveled_wheel
from tests.factories.pythons import other_python
from tests.factories.tools import needs
from vbuild.elf.linkage import at_level
from vbuild.errors import WheelError
from vbuild.hardware.machine import Machine
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.model import Check
from vbuild.verification.level_emulation import LevelHost, LevelMethod, LevelReport, LevelRun
from vbuild.verification.level_runs import LevelSettings, run_levels

V3, V4 = at_level(BASE, "v3"), at_level(BASE, "v4")
TELLS = Check("python -c 'from demo import _c; print(_c.__doc__)'")
ALONE = Indexes(no_index=True)

here = Machine.here().cpu
pytestmark = [
    needs("gcc"),
    pytest.mark.skipif(not here or here.level not in {"v3", "v4"}, reason="not a machine of level v3"),
]
ONLY_V4 = pytest.mark.skipif(not here or here.level != "v4", reason="not a machine of level v4")


def printed(log: Path) -> list[str]:
    """What the tests printed into *log*, without the titles of what was run."""
    return [line for line in log.read_text().splitlines() if not line.startswith("[")]


def ran(wheel: Path, check: Check | None = None, *methods: LevelMethod, log: Path | None = None) -> LevelReport:
    settings = LevelSettings(check=check or Check(), methods=methods or (LevelMethod.TUNABLES,), log=log)
    return run_levels(wheel, settings, indexes=lambda: ALONE)


@ONLY_V4
def test_each_level_loads_its_own_copy_and_passes_the_test(tmp_path: Path) -> None:
    report = ran(leveled_wheel(tmp_path), TELLS, log=tmp_path / "log")
    assert report.ok
    assert (report.levels, report.tried, report.summary) == (
        ("v1", "v3", "v4"),
        ("v1", "v3", "v4"),
        "works as v1, v3, v4",
    )
    assert report.runs == tuple(
        LevelRun(level, LevelMethod.TUNABLES, None, ("demo", "demo._c"), (path,), is_tested=True)
        for level, path in (("v1", BASE), ("v3", V3), ("v4", V4))
    )
    assert printed(tmp_path / "log") == ["v1", "v3", "v4"]


@pytest.mark.nightly
@needs("qemu-x86_64")
def test_an_emulator_sees_lower_levels_and_what_it_lacks_is_not_tried(tmp_path: Path) -> None:
    report = ran(leveled_wheel(tmp_path), TELLS, LevelMethod.QEMU, log=tmp_path / "log")
    v1, v3, v4 = report.runs
    assert (report.ok, v1.loaded, v3.loaded) == (True, (BASE,), (V3,))
    assert printed(tmp_path / "log")[:2] == ["v1", "v3"]
    if not v4.is_tried:  # qemu knew no AVX-512 for long
        assert "cannot judge x86-64-v4: it does not run AVX512F" in str(v4.untried)
        assert (report.untried, report.summary) == (("v4",), "works as v1, v3; v4 not tried")


def test_a_copy_that_is_never_taken_is_a_failure(tmp_path: Path) -> None:
    files = level_members(("v3",))
    # RPATH leads to a folder of its own, in which nobody has put a copy
    files[at_level("demo.libs/libvb_demo-01234567.so", "v2")] = level_copy("v2")
    files[STUB] = level_stub(runpath="$ORIGIN/../demo.libs/glibc-hwcaps/x86-64-v2:$ORIGIN/../demo.libs")
    report = ran(leveled_wheel(tmp_path, files))
    v2 = at_level(BASE, "v2")
    assert not report.ok
    assert report.failures == (
        f"v1 by GLIBC_TUNABLES: loaded: {v2}, expected {BASE}",
        f"v3 by GLIBC_TUNABLES: loaded: {v2}, expected {V3}",
    )
    assert report.summary == "works as v2; fails as v1, v3"


def test_a_module_that_one_level_cannot_import_is_a_failure(tmp_path: Path) -> None:
    files = {**level_members(("v3",)), V3: library("libvb_demo-01234567.so", source="int nothing;")}
    report = ran(leveled_wheel(tmp_path, files))
    v1, v3 = report.runs
    why = "ImportError: dynamic module does not define module export function (PyInit__c)"
    assert (v1.failures, v1.imported) == ((), ("demo", "demo._c"))
    assert v3.failures == (f"import: demo: {why}", f"import: demo._c: {why}")


def test_a_test_that_one_level_fails_is_a_failure_with_its_last_line(tmp_path: Path) -> None:
    check = Check("python -c 'from demo import _c; assert _c.__doc__ == \"v1\", _c.__doc__'")
    v1, v3 = ran(leveled_wheel(tmp_path, levels=("v3",)), check).runs
    assert v1.failures == ()
    assert v3.failures == ("test: failed with status 1: AssertionError: v3",)


@pytest.mark.nightly
def test_a_test_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    settings = LevelSettings(check=Check("sleep 60"), methods=(LevelMethod.TUNABLES,), timeout=1)
    report = run_levels(leveled_wheel(tmp_path, levels=("v3",)), settings, indexes=lambda: ALONE)
    assert report.failures == tuple(f"{level} by GLIBC_TUNABLES: test: took more than 1 s" for level in ("v1", "v3"))


def test_a_wheel_without_copies_is_run_as_it_is(tmp_path: Path) -> None:
    report = ran(leveled_wheel(tmp_path, level_members(())), TELLS)
    assert report == LevelReport(
        NAME,
        ("v1",),
        (LevelRun("v1", LevelMethod.NONE, None, ("demo", "demo._c"), (), is_tested=True),),
        ("no library has copies for CPU levels: run as it is",),
    )
    assert [*report.lines()][1:3] == [
        "  works on this machine",
        "  this machine as it is: 2 modules imported, test passed",
    ]


def test_what_nothing_loads_and_what_lacks_a_package_is_noted(tmp_path: Path) -> None:
    other = "demo.libs/libother.so"
    files = {**level_members(("v3",)), other: library("libother.so"), at_level(other, "v3"): library("libother.so")}
    files["lacking.py"] = "import nowhere_at_all\n"
    report = ran(leveled_wheel(tmp_path, files))
    assert report.ok
    assert report.notes == (
        f"nothing loaded {other}: which copy is taken was not seen",
        "not imported for want of another package: lacking",
    )


def test_a_module_of_the_project_s_own_that_is_missing_is_a_failure(tmp_path: Path) -> None:
    files = {**level_members(("v3",)), "demo/__init__.py": "import demo.gone\n"}
    report = ran(leveled_wheel(tmp_path, files))
    assert "v1 by GLIBC_TUNABLES: import: demo: ModuleNotFoundError: No module named 'demo.gone'" in report.failures


def test_another_python_of_this_machine_runs_its_wheels(tmp_path: Path) -> None:
    python = other_python()
    host = LevelHost.of(Path(python))
    tag = "".join(filter(str.isdigit, host.suffixes[0].split("-")[1]))
    files = {**level_members(("v3",)), "demo/__init__.py": ""}
    wheel = leveled_wheel(tmp_path, files, name=f"demo-1.0-cp{tag}-cp{tag}-manylinux_2_17_x86_64.whl")
    settings = LevelSettings(python=Path(python), methods=(LevelMethod.TUNABLES,))
    report = run_levels(wheel, settings, indexes=lambda: ALONE)
    assert (report.ok, [run.loaded for run in report.runs]) == (True, [(BASE,), (V3,)])


def test_what_the_wheel_requires_comes_from_beside_it(tmp_path: Path) -> None:
    leveled_wheel(tmp_path, {"beside.py": ""}, name="beside-1.0-py3-none-any.whl")
    files = {**level_members(("v3",)), "demo/__init__.py": "import beside\n"}
    assert ran(leveled_wheel(tmp_path, files, metadata="Requires-Dist: beside\n")).ok


def test_a_wheel_runs_without_what_is_not_there_as_wheels_and_the_report_says_so(tmp_path: Path) -> None:
    report = ran(leveled_wheel(tmp_path, metadata="Requires-Dist: nowhere-at-all\n"))
    assert report.ok
    assert report.runs[0].imported == ("demo", "demo._c")
    assert report.notes[0] == (
        "run without what it requires: uv: No solution found when resolving dependencies: Because nowhere-at-all was "
        "not found in the provided package locations and demo==1.0 depends on nowhere-at-all, we can conclude that "
        "demo==1.0 cannot be used."
    )


def test_a_wheel_that_cannot_be_installed_is_refused(tmp_path: Path) -> None:
    python = f"{sys.version_info[0]}.{sys.version_info[1] + 1}"
    with pytest.raises(WheelError) as refusal:
        ran(leveled_wheel(tmp_path, metadata=f"Requires-Python: >={python}\n"))
    assert str(refusal.value).startswith(f"{NAME}: cannot be installed: uv: ")


def test_a_python_that_is_not_here_is_said(tmp_path: Path) -> None:
    wheel = leveled_wheel(tmp_path, name="demo-1.0-cp399-cp399-manylinux_2_17_x86_64.whl")
    with pytest.raises(WheelError) as refusal:
        ran(wheel)
    assert str(refusal.value) == (
        f"{wheel.name}: no Python on this machine takes cp399-cp399; uv python install may bring one"
    )


@pytest.mark.parametrize(
    ("platform", "note"),
    [
        (
            "manylinux_2_17_ppc64le",
            (
                f"for ppc64le, and this machine is {os.uname().machine}: nothing was run; "
                f"expected a machine of ppc64le, with its Python"
            ),
        ),
        (
            "musllinux_1_2_aarch64",
            (
                f"for aarch64, and this machine is {os.uname().machine}: nothing was run; "
                f"expected a machine of aarch64, with its Python"
            ),
        ),
        ("win_amd64", "for win_amd64, expected a Linux wheel: nothing was run"),
        ("musllinux_1_2_x86_64", "for musl, and the C library of this machine is another: nothing was run"),
    ],
)
def test_a_wheel_for_other_systems_is_not_tried_and_that_is_said(tmp_path: Path, platform: str, note: str) -> None:
    report = ran(leveled_wheel(tmp_path, level_members(()), name=f"demo-1.0-py3-none-{platform}.whl"))
    assert (report.runs, report.notes, report.tried, report.summary) == ((), (note,), (), "not tried")


def test_the_result_is_json_and_lines_of_a_terminal(tmp_path: Path) -> None:
    report = ran(leveled_wheel(tmp_path, levels=("v3",)), TELLS)
    data = json.loads(json.dumps(report.data()))
    assert (data["levels"], data["tried"], data["ok"]) == (["v1", "v3"], ["v1", "v3"], True)
    assert data["runs"][1]["way"] == "GLIBC_TUNABLES"
    lines = [*report.lines()]
    assert lines == [
        NAME,
        "  works as v1, v3",
        "  v1 by GLIBC_TUNABLES: 2 modules imported, test passed",
        f"    {BASE}",
        "  v3 by GLIBC_TUNABLES: 2 modules imported, test passed",
        f"    {V3}",
    ]
    assert max(map(len, lines)) <= 80
