"""What `verify` says of thin wheels: their libraries are in wheels that they require, beside them or on an index."""

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import LINUX, NAME, release
from tests.factories.simple_indexes import write_simple
from tests.factories.sources import served
from tests.factories.tools import needs
from tests.factories.wheels import wheel
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.packages import download_best
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.split import split
from vbuild.verification.model import Finding, Severity, VerifyRule
from vbuild.verification.required import RequiredWheel, required_wheels
from vbuild.verification.verify import verify
from vbuild.wheel.archive import open_wheel

pytestmark = needs("gcc")

DEEP = library("libdeep.so.2", source="int deep(void) { return 41; }")
TOP = library("libtop.so.1", ("libdeep.so.2",), source="int deep(void); int top(void) { return deep() + 1; }")
# moved into libc.so.6 with glibc 2.34, and given that version there
NEW = library(
    "libnew.so.1",
    ("libc.so.6",),
    source="int pthread_create(void *, void *, void *, void *); int top(void) { return pthread_create(0, 0, 0, 0); }",
    stubs="int pthread_create(void *a, void *b, void *c, void *d) { return 0; }",
    stub_script="GLIBC_2.34 { global: pthread_create; };",
)
CALLS = "int top(void); int answer(void) { return top(); }"
NEEDED = {VerifyRule.NEEDED, VerifyRule.SYMBOL_VERSION}


LIBRARIES = {"libtop.so.1": TOP, "libdeep.so.2": DEEP}


def thin(folder: Path, libraries: Mapping[str, bytes], source: str = CALLS) -> tuple[Path, Path]:
    """A wheel whose *libraries*, of which it needs the first, moved to the other one beside it."""
    files: dict[str, bytes | str] = {"demo/_c.so": module(next(iter(libraries)), source=source)}
    request = SplitRequest(smallest=0)
    fat = release(folder / "fat", files, libraries)
    split(fat, folder / "thin", request=request, indexes=lambda: Indexes(no_index=True))
    (libs,) = (folder / "thin").glob("demo_libs-*.whl")
    return folder / "thin" / NAME, libs


def findings(path: Path, *, indexes: Indexes | None = None) -> list[str]:
    verdict = verify(path, fetch=partial(download_best, indexes=indexes) if indexes else None)
    return [str(finding) for finding in verdict.findings if finding.rule in NEEDED]


def test_libraries_in_the_wheel_beside_it_are_found_and_prove_the_tag(tmp_path: Path) -> None:
    path, libs = thin(tmp_path, LIBRARIES)
    what = f"finds 2 libraries of {libs.name}, beside it, by RPATH; together they are {LINUX}"
    assert findings(path) == [f"note: {what} [needed]"]
    assert not verify(path).failed


CHOOSES = """
int top(void);
__attribute__((target("avx2"), optimize("O3"), noinline)) void wide(int *a) { for (int i = 0; i < 64; i++) a[i] *= 3; }
int numbers[64];
__attribute__((constructor)) void begin(void) { if (top()) wide(numbers); }
"""


@pytest.mark.parametrize(("test", "is_right"), [("avx2", True), ("popcnt", False)])
def test_what_a_library_beside_it_answers_about_the_cpu_counts(tmp_path: Path, test: str, *, is_right: bool) -> None:
    asks = library("libasks.so.1", source=f'int top(void) {{ return __builtin_cpu_supports("{test}") != 0; }}')
    path, libs = thin(tmp_path, {"libasks.so.1": asks}, CHOOSES)
    (judged,) = verify(path).libraries
    assert (judged.violations == ()) is is_right
    libs.unlink()
    (alone,) = verify(path).libraries
    assert alone.violations


def test_alone_it_is_said_what_is_to_be_put_beside_it(tmp_path: Path) -> None:
    path, libs = thin(tmp_path, LIBRARIES)
    libs.unlink()
    (warning,) = findings(path)
    assert warning.startswith("warning: demo/_c.so: needs libtop-")
    assert warning.endswith(
        "expected from other packages; put the wheel of demo-libs beside it, or publish it and use --fetch [needed]"
    )


