"""Wheels with GPU code, compared with the GPUs that their variant claims."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.factories.bundles import GFX90A, GFX942, HOST, bundle
from tests.factories.elf import MODULE, shared_object
from tests.factories.fatbins import device_library, entry, fatbin
from tests.factories.gpu_offers import offers
from tests.factories.variants import document, metadata, variant
from tests.factories.wheels import dist_info_of, wheel
from vbuild.gpu_code.fatbin import FatbinFlag, FatbinKind
from vbuild.hardware.architectures import Arch
from vbuild.hardware.gpu import GpuCodeKind
from vbuild.verification.model import Severity, Verdict
from vbuild.verification.verify import verify

SAMPLES = Path(__file__).parents[1] / "samples" / "fatbins"
NAME = "demo-1.0-py3-none-manylinux_2_17_x86_64.whl"
MEMBER = "demo/libdemo.so"
KINDS = {GpuCodeKind.MACHINE: FatbinKind.CUBIN, GpuCodeKind.PTX: FatbinKind.PTX, GpuCodeKind.OTHER: FatbinKind.LTO_IR}
SUFFIXES = {"": 0, "a": FatbinFlag.ARCH_SPECIFIC, "f": FatbinFlag.ARCH_FAMILY}


def library(*fatbins: str, flags: int = 0, wrapped: Sequence[int] | None = None) -> bytes:
    """A library with a fatbin for each of *fatbins*, which list its entries in short: ``80 90a ptx90``."""
    return device_library(
        *(
            fatbin(
                *(
                    entry(KINDS[one.code], one.arch.number, flags=flags | SUFFIXES[one.arch.suffix])
                    for one in offers(text)
                    if isinstance(one.arch, Arch)
                )
            )
            for text in fatbins
        ),
        wrapped=wrapped,
    )


def made(folder: Path, files: Mapping[str, bytes] | bytes, *claims: str) -> Path:
    """A wheel of these libraries; a variant of these properties, NVIDIA's or AMD's, if there are any."""
    name = NAME.replace(".whl", "-gpus.whl") if claims else NAME
    members: dict[str, bytes | str] = dict({MEMBER: files} if isinstance(files, bytes) else files)
    members[f"{dist_info_of(name)}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: demo\nRoot-Is-Purelib: false\nTag: py3-none-manylinux_2_17_x86_64\n"
    )
    if any(claim.startswith("sm_arch") for claim in claims) and not any("lower_bound" in claim for claim in claims):
        claims = (*claims, "cuda_version_lower_bound :: 14.0")  # without one, verify says which it misses
    if claims:
        properties = [claim if claim.startswith("amd") else f"nvidia :: {claim}" for claim in claims]
        namespaces = sorted({each.partition(" ")[0] for each in properties})
        described = document(variant("gpus", *properties), metadata=metadata(*namespaces))
        members[f"{dist_info_of(name)}/variant.json"] = described.pack()
    return wheel(folder, name, members)


def found(verdict: Verdict) -> list[str]:
    """The findings about GPU code, as the verdict's JSON has them, each without its member if that is the library."""
    texts = []
    for one in verdict.data()["findings"]:
        member = "" if one["member"] in {MEMBER, None} else f"{one['member']}: "
        if one["rule"].startswith("gpu"):
            assert (one["member"] is None) == (one["rule"] == "gpu-claim")
            texts.append(f"{one['severity']}: {member}{one['what']} [{one['rule']}]")
    return texts


def real(*numbers: int) -> tuple[str, ...]:
    return tuple(f"sm_arch :: {number}_real" for number in numbers)


def test_a_claim_that_every_fatbin_keeps_is_fine(tmp_path: Path) -> None:
    verdict = verify(made(tmp_path, library("80 86 90", "80 90a"), *real(80, 90)))
    assert (found(verdict), verdict.gpu, verdict.failed) == ([], "ok, for 80_real, 90_real", False)
    (gpus,) = verdict.gpus
    assert (gpus.member, gpus.fatbins, gpus.machine, gpus.ptx) == (
        MEMBER,
        2,
        ("sm_80", "sm_86", "sm_90", "sm_90a"),
        (),
    )
    assert [f"{served.device}: {served}" for served in gpus.served] == [
        f"sm_{number}: all of its GPU code" for number in (80, 86, 90)
    ]


