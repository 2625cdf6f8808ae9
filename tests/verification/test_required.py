"""What `verify` says of thin wheels: their libraries are in wheels that they require, beside them or on an index."""

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import LINUX, NAME, release
from tests.factories.sources import served
from tests.factories.tools import needs
from tests.factories.wheels import wheel
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.packages import download_best
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.split import split
from vbuild.verification.model import VerifyRule
from vbuild.verification.verify import verify
from vbuild.wheel.simple_index import write_simple

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


def thin(folder: Path, libraries: Mapping[str, bytes]) -> tuple[Path, Path]:
    """A wheel whose *libraries*, of which it needs the first, moved to the other one beside it."""
    files: dict[str, bytes | str] = {"demo/_c.so": module(next(iter(libraries)), source=CALLS)}
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
