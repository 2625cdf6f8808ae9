"""How much of a wheel's code a level changes, with a real compiler."""

from pathlib import Path

import pytest

from tests.factories.extensions import library
from tests.factories.wheels import wheel
from vbuild.verification.model import LibraryIsa, Verdict
from vbuild.verification.other_builds import CodeGain, WheelGain, code_gain

NAME = "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
SUM = "float f(const float *x, int n) { float s = 0; for (int i = 0; i < n; i++) s += x[i]; return s; }\n"
CALLS = "int g(int); static int y; int h(int x) { y += x; return g(x) + 1; }\n"


def gain(folder: Path, source: str, *flags: str, plain: str | None = None) -> WheelGain:
    """The gain of a wheel whose library is compiled with *flags*, over one of *plain*, or the same source, without."""
    made = library(None, source=source, flags=("-O3", "-ffast-math", *flags))
    other = library(None, source=plain or source, flags=("-O3", "-ffast-math"))
    ours = wheel(folder / "ours", NAME, {"demo/_c.so": made})
    return code_gain(ours, wheel(folder / "plain", NAME, {"demo/_c.so": other}), jobs=1)


def test_code_that_became_vector_code_is_counted_in_bytes(tmp_path: Path) -> None:
    found = gain(tmp_path, SUM, "-march=x86-64-v3")
    assert 0 < found.whole.vector < found.whole.changed <= found.whole.size
    (finding,) = found.findings
    assert "vector code" in finding.what
    assert not found.whole.is_little


def test_a_level_that_changes_nothing_is_said_to(tmp_path: Path) -> None:
    found = gain(tmp_path, CALLS, "-march=x86-64-v3")
    assert found.whole.changed == 0
    assert next(found.findings).what == "no gain from this level: the code is that of the plain build"


@pytest.mark.parametrize("flag", ["-O1", "-mtune=znver3"])
def test_code_that_is_arranged_otherwise_without_an_instruction_of_the_level_brings_nothing(
    flag: str, tmp_path: Path
) -> None:
    source = CALLS.replace("+ 1", "* 77 / 5") + "int k(int x) { return h(x) % 7 * g(x); }\n"
    found = gain(tmp_path, source, flag)
    assert found.whole.changed
    (finding,) = found.findings
    assert finding.severity == "warning"
    assert finding.what.startswith("no gain from this level: ")
    assert finding.what.endswith(" differs from the plain build's, by no instruction that is the level's own")
    verdict = Verdict(Path(NAME), None, claimed=True, findings=(finding,), libraries=(LibraryIsa("c", "x", 1, "v1"),))
    assert verdict.isa == "ok, no gain"


def test_functions_that_the_plain_build_also_has_for_newer_processors_are_no_gain(tmp_path: Path) -> None:
    dispatched = SUM.replace("float f", '__attribute__((target("avx2"))) float f')
    found = gain(tmp_path, dispatched + CALLS, plain=dispatched.replace("s = 0", "s = 1") + CALLS)
    assert found.whole.is_nothing
    assert not gain(tmp_path / "more", dispatched + CALLS, plain=CALLS).whole.is_nothing


@pytest.mark.parametrize(
    "before", ["int first(int x) { return x * 77; }\n", "static int z[999]; int *p(void) { return z; }\n"]
)
def test_addresses_that_move_are_no_difference(before: str, tmp_path: Path) -> None:
    found = gain(tmp_path, before + CALLS, plain=CALLS + before)
    assert found.whole.changed == 0


def test_a_module_without_the_mark_whose_code_is_the_plain_builds_was_not_compiled_here(tmp_path: Path) -> None:
    module = CALLS + "void *PyInit_c(void) { return y + (char *)0; }\n"
    plain = library(None, source=module, flags=("-O3",))
    marked = library(None, source=SUM, flags=("-O3", "-march=x86-64-v3", "-Wl,-z,x86-64-v3"))
    ours = wheel(tmp_path / "ours", NAME, {"demo/c.so": plain, "demo/d.so": marked})
    other = wheel(
        tmp_path / "plain", NAME, {"demo/c.so": plain, "demo/d.so": library(None, source=SUM, flags=("-O3",))}
    )
    found = code_gain(ours, other, jobs=1)
    assert found.bypassed == ("demo/c.so",)
    assert "it lacks the mark of the level" in next(found.findings).what
    without = wheel(tmp_path / "alone", NAME, {"demo/c.so": plain})
    assert code_gain(without, other, jobs=1).bypassed == ()


def test_each_library_has_its_own_gain(tmp_path: Path) -> None:
    same, sums = library(None, source=CALLS, flags=("-O3",)), library(None, source=SUM, flags=("-O3", "-ffast-math"))
    fast = library(None, source=SUM, flags=("-O3", "-ffast-math", "-march=x86-64-v3"))
    ours = wheel(tmp_path / "ours", NAME, {"demo/a.so": same, "demo/b.so": fast})
    found = code_gain(ours, wheel(tmp_path / "plain", NAME, {"demo/a.so": same, "demo/b.so": sums}), jobs=1)
    whole, first, second = found.findings
    assert (whole.places, first.places, second.places) == ((), ("demo/a.so",), ("demo/b.so",))
    assert first.what == "no gain from this level: the code is that of the plain build"
    assert found.libraries["demo/b.so"].changed == found.whole.changed > 0
    assert isinstance(found.whole, CodeGain)