def test_wheels_for_other_machines_and_other_tools_files_beside_it_are_passed_over(tmp_path: Path) -> None:
    path, libs = thin(tmp_path, LIBRARIES)
    shutil.copy(libs, libs.with_name(libs.name.replace("x86_64", "aarch64")))
    (libs.parent / "no wheel.whl").write_text("nothing")
    assert findings(path)[0].startswith(f"note: finds 2 libraries of {libs.name}")


def test_libraries_for_newer_systems_only_break_the_tag(tmp_path: Path) -> None:
    path, libs = thin(tmp_path, LIBRARIES)
    newer = libs.rename(libs.with_name(libs.name.replace("manylinux_2_17", "manylinux_2_28")))
    what = f"requires {newer.name}, beside it, which is for manylinux_2_28_x86_64 only"
    assert findings(path) == [f"error: {what}: it does not install on all of {LINUX}, as this wheel does [needed]"]


def test_a_library_there_with_a_newer_symbol_breaks_the_tag(tmp_path: Path) -> None:
    path, libs = thin(tmp_path, {"libnew.so.1": NEW})
    (error,) = findings(path)
    assert error.startswith(f"error: {libs.name}: demo_libs/lib/libnew-")
    assert error.endswith(f"needs symbols that are newer than {LINUX}: GLIBC_2.34 (pthread_create) [symbol-version]")


def test_a_library_there_to_which_no_rpath_leads_is_named(tmp_path: Path) -> None:
    path, libs = thin(tmp_path, LIBRARIES)
    requires = f"Requires-Dist: demo-libs=={libs.name.split('-')[1]}\n"
    name = next(iter(moved(libs)))
    path.unlink()
    wheel(path.parent, path.name, {"demo/_c.so": module(name, source=CALLS)}, metadata=requires)
    what = f"needs {name}, which {libs.name} has in 'demo_libs/lib', but no RPATH leads there"
    assert findings(path) == [f"warning: demo/_c.so: {what} [needed]"]


def moved(libs: Path) -> list[str]:
    return [library.member.rpartition("/")[2] for library in verify(libs).libraries if "libtop" in library.member]


@pytest.mark.parametrize("asks", [True, False])
def test_libraries_on_the_index_are_fetched_where_that_is_asked_for(tmp_path: Path, *, asks: bool) -> None:
    path, libs = thin(tmp_path, LIBRARIES)
    (tmp_path / "published").mkdir()
    published = libs.rename(tmp_path / "published" / libs.name)
    write_simple(published.parent, tmp_path / "site")
    with served(tmp_path / "site") as url:
        (finding,) = findings(path, indexes=Indexes(index_url=url) if asks else None)
    expected = f"note: finds 2 libraries of {libs.name}, on the index, by RPATH" if asks else "warning: "
    assert finding.startswith(expected)


SMALL = library("libsmall.so")
MANYLINUX, LATER, MUSL = "manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "musllinux_1_2_x86_64"


def thin_for(folder: Path, platform: str, *requires: str) -> Path:
    """A wheel for *platform* with these requirements, and no library."""
    lines = "".join(f"Requires-Dist: {line}\n" for line in requires or ("demo-libs==1.0",))
    return wheel(folder, f"demo-1.0-cp311-cp311-{platform}.whl", metadata=lines)


def libs_for(folder: Path, platform: str, *, start: str = "demo_libs-1.0", label: str = "") -> Path:
    """A wheel of one library for *platform*, which is neither the first of its members nor the first in ELF."""
    files: dict[str, bytes | str] = {
        "demo_libs/__init__.py": "",
        "demo_libs/damaged.so": b"\x7fELF",
        "demo_libs/libsmall.so": SMALL,
    }
    return wheel(folder, f"{start}-py3-none-{platform}{label}.whl", files)


