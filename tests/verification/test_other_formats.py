"""Wheels for Windows and macOS: what is not disassembled is not called ok, and GPU code is checked."""

import struct
from pathlib import Path

from tests.factories.fatbins import cubin, entry, fatbin
from tests.factories.wheels import contents, wheel
from tests.factories.windows import device_dll, needs_mingw
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.gpu import GpuList
from vbuild.slimming.request import Share
from vbuild.slimming.slim import slim
from vbuild.verification.model import Severity, VerifyRule
from vbuild.verification.verify import verify

# the header of a dynamic library for arm64 without load commands
MACHO = struct.pack("<8I", 0xFEEDFACF, 0x0100000C, 0, 6, 0, 0, 0, 0)


def macos_wheel(folder: Path) -> Path:
    return wheel(folder, "demo-1.0-cp313-cp313-macosx_11_0_arm64.whl", {"demo/fast.so": MACHO + bytes(64)})


def test_wheel_whose_code_is_not_understood_is_not_checked(tmp_path: Path) -> None:
    verdict = verify(macos_wheel(tmp_path))
    assert (verdict.outcome, verdict.isa) == ("not checked", "not checked")
    assert verdict.summary == "instruction sets not checked; the rest ok"
    found = verdict.findings[0]
    assert (found.severity, found.rule) == (Severity.WARNING, VerifyRule.ISA_UNCHECKED)
    assert found.what == "instruction sets: not checked: no segment __TEXT, which each program and library has"


@needs_mingw
def test_code_for_a_system_on_which_the_wheel_is_not_installed_is_named_and_not_judged(tmp_path: Path) -> None:
    files = {"demo/a.dll": device(90)}
    there = verify(wheel(tmp_path / "windows", "demo-1.0-py3-none-win_amd64.whl", files))
    assert [one.member for one in there.libraries] == ["demo/a.dll"]
    (note,) = (one for one in there.findings if one.rule is VerifyRule.NEEDED)
    assert note.what.startswith("of Windows files (PE), machine, names of modules and what they take from Python were")
    verdict = verify(wheel(tmp_path / "linux", "demo-1.0-py3-none-manylinux_2_28_x86_64.whl", files))
    assert (verdict.outcome, verdict.libraries, verdict.gpus) == ("ok", (), ())
    (note,) = (one for one in verdict.findings if one.rule is VerifyRule.ISA_UNCHECKED)
    assert note.places == ("demo/a.dll",)
    assert note.what == "Windows files (PE) in a wheel for other systems, which load none of them: not checked"


def test_level_that_nobody_can_check_is_an_error(tmp_path: Path) -> None:
    verdict = verify(macos_wheel(tmp_path), cpu=Cpu.parse("x86-64-v3"))
    assert verdict.outcome == "failed"


def test_slim_does_not_call_a_wheel_for_macos_one_for_any_machine(tmp_path: Path) -> None:
    (result,) = slim([macos_wheel(tmp_path / "in")], tmp_path / "out", shares=(Share(GpuList.asked("sm_90")),))
    assert result.why_untouched == "its compiled files are for macOS or 32-bit Windows, which slim does not change"


def device(*archs: int) -> bytes:
    return device_dll(fatbin(*(entry(arch=arch, code=cubin(arch, 4096)) for arch in archs)))


@needs_mingw
def test_gpus_that_a_windows_variant_claims_are_checked(tmp_path: Path) -> None:
    made = wheel(tmp_path / "in", "demo-1.0-py3-none-win_amd64.whl", {"demo/a.dll": device(80, 90)})
    (result,) = slim([made], tmp_path / "out", shares=(Share(GpuList.asked("sm_80"), "sm80"),))
    assert result.path
    assert verify(result.path).gpu == "ok, for 80_real"
    files = {path: data for path, data in contents(result.path).items() if not path.endswith("RECORD")}
    wrong = wheel(tmp_path / "wrong", result.name, {**files, "demo/a.dll": device(90)})
    assert verify(wrong).gpu == "failed"
