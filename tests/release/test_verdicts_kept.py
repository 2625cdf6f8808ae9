"""A verdict written as JSON and read again is the same verdict."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.fatbins import device_library, entry, fatbin
from tests.factories.texts import CHARACTERS
from tests.factories.variants import document, metadata, variant
from tests.factories.wheels import dist_info_of, wheel
from vbuild.gpu_code.coverage import Amount, Coverage
from vbuild.gpu_code.fatbin import FatbinKind
from vbuild.hardware.architectures import Arch
from vbuild.hardware.cpu import AARCH64_VERSIONS, X86_64_LEVELS, Cpu
from vbuild.hardware.driver import ANY_DRIVER, Dotted
from vbuild.verification.model import Finding, LibraryGpus, LibraryIsa, Severity, Verdict, VerifyRule, Violation
from vbuild.verification.verify import verify

NAME = "demo-1.0-py3-none-manylinux_2_17_x86_64.whl"


def again(verdict: Verdict) -> Verdict:
    return Verdict.of_data(json.loads(json.dumps(verdict.data())), verdict.wheel)


texts = st.text(CHARACTERS, max_size=5)
lists = st.lists(texts, max_size=3).map(tuple)
counts = st.integers(0, 2**70)
cpus = st.sampled_from(
    [Cpu("x86_64", level) for level in X86_64_LEVELS] + [Cpu("aarch64", level) for level in AARCH64_VERSIONS]
)
findings = st.builds(
    Finding, st.sampled_from(Severity), st.sampled_from(VerifyRule), st.just(()) | st.tuples(texts), texts, texts
)
violations = st.builds(Violation, texts, counts.map(hex), lists, lists)
accepted = st.dictionaries(texts, counts, max_size=3)
isas = st.builds(
    LibraryIsa, texts, texts, counts, st.none() | texts, accepted, st.lists(violations, max_size=2).map(tuple), lists
)
amounts = st.builds(Amount, counts, counts)
drivers = st.none() | st.just(ANY_DRIVER) | st.builds(Dotted, st.integers(1, 99), st.integers(0, 9))
served = st.builds(Coverage, st.integers(1, 999).map(Arch), amounts, amounts, amounts, amounts, drivers)
gpus = st.builds(LibraryGpus, texts, counts, lists, lists, st.lists(served, max_size=2).map(tuple), lists)
verdicts = st.builds(
    Verdict,
    st.just(Path("dist") / NAME),
    st.none() | cpus,
    st.booleans(),
    st.lists(findings, max_size=3).map(tuple),
    st.lists(isas, max_size=2).map(tuple),
    st.lists(gpus, max_size=2).map(tuple),
    lists,
)


@given(verdicts)
def test_every_verdict_comes_back(verdict: Verdict) -> None:
    assert again(verdict) == verdict
    assert again(verdict).data() == verdict.data()


def made(folder: Path, library: bytes, *properties: str) -> Path:
    name = NAME.replace(".whl", "-demo.whl") if properties else NAME
    members: dict[str, bytes | str] = {"demo/libdemo.so": library}
    members[f"{dist_info_of(name)}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: demo\nRoot-Is-Purelib: false\nTag: py3-none-manylinux_2_17_x86_64\n"
    )
    if properties:
        namespaces = dict.fromkeys(text.split(" :: ")[0] for text in properties)
        described = document(variant("demo", *properties), metadata=metadata(*namespaces))
        members[f"{dist_info_of(name)}/variant.json"] = described.pack()
    return wheel(folder, name, members)


LIBRARY = device_library(fatbin(entry(FatbinKind.CUBIN, 80), entry(FatbinKind.PTX, 90)))


@pytest.mark.parametrize(
    "properties",
    [(), ("nvidia :: sm_arch :: 80_real", "nvidia :: sm_arch :: 90_real"), ("x86_64 :: level :: v3",)],
    ids=["plain", "gpus", "cpu"],
)
def test_verdicts_on_wheels_with_gpu_code_come_back(properties: tuple[str, ...], tmp_path: Path) -> None:
    verdict = verify(made(tmp_path, LIBRARY, *properties))
    assert verdict.gpus
    assert again(verdict) == verdict
    assert (again(verdict).isa, again(verdict).gpu, again(verdict).failed) == (
        verdict.isa,
        verdict.gpu,
        verdict.failed,
    )
