"""What a wheel lacks of the wheel that was published of its version, with modules of a real compiler."""

from pathlib import Path

import pytest

from tests.factories.extensions import library
from tests.factories.ranges import serving, simple_index
from tests.factories.wheels import wheel
from vbuild.verification.model import Finding, Severity
from vbuild.verification.published import against_index, lost
from vbuild.verification.verify import verify

PLAIN = "static int n(int x) { return x + 1; } int PyInit__c(void) { return n(2); }"
DISPATCHED = """
__attribute__((target("avx2"), noinline)) static int wide(int *x) {
    int s = 0; for (int i = 0; i < 64; i++) s += x[i]; return s;
}
int x[64];
int PyInit__c(void) { return __builtin_cpu_supports("avx2") ? wide(x) : 0; }
"""
UNGUARDED = DISPATCHED.replace('__builtin_cpu_supports("avx2")', "x[0]")
NAME = "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
MODULE = "demo/_c.cpython-311-x86_64-linux-gnu.so"


def compiled(source: str) -> bytes:
    return library(None, source=source, flags=("-O3",))


def findings(folder: Path, ours: dict[str, bytes | str], theirs: dict[str, bytes | str]) -> list[tuple[str, str]]:
    found = lost(verify(wheel(folder / "ours", NAME, ours)), wheel(folder / "theirs", NAME, theirs))
    return [(one.severity.value, one.sentence) for one in found]


def test_a_wheel_that_has_everything_lacks_nothing(tmp_path: Path) -> None:
    theirs: dict[str, bytes | str] = {MODULE: compiled(DISPATCHED), "demo/__init__.py": ""}
    assert findings(tmp_path, {**theirs, "demo/more.py": ""}, theirs) == []
    assert findings(tmp_path, theirs, {"demo/_c.abi3.so": compiled(PLAIN)}) == []


def test_run_time_dispatch_that_is_gone_is_an_error(tmp_path: Path) -> None:
    ((severity, sentence),) = findings(tmp_path, {MODULE: compiled(PLAIN)}, {MODULE: compiled(DISPATCHED)})
    assert severity == "error"
    assert "has code for AVX" in sentence


def test_code_of_theirs_that_everybody_runs_is_their_fault_and_no_loss(tmp_path: Path) -> None:
    assert findings(tmp_path, {MODULE: compiled(PLAIN)}, {MODULE: compiled(UNGUARDED)}) == []


def test_a_module_that_became_python_is_an_error_and_a_missing_file_a_warning(tmp_path: Path) -> None:
    theirs: dict[str, bytes | str] = {MODULE: compiled(PLAIN), "demo/table.bin": b"1"}
    found = findings(tmp_path, {"demo/_c.py": ""}, theirs)
    assert [severity for severity, _ in found] == ["error", "warning"]
    assert "1 of 1 compiled modules of the published wheel are missing; 1 of them became Python" in found[0][1]
    assert "demo/table.bin" in found[1][1]


@pytest.mark.parametrize(
    ("name", "is_found"),
    [
        (NAME, True),
        ("demo-1.0-cp39-abi3-manylinux_2_17_x86_64.whl", True),
        ("demo-1.0-cp312-cp312-manylinux_2_28_x86_64.whl", False),
        ("demo-1.0-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("demo-1.0-cp311-cp311-manylinux_2_28_aarch64.whl", False),
        ("demo-1.1-cp311-cp311-manylinux_2_28_x86_64.whl", False),
    ],
)
def test_the_wheel_of_this_version_python_and_platform_is_taken_from_the_index(
    name: str, *, is_found: bool, tmp_path: Path
) -> None:
    published = wheel(tmp_path / "published", name, {"demo/_c.so": compiled(PLAIN)})
    ours = wheel(tmp_path / "ours", NAME)
    with serving(simple_index(tmp_path / "index", published)) as server:
        found = against_index(verify(ours), tmp_path / "fetched", lambda: server.indexes)
    assert [finding.severity for finding in found][:1] == ([Severity.ERROR] if is_found else [Severity.NOTE])
    assert is_found or "no index has a wheel of demo 1.0" in found[0].what


def test_an_index_that_cannot_be_asked_is_a_note(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        indexes = server.indexes
    found: tuple[Finding, ...] = against_index(verify(wheel(tmp_path, NAME)), tmp_path / "fetched", lambda: indexes)
    assert [finding.severity for finding in found] == [Severity.NOTE]
    assert "not compared with the published wheel" in found[0].what
