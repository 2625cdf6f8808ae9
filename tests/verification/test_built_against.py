"""What `verify` says of the symbols that a wheel takes from a package it was built against, such as torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.extensions import library, module
from tests.factories.tools import needs
from tests.factories.variants import document, metadata, variant
from tests.factories.wheels import wheel
from vbuild.verification.model import VerifyRule
from vbuild.verification.verify import verify

pytestmark = needs("gcc")

TAG = "py3-none-manylinux_2_17_x86_64"
MODULE = {"demo/_c.so": module("libc10.so", source="int old(void), all(void); int use(void) { return old() + all(); }")}
RELEASES = {
    "2.11.0": "int old(void) { return 1; } int all(void) { return 2; }",
    "2.12.1": "int all(void) { return 2; } int newer(void) { return 3; }",
}


@pytest.fixture
def releases(tmp_path: Path) -> Path:
    """A folder with two releases of torch, the newer without a function of the older."""
    for version, source in RELEASES.items():
        wheel(tmp_path, f"torch-{version}-{TAG}.whl", {"torch/lib/libc10.so": library("libc10.so", source=source)})
    return tmp_path


def built_for(folder: Path, value: str, requires: str = "torch") -> Path:
    claim = document(
        variant(f"torch{value}", f"abi_dependency :: torch :: {value}"), metadata=metadata("abi_dependency")
    )
    files = {**MODULE, "demo-1.0.dist-info/variant.json": claim.pack()}
    return wheel(folder, f"demo-1.0-{TAG}-torch{value}.whl", files, metadata=f"Requires-Dist: {requires}\n")


def said(path: Path, *, environment: Path | None = None) -> list[str]:
    findings = verify(path, environment=environment).findings
    return [f"{found.severity}: {found.what}" for found in findings if found.rule is VerifyRule.DEPENDENCY]


BOTH = "takes 2 symbols from torch: 2.11.0, beside it, has all of them; 2.12.1, beside it, lacks 1, so it does not load"


def test_a_claim_is_compared_with_the_symbols_of_each_release_beside_it(releases: Path) -> None:
    assert said(built_for(releases, "2.11")) == [f"note: claims torch 2.11, and {BOTH} there: old"]
    assert said(built_for(releases, "2.12")) == [f"error: claims torch 2.12, and {BOTH} there: old"]


@pytest.mark.parametrize(("requires", "severity"), [("torch>=2", "warning"), ("torch==2.11.*", "note")])
def test_a_requirement_is_a_claim_less_sure(releases: Path, requires: str, severity: str) -> None:
    plain = wheel(releases, f"demo-1.0-{TAG}.whl", MODULE, metadata=f"Requires-Dist: {requires}\n")
    assert said(plain) == [f"{severity}: {BOTH} there: old"]


def test_what_no_release_at_hand_shows_is_not_told(releases: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    alone = tmp_path_factory.mktemp("alone")
    why = "no torch beside it or in the active environment has a library that it needs"
    assert said(built_for(alone, "2.11")) == [f"note: claims torch 2.11: cannot tell from symbols: {why}"]
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (torch,) = releases.glob("torch-2.11*.whl")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(torch)]
    subprocess.run(command, check=True)
    claim = "note: claims torch 2.11, and takes 2 symbols from torch: 2.11.0, installed, has all of them"
    assert said(built_for(alone, "2.11"), environment=environment) == [claim]


def test_a_symbol_of_the_cpp_library_is_no_fault_of_a_release(releases: Path) -> None:
    names = ("_ZNSs4swapERSs", "_ZNKRSt1x3strEv", "_ZSt3endv", "_ZTVSt9exception", "_Znwm")
    source = f"int all(void), {', '.join(f'{name}(void)' for name in names)};"
    source += f"int use(void) {{ return all() + {' + '.join(f'{name}()' for name in names)}; }}"
    path = wheel(releases, f"demo-1.0-{TAG}.whl", {"demo/_c.so": module("libc10.so", source=source)})
    all_of_them = "has all of them"
    texts = [f"{version}, beside it, {all_of_them}" for version in RELEASES]
    assert said(path) == [f"note: takes 1 symbol from torch: {'; '.join(texts)}"]


def test_a_symbol_that_only_another_needed_library_can_have_is_no_fault_of_a_release(releases: Path) -> None:
    source = "int all(void), theirs(void), _ZNSt5x(void); int use(void) { return all() + theirs() + _ZNSt5x(); }"
    more = module("libc10.so", "libother.so.1", source=source)
    path = wheel(releases, f"demo-1.0-{TAG}.whl", {"demo/_c.so": more}, metadata="Requires-Dist: torch\n")
    kept = [text for text in said(path) if "lacks" not in text]
    assert kept == [
        "note: takes 1 symbol from torch: 2.11.0, beside it, has all of them; 2.12.1, beside it, has all of them"
    ]