def test_a_plain_wheel_states_its_gpus_and_promises_nothing(tmp_path: Path) -> None:
    verdict = verify(made(tmp_path, library("80 ptx80", "90a")))
    assert (found(verdict), verdict.gpu) == ([], "not claimed")
    (gpus,) = verdict.gpus
    assert (gpus.machine, gpus.ptx) == (("sm_80", "sm_90a"), ("sm_80",))
    assert [(str(one.device), str(one)) for one in gpus.served] == [
        ("sm_80", "all of its GPU code but 1 fatbin for other architectures alone"),
        ("sm_90", "all of its GPU code, 1 fatbin by JIT"),
    ]


def test_a_wheel_without_gpu_code_says_so(tmp_path: Path) -> None:
    verdict = verify(made(tmp_path, shared_object(MODULE)))
    assert (verdict.gpu, verdict.gpus) == ("no code", ())


@pytest.mark.parametrize(
    ("fatbins", "claims", "finding"),
    [
        (
            ["80 ptx80", "80"],
            real(75),
            (
                "error: 75_real is claimed, but none of its fatbins (2) has code for sm_75;"
                " they have sm_80, PTX for sm_80 [gpu-missing]"
            ),
        ),
        (
            ["90a"],
            real(100),
            (
                "error: 100_real is claimed, but none of its fatbins (1) has code for sm_100;"
                " they have sm_90a [gpu-missing]"
            ),
        ),
        (
            ["80 ptx80", "80 ptx80"],
            real(90),
            "error: 90_real is claimed, but 2 of 2 fatbins have only PTX for sm_90, compiled at first use [gpu-jit]",
        ),
        (
            ["80 ptx80", "90"],
            real(90),
            "warning: 90_real is claimed, but 1 of 2 fatbins have only PTX for sm_90, compiled at first use [gpu-jit]",
        ),
        (
            ["80", "90", "80"],
            real(90),
            (
                "warning: 90_real is claimed, but only 1 of 3 fatbins have code for it:"
                " kernels of the others do not run there [gpu-missing]"
            ),
        ),
        (
            ["80 90"],
            ("sm_arch :: 90_virtual",),
            "error: 90_virtual is claimed, but none of its fatbins (1) has PTX that runs on sm_90 [gpu-ptx]",
        ),
        (
            ["80 ptx100", "90"],
            ("sm_arch :: 90_virtual",),
            "error: 90_virtual is claimed, but none of its fatbins (2) has PTX that runs on sm_90 [gpu-ptx]",
        ),
        (
            ["80 ptx80", "90"],
            ("sm_arch :: 90_virtual",),
            "note: 1 of 2 fatbins have no PTX that runs on sm_90 [gpu-ptx]",
        ),
        (
            ["89 ptx89"],
            (*real(89), "sm_arch :: 89_virtual"),
            "error: nvidia :: sm_arch :: 89_virtual matches no GPU; expected 80_virtual, which is for 8.x [gpu-claim]",
        ),
        (
            ["103"],
            (*real(103), "sm_arch :: 103_virtual"),
            (
                "error: nvidia :: sm_arch :: 103_virtual matches no GPU;"
                " expected 100_virtual, which is for 10.x [gpu-claim]"
            ),
        ),
        (
            ["90a"],
            (*real(90), "sm_arch :: 90a_real"),
            "error: nvidia :: sm_arch :: 90a_real matches no GPU; expected 90_real, 90_virtual ... [gpu-claim]",
        ),
        (
            ["90"],
            (*real(90), "cuda_version_lower_bound :: now"),
            (
                "error: nvidia :: cuda_version_lower_bound :: now: no version 'now';"
                " expected two numbers with a dot, as in 12.8 [gpu-claim]"
            ),
        ),
    ],
)
def test_a_claim_that_the_code_does_not_keep_is_found(
    tmp_path: Path, fatbins: list[str], claims: tuple[str, ...], finding: str
) -> None:
    verdict = verify(made(tmp_path, library(*fatbins), *claims))
    assert found(verdict) == [finding]
    assert verdict.failed == (finding.startswith("error"))
    assert verdict.gpu.startswith(
        "failed" if verdict.failed else "in part, for " if "but only" in finding else "ok, for "
    )