def required(path: Path, *, indexes: Indexes | None = None) -> list[RequiredWheel]:
    fetch = partial(download_best, indexes=indexes) if indexes else None
    with open_wheel(path) as opened:
        return [*required_wheels(opened, fetch=fetch)]


@pytest.mark.parametrize(
    ("own", "libs", "missing"),
    [
        (MANYLINUX, "manylinux_2_12_x86_64", None),
        (MANYLINUX, MANYLINUX, None),
        (MANYLINUX, LATER, MANYLINUX),
        (MANYLINUX, MUSL, MANYLINUX),
        (f"{MANYLINUX}.{MUSL}", f"{MANYLINUX}.{MUSL}", None),
        (f"{MANYLINUX}.{MUSL}", f"{LATER}.{MUSL}", MANYLINUX),
        (MUSL, "musllinux_1_1_x86_64", None),
        (MUSL, MUSL, None),
        (MUSL, "musllinux_1_10_x86_64", MUSL),
        (MUSL, "musllinux_2_0_x86_64", MUSL),
        (MUSL, MANYLINUX, MUSL),
        ("linux_x86_64", "linux_x86_64", None),
        ("linux_x86_64", MANYLINUX, "linux_x86_64"),
        (MUSL, "musllinux_1_2_aarch64", MUSL),
    ],
)
def test_libraries_are_for_each_system_of_the_wheel_that_requires_them(
    tmp_path: Path, own: str, libs: str, missing: str | None
) -> None:
    beside = libs_for(tmp_path, libs)
    (found,) = required(thin_for(tmp_path, own))
    assert [*found.libraries] == ["demo_libs/libsmall.so"]
    what = (
        f"requires {beside.name}, beside it, which is for {libs.replace('.', ', ')} only: it does not install on all "
        f"of {missing}, as this wheel does"
    )
    assert found.findings == ((Finding(Severity.ERROR, VerifyRule.NEEDED, (), what),) if missing else ())


def test_requirements_that_do_not_apply_or_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    beside = libs_for(tmp_path, MANYLINUX)
    others = ("not a requirement (", 'demo-libs; sys_platform == "win32"', 'demo-libs; platform_machine == "aarch64"')
    undecided = 'demo-libs; python_version ~= "one"'
    path = thin_for(tmp_path, MANYLINUX, *others, undecided, 'demo-libs==1.0; python_version >= "3.9"')
    assert [found.name for found in required(path)] == [beside.name]


def test_of_several_wheels_beside_it_the_one_that_installs_as_widely_is_taken(tmp_path: Path) -> None:
    (tmp_path / "another.whl").write_text("no name of a wheel, and before those of wheels")
    for platform in ("manylinux_2_12_aarch64", "manylinux_2_39_x86_64", "win_amd64"):
        libs_for(tmp_path, platform)
    libs_for(tmp_path, "manylinux_2_12_x86_64", label="-x86_64_v3")
    libs_for(tmp_path, "manylinux_2_12_x86_64", start="demo_libs-2.0")
    expected = libs_for(tmp_path, MANYLINUX)
    (found,) = required(thin_for(tmp_path, MANYLINUX))
    assert (found.name, found.place, found.findings) == (expected.name, "beside it", ())


def test_of_several_wheels_on_the_index_the_one_that_installs_as_widely_is_taken(tmp_path: Path) -> None:
    files = tmp_path / "published"
    for platform in ("manylinux_2_39_x86_64", "win_amd64"):
        libs_for(files, platform)
    for start in ("demo_libs-0.9", "demo_libs-2.0"):
        libs_for(files, "manylinux_2_12_x86_64", start=start)
    expected = libs_for(files, MANYLINUX)
    write_simple(files, tmp_path / "site")
    with served(tmp_path / "site") as url:
        path = thin_for(tmp_path, MANYLINUX, "other", "demo-libs==1.0")
        (found,) = required(path, indexes=Indexes(index_url=url))
    assert (found.name, found.place, found.findings) == (expected.name, "on the index", ())
