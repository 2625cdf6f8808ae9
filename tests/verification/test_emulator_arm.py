"""qemu-aarch64 as judge of Arm versions, on a machine of another kind: what its processors have, and wheels in them."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.factories.arm import arm_object, arm_python
from tests.factories.extensions import MODULE
from tests.factories.level_copies import leveled_wheel
from tests.factories.tools import needs
from vbuild.hardware.cpu import AARCH64_FEATURES, Cpu
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.model import Check
from vbuild.verification.emulator import Emulator
from vbuild.verification.level_emulation import LevelReport
from vbuild.verification.level_runs import LevelSettings, run_levels

pytestmark = [
    needs("qemu-aarch64", "aarch64-linux-gnu-gcc"),
    pytest.mark.skipif(os.uname().machine == "aarch64", reason="a machine of this kind"),
]

ARM, NEWER = Cpu.parse("armv8-a"), Cpu.parse("armv8.1-a")
NAME = "demo-1.0-cp311-cp311-manylinux_2_17_aarch64.whl"
# AT_HWCAP's bits (arch/arm64/include/uapi/asm/hwcap.h)
HWCAPS = {"CRC32": 7, "LSE": 8, "RDM": 12, "JSCVT": 13, "FCMA": 14, "LRCPC": 15, "DOTPROD": 20, "SVE": 22}
ADDS = """
__attribute__((noinline)) void adds(long *x)
{
    __asm__ volatile(".arch armv8.1-a\\nldadd x1, x2, [%0]" : : "r"(x) : "x2");
}
__attribute__((constructor)) static void begins(void) { static long x; adds(&x); }
"""
GUARDED = f"#include <sys/auxv.h>\n{ADDS.replace('adds(&x)', 'if (getauxval(16) & 1 << 8) adds(&x)')}"


@pytest.fixture(scope="module")
def emulator() -> Emulator:
    found = Emulator.on_path("aarch64")
    assert found
    return found


@pytest.mark.parametrize("name", ["armv8-a", "armv8.1-a", "armv8.4-a", "armv9-a"])
def test_a_processor_has_the_features_of_its_version_as_linux_tells_programs(
    tmp_path: Path, emulator: Emulator, name: str
) -> None:
    cpu = Cpu.parse(name)
    if why := emulator.why_not(cpu):
        pytest.skip(why)
    source = '#include <stdio.h>\n#include <sys/auxv.h>\nint main(void) { printf("%lu", getauxval(16)); }'
    program = tmp_path / "program"
    subprocess.run(
        ["aarch64-linux-gnu-gcc", "-static", "-x", "c", "-", "-o", program], input=source, text=True, check=True
    )
    said = subprocess.run([*emulator.command(cpu), program], capture_output=True, text=True, check=True)
    has = {feature for feature, bit in HWCAPS.items() if int(said.stdout) >> bit & 1}
    assert has == (cpu.features | emulator.passing(cpu)) & HWCAPS.keys()


def test_a_version_is_judged_only_by_a_processor_that_has_all_of_it(emulator: Emulator) -> None:
    assert "LSE" not in emulator.passing(ARM)
    assert emulator.passing(ARM) >= {"CRC32", "AES"}
    unknown = Emulator(emulator.path.with_name("true"), "0", "aarch64")
    assert unknown.why_not(NEWER) == f"{unknown} cannot judge {NEWER}: it does not run CRC32, LOR, LSE, RDM"
    assert emulator.why_not(NEWER) is None
    assert set(AARCH64_FEATURES["8.1a"]) <= NEWER.features


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        (
            {"UV_PYTHON_INSTALL_DIR": "/nowhere"},
            "no Python 3.11 of aarch64; expected one of `uv python install cpython-3.11-linux-aarch64-gnu`",
        ),
        ({"PATH": "/nowhere"}, "qemu-aarch64 is not installed; Debian and Ubuntu have it in qemu-user"),
    ],
)
def test_what_is_missing_for_another_machine_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], why: str
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    monkeypatch.delenv("QEMU_LD_PREFIX", raising=False)
    report = ran(tmp_path, ADDS, ARM)
    here = os.uname().machine
    assert report.notes == (f"for aarch64, and this machine is {here}: nothing was run: {why}",)
    assert (report.ok, report.summary) == (True, "not tried")


def ran(folder: Path, source: str, cpu: Cpu, check: Check | None = None) -> LevelReport:
    """What becomes of a wheel with the module demo._c, of *source*, on a processor of *cpu*."""
    code = arm_object(MODULE + source, "-Wl,--allow-shlib-undefined")
    files: dict[str, bytes | str] = {"demo/__init__.py": "", "demo/_c.abi3.so": code}
    wheel = leveled_wheel(folder, files, name=NAME)
    settings = LevelSettings(check=check or Check(), cpu=cpu)
    return run_levels(wheel, settings, indexes=lambda: Indexes(no_index=True))


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with an aarch64 Python 3.11 and its libraries."""
    python = arm_python(tmp_path_factory.mktemp("arm"))
    if python is None or not python[-1].endswith("3.11"):
        pytest.skip("no aarch64 Python 3.11 to be had from the distribution's mirror")
    return Path(python[2])


@needs("apt-get", "dpkg-deb")
@pytest.mark.network
@pytest.mark.nightly
def test_code_above_the_version_stops_in_the_emulator_and_is_named(
    tmp_path: Path, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QEMU_LD_PREFIX", str(prefix))
    report = ran(tmp_path / "above", ADDS, ARM)
    (run,) = report.runs
    (where,) = run.illegal
    assert where.startswith("ldadd, ldclr, ldset ... (.inst 0xf8")
    assert where.endswith(" (LSE) in adds of demo/_c.abi3.so")
    assert run.failures == (f"import: demo._c: the process was ended by SIGILL; SIGILL at {where}",)
    assert report.summary == "fails as 8a"
    tests = Check("python -c 'import os, sys, demo._c; print(os.uname().machine)'")
    for name, source, cpu in (("newer", ADDS, NEWER), ("guarded", GUARDED, ARM)):
        report = ran(tmp_path / name, source, cpu, tests)
        assert (report.ok, report.summary) == (True, f"works as {cpu.level}")
        assert (report.runs[0].imported, report.runs[0].is_tested) == (("demo", "demo._c"), True)


@needs("apt-get", "dpkg-deb")
@pytest.mark.network
@pytest.mark.nightly
def test_a_python_that_uv_has_installed_for_the_machine_is_found(
    tmp_path: Path, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = tmp_path / "libraries"
    (libraries / "usr").mkdir(parents=True)
    for name in ("lib", "usr/lib"):
        (libraries / name).symlink_to(prefix / name)
    monkeypatch.setenv("QEMU_LD_PREFIX", str(libraries))
    home = tmp_path / "pythons" / "cpython-3.11.2-linux-aarch64-gnu"
    home.parent.mkdir()
    home.symlink_to(prefix / "usr")
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(home.parent))
    report = ran(tmp_path, GUARDED, ARM)
    assert (report.ok, report.summary) == (True, "works as 8a")