def test_ptx_that_runs_keeps_a_virtual_claim(tmp_path: Path) -> None:
    assert found(verify(made(tmp_path, library("80 ptx80", "ptx90"), "sm_arch :: 90_virtual"))) == []


def test_a_library_for_other_gpus_is_a_warning_beside_one_with_machine_code(tmp_path: Path) -> None:
    files = {"demo/new.so": library("90"), "demo/old.so": library("80 ptx80"), "demo/next.so": library("100f")}
    verdict = verify(made(tmp_path, files, *real(90)))
    assert [(one.place, one.severity, one.rule) for one in verdict.findings if one.rule.startswith("gpu")] == [
        ("demo/old.so", Severity.WARNING, "gpu-jit"),
        ("demo/next.so", Severity.WARNING, "gpu-missing"),
    ]
    assert [[str(one) for one in gpus.served] for gpus in verdict.gpus] == [
        ["none", ALL, "none"],
        [ALL, f"{ALL}, by JIT", f"{ALL}, by JIT"],
        ["none", "none", ALL],
    ]


def test_what_repair_added_does_not_keep_the_claim_of_the_projects_own_code(tmp_path: Path) -> None:
    files = {"demo/own.so": library("80"), "demo.libs/libother.so": library("80 90")}
    assert verify(made(tmp_path, files, *real(90))).failed
    assert not verify(made(tmp_path, {"demo.libs/libother.so": library("80 90")}, *real(90))).failed


def test_a_claim_without_any_gpu_code_is_a_warning(tmp_path: Path) -> None:
    verdict = verify(made(tmp_path, shared_object(MODULE), *real(80, 90)))
    assert found(verdict) == ["warning: no GPU code: nothing in it is for 80_real, 90_real [gpu-claim]"]


@pytest.mark.parametrize(
    ("bound", "is_too_low"), [("12.0", True), ("12", True), ("12.3", True), ("12.4", False), ("13.0", False)]
)
def test_zstd_needs_a_driver_that_reads_it(tmp_path: Path, bound: str, is_too_low: bool) -> None:  # noqa: FBT001 - a row
    variant_ = made(
        tmp_path, library("80 90", flags=FatbinFlag.ZSTD), *real(90), f"cuda_version_lower_bound :: {bound}"
    )
    version = bound if "." in bound else f"{bound}.0"
    what = f"needs the driver of CUDA 12.4 or a newer one; the variant admits that of CUDA {version}"
    assert found(verify(variant_)) == ([f"error: {what} [gpu-driver]"] if is_too_low else [])


def test_what_other_libraries_read_is_not_asked_to_serve_a_gpu(tmp_path: Path) -> None:
    assert found(verify(made(tmp_path, library("90", "other75"), *real(90)))) == []
    (gpus,) = verify(made(tmp_path, library("other75"))).gpus
    assert (gpus.fatbins, gpus.served) == (1, ())


ALL = "all of its GPU code"


def amd_library(*idents: str) -> bytes:
    """A library with a bundle of code for the targets in *idents*."""
    codes = {HOST: b"", **dict.fromkeys(idents, b"\x7fELF" * 16)}
    wrapper = (".hipFatBinSegment", 0x48495046, 1)
    return device_library(bundle(codes), section=".hip_fatbin", wrapper=wrapper, align=4096)


