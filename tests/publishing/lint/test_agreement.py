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
from vbuild.variants.index import index


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


def test_requirements_that_cannot_be_read_are_compared_as_they_are(tmp_path: Path) -> None:
    metadata_release(tmp_path, lines="Requires-Dist: a; variant_label == ''\n")
    what = f"""not as in {PLAIN}: Requires-Dist: has "a; variant_label == ''\""""
    assert f"error metadata: {V3}: {what}" in problems_found(tmp_path)


def test_dependencies_that_are_declared_dynamic_may_differ(tmp_path: Path) -> None:
    declared = "Dynamic: Requires-Dist\n"
    release_folder(tmp_path)
    release_wheel(tmp_path, PLAIN, metadata=declared)
    release_wheel(tmp_path, V2, metadata=declared)
    release_wheel(tmp_path, V3, metadata=f"{declared}Requires-Dist: numpy\n")
    assert [problem.severity for problem in check(tmp_path).problems] == ["warning"]


def test_libraries_that_are_published_beside_may_be_required_by_some(tmp_path: Path) -> None:
    metadata_release(tmp_path, lines="Requires-Dist: demo-libs==0.1\n")
    assert check(tmp_path).failed
    about = "Wheel-Version: 1.0\nGenerator: vbuild split\nRoot-Is-Purelib: false\nTag: py3-none-any\n"
    wheel(tmp_path, "demo_libs-0.1-py3-none-any.whl", {"demo_libs-0.1.dist-info/WHEEL": about})
    found = check(tmp_path)
    assert found.releases == ("demo-1.0", "demo_libs-0.1")
    # there is no sdist of the libraries, and none is asked for
    assert [(str(problem.rule), problem.is_error) for problem in found.problems] == [("metadata", False)]


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


def test_a_variant_is_held_against_the_plain_wheel_of_its_own_name(tmp_path: Path) -> None:
    newer = "demo-1.0-cp311-cp311-manylinux_2_28_x86_64"
    for name in (PLAIN, f"{newer}.whl", f"{newer}-x86_64_v3.whl"):
        release_wheel(tmp_path, name, metadata="" if name == PLAIN else "Requires-Dist: numpy\n")
    sdist(tmp_path, lines="Dynamic: Requires-Dist\n")
    index(tmp_path)
    found = problems_found(tmp_path)
    assert [line for line in found if "error" in line] == []
    release_wheel(tmp_path, f"{newer}-x86_64_v3.whl", metadata="Requires-Dist: scipy\n")
    what = f"not as in {newer}.whl: Requires-Dist: lacks 'numpy' and has 'scipy'"
    assert f"error metadata: {newer}-x86_64_v3.whl: {what}" in problems_found(tmp_path)


@pytest.mark.parametrize("version", ["1.1", "odd"])
def test_metadata_of_another_project_are_an_error(version: str, tmp_path: Path) -> None:
    release_folder(tmp_path, PLAIN)
    wheel(tmp_path, PLAIN, {"demo-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n"})
    assert problems_found(tmp_path) == [
        f"error metadata: {PLAIN}: its metadata is of demo {version}, which the file name does not say"
    ]


def test_a_release_without_an_sdist_is_a_warning(tmp_path: Path) -> None:
    (release_folder(tmp_path) / SDIST).unlink()
    [line] = problems_found(tmp_path)
    assert line == (
        "warning sdist: demo-1.0: there is no sdist: "
        "users without a matching wheel, and users who build from source, cannot install it"
    )


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


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"demo-1.0/setup.py": ""}, "no PKG-INFO in its top folder (PEP 643)"),
        ({"demo-1.0/src/PKG-INFO": ""}, "no PKG-INFO in its top folder (PEP 643)"),
        ({"demo-1.0/PKG-INFO": "Name: demo\n"}, "PKG-INFO: no Metadata-Version"),
        ({"./demo-1.0/PKG-INFO": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"}, None),
    ],
    ids=["none", "elsewhere", "unreadable", "dot"],
)
def test_an_sdist_has_metadata(files: dict[str, str], what: str | None, tmp_path: Path) -> None:
    plain_release(tmp_path)
    tarball(tmp_path / SDIST, files)
    errors = [line for line in problems_found(tmp_path) if line.startswith("error")]
    assert errors == ([f"error archive: {SDIST}: {what}"] if what else [])


def test_an_archive_that_is_no_sdist_is_an_error(tmp_path: Path) -> None:
    plain_release(tmp_path)
    tarball(tmp_path / "logs.tar.gz", {"log": ""})
    assert problems_found(tmp_path) == [
        "error archive: logs.tar.gz: not an sdist's file name: expected {name}-{version}.tar.gz (PEP 625)"
    ]


def test_an_sdist_says_what_its_wheels_say(tmp_path: Path) -> None:
    plain_release(tmp_path)
    sdist(tmp_path, lines="Requires-Dist: numpy\n")
    assert problems_found(tmp_path) == [
        f"warning sdist: {SDIST}: {PLAIN} is not as it says: Requires-Dist: lacks 'numpy' (PEP 643)"
    ]
    sdist(tmp_path, lines="Requires-Dist: numpy\nDynamic: Requires-Dist\n")
    assert problems_found(tmp_path) == []
    sdist(tmp_path, lines="Requires-Dist: numpy\n", version="2.1")
    assert problems_found(tmp_path) == []
    tarball(tmp_path / SDIST, {"demo-1.0/PKG-INFO": "Metadata-Version: 2.1\nName: demo\nVersion: 2.0\n"})
    assert problems_found(tmp_path) == [
        f"error metadata: {SDIST}: its metadata is of demo 2.0, which the file name does not say"
    ]
