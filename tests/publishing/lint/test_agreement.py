"""Wheels and sdists of one release that state different things."""

from pathlib import Path

import pytest

from tests.factories.release_folders import (
    PLAIN,
    SDIST,
    V2,
    V3,
    plain_release,
    problems_found,
    release_folder,
    release_wheel,
    sdist,
    tarball,
)
from tests.factories.wheels import wheel
from vbuild.publishing.check import check


def metadata_release(folder: Path, **lines: str) -> Path:
    """Plain, v2 and v3 wheels, v3 with other *lines*, by what differs."""
    release_folder(folder)
    release_wheel(folder, V3, metadata="".join(lines.values()))
    return folder


@pytest.mark.parametrize(
    ("lines", "severity", "what"),
    [
        ("Requires-Dist: numpy\n", "error", "Requires-Dist: has 'numpy'"),
        ("Requires-Python: >=3.9\n", "error", "Requires-Python: has '>=3.9'"),
        ("Provides-Extra: gpu\n", "error", "Provides-Extra: has 'gpu'"),
        ("Summary: faster\n", "warning", "Summary: has 'faster'"),
        ("\nfaster\n", "warning", "its description is another one"),
        # what a split adds
        ("Requires-Dist: nvidia-cufft-cu12==11.2.1.3\n", "warning", "Requires-Dist: has 'nvidia-cufft-cu12==11.2.1.3'"),
        ("Requires-Dist: cuda-toolkit[cufft]==12.4.*\n", "warning", "Requires-Dist: has 'cuda-toolkit[cufft]==12.4.*'"),
    ],
)
def test_variants_state_what_the_plain_wheel_states(lines: str, severity: str, what: str, tmp_path: Path) -> None:
    metadata_release(tmp_path, lines=lines)
    assert problems_found(tmp_path) == [f"{severity} metadata: {V3}: not as in {PLAIN}: {what}"]


def test_dependencies_that_are_declared_dynamic_may_differ(tmp_path: Path) -> None:
    declared = "Dynamic: Requires-Dist\n"
    release_folder(tmp_path)
    release_wheel(tmp_path, PLAIN, metadata=declared)
    release_wheel(tmp_path, V2, metadata=declared)
    release_wheel(tmp_path, V3, metadata=f"{declared}Requires-Dist: numpy\n")
    assert [problem.severity for problem in check(tmp_path).problems] == ["warning"]


def test_requirements_of_another_python_that_differ_are_an_error(tmp_path: Path) -> None:
    release_folder(tmp_path, PLAIN)
    other = PLAIN.replace("311", "312")
    release_wheel(tmp_path, other, metadata="Requires-Dist: numpy\n")
    release_wheel(tmp_path, PLAIN.replace("311", "313"), metadata="Requires-Dist: numpy\n")
    assert problems_found(tmp_path) == [
        f"error metadata: {other} and 1 more: not as in {PLAIN}: Requires-Dist: has 'numpy'"
    ]


@pytest.mark.parametrize(
    ("machine", "line", "severity"),
    [
        ("win_amd64", 'demo-libs==1; sys_platform == "linux" and platform_machine == "x86_64"', "error"),
        ("macosx_11_0_arm64", 'demo-libs==1; platform_system == "Linux"', "error"),
        # no wheel needs it where it is installed itself
        ("win_amd64", 'colorama; sys_platform == "win32"', "warning"),
        ("win_amd64", 'demo-libs==1; sys_platform == "darwin"', "warning"),
        ("macosx_11_0_arm64", 'numpy; extra == "all"', "warning"),
        ("musllinux_1_2_aarch64", 'old; python_version < "3.8"', "warning"),
    ],
)
def test_requirements_that_a_lock_would_leave_out_are_an_error(
    machine: str, line: str, severity: str, tmp_path: Path
) -> None:
    release_folder(tmp_path, PLAIN)
    release_wheel(tmp_path, PLAIN, metadata=f"Requires-Dist: {line}\n")
    release_wheel(tmp_path, f"demo-1.0-cp311-cp311-{machine}.whl")
    sdist(tmp_path, lines="Dynamic: Requires-Dist\n")
    found = [problem for problem in problems_found(tmp_path) if "Requires-Dist" in problem]
    assert [problem.partition(" ")[0] for problem in found] == [severity]


@pytest.mark.parametrize("version", ["1.1", "odd"])
def test_metadata_of_another_project_are_an_error(version: str, tmp_path: Path) -> None:
    release_folder(tmp_path, PLAIN)
    wheel(tmp_path, PLAIN, {"demo-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n"})
    assert problems_found(tmp_path) == [
        f"error metadata: {PLAIN}: its metadata is of demo {version}, which the file name does not say"
    ]


def test_an_sdist_is_called_as_pep_625_says(tmp_path: Path) -> None:
    release_wheel(tmp_path, "demo_x-1.0-py3-none-any.whl")
    sdist(tmp_path, "demo-x-1.0.tar.gz")
    what = "sdist: demo-x-1.0.tar.gz: expected the file name demo_x-1.0.tar.gz (PEP 625)"
    assert problems_found(tmp_path) == [f"warning {what}"]
    assert problems_found(tmp_path, pypi=True) == [f"error {what}"]
    sdist(tmp_path, "demo_x-1.0.tar.gz")
    both = "sdist: demo-x-1.0.tar.gz and 1 more: are two sdists of one release, and PyPI takes one"
    assert f"error {both}" in problems_found(tmp_path, pypi=True)


@pytest.mark.parametrize("name", ["demo-1.0.zip", "demo-1.0.tgz", "Demo-1.0.0.tar.bz2"])
def test_what_is_called_as_sdists_were_is_no_sdist_for_pypi(name: str, tmp_path: Path) -> None:
    (plain_release(tmp_path) / SDIST).unlink()
    (tmp_path / name).write_text("")
    (tmp_path / name.replace("1.0", "1.1")).write_text("")
    what = f"sdist: {name}: expected the file name demo-1.0.tar.gz (PEP 625)"
    assert problems_found(tmp_path) == [f"warning {what}"]
    assert problems_found(tmp_path, pypi=True) == [f"error {what}"]


def test_an_archive_that_is_no_sdist_is_an_error(tmp_path: Path) -> None:
    plain_release(tmp_path)
    tarball(tmp_path / "logs.tar.gz", {"log": ""})
    assert problems_found(tmp_path) == [
        "error archive: logs.tar.gz: not an sdist's file name: expected {name}-{version}.tar.gz (PEP 625)"
    ]
