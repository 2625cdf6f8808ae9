"""Published wheels that choose code at run time, judged as anybody gets them: with no baseline build to compare."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from vbuild.dispatch.isa import Isa
from vbuild.elf.code import Elf
from vbuild.hardware.cpu import Cpu
from vbuild.verification.model import Severity, VerifyRule
from vbuild.verification.verify import verify

pytestmark = [pytest.mark.network, pytest.mark.slow]

WHEELS = {"numpy": "numpy==2.4.*", "rapidfuzz": "rapidfuzz==3.14.*", "scipy": "scipy==1.17.*"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "--dest", str(folder), *WHEELS.values()], check=True, capture_output=True)
    return folder


def wheel(cache: Path, project: str) -> Path:
    return next(cache.glob(f"{project}-*.whl"))


def test_numpy_and_its_openblas_keep_to_v2(cache: Path) -> None:
    verdict = verify(wheel(cache, "numpy"), cpu=Cpu.parse("x86-64-v2"))
    assert [str(one) for one in verdict.findings if one.severity is Severity.ERROR] == []
    accepted = {Path(library.member).name.partition(".")[0].partition("-")[0]: library for library in verdict.libraries}
    assert accepted["libscipy_openblas64_"].functions_above > 1500
    assert accepted["_multiarray_umath"].functions_above > 1000


def test_scipy_with_its_stripped_libgfortran_keeps_to_v2(cache: Path) -> None:
    verdict = verify(wheel(cache, "scipy"), cpu=Cpu.parse("x86-64-v2"))
    assert [str(one) for one in verdict.findings if one.severity is Severity.ERROR] == []
    # matmul for AVX2 and AVX-512, chosen by what libgcc noted of the processor; no function there has a name
    assert any("libgfortran" in library.member and library.functions_above > 50 for library in verdict.libraries)


def test_rapidfuzz_with_its_libraries_for_avx2_keeps_to_the_baseline(cache: Path) -> None:
    verdict = verify(wheel(cache, "rapidfuzz"), cpu=Cpu.parse("x86-64"))
    assert not verdict.failed
    reasons = {library.member: dict(library.accepted) for library in verdict.libraries if library.accepted}
    assert reasons
    assert all(
        "avx2" in member and list(found) == ["in a library named for its level"] for member, found in reasons.items()
    )


def test_numpy_does_not_keep_to_the_baseline_and_the_functions_are_named(cache: Path) -> None:
    verdict = verify(wheel(cache, "numpy"), cpu=Cpu.parse("x86-64"))
    above = [one for one in verdict.findings if one.rule is VerifyRule.ISA_ABOVE]
    assert verdict.failed
    assert all(
        re.search(r"needs .*SSE.* \(v2\), above the claimed x86-64: \d+ functions?: \w+", one.what) for one in above
    )


def test_every_instruction_with_512_bits_that_objdump_shows_is_in_a_function_found(cache: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel(cache, "numpy")) as archive:
        name = next(name for name in archive.namelist() if "_multiarray_umath" in name)
        path = Path(archive.extract(name, tmp_path))
    dump = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", path], check=True, capture_output=True, text=True
    ).stdout
    shown = [int(line.partition(":")[0], 16) for line in dump.splitlines() if "%zmm" in line]
    found: set[int] = set()
    for region in Isa.scan(Elf.parse(path.read_bytes())).regions:
        if any(feature.startswith("AVX512") for feature in region.features):
            found.update(range(region.region.address, region.region.address + len(region.region.data)))
    assert len(shown) > 10_000
    assert found.issuperset(shown)