def gfx(*processors: str) -> tuple[str, ...]:
    return tuple(f"amd :: gfx_arch :: {processor}" for processor in processors)


def test_the_code_of_another_vendor_is_stated(tmp_path: Path) -> None:
    (gpus,) = verify(made(tmp_path, amd_library(GFX90A, GFX942))).gpus
    assert gpus.machine == ("gfx90a:xnack+", "gfx942")
    assert {str(served.device): str(served) for served in gpus.served} == dict.fromkeys(("gfx90a", "gfx942"), ALL)


def test_a_claim_of_amds_processors_is_compared_with_the_bundles(tmp_path: Path) -> None:
    kept = verify(made(tmp_path, amd_library(GFX90A, GFX942), *gfx("gfx942", "gfx90a")))
    assert (found(kept), kept.claimed_gpus) == ([], ("gfx90a", "gfx942"))
    broken = verify(made(tmp_path, amd_library(GFX90A), *gfx("gfx90a", "gfx942")))
    what = "gfx942 is claimed, but none of its bundles (1) has code for gfx942; they have gfx90a:xnack+"
    assert found(broken) == [f"error: {what} [gpu-missing]"]


def test_a_processor_that_amd_does_not_have_is_found(tmp_path: Path) -> None:
    verdict = verify(made(tmp_path, amd_library(GFX942), *gfx("gfx942", "gfx94")))
    what = "amd :: gfx_arch :: gfx94 matches no GPU; expected gfx90a, gfx942 ..."
    assert (found(verdict), verdict.claimed_gpus) == ([f"error: {what} [gpu-claim]"], ("gfx942",))


def test_gpus_of_both_vendors_are_listed_as_people_list_them(tmp_path: Path) -> None:
    files = {"demo/a.so": amd_library(GFX942, GFX942.replace("942", "1100")), "demo/b.so": library("90", "80")}
    verdict = verify(made(tmp_path, files, *real(100, 80), *gfx("gfx1100", "gfx90a")))
    assert verdict.claimed_gpus == ("80_real", "100_real", "gfx90a", "gfx1100")
    assert [[str(one.device) for one in gpus.served] for gpus in verdict.gpus] == [
        ["gfx90a", "gfx942", "gfx1100"],
        ["sm_80", "sm_90", "sm_100"],
    ]


@pytest.mark.parametrize(
    ("sample", "machine", "ptx"),
    [
        ("balance.so", ("sm_80", "sm_90"), ("sm_90",)),
        ("packed_relocations.so", ("sm_80", "sm_90"), ("sm_90",)),
        ("relocatable.so", ("sm_80", "sm_90"), ("sm_90",)),
        ("suffixes.so", ("sm_90a", "sm_100f"), ("sm_90a", "sm_100f")),
    ],
)
def test_what_nvcc_made_is_read(tmp_path: Path, sample: str, machine: tuple[str, ...], ptx: tuple[str, ...]) -> None:
    verdict = verify(made(tmp_path, (SAMPLES / sample).read_bytes(), *real(90)))
    (gpus,) = verdict.gpus
    assert (gpus.machine, gpus.ptx, found(verdict)) == (machine, ptx, [])


def test_code_that_the_runtime_is_not_given_is_named(tmp_path: Path) -> None:
    verdict = verify(made(tmp_path, library("80", "80 90", "ptx90", wrapped=[0]), *real(80)))
    beside = [f"{code} outside of what CUDA's runtime is given" for code in ("sm_80", "sm_90", "PTX for sm_90")]
    assert verdict.gpu_codes == ("sm_80", *beside)


def test_damaged_gpu_code_is_a_warning(tmp_path: Path) -> None:
    data = device_library(fatbin(entry(FatbinKind.CUBIN, 90)), fatbin(entry(FatbinKind.CUBIN, 90, version=9)))
    verdict = verify(made(tmp_path, data))
    (finding,) = found(verdict)
    assert finding.startswith("warning: GPU code that cannot be read, in 1 places: damaged or unknown fatbin at 0x")
